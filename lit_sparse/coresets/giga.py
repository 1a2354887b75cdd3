"""Greedy iterative geodesic ascent."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.vectors import Vectors

__all__ = ["GIGA"]


class GIGA(CoresetSelector):
    """Rotates the weighted sum towards the sum of all vectors along the sphere, in k steps, and scales it at the end.

    Each step adds the example whose geodesic comes nearest to the target. Examples may repeat, so the coreset may have fewer
    than k.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples.
        progress: whether to show a progress bar.

    Source: Campbell & Broderick (2018), Bayesian Coreset Construction via Greedy Iterative Geodesic Ascent, algorithm 2,
    arXiv:1802.01737.
    """

    counted = "steps"

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        target, norms = vectors.total.to(vectors.dtype), vectors.norms.to(vectors.dtype)
        length, usable = target.norm(), norms > 0
        weights, made, trace = torch.zeros_like(norms), torch.zeros_like(target), []  # of unit vectors; their weighted sum
        if float(length) == 0:
            return Selection(weights[:0].long(), weights[:0])
        aim = target / length
        for step in self.steps(k):
            tangent = aim - (aim @ made) * made
            size = tangent.norm()
            if float(size) <= torch.finfo(vectors.dtype).eps:
                break
            apart = 1 - (vectors.correlate(made) / norms).square()  # squared sines of the angles to the current sum
            turns = vectors.correlate(tangent / size) / (norms * apart.clamp_min(_SMALL).sqrt())
            turns[~usable | (apart <= _SMALL)] = -torch.inf
            which = turns.argmax()
            if not float(turns[which]) > 0:
                break
            unit = vectors.rows(which.unsqueeze(0))[0] / norms[which]
            if step == 0:
                share = torch.ones_like(size)
            else:
                to_unit, to_made, between = aim @ unit, aim @ made, unit @ made
                here, there = to_unit - to_made * between, to_made - to_unit * between
                share = (here / (here + there)).clamp(0, 1)
            made = (1 - share) * made + share * unit
            weights *= 1 - share
            weights[which] += share
            stretch = made.norm()
            made, weights = made / stretch, weights / stretch
            trace.append(float((target - target @ made * made).square().sum()))
        chosen = weights.nonzero().squeeze(-1)
        scale = (target @ made).clamp_min(0)
        return Selection(chosen, scale * weights[chosen] / norms[chosen], trace)


#: Squared sine below which two unit vectors are equal.
_SMALL = 1e-12
