"""Frank-Wolfe coresets."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.state import Kept
from lit_sparse.coresets.vectors import Vectors

__all__ = ["FrankWolfe"]


class FrankWolfe(CoresetSelector):
    r"""Coreset selector that runs k Frank-Wolfe steps with exact line search on a scaled simplex of weights.

    .. math:: \min_w \; \lVert y - \Phi w \rVert^2 \;\text{ with }\; \sum_n \lVert g_n \rVert w_n = \sum_n \lVert g_n \rVert,
        \; w \ge 0

    where g_n, the columns of Phi, are the examples' vectors and y is their sum.

    Each step moves towards one vertex, where a single example has all the weight. Examples may repeat, so the coreset may
    have fewer than k.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples.
        progress: whether to show a progress bar.

    Source: Campbell & Broderick (2019), Automated Scalable Bayesian Inference via Hilbert Coresets, algorithm 2,
    arXiv:1710.05053.
    """

    counted = "steps"

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        target, norms = vectors.total.to(vectors.dtype), vectors.norms.to(vectors.dtype)
        whole = norms.sum()
        here = Kept(weights=torch.zeros_like(norms), made=torch.zeros_like(target), trace=[])
        for step in self.steps(k, here):
            weights, made = here.weights, here.made
            cosines = torch.where(norms > 0, vectors.correlate(target - made) / norms, -torch.inf)
            which = cosines.argmax()
            size = whole / norms[which]
            corner = size * vectors.rows(which.unsqueeze(0))[0]
            if step == 0:
                share = torch.ones_like(size)
            else:
                towards = corner - made
                length = towards.square().sum()
                share = torch.where(length > 0, towards @ (target - made) / length, 0.0).clamp(0, 1)
            weights *= 1 - share
            weights[which] += share * size
            here.made = (1 - share) * made + share * corner
            here.trace.append(float((target - here.made).square().sum()))
            if float(share) == 0:
                break
        chosen = here.weights.nonzero().squeeze(-1)
        return Selection(chosen, here.weights[chosen], here.trace)
