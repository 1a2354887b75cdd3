"""Greedy iterative geodesic ascent."""

from __future__ import annotations

import torch
from typing_extensions import override

from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.state import Kept
from lit_sparse.coresets.vectors import Vectors

__all__ = ["GIGA"]


class GIGA(CoresetSelector):
    """Coreset selector by greedy iterative geodesic ascent: k steps on the unit sphere towards the sum of all vectors.

    Each step rotates the normalized weighted sum along the geodesic, towards one example, that comes nearest to the
    direction of the full sum; the weights are scaled at the end. Examples may repeat, so the coreset may have fewer than k.

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
        if float(length) == 0:
            return Selection(norms[:0].long(), norms[:0])
        # Weights of unit vectors; the weighted sum of these.
        here = Kept(weights=torch.zeros_like(norms), made=torch.zeros_like(target), trace=[])
        aim = target / length
        for step in self.steps(k, here):
            weights, made = here.weights, here.made
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
                first, second = to_unit - to_made * between, to_made - to_unit * between
                share = (first / (first + second)).clamp(0, 1)
            made = (1 - share) * made + share * unit
            weights *= 1 - share
            weights[which] += share
            stretch = made.norm()
            here.made, here.weights = made / stretch, weights / stretch
            here.trace.append(float((target - target @ here.made * here.made).square().sum()))
        chosen = here.weights.nonzero().squeeze(-1)
        scale = (target @ here.made).clamp_min(0)
        return Selection(chosen, scale * here.weights[chosen] / norms[chosen], here.trace)


#: Squared sine below which two unit vectors are equal.
_SMALL = 1e-12
