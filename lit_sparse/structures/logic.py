"""Conditions on bits: exactly one, at least one, the last the disjunction of the others; and pairs with a score for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.oracles import TIE
from lit_sparse.structures.base import CountConstraint, Structure, coarse_scores

__all__ = ["Or", "OrOut", "Pair", "Xor"]


def _first_largest(scores: Tensor) -> Tensor:
    """Return a one at the largest score of each row (..., d), the first of equal ones; zeros if all are forbidden.

    Raises:
        ConfigurationError: if there are no entries.
    """
    if not scores.shape[-1]:
        raise ConfigurationError(f"Expected scores of at least one entry but got {tuple(scores.shape)}.")
    best = torch.nn.functional.one_hot(coarse_scores(scores).argmax(-1), scores.shape[-1]).to(scores.dtype)
    return torch.where(scores == -torch.inf, 0.0, best)


@dataclass(frozen=True)
class Xor(Structure):
    """Structure of the binary vectors with exactly one 1; their convex hull is the simplex, so SparseMAP is sparsemax.

    Example:
        >>> import torch
        >>> Xor().maximize(torch.tensor([[-3.0, -1.0, -2.0]])).tolist()
        [[0.0, 1.0, 0.0]]
    """

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best vector for each row of scores (B, d), with its one at the largest; ties go to the lowest index."""
        self.check_call(scores, potentials)
        return _first_largest(scores)

    @override
    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) == 1

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        return [CountConstraint(tuple(range(d)), least=1, most=1)]


@dataclass(frozen=True)
class Or(Structure):
    """Structure of the binary vectors with at least one 1.

    Example:
        >>> import torch
        >>> Or().maximize(torch.tensor([[-3.0, -1.0, -2.0], [1.0, -1.0, 2.0]])).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best vector for each row of scores (B, d): ones at positive ones, or at the largest if there are none."""
        self.check_call(scores, potentials)
        positive = (scores > TIE).to(scores.dtype)
        return torch.maximum(positive, _first_largest(scores))

    @override
    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) >= 1

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        return [CountConstraint(tuple(range(d)), least=1, most=d)]


@dataclass(frozen=True)
class OrOut(Structure):
    """Structure of the binary vectors whose last bit is the disjunction (or) of the others.

    Example:
        >>> import torch
        >>> OrOut().maximize(torch.tensor([[-1.0, -1.0, 2.0], [-1.0, -1.0, 0.5]])).tolist()
        [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """

    @override
    def check(self, d: int) -> None:
        if d < 2:
            raise ConfigurationError(
                f"Expected at least 2 entries for {self!r}, inputs and then their disjunction, but got {d}."
            )

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best vector for each row of scores (B, d), by comparing the zero vector with the best of the others.

        That one has ones at positive scores, or at the largest of the first d - 1 if none of these is positive, and in the
        last bit.
        """
        self.check_call(scores, potentials)
        inputs = scores[..., :-1]
        best = torch.maximum((inputs > TIE).to(scores.dtype), _first_largest(inputs))
        gain = torch.where(best > 0, inputs, 0.0).sum(-1) + scores[..., -1]
        on = (gain > TIE) & (best.sum(-1) > 0)
        return torch.cat([best, torch.ones_like(scores[..., :1])], -1) * on.unsqueeze(-1)

    @override
    def validate(self, structures: Tensor) -> Tensor:
        return (structures[..., :-1].sum(-1) > 0) == (structures[..., -1] > 0)

    @override
    def count_constraints(self, d: int) -> list[CountConstraint]:
        implied = [CountConstraint((i, d - 1), (0,), least=1, most=2) for i in range(d - 1)]
        return [CountConstraint(tuple(range(d)), (d - 1,), least=1, most=d), *implied]


@dataclass(frozen=True)
class Pair(Structure):
    """Structure of all pairs of two bits, whose potential is the score of both being 1.

    A positive potential favours both bits, a negative one at most one of them.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[1.0, -0.5]])
        >>> (
        ...     Pair().maximize(scores).tolist(),
        ...     Pair().maximize(scores, torch.tensor([0.8])).tolist(),
        ... )
        ([[1.0, 0.0]], [[1.0, 1.0]])
    """

    has_potentials: ClassVar[bool] = True

    @property
    @override
    def size(self) -> int:
        return 2

    @override
    def check_potentials(self, potentials: Tensor) -> Tensor:
        super().check_potentials(potentials)
        if potentials.dim() < 1 or potentials.shape[-1] != 1:
            raise ConfigurationError(
                "Expected potentials of shape (1,), the score for both bits, optionally preceded by the dimensions of the"
                f" rows, but got {tuple(potentials.shape)}."
            )
        return potentials

    @override
    def batch_potentials(self, potentials: Tensor, d: int) -> Tensor:
        return self.check_potentials(potentials).reshape(-1, 1)

    @override
    def initial_potentials(self) -> Tensor:
        return torch.zeros(1)

    @override
    def potential_scores(self, structures: Tensor, potentials: Tensor) -> Tensor:
        return structures[..., 0] * structures[..., 1] * potentials

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best of the four pairs of bits for each row of scores (B, 2); ties go to fewer ones, then to the first."""
        self.check_call(scores, potentials)
        both = 0.0 if potentials is None else self.batch_potentials(potentials, 2).to(scores.dtype)
        pairs = scores.new_tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        first, second = scores[:, :1], scores[:, 1:]
        totals = torch.cat([torch.zeros_like(first), first, second, first + second + both], -1)
        near = totals >= totals.amax(-1, keepdim=True) - TIE
        return pairs[near.to(torch.uint8).argmax(-1)]
