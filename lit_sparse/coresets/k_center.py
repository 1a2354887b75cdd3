"""Greedy k-center: examples that leave none far away."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.state import Kept
from lit_sparse.coresets.vectors import Vectors

__all__ = ["KCenter"]


class KCenter(CoresetSelector):
    """Coreset selector by greedy k-center: the largest distance of a vector to the nearest chosen one is small.

    The first example is drawn at random. Each further one is the farthest from the examples chosen so far; the largest
    distance is at most twice the optimum. Its weight is the number of examples that it is nearest to. Equal vectors are
    chosen once, so the coreset may have fewer than k.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the chosen examples.
        progress: whether to show a progress bar.

    Source: Gonzalez (1985), Clustering to Minimize the Maximum Intercluster Distance. Sener & Savarese (2018), Active
    Learning for Convolutional Neural Networks: A Core-Set Approach.

    Example:
        >>> import torch
        >>> vectors = torch.tensor([[0.0, 1.0], [0.0, 1.1], [5.0, 0.0], [5.1, 0.0], [5.2, 0.0]])
        >>> sorted(KCenter()(vectors, 2).weights.tolist())
        [2.0, 3.0]
    """

    counted = "examples"

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        squares = vectors.norms.square()
        first = torch.randint(len(squares), (), generator=generator).to(squares.device)
        none = torch.full_like(squares, torch.inf)
        here = Kept(indices=first.new_empty(0), distances=none, nearest=torch.zeros_like(squares, dtype=torch.int64))
        for step in self.steps(k, here):
            which = first if step == 0 else here.distances.argmax()
            if not float(here.distances[which]) > 0:
                break
            center = vectors.rows(which.unsqueeze(0))[0]
            products = vectors.correlate(center).double()
            rounding = 8 * torch.finfo(vectors.dtype).eps * (squares + squares[which])
            apart = squares + squares[which] - 2 * products
            apart = torch.where(apart > rounding, apart, 0.0)
            nearer = apart < here.distances
            here.nearest = torch.where(nearer, step, here.nearest)
            here.distances = torch.where(nearer, apart, here.distances)
            here.distances[which], here.nearest[which] = 0.0, step
            here.indices = torch.cat([here.indices, which.unsqueeze(0)])
        size = len(here.indices)
        counts = torch.zeros(size, dtype=vectors.dtype, device=squares.device)
        counts.index_add_(0, here.nearest.clamp(0, size - 1), torch.ones_like(squares, dtype=vectors.dtype))
        return Selection(here.indices, counts)
