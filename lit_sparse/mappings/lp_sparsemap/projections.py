"""Nearest points of the convex hulls of small factors, with the faces they lie on, in batched torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["project_counts", "project_pairs"]


def project_counts(z: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points nearest to z in the unit cube with ``least <= sum <= most``, and ``I - J`` of each, J its Jacobian.

    The point is ``clip(z - tau, 0, 1)``, where tau is 0 if the limits then hold, and otherwise makes the sum meet the
    limit that was violated. It is found from the sorted values ``z - 1`` and ``z`` of tau at which entries leave 1 and
    reach 0. On entries strictly between 0 and 1, J is the identity, minus the mean if a limit is met.

    Args:
        z: float64 (..., k); an entry of -inf is 0, of +inf is 1.
        least: (...) smallest sum.
        most: (...) largest sum; the entries that are not fixed can reach both.

    Returns:
        (..., k), and symmetric matrices (..., k, k).
    """
    boxed = z.clamp(0.0, 1.0)
    total = boxed.sum(-1)
    goal = torch.minimum(torch.maximum(total, least), most)
    tight = (goal - total).abs() > 0
    v = boxed
    if tight.any():
        v = torch.where(tight.unsqueeze(-1), (z - _threshold(z, goal).unsqueeze(-1)).clamp(0.0, 1.0), boxed)
    inner = ((v > 0) & (v < 1)).to(z.dtype)
    mean = inner * (tight.to(z.dtype) / inner.sum(-1).clamp_min(1.0)).unsqueeze(-1)
    return v, torch.diag_embed(1.0 - inner) + mean.unsqueeze(-1) * inner.unsqueeze(-2)


def _threshold(z: Tensor, goal: Tensor) -> Tensor:
    """Return tau (...) with ``clip(z - tau, 0, 1)`` summing to ``goal``."""
    open_ = z.isfinite()
    ones = (z == torch.inf).sum(-1).to(z.dtype)
    finite = torch.where(open_, z, 0.0)
    weight = open_.to(z.dtype)
    ends, order = torch.cat([finite - 1.0, finite], -1).sort(-1)
    slope = torch.cat([weight, -weight], -1).gather(-1, order).cumsum(-1)  # how fast the sum falls after each end
    falls = slope[..., :-1] * ends.diff(dim=-1)
    sums = (ones + weight.sum(-1)).unsqueeze(-1) - torch.nn.functional.pad(falls.cumsum(-1), (1, 0))
    last = ((sums >= goal.unsqueeze(-1)).sum(-1, keepdim=True) - 1).clamp_min(0)
    steep = slope.gather(-1, last).clamp_min(1.0)
    tau = (ends.gather(-1, last) + (sums.gather(-1, last) - goal.unsqueeze(-1)) / steep).squeeze(-1)
    left = finite - tau.unsqueeze(-1)  # once more from the entries between, to the last digit
    inner = open_ & (left > 0) & (left < 1)
    count = inner.sum(-1)
    rest = goal - ones - (open_ & (left >= 1)).sum(-1)
    exact = (torch.where(inner, finite, 0.0).sum(-1) - rest) / count.clamp_min(1)
    return torch.where(count > 0, exact, tau)


def project_pairs(z: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the maximizers v of ``<v, z> - 1/2 ||v||^2 + coupling * n`` for pairs of binary variables, n the joint marginal.

    The joint marginal n is the probability that both variables are 1. For couplings >= 0 it is as large as possible,
    ``min(v_1, v_2)``; for negative ones as small as possible, ``max(0, v_1 + v_2 - 1)``, which is the same problem for
    v_1 and 1 - v_2.

    Args:
        z: float64 (..., 2); an entry of -inf is 0, of +inf is 1.
        coupling: float64 (...).

    Returns:
        v (..., 2), ``I - J`` (..., 2, 2), n (...), and the derivative of n in v (..., 2).
    """
    apart = coupling < 0
    pull = coupling.abs()
    first = torch.where(apart, z[..., 0] - pull, z[..., 0])
    second = torch.where(apart, 1.0 - z[..., 1], z[..., 1])
    less, more = first + pull <= second, second + pull <= first
    middle = 0.5 * (first + second + pull)
    one = torch.where(less, first + pull, torch.where(more, first, middle)).clamp(0.0, 1.0)
    two = torch.where(less, second, torch.where(more, second + pull, middle)).clamp(0.0, 1.0)
    joined = ~(less | more)
    inner_one, inner_two = (one > 0) & (one < 1), (two > 0) & (two < 1)
    both = joined & inner_one
    half = 0.5 * both.to(z.dtype)
    across = torch.where(apart, half, -half)
    normal = torch.stack([1.0 - inner_one.to(z.dtype) + half, across, across, 1.0 - inner_two.to(z.dtype) + half], -1)
    share = torch.where(joined, 0.5, torch.where(less, 1.0, 0.0)).to(z.dtype)
    least = torch.minimum(one, two)
    slope = torch.stack([torch.where(apart, 1.0 - share, share), 1.0 - share], -1)
    v = torch.stack([one, torch.where(apart, 1.0 - two, two)], -1)
    return v, normal.reshape(*normal.shape[:-1], 2, 2), torch.where(apart, one - least, least), slope
