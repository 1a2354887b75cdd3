"""Slow ways to compute mappings, in float64 numpy: a generic convex solver, bisection, sorting, and central differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import clarabel
import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from tests.support.convex import solved

__all__ = [
    "bisected",
    "central_difference",
    "dense_jacobian",
    "grouped_jacobian",
    "groups_of_equals",
    "maximized",
    "maximized_entropy",
    "projected_by_sorting",
    "random_rows",
]


def random_rows(rows: int, d: int, seed: int, scale: float = 1.0) -> Tensor:
    """Draw scores (rows, d) in float64."""
    return scale * torch.randn(rows, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bisected(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a decreasing function, to the last bit."""
    for _ in range(2000):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) >= 0 else (low, middle)
    return low


def projected_by_sorting(z: np.ndarray) -> np.ndarray:
    """Project one row onto the simplex: the textbook algorithm."""
    ranked = np.sort(z)[::-1]
    k = np.arange(1, len(z) + 1)
    size = k[1 + k * (ranked - ranked[0]) > np.cumsum(ranked - ranked[0])].max()
    tau = ((ranked[:size] - ranked[0]).sum() - 1) / size
    return np.maximum(z - ranked[0] - tau, 0)


def maximized(x: np.ndarray, gamma: float, lam: float, pieces: np.ndarray) -> np.ndarray:
    """Maximize ``<y, x> - gamma (1/2 ||y||^2 + lam sum_k max_r <pieces[k, r], y>)`` over the simplex.

    By an interior-point method, with one more variable above each of the maxima.

    Args:
        x: (d,) scores.
        gamma: strength of the whole regularizer.
        lam: strength of the penalty.
        pieces: (m, r, d) linear functions; each of the m terms is the largest of its r.
    """
    d, (m, r, _) = len(x), pieces.shape
    quadratic = sparse.diags(np.r_[np.full(d, gamma), np.zeros(m)]).tocsc()
    linear = np.r_[-x, np.full(m, gamma * lam)]
    one = sparse.csc_array(np.r_[np.ones(d), np.zeros(m)][None])
    positive = sparse.hstack([-sparse.eye(d), sparse.csc_array((d, m))])
    above = sparse.hstack([sparse.csc_array(pieces.reshape(m * r, d)), -sparse.kron(sparse.eye(m), np.ones((r, 1)))])
    constraints = sparse.vstack([one, positive, above]).tocsc()
    bounds = np.r_[1.0, np.zeros(d + m * r)]
    return solved(quadratic, linear, constraints, bounds, [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(d + m * r)])[:d]


def maximized_entropy(x: np.ndarray, gamma: float, rho: float) -> np.ndarray:
    """Maximize ``<y, x>`` less gamma times the safe divergence from uniform, over the simplex, by an interior-point method.

    The variables are y, t >= y log y and u >= w log w / (rho d), where w = 1 - rho d y is the slack below the cap.
    """
    d = len(x)
    linear = np.r_[-x, np.full(d, gamma), np.full(d, gamma / (rho * d))]
    rows, bounds = [np.r_[np.ones(d), np.zeros(2 * d)][None]], [1.0]
    for i in range(d):  # a log a <= t where (-t, a, 1) lies in the exponential cone; with constraints G v + s = b
        unit = np.zeros((3, 3 * d))
        unit[0, d + i], unit[1, i] = 1, -1
        room = np.zeros((3, 3 * d))
        room[0, 2 * d + i], room[1, i] = 1, rho * d
        rows += [unit, room]
        bounds += [0, 0, 1, 0, 1, 1]
    cones = [clarabel.ZeroConeT(1), *[clarabel.ExponentialConeT() for _ in range(2 * d)]]
    zero = sparse.csc_array((3 * d, 3 * d))
    return solved(zero, linear, sparse.csc_array(np.vstack(rows)), np.array(bounds, dtype=float), cones)[:d]


def groups_of_equals(y: np.ndarray, adjacent: bool) -> Iterator[np.ndarray]:
    """Yield the indices of each group of equal positive entries: of neighbours, or of entries anywhere."""
    support = np.flatnonzero(y > 0)
    if not adjacent:
        for value in np.unique(y[support]):
            yield np.flatnonzero(y == value)
        return
    if len(support):
        ends = np.flatnonzero((np.diff(support) > 1) | (np.diff(y[support]) != 0)) + 1
        yield from np.split(support, ends)


def grouped_jacobian(y: np.ndarray, gamma: float, adjacent: bool) -> np.ndarray:
    """Return the Jacobian of a mapping that averages groups of equal entries and projects onto the simplex."""
    support = (y > 0).astype(float)
    jacobian = -np.outer(support, support) / support.sum()
    for group in groups_of_equals(y, adjacent):
        jacobian[np.ix_(group, group)] += 1 / len(group)
    return jacobian / gamma


def dense_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> np.ndarray:
    """Return the Jacobian (d, d) of a function of one row, by reverse mode without transforms."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    return np.stack([torch.autograd.grad(y[i], leaf, retain_graph=True)[0].numpy() for i in range(len(x))])


def central_difference(function: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor, h: float = 1e-6) -> Tensor:
    """Return the directional derivative of a function at x, by central differences."""
    with torch.no_grad():
        return (function(x + h * direction) - function(x - h * direction)) / (2 * h)
