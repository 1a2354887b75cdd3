"""SparseMAP against enumeration and a second solver, its derivatives, its invalid rows, and both kinds of oracles."""

import warnings

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lit_sparse.mappings import SparseMAP, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree

from .structures import STRUCTURES, WITH_LINKS, Plain, best_of_all, draw, links_for


@pytest.mark.parametrize(("structure", "links_too"), WITH_LINKS)
def test_marginals_equal_those_over_every_structure(structure: Structure, links_too: bool) -> None:
    links = links_for(structure) if links_too else None
    x = draw(24, int(structure.size or 0), seed=1, scale=1.5)
    for gamma in (1.0, 0.4):
        out = F.sparsemap(x, structure, potentials=links, gamma=gamma)
        expected = best_of_all(structure, x, links, gamma)
        torch.testing.assert_close(out.marginals, expected, atol=1e-5, rtol=0)
        _is_feasible(structure, out, x)


def _is_feasible(structure: Structure, out: F.sparsemap, x: Tensor) -> None:  # type: ignore[valid-type]
    marginals, probs, structures = out  # type: ignore[misc]
    assert bool((probs >= 0).all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(x), dtype=x.dtype))
    assert int((probs > 0).sum(-1).max()) <= x.shape[-1] + 1
    assert bool(structure.validate(structures[probs > 0]).all())
    assert bool((structures[probs == 0] == 0).all())
    torch.testing.assert_close(torch.einsum("bs,bsd->bd", probs, structures), marginals)
    for row, used in zip(structures, probs > 0, strict=True):
        assert len(row[used].unique(dim=0)) == int(used.sum()), "a structure stands there twice"
    assert float(out.gap.abs().max()) < 1e-10  # type: ignore[attr-defined]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_an_oracle_in_python_equals_the_compiled_solver(structure: Structure) -> None:
    x = draw(30, int(structure.size or 0), seed=2, scale=1.5)
    links = links_for(structure, per_position=True)
    clean = F.sparsemap(x, Plain(structure), potentials=links).marginals
    x[3, 0], x[5, -1], x[7] = torch.nan, torch.inf, -torch.inf
    first = structure.enumerate()[torch.arange(30) % len(structure.enumerate())]
    for start in (None, first):
        ours = F.sparsemap(x, structure, potentials=links, start=start)
        theirs = F.sparsemap(x, Plain(structure), potentials=links, start=start)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
    leaf = x.clone().requires_grad_()
    y = F.sparsemap(leaf, Plain(structure), potentials=links).marginals
    torch.testing.assert_close(y[8:], clean[8:], rtol=0, atol=1e-14, msg="broken rows leave the others alone")
    (gradient,) = torch.autograd.grad(y.nansum(), leaf)
    assert bool(gradient[8:].isfinite().all())
    assert bool(ours.marginals[[3, 5]].isnan().all())
    assert bool((ours.marginals[7] == 0).all())


@pytest.mark.parametrize("d", [1, 2, 17, 60])
def test_bits_are_clipped(d: int) -> None:
    x = draw(40, d, seed=3)
    for structure in (BitVector(d), Plain(BitVector(d))):
        torch.testing.assert_close(F.sparsemap(x, structure).marginals, x.clamp(0, 1))
        torch.testing.assert_close(SparseMAP(structure)(x), x.clamp(0, 1))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6, 1e30])
def test_bits_of_any_scale(scale: float) -> None:
    """By the active set too, and together with scores that are much larger."""
    x = draw(20, 30, seed=30)
    x[:, ::3] *= scale
    for structure in (BitVector(), Plain(BitVector())):
        torch.testing.assert_close(F.sparsemap(x, structure).marginals, x.clamp(0, 1), rtol=0, atol=1e-7)


def test_one_of_d_is_sparsemax() -> None:
    x = draw(40, 9, seed=4)
    torch.testing.assert_close(SparseMAP(Assignment(rows=1))(x), Sparsemax()(x))


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_batched_equals_one_by_one(structure: Structure) -> None:
    x = draw(12, int(structure.size or 0), seed=5, scale=2.0)
    for kind in (structure, Plain(structure)):
        out = F.sparsemap(x.reshape(3, 4, -1), kind)
        assert out.structures.shape[:2] == (3, 4)
        for i, row in enumerate(x):
            alone = F.sparsemap(row, kind)
            n = len(alone.probs)
            torch.testing.assert_close(out.marginals.reshape(12, -1)[i], alone.marginals)
            torch.testing.assert_close(out.probs.reshape(12, -1)[i, :n], alone.probs)
            assert torch.equal(out.structures.flatten(0, 1)[i, :n], alone.structures)


@pytest.mark.parametrize("kind", [lambda s: s, Plain], ids=["compiled", "oracle"])
def test_a_masked_sequence_equals_the_shorter_one(kind: object) -> None:
    structure, links = Sequence(tags=3), draw(3, 3, seed=6)
    x = draw(8, 7 * 3, seed=7)
    lengths = torch.tensor([7, 1, 2, 3, 4, 5, 6, 0])
    mask = (torch.arange(7) < lengths[:, None]).repeat_interleave(3, -1)
    out = F.sparsemap(x, kind(structure), potentials=links, mask=mask)  # type: ignore[operator]
    for row, length, y in zip(x, lengths.tolist(), out.marginals, strict=True):
        assert bool((y[3 * length :] == 0).all())
        if length:
            short = F.sparsemap(row[: 3 * length], structure, potentials=links)
            torch.testing.assert_close(y[: 3 * length], short.marginals)
    assert float(out.probs[-1, 0]) == 1.0


@pytest.mark.cases(quick=4)
@pytest.mark.parametrize(("structure", "links_too"), WITH_LINKS)
def test_derivatives(structure: Structure, links_too: bool) -> None:
    x = draw(3, int(structure.size or 0), seed=8, scale=1.2).requires_grad_()
    for kind in (structure, Plain(structure)):
        if not links_too:
            function = lambda x: F.sparsemap(x, kind).marginals  # noqa: B023, E731
            assert gradcheck(function, x, check_forward_ad=True, atol=1e-5)
            assert gradgradcheck(function, x, atol=1e-10, rtol=1e-5, fast_mode=True)
            continue
        links = links_for(structure, per_position=True)
        assert links is not None
        links.requires_grad_()
        both = lambda x, links: F.sparsemap(x, kind, potentials=links, gamma=0.7).marginals  # noqa: B023, E731
        assert gradcheck(both, (x, links), check_forward_ad=True, atol=1e-5)
        assert gradgradcheck(both, (x, links), atol=1e-10, rtol=1e-5, fast_mode=True)


@pytest.mark.parametrize("structure", [Sequence(3, tags=2), Budget(5, 2), Assignment(3, 3)], ids=repr)
def test_derivatives_of_probabilities(structure: Structure) -> None:
    """They belong to the support at hand."""
    x = draw(4, int(structure.size or 0), seed=9).requires_grad_()
    out = F.sparsemap(x, structure)
    weights = draw(*out.probs.shape, seed=10)
    (got,) = torch.autograd.grad((out.probs * weights).sum(), x)
    for i in range(4):
        used = out.probs[i] > 0
        a = out.structures[i][used]
        ones = torch.ones(len(a), 1, dtype=x.dtype)
        system = torch.cat([torch.cat([a @ a.T, ones], 1), torch.cat([ones.T, torch.zeros(1, 1, dtype=x.dtype)], 1)])
        solved = torch.linalg.lstsq(system, torch.cat([weights[i][used], torch.zeros(1, dtype=x.dtype)])[:, None]).solution
        if torch.linalg.matrix_rank(system) == len(system):
            torch.testing.assert_close(got[i], a.T @ solved[:-1, 0])


def test_potentials_of_each_row() -> None:
    structure, x, links = Sequence(3, tags=2), draw(4, 6, seed=11), draw(4, 1, 2, 2, seed=12).requires_grad_()
    out = F.sparsemap(x, structure, potentials=links)
    (got,) = torch.autograd.grad(out.marginals.square().sum(), links)
    for i in range(4):
        alone = links[i, 0].detach().requires_grad_()
        mine = F.sparsemap(x[i], structure, potentials=alone)
        torch.testing.assert_close(out.marginals[i], mine.marginals)
        torch.testing.assert_close(got[i, 0], torch.autograd.grad(mine.marginals.square().sum(), alone)[0])


@pytest.mark.parametrize("way", ["compiled", "oracle"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_degenerate_points_stay_finite_and_right(structure: Structure, way: str) -> None:
    kind = structure if way == "compiled" else Plain(structure)
    d = int(structure.size or 0)
    points = [
        torch.zeros(d),
        torch.ones(d),
        torch.full((d,), 0.5),
        -torch.ones(d),
        torch.arange(d) % 2 * 1.0,
        torch.full((d,), 1e-12),
    ]
    x = torch.stack([point.double() for point in points]).requires_grad_()
    for links in (None, links_for(structure), None if links_for(structure) is None else torch.zeros(2, 2, dtype=x.dtype)):
        if links is not None and links.shape[-1] != getattr(structure, "tags", 0):
            continue
        out = F.sparsemap(x, kind, potentials=links)
        torch.testing.assert_close(out.marginals, best_of_all(structure, x.detach(), links), atol=1e-5, rtol=0)
        _is_feasible(structure, out, x)
        (gradient,) = torch.autograd.grad((out.marginals * draw(6, d, seed=13)).sum() + out.probs.square().sum(), x)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_a_warm_start_gives_the_same_marginals(structure: Structure) -> None:
    x = draw(20, int(structure.size or 0), seed=14, scale=1.5)
    links = links_for(structure)
    for kind in (structure, Plain(structure)):
        cold = F.sparsemap(x, kind, potentials=links)
        again = F.sparsemap(x, kind, potentials=links, start=cold, max_iter=1)  # nothing is left to look for
        torch.testing.assert_close(again.marginals, cold.marginals)
        near = F.sparsemap(x + draw(*x.shape, seed=15, scale=0.1), kind, potentials=links, start=cold)
        torch.testing.assert_close(
            near.marginals, F.sparsemap(x + draw(*x.shape, seed=15, scale=0.1), kind, potentials=links).marginals
        )
        other = structure.enumerate()[torch.arange(20) % len(structure.enumerate())]
        torch.testing.assert_close(F.sparsemap(x, kind, potentials=links, start=other).marginals, cold.marginals)


def test_a_warning_tells_the_gap_when_iterations_run_out() -> None:
    x = draw(5, 20, seed=16)
    for structure in (BitVector(20), Plain(BitVector(20))):
        with pytest.warns(RuntimeWarning, match=r"max_iter=2 .* gap of up to \d"):
            out = F.sparsemap(x, structure, max_iter=2)
        distance = (out.marginals - x.clamp(0, 1)).square().sum(-1)
        assert bool((distance <= 2 * out.gap + 1e-12).all()), "the gap bounds the distance"
        assert float(out.gap.max()) > 1e-3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            F.sparsemap(x, structure)


@pytest.mark.parametrize("structure", [Sequence(20, tags=3), Assignment(6, 6), Assignment(4, 7), Tree(6)], ids=repr)
@pytest.mark.parametrize("shift", [2.0**20, 2.0**40])
def test_offsets_that_all_structures_share_cost_no_digits(structure: Structure, shift: float) -> None:
    x = (draw(8, int(structure.size or 0), seed=35) * 1024).round() / 1024
    out = F.sparsemap(x + shift, structure)
    torch.testing.assert_close(out.marginals, F.sparsemap(x, structure).marginals, rtol=0, atol=1e-9)
    assert float(out.gap.max()) < 1e-12
    invalid = x.clone()
    invalid[0, 0], invalid[1, 0], invalid[2, 1] = torch.nan, torch.inf, -torch.inf
    got = F.sparsemap(invalid, structure).marginals
    assert bool(got[:2].isnan().all()) and float(got[2, 1]) == 0.0 and bool(got[2:].isfinite().all())


@pytest.mark.parametrize(
    "structure",
    [BitVector(6), Budget(6, 2), Sequence(3, tags=2), Assignment(3, 3), Tree(3), Tree(3, single_root=False)],
    ids=repr,
)
def test_rounding_does_not_choose_the_support(structure: Structure) -> None:
    """At generic points too structures tie within the method, when residuals are equal: noise must not break such ties."""
    x = draw(900, int(structure.size or 0), seed=36)
    calm, noisy = F.sparsemap(x, structure), F.sparsemap(x + 1e-13 * draw(*x.shape, seed=37), structure)
    size = max(calm.probs.shape[1], noisy.probs.shape[1])
    probs = [torch.nn.functional.pad(out.probs, (0, size - out.probs.shape[1])) for out in (calm, noisy)]
    changed = int(((probs[0] - probs[1]).abs() > 1e-6).any(-1).sum())
    assert changed == 0


class _Ising(Structure):
    """Pairs of bits with a score for both: all points of the square, and potentials in its interior."""

    has_potentials = True

    def batch_potentials(self, potentials: Tensor, d: int) -> Tensor:
        return potentials.reshape(-1, 1)

    def potential_scores(self, structures: Tensor, potentials: Tensor) -> Tensor:
        return structures.prod(-1) * potentials

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        every = self.enumerate(scores.shape[-1]).to(scores)
        extra = 0.0 if potentials is None else self.potential_scores(every, potentials)
        return every[(scores @ every.T + extra).argmax(-1)]


def test_dependent_structures_enter_a_full_support() -> None:
    """With potentials d + 1 structures need not be the last word: another takes the place of one."""
    for d in (2, 3, 4):
        x, links = 0.5 + 0.5 * draw(60, d, seed=d), 0.5 * draw(60, seed=d + 40)
        out = F.sparsemap(x, _Ising(), potentials=links)
        assert float(out.gap.max()) < 1e-12
        every = _Ising().enumerate(d)
        extra = every.prod(-1) * links.unsqueeze(-1)
        residual = x - out.marginals
        inner = (out.marginals * residual).sum(-1) + (out.probs * out.structures.prod(-1) * links.unsqueeze(-1)).sum(-1)
        assert float(((residual @ every.T + extra).amax(-1) - inner).max()) < 1e-12


def test_a_start_under_another_mask_is_dropped() -> None:
    x = torch.tensor([[-1.0, -2.0, -1.0, -3.0, -2.0, -2.0]])
    masked = F.sparsemap(x, Sequence(tags=2), mask=torch.tensor([[True] * 4 + [False] * 2]))
    assert F.sparsemap(x, Sequence(tags=2), start=masked).marginals.tolist() == [[1.0, 0.0, 1.0, 0.0, 0.5, 0.5]]
