"""Bit vectors, all of them or those with few ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import Count, check_count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.budget_sparsemax import map_budget
from lit_sparse.kernels.kbest import best_bits
from lit_sparse.kernels.oracles import BITS, TIE, CompiledOracle
from lit_sparse.structures.base import CountConstraint, Structure, best_by_search, coarse_scores, less_the_largest

__all__ = ["BitVector", "Budget", "TopK"]


class _Bits(Structure):
    """Bits whose number is the field d, None to read it from the scores."""

    d: int | None

    @property
    @override
    def size(self) -> int | None:
        return self.d

    @override
    def scores_from_logits(self, logits: Tensor) -> Tensor:
        return (logits + 1) / 2


@ranges(d=Count())
@dataclass(frozen=True)
class BitVector(_Bits):
    """Structure of all binary vectors of length d; their convex hull is the cube, so SparseMAP clips scores to [0, 1].

    Args:
        d: number of bits; None to read it from the scores.

    Raises:
        ConfigurationError: if ``d`` is not an integer >= 1.

    Example:
        >>> import torch
        >>> BitVector(3).maximize(torch.tensor([[0.5, -1.0, 0.0]])).tolist()
        [[1.0, 0.0, 0.0]]
    """

    has_nested: ClassVar[bool] = True

    d: int | None = None

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best bit vector for each row of scores (B, d), with ones where scores are positive."""
        self.check_call(scores, potentials)
        return (scores > TIE).to(scores.dtype)

    def topk(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best bit vectors of each row, and their number; see :func:`lit_sparse.kernels.kbest.best_bits`."""
        self.check(scores.shape[-1])
        return best_bits(scores, check_count("k", k))

    def project(self, scores: Tensor) -> Tensor:
        """Return the scores (..., d) clipped to [0, 1], the nearest point of the convex hull."""
        inner = torch.nn.functional.hardtanh(scores, 0.0, 1.0)  # has a second derivative, unlike clamp
        return torch.where((scores == 0.0) | (scores == 1.0), scores, inner)  # gradients pass at the ends, as with clamp

    def nested(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities of the bit vectors with ones at the k largest marginals, for k = 0 .. d, and these vectors.

        The probabilities are differences of sorted marginals; for the shapes, see the base class. A row with NaN gives NaN
        to the zero vector.
        """
        ordered, order = marginals.sort(dim=-1, descending=True, stable=True)
        edges = torch.cat([torch.ones_like(ordered[..., :1]), ordered, torch.zeros_like(ordered[..., :1])], -1)
        broken = marginals.isnan().any(-1, keepdim=True)
        steps = torch.where(broken, 0.0, edges[..., :-1] - edges[..., 1:])
        probs = torch.cat([torch.where(broken, torch.nan, steps[..., :1]), steps[..., 1:]], -1)
        rank = order.argsort(-1)
        sizes = torch.arange(marginals.shape[-1] + 1, device=marginals.device)
        return probs, (rank.unsqueeze(-2) < sizes.unsqueeze(-1)).to(marginals.dtype)

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        return [CountConstraint((i,), most=1) for i in range(d)]

    @override
    def compiled(self, potentials: Tensor | None) -> CompiledOracle:
        return CompiledOracle(BITS, budget=2**62)


def nearest_within(scores: Tensor, budget: float) -> Tensor:
    """Return the point nearest to scores (..., d) with entries in [0, 1] that sum to at most ``budget``, differentiable.

    The labels of :data:`~lit_sparse.kernels.budget_sparsemax.map_budget` say how entries depend on the scores: not at all,
    on their own, or on all tied ones.
    """
    point: Tensor
    point, labels = map_budget(scores.detach(), float(budget), 1.0)
    tied = labels == 1
    rest = torch.where(tied, scores - point, 0.0).sum(-1, keepdim=True) / tied.sum(-1, keepdim=True).clamp_min(1)
    moving = torch.where(labels == 0, scores, torch.where(tied, scores - rest, point))
    return point + (moving - moving.detach())


@dataclass(frozen=True)
class Budget(_Bits):
    """Structure of the binary vectors of length d with at most ``budget`` ones.

    Args:
        d: number of bits; None to read it from the scores.
        budget: largest number of ones, 0 .. d.

    Raises:
        ConfigurationError: if ``d`` is not an integer >= 1, or ``budget`` is not an integer in 0 .. d.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, appendix C, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> Budget(3, 1).maximize(torch.tensor([[0.5, -1.0, 2.0]])).tolist()
        [[0.0, 0.0, 1.0]]
    """

    d: int | None
    budget: int

    def __post_init__(self) -> None:
        check_count("budget", self.budget, 0, None if self.d is None else check_count("d", self.d))

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a tight and a loose budget."""
        return [cls(None, 1), cls(None, 3)]

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best vector for each row of scores (B, d): ones at the largest positive ones, ties at the lowest index."""
        self.check_call(scores, potentials)
        kept = min(self.budget, scores.shape[-1])
        order = coarse_scores(scores).sort(dim=-1, descending=True, stable=True).indices[..., :kept]
        chosen = torch.zeros_like(scores).scatter(-1, order, 1.0)
        return chosen * (scores > TIE)

    @override
    def project(self, scores: Tensor) -> Tensor | None:
        """Return the nearest point (..., d) of the convex hull on a GPU; None on the CPU, where a search is faster."""
        return nearest_within(scores, self.budget) if scores.is_cuda else None

    @override
    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) <= self.budget

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        return [CountConstraint(tuple(range(d)), most=min(self.budget, d))]

    @override
    def compiled(self, potentials: Tensor | None) -> CompiledOracle:
        return CompiledOracle(BITS, budget=min(self.budget, 2**62))


@dataclass(frozen=True)
class TopK(_Bits):
    """Structure of the binary vectors of length d with exactly ``k`` ones; see :class:`Budget` for at most k ones.

    Args:
        d: number of bits; None to read it from the scores.
        k: number of ones, 1 .. d.

    Raises:
        ConfigurationError: if ``d`` is not an integer >= 1, or ``k`` is not an integer in 1 .. d.

    Example:
        >>> import torch
        >>> TopK(3, 2).maximize(torch.tensor([[0.5, -1.0, -2.0]])).tolist()
        [[1.0, 1.0, 0.0]]
    """

    d: int | None
    k: int

    def __post_init__(self) -> None:
        check_count("k", self.k, 1, None if self.d is None else check_count("d", self.d))

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: k = 1, whose SparseMAP is sparsemax, and k = 3."""
        return [cls(None, 1), cls(None, 3)]

    @override
    def check(self, d: int) -> None:
        super().check(d)
        if d < self.k:
            raise ConfigurationError(f"Expected at least {self.k} scores, k of {self!r}, but got {d}.")

    @override
    def centered(self, scores: Tensor) -> Tensor:
        return less_the_largest(scores)

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best vector for each row of scores (B, d), with ones at the k largest; ties go to the lowest index.

        Raises:
            ConfigurationError: if fewer than ``k`` entries are allowed.
        """
        return best_by_search(self, scores, potentials, self._largest, f"{self.k} entries", "Allow more, or take a Budget.")

    def _largest(self, scores: np.ndarray) -> tuple[Any, Any]:
        chosen = np.zeros(scores.shape, np.uint8)
        np.put_along_axis(chosen, np.argsort(-scores, axis=-1, kind="stable")[:, : self.k], 1, -1)
        return chosen, (scores > -np.inf).sum(-1) >= self.k

    @override
    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) == self.k

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        return [CountConstraint(tuple(range(d)), least=self.k, most=self.k)]
