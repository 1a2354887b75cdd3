"""Examples chosen at random: what every other selector has to beat."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.vectors import Vectors

__all__ = ["Uniform"]


class Uniform(CoresetSelector):
    """Draws k examples without replacement, each of which stands for N / k.

    Args:
        refit: choose the weights anew in the end, the best nonnegative ones for the drawn examples.
        progress: show a progress bar.

    Example:
        >>> Uniform()(torch.randn(10, 3), 5).weights
        tensor([2., 2., 2., 2., 2.])
    """

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        size = vectors.shape[0]
        indices = torch.randperm(size, generator=generator)[:k].to(vectors.device)
        return Selection(indices, torch.full((k,), size / k, dtype=vectors.dtype, device=vectors.device))
