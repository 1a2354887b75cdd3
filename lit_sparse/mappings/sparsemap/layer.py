"""SparseMAP (Niculae, Martins, Blondel & Cardie 2018): sparse distributions over structures, and their marginals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_count, check_positive, check_tensor
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.torch_internals import on_batches
from lit_sparse.mappings.masking import allowed_scores, mark_invalid
from lit_sparse.mappings.potentials import PotentialMapping, as_potentials, warn_of_iterations
from lit_sparse.mappings.sparsemap.solver import StructureProblem, potential_counts
from lit_sparse.structures import Assignment, BitVector, Budget, Structure
from lit_sparse.structures import Sequence as TagSequence
from lit_sparse.structures.base import as_structure

__all__ = ["SparseMAP", "SparseMAPOutput", "sparsemap"]


@dataclass(frozen=True)
class SparseMAPOutput:
    """Sparse distribution over structures for each row; unpacks to ``marginals, probs, structures``.

    Attributes:
        marginals: (..., d) mean of the distribution, unique.
        probs: (..., S) probabilities, zero beyond a row's own support; S is the largest support. Not unique: other
            distributions may have the same mean.
        structures: (..., S, d) of {0, 1}, zero beyond a row's own support.
        gap: (...) duality gap, an upper bound of the possible improvement of the objective. It is a rounding error
            unless ``max_iter`` was reached.
        entries: (..., S, D) structures with all D entries, if ``structures`` holds only d of them.
    """

    marginals: Tensor
    probs: Tensor
    structures: Tensor
    gap: Tensor
    entries: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.marginals, self.probs, self.structures)


def sparsemap(
    scores: Tensor,
    structure: Structure,
    *,
    potentials: Tensor | Sequence[Any] | None = None,
    gamma: float = 1.0,
    mask: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    start: SparseMAPOutput | Tensor | None = None,
) -> SparseMAPOutput:
    r"""Return the sparse distribution over structures whose mean is nearest to the scores.

    .. math:: \max_{\xi \in \Delta} \; \langle \mu, x \rangle + \langle e, \xi \rangle - \tfrac{\gamma}{2} \lVert \mu \rVert^2,
        \qquad \mu = \sum_s \xi_s a_s

    where x are the scores, a_s the structures, binary vectors, xi_s their probabilities, and e_s is the score that the
    potentials add to structure s. Solved by the active-set method: at most d + 1 structures have a probability above
    zero, usually a handful. Differentiable in scores and potentials, to any order.

    Args:
        scores: (..., d) floating, one for each entry of a structure. Divided by gamma, differences below 2e-9 count as
            ties, at any scale of the scores.
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        potentials: further scores, for structures that have them, such as transition scores of the tags in a
            ``Sequence``.
        gamma: strength of the regularizer, > 0. The smaller, the fewer structures.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed. Structures have zeros elsewhere.
        max_iter: maximum number of structures searched for a row; if it is reached, there is a warning.
        tol: error of the marginals to reach, in Euclidean distance.
        start: where to start: an earlier result (a warm start) or one structure per row, (..., D); by default the best
            structure for the scores. The probabilities depend on it, the marginals do not.

    Returns:
        Marginals, probabilities and structures. NaN or +inf at an allowed entry makes its own row NaN and no other; in
        a row with nothing allowed, the only structure is all zeros.

    Raises:
        ConfigurationError: for an invalid argument, or an oracle that returns an invalid structure.

    Source: Niculae, Martins, Blondel & Cardie (2018), SparseMAP: Differentiable Sparse Structured Inference.

    Example:
        >>> import torch
        >>> from lit_sparse.structures import Budget
        >>> marginals, probs, structures = sparsemap(
        ...     torch.tensor([0.9, 0.8, -1.0]), Budget(3, budget=1)
        ... )
        >>> [round(p, 2) for p in marginals.tolist()], structures.tolist()
        ([0.55, 0.45, 0.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    """
    max_iter, tol = check_count("max_iter", max_iter), check_positive("tol", tol)
    problem = StructureProblem(as_structure(structure), _start_of(start), max_iter, tol, warn_of_iterations)
    links = None if potentials is None else as_potentials(potentials)
    return _distribution(allowed_scores(scores, mask), problem, links, check_positive("gamma", gamma))


def _start_of(start: SparseMAPOutput | Tensor | None) -> tuple[Tensor, Tensor] | Tensor | None:
    if start is None or isinstance(start, Tensor):
        return start
    if isinstance(start, SparseMAPOutput):
        return start.entries, start.probs
    raise ConfigurationError(
        f"Expected argument `start` to be a structure for each row or an earlier result but got {full_name(start)}."
    )


@on_batches
def _distribution(x: Tensor, problem: StructureProblem, potentials: Tensor | None, gamma: float) -> SparseMAPOutput:
    """Return the result of :func:`sparsemap` for scores (..., d) that are -inf where they are masked."""
    structure = problem.structure
    structure.check(x.shape[-1])
    wide = structure.expand_scores(x)
    rows = structure.centered(wide.reshape(wide.shape[:-1].numel(), wide.shape[-1]).double()) / gamma
    if potentials is not None:
        potentials = structure.batch_potentials(potentials, rows.shape[-1]).double() / gamma
        if len(potentials) not in (1, len(rows)):
            raise ConfigurationError(
                f"Expected potentials for all {len(rows)} rows, or the same for each, but got them for {len(potentials)}."
            )
    marginals, probs, structures, _, gap = problem(rows, potentials)
    batch, dtype = x.shape[:-1], x.dtype
    entries = structures.to(dtype).reshape(*batch, *structures.shape[1:])
    return SparseMAPOutput(
        structure.select_entries(marginals.to(dtype).reshape(wide.shape)),
        probs.to(dtype).reshape(*batch, probs.shape[-1]),
        structure.select_entries(entries),
        (gap * gamma).to(dtype).reshape(batch),
        entries,
    )


class SparseMAP(PotentialMapping):
    """Layer that computes the marginals of a sparse distribution over structures: the nearest point of their convex hull.

    For the objective, see :func:`~lit_sparse.mappings.functional.sparsemap`.

    Args:
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        potentials: further scores for structures that have them, a tensor or nested lists; see the structure.
        learn_potentials: make the potentials a parameter, which starts from ``potentials`` or zeros.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        max_iter: maximum number of structures searched for a row; the first time it is reached, there is a warning.
        tol: error of the marginals to reach, in Euclidean distance.

    Raises:
        ConfigurationError: if an argument is invalid.

    Source: Niculae, Martins, Blondel & Cardie (2018), SparseMAP: Differentiable Sparse Structured Inference.

    Example:
        >>> import torch
        >>> from lit_sparse.structures import Assignment
        >>> scores = torch.tensor([[1.2, 1.0], [0.9, 0.1]])  # two queries, two keys
        >>> weights = SparseMAP(Assignment())(scores.flatten()).reshape(2, 2)
        >>> # Rows and columns sum to one.
        >>> [[round(w, 2) for w in row] for row in weights.tolist()]
        [[0.35, 0.65], [0.65, 0.35]]
    """

    def __init__(
        self,
        structure: Structure,
        *,
        potentials: Tensor | Sequence[Any] | None = None,
        learn_potentials: bool = False,
        gamma: float = 1.0,
        dim: int = -1,
        max_iter: int = 100,
        tol: float = 1e-6,
    ) -> None:
        structure = as_structure(structure)
        values = None if potentials is None else structure.check_potentials(as_potentials(potentials))
        super().__init__(structure, values, learn_potentials, gamma=gamma, dim=dim, max_iter=max_iter, tol=tol)
        self.structure = structure

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: each structure that can have any number of entries, at several strengths."""
        bits: list[Structure] = [BitVector(), *Budget.examples()]
        known = [*bits, TagSequence(select=1), TagSequence(tags=3, select=0), Assignment(1)]
        links = torch.tensor([[0.3, -0.2], [0.0, 0.4]], dtype=torch.float64)
        more = [cls(Budget(None, 2), gamma=0.5), cls(TagSequence(select=1), potentials=links)]
        return [cls(structure) for structure in known] + more

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Return the marginals along ``dim``; see :func:`sparsemap`."""
        x = allowed_scores(scores, mask, dim).movedim(dim, -1)
        self.structure.check(x.shape[-1])
        if x.is_meta or x.shape[-1] == 0 or (x.numel() == 0 and self.potentials is None):
            return (torch.zeros_like(x) if x.is_meta else x).movedim(-1, dim)
        return self._marginals(x).movedim(-1, dim)

    @property
    def couples_queries(self) -> bool:
        """Whether, in attention, the structure spans all queries, so that their weights are computed together."""
        return self.structure.couples_queries

    def map_block(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map attention scores (..., queries, keys), all queries together where the structure couples them."""
        x = allowed_scores(scores, mask)
        if x.numel() == 0 and self.couples_queries:
            return x
        block = self.structure.joint_over_queries(*x.shape[-2:]) if x.dim() > 1 else None
        if block is None:
            return super().map_block(scores, mask)
        if x.is_meta:
            return torch.zeros_like(x)
        return self.solve(x.flatten(-2), structure=block).marginals.reshape(x.shape)

    def _marginals(self, x: Tensor) -> Tensor:
        allowed = x != -torch.inf
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        point = self.structure.project(torch.where(allowed, wide, 0.0) / self.gamma) if self.potentials is None else None
        if point is None:
            return self.solve(x).marginals
        return mark_invalid(wide, torch.where(allowed, point, 0.0)).to(x.dtype)

    def solve(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        *,
        structure: Structure | None = None,
        start: SparseMAPOutput | Tensor | None = None,
    ) -> SparseMAPOutput:
        """Return the distribution over structures along the last dimension; see :func:`sparsemap`.

        Args:
            scores: (..., d).
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
            structure: a structure to use in place of the layer's own.
            start: where to start; see :func:`sparsemap`.
        """
        problem = StructureProblem(structure or self.structure, _start_of(start), self.max_iter, self.tol, self._warn_once)
        return _distribution(allowed_scores(scores, mask), problem, self.potentials, self.gamma)

    def squared_norm(self, y: Tensor, allowed: Tensor) -> Tensor:
        """Return the squared norm (...) of marginals (..., d), including hidden entries, such as tags not selected."""
        return self.structure.squared_norm(y, allowed)

    @override
    def _attained(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert self.potentials is not None
        out = self.solve(x)
        links = self.structure.batch_potentials(self.potentials, out.entries.shape[-1]).double()
        entries = out.entries.reshape(-1, *out.entries.shape[-2:])
        probs = out.probs.reshape(entries.shape[:2])
        counts = potential_counts(self.structure, entries, links.detach().expand(len(entries), *links.shape[1:]), probs)
        gain = (counts * links).flatten(1).sum(-1).reshape(x.shape[:-1])
        whole = torch.einsum("...s,...sd->...d", out.probs, out.entries)
        inner = torch.where(out.marginals != 0, out.marginals * x, 0.0).sum(-1)
        return out.marginals, counts, links.expand_as(counts), inner + gain - 0.5 * self.gamma * whole.square().sum(-1)

    @on_batches
    def loss(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the SparseMAP loss: the Fenchel-Young loss of this mapping for structures as targets.

        Nonnegative, and zero where the target has probability one. Its gradient is the marginals minus the target, and
        in the potentials the expected counts minus the target's counts.

        Args:
            scores: (..., d).
            target: (..., D) of {0, 1}, one structure a row with all its entries.
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

        Returns:
            Tensor (...): inf where the target has a one at a forbidden entry.

        Raises:
            ConfigurationError: if the target has another shape or is not a structure.
        """
        x = allowed_scores(scores, mask)
        wide = self.structure.expand_scores(x.detach())
        target = check_tensor(target, f"structures of shape {tuple(wide.shape)} as target", shape=wide.shape).to(x.dtype)
        everything = torch.ones_like(target, dtype=torch.bool)
        if not bool((self.structure.fits(target, everything) | self.structure.fits(target, wide > -torch.inf)).all()):
            raise ConfigurationError(f"Expected structures of {self.structure!r} as target, but some are not.")
        selected = torch.where(self.structure.select_entries(target) > 0, x, 0.0)
        total = selected.sum(-1) - 0.5 * self.gamma * target.square().sum(-1)
        if self.potentials is not None:
            links = self.structure.batch_potentials(self.potentials, target.shape[-1]).to(x.dtype)
            single = target.reshape(-1, 1, target.shape[-1])
            total = total + self.structure.potential_scores(single, links).reshape(total.shape)
        return self.value_of(x, -1) - total
