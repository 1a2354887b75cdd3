"""Two bits with a score for both being 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.oracles import TIE
from lit_sparse.structures.base import Structure

__all__ = ["Pair"]


@dataclass(frozen=True)
class Pair(Structure):
    """Structure of all pairs of two bits, whose potential is the score of both being 1.

    A positive potential favours both bits, a negative one at most one of them.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[1.0, -0.5]])
        >>> Pair().maximize(scores).tolist(), Pair().maximize(scores, torch.tensor([0.8])).tolist()
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
