"""Nonnegative orthogonal matching pursuit."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.pursuit import NonnegativeFit, Pursuit
from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.vectors import Vectors

__all__ = ["NonnegativeOMP"]


class NonnegativeOMP(CoresetSelector):
    """Coreset selector by orthogonal matching pursuit: adds the example most aligned with the residual, then refits weights.

    Weights are nonnegative: examples whose optimal weight would be negative are removed. The objective decreases in every
    iteration, and is zero up to rounding at the latest when the coreset spans all S dimensions.

    Each iteration costs one product with all vectors.

    Args:
        progress: whether to show a progress bar.

    Source: Pati, Rezaiifar & Krishnaprasad (1993), Orthogonal Matching Pursuit, doi:10.1109/ACSSC.1993.342465. The weights
    follow Lawson & Hanson (1974), Solving Least Squares Problems.

    Example:
        >>> vectors = torch.eye(4, dtype=torch.float64).repeat(2, 1)
        >>> coreset = NonnegativeOMP()(vectors, 4)
        >>> coreset.indices.tolist(), coreset.weights.tolist()
        ([0, 1, 2, 3], [2.0, 2.0, 2.0, 2.0])
    """

    counted = "examples"

    def __init__(self, *, progress: bool = False) -> None:
        super().__init__(progress=progress)

    @classmethod
    @override
    def examples(cls) -> list[NonnegativeOMP]:
        return [cls()]

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        fit = NonnegativeFit(vectors.total, k)
        pursuit = Pursuit(fit, vectors.norms)
        pursuit.run(vectors, k, self.steps(3 * k, pursuit))
        return Selection(fit.indices, fit.weights.to(vectors.dtype), pursuit.trace)
