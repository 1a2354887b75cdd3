"""Entmax whose alpha rises from 1, where it is softmax, to a target."""

from __future__ import annotations

import torch
from torch import nn
from typing_extensions import Self, override

from lit_sparse.checks import Number, check_number, ranges
from lit_sparse.mappings import Entmax
from lit_sparse.mappings.base import SparseMapping

__all__ = ["AnnealedEntmax"]


@ranges(target=Number(1.0, 100.0, open_low=True))
class AnnealedEntmax(Entmax):
    r"""Entmax whose alpha rises from 1, where it is softmax, to a target; alpha is saved with the model's weights.

    .. math:: \alpha = 1 + \mathrm{progress} \cdot (\mathrm{target} - 1)

    where the progress is a number in [0, 1]. For the mapping, see :func:`~lit_sparse.mappings.functional.entmax`.

    :class:`lit_sparse.hf.AlphaAnnealing` raises alpha while a Trainer runs. In a loop of your own, call
    :meth:`set_progress`.

    Args:
        target: alpha at the end, > 1 and <= 100; 2 is sparsemax.
        progress: initial progress, in 0 .. 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Source: after Correia, Niculae & Martins (2019), Adaptively Sparse Transformers, where alpha is learned.

    Example:
        >>> mapping, scores = AnnealedEntmax(1.5), torch.tensor([3.0, 0.0])
        >>> bool((mapping(scores) > 0).all())
        True
        >>> mapping.set_progress(1.0)
        >>> mapping(scores).tolist()
        [1.0, 0.0]
    """

    alpha: nn.Parameter

    def __init__(self, target: float = 1.5, progress: float = 0.0, *, gamma: float = 1.0, dim: int = -1) -> None:
        SparseMapping.__init__(self, gamma=gamma, dim=dim)
        self.target = target
        self.alpha = nn.Parameter(torch.ones(()), requires_grad=False)  # in the state dict, and not trained
        self.set_progress(progress)

    @property
    def progress(self) -> float:
        """The progress of alpha from 1 to its target, in 0 .. 1."""
        return float(self.alpha.detach().double() - 1.0) / (self.target - 1.0)

    def set_progress(self, progress: float) -> None:
        """Set alpha between 1 and its target.

        Args:
            progress: number in 0 .. 1.
        """
        self.alpha.data.fill_(1.0 + (self.target - 1.0) * check_number("progress", progress, 0.0, 1.0))

    @classmethod
    @override
    def examples(cls) -> list[Self]:
        return [cls(), cls(progress=1.0)]
