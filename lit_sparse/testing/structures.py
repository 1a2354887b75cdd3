"""Checks that every structure must pass, as functions that raise otherwise.

For a few entries all binary vectors can be enumerated. The checks compare those that the structure accepts with its results.
The attributes of a structure (``has_potentials``, ``has_nested``) determine which checks apply.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.mappings import SparseMAP
from lit_sparse.mappings import functional as F
from lit_sparse.structures import Structure
from lit_sparse.testing.checks import Checks, check_copies, random_scores, refuses

__all__ = ["STRUCTURE_CHECKS", "check_structure"]

#: Name -> check. Each takes a structure and raises an AssertionError.
STRUCTURE_CHECKS: Checks[Structure] = Checks(Structure)

ROWS, MOST_ENTRIES = 12, 12


def check_structure(structure: Structure) -> None:
    """Run every shared check on a structure, for all numbers of entries up to 12 that it can have.

    Raises:
        AssertionError: if a check fails; the message names it.

    Example:
        >>> from lit_sparse.structures import Budget
        >>> check_structure(Budget(6, 2))
    """
    STRUCTURE_CHECKS.run(structure)


def _sizes(structure: Structure) -> list[int]:
    """Numbers of entries to test, those that a user sees."""
    found = []
    for d in range(1, MOST_ENTRIES + 1):
        try:
            structure.check(d)
        except ValueError:  # as ConfigurationError is
            continue
        if structure.expand_scores(torch.zeros(d)).shape[-1] <= MOST_ENTRIES:
            found.append(d)
    assert found, f"expected a structure that can have {MOST_ENTRIES} entries or fewer, to enumerate its elements"
    return [found[0], *found[1:][-2:]]


def _problems(structure: Structure) -> list[tuple[Tensor, Tensor | None]]:
    """Scores (ROWS, d), and potentials where there are some."""
    problems: list[tuple[Tensor, Tensor | None]] = []
    for d in _sizes(structure):
        scores = random_scores(ROWS, d, seed=d, scale=1.5)
        problems.append((scores, None))
        if structure.has_potentials:
            problems.append((scores, random_scores(*structure.initial_potentials().shape, seed=d + 100, scale=1.0)))
    return problems


def _elements(structure: Structure, allowed: Tensor) -> Tensor:
    """Every vector (S, D) of zeros and ones that the structure accepts where only some entries (D,) are allowed."""
    d = len(allowed)
    every = ((torch.arange(2**d)[:, None] >> torch.arange(d)) & 1).double()
    return every[structure.fits(every, allowed)]


def _totals(structure: Structure, scores: Tensor, potentials: Tensor | None, elements: Tensor) -> Tensor:
    """The total of each of some structures (S, D) for scores (D,), which may be -inf where none of them has a one."""
    gains = torch.where(elements > 0, scores, 0.0).sum(-1)
    if potentials is None:
        return gains
    batched = structure.batch_potentials(potentials, len(scores))
    return gains + structure.potential_scores(elements.unsqueeze(0), batched).squeeze(0)


def _check_best(structure: Structure, scores: Tensor, potentials: Tensor | None) -> None:
    """Check the best structures for rows of scores (B, D) against every element."""
    for row in scores:
        elements = _elements(structure, row > -torch.inf)
        if not len(elements) or not bool((row > -torch.inf).any()):
            continue  # nothing is there to find, and SparseMAP says so, or gives zeros without asking
        found = structure.maximize(row.unsqueeze(0), potentials)[0]
        assert bool((found == elements).all(-1).any()), f"`fits` refuses {found.tolist()}, found for {row.tolist()}"
        totals = _totals(structure, row, potentials, elements)
        mine = _totals(structure, row, potentials, found.unsqueeze(0))[0]
        better = elements[int(totals.argmax())].tolist()
        assert float(totals.max() - mine) <= 1e-7 * (1 + float(mine.abs())), (
            f"expected the best element {better} for {row.tolist()}, of total {float(totals.max())}, but got {found.tolist()}"
            f" of total {float(mine)}; if {better} is not a structure, `validate` must refuse it"
        )


@STRUCTURE_CHECKS.add
def _best(structure: Structure) -> None:
    """``maximize`` returns the best element, also for ties and for scores of very different sizes."""
    for x, potentials in _problems(structure):
        wide = structure.expand_scores(x)
        for scores in (wide, wide.round(), torch.zeros_like(wide[:1]), wide * 1e6, wide - 3.0, wide + 3.0):
            _check_best(structure, scores, potentials)


@STRUCTURE_CHECKS.add
def _forbidden(structure: Structure) -> None:
    """No element has a one where the score is -inf, and the best of those left is found."""
    for x, potentials in _problems(structure):
        for seed in range(3):
            allowed = random_scores(*x.shape, seed=seed, scale=1.0) > -0.7
            _check_best(structure, structure.expand_scores(x.masked_fill(~allowed, -torch.inf)), potentials)


@STRUCTURE_CHECKS.add
def _nothing_allowed(structure: Structure) -> None:
    """A row in which everything is forbidden has marginals of zero, and leaves the others alone."""
    for x, potentials in _problems(structure):
        invalid = x.clone()
        invalid[1] = -torch.inf
        got, whole = F.sparsemap(invalid, structure, potentials=potentials), F.sparsemap(x, structure, potentials=potentials)
        assert bool((got.marginals[1] == 0).all()), "marginals are zero where nothing is allowed"
        assert float(got.probs[1].sum()) == 1.0, "its probabilities sum to one"
        torch.testing.assert_close(got.marginals[2:], whole.marginals[2:], rtol=0, atol=1e-12)


@STRUCTURE_CHECKS.add
def _batches(structure: Structure) -> None:
    """Zeros and ones of the scores' type come back, row by row the same, and scores stay as they were."""
    for x, potentials in _problems(structure):
        wide = structure.expand_scores(x)
        before = wide.clone()
        found = structure.maximize(wide, potentials)
        assert torch.equal(wide, before), "maximize leaves the scores as they are"
        assert found.shape == wide.shape and found.dtype == wide.dtype, "a structure for each row, of the scores' type"
        alone = torch.cat([structure.maximize(row.unsqueeze(0), potentials) for row in wide])
        assert torch.equal(alone, found), "a row does not depend on the others"
        single = structure.maximize(wide.float(), None if potentials is None else potentials.float())
        assert single.dtype == torch.float32, "a structure for each row, of the scores' type"
        assert structure.maximize(wide[:0], potentials).shape == (0, wide.shape[-1]), "an empty batch has no structures"


@STRUCTURE_CHECKS.add
def _enumeration(structure: Structure) -> None:
    """``enumerate`` gives every element once, and ``validate`` accepts each."""
    for d in _sizes(structure):
        wide = structure.expand_scores(torch.zeros(d)).shape[-1]
        every = structure.enumerate(wide)
        accepted = _elements(structure, torch.ones(wide, dtype=torch.bool))
        assert bool(structure.validate(every).all()), "`validate` accepts what `enumerate` gives"
        given, expected = every.tolist(), accepted.tolist()
        assert len({tuple(row) for row in given}) == len(given), "no structure is enumerated twice"
        assert sorted(given) == sorted(expected), "`enumerate` gives what `fits` accepts"


@STRUCTURE_CHECKS.add
def _marginals(structure: Structure) -> None:
    """SparseMAP is optimal among all elements: no other has a larger total for the residual than those in the support."""
    for x, potentials in _problems(structure):
        for gamma, some in ((1.0, False), (0.3, False), (1.0, True)):
            if some:  # forbidden, where that leaves elements in each row
                masked = x.masked_fill(random_scores(*x.shape, seed=9, scale=1.0) < -0.5, -torch.inf)
                wide = structure.expand_scores(masked)
                left = torch.tensor(
                    [bool((row > -torch.inf).any()) and len(_elements(structure, row > -torch.inf)) > 0 for row in wide]
                )
                x = torch.where(left.unsqueeze(-1), masked, x)
            out = F.sparsemap(x, structure, potentials=potentials, gamma=gamma)
            means = torch.einsum("bs,bsd->bd", out.probs, out.entries)
            torch.testing.assert_close(structure.select_entries(means), out.marginals)
            torch.testing.assert_close(out.probs.sum(-1), torch.ones(ROWS, dtype=x.dtype))
            assert bool((out.probs >= 0).all()), "probabilities are not negative"
            for row, mean, probs, entries in zip(structure.expand_scores(x), means, out.probs, out.entries, strict=True):
                elements = _elements(structure, row > -torch.inf)
                residual, links = row - gamma * mean, potentials
                best = _totals(structure, residual, links, elements).max()
                mine = (probs * _totals(structure, residual, links, entries)).sum()
                assert float(best - mine) <= 1e-8, f"for {row.tolist()} a structure outside the support gains {best - mine}"


@STRUCTURE_CHECKS.add
def _derivatives(structure: Structure) -> None:
    """Marginals, first and second derivatives agree with differences, in the scores and the potentials."""
    for x, potentials in _problems(structure)[-2:]:
        point = [x[:3].clone().requires_grad_()]
        if potentials is not None:
            point.append(potentials.clone().requires_grad_())

        def call(x: Tensor, potentials: Tensor | None = None) -> Tensor:
            return F.sparsemap(x, structure, potentials=potentials).marginals

        torch.autograd.gradcheck(call, point, atol=1e-6)
        torch.autograd.gradgradcheck(call, point, atol=1e-10, rtol=1e-5, fast_mode=True)


@STRUCTURE_CHECKS.add
def _shortcuts(structure: Structure) -> None:
    """Specialized methods (projection, k best, nested decomposition) equal those based on ``maximize``."""
    for x, potentials in _problems(structure):
        if potentials is not None:
            continue
        wide = structure.expand_scores(x)
        elements = _elements(structure, torch.ones(wide.shape[-1], dtype=torch.bool))
        point, marginals = structure.project(x), F.sparsemap(x, structure).marginals
        if point is not None:
            torch.testing.assert_close(point, marginals)
            torch.testing.assert_close(SparseMAP(structure)(x), marginals)
        if type(structure).topk is not Structure.topk:
            for k in (1, 3, len(elements) + 2):
                best, counts = structure.topk(wide, k)
                expected = (wide @ elements.T).sort(-1, descending=True).values[:, :k]
                assert bool((counts == expected.shape[-1]).all()), "as many as there are"
                got = torch.einsum("bd,bkd->bk", wide, best)[:, : expected.shape[-1]]
                torch.testing.assert_close(got, expected)
        if structure.has_nested:
            probs, nested = structure.nested(marginals)
            torch.testing.assert_close(torch.einsum("bs,bsd->bd", probs, nested), marginals)
            torch.testing.assert_close(probs.sum(-1), torch.ones(ROWS, dtype=x.dtype))
            assert bool(structure.validate(nested).all()), "nested structures are structures"
            order = nested.sum(-1).argsort(-1).unsqueeze(-1).expand_as(nested)
            assert bool((nested.gather(1, order).diff(dim=1) >= 0).all()), "each contains the one before"


@STRUCTURE_CHECKS.add
def _persistence(structure: Structure) -> None:
    """Pickles and copies are the same structure."""
    problems = _problems(structure)
    check_copies(structure, lambda again: torch.cat([again.maximize(again.expand_scores(x), p).flatten() for x, p in problems]))


@STRUCTURE_CHECKS.add
def _refusals(structure: Structure) -> None:
    """Potentials where there are none, and scores of another length, are refused."""
    if not structure.has_potentials:
        scores, potentials = torch.zeros(_sizes(structure)[0]), torch.zeros(2, 2)
        refuses(lambda: F.sparsemap(scores, structure, potentials=potentials), "potentials", ValueError)
    if structure.size is not None:
        longer = torch.zeros(structure.size + 1)
        refuses(lambda: SparseMAP(structure)(longer), "", ValueError)
