"""Examples chosen at random: the baseline of all selectors."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.vectors import Vectors

__all__ = ["Uniform"]


class Uniform(CoresetSelector):
    """Coreset selector that samples k examples without replacement, each with weight N / k: the baseline.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the sampled examples.
        progress: whether to show a progress bar.

    Example:
        >>> Uniform()(torch.randn(10, 3), 5).weights
        tensor([2., 2., 2., 2., 2.])
    """

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        size = vectors.shape[0]
        indices = torch.randperm(size, generator=generator)[:k].to(vectors.device)
        return Selection(indices, torch.full((k,), size / k, dtype=vectors.dtype, device=vectors.device))
