"""Slow ways to select coresets, in float64 numpy: dense products, every formula as it is written, nothing updated in place.

G has a row g_n in R^S for every data point, y = sum_n g_n, and w >= 0 has at most k entries above zero.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

__all__ = ["a_iht", "best_subset", "frank_wolfe", "giga", "iht", "nn_omp", "objective", "refit"]

Array = NDArray[np.float64]


def objective(G: Array, w: Array) -> float:
    """Compute ||sum_n g_n - sum_n w_n g_n||^2."""
    r = G.sum(0) - w @ G
    return float(r @ r)


def _largest(values: Array, k: int) -> NDArray[np.intp]:
    """Return the places of the k largest values, of equal ones the first."""
    return np.argsort(-values, kind="stable")[:k]


def _project(v: Array, k: int) -> Array:
    """Keep the k largest of the positive entries."""
    kept = _largest(v, k)
    w = np.zeros_like(v)
    w[kept] = np.maximum(v[kept], 0.0)
    return w


def _best_step(d: Array, G: Array) -> float:
    """Return ||d||^2 / ||Phi d||^2, the exact line search along a restricted gradient, or 0 where Phi d = 0."""
    image = d @ G
    return float(d @ d / (image @ image)) if image.any() else 0.0


def _thresholding(G: Array, k: int, max_iter: int, tol: float, debias: bool, step_scale: float, momentum: bool) -> Array:
    """Run iterative hard thresholding from 0 and return the iterate w of the smallest objective."""
    y = G.sum(0)
    w = z = best = np.zeros(len(G))
    for _ in range(max_iter):
        d = G @ (y - z @ G)
        in_support = z != 0.0
        in_support[_largest(np.where(in_support, -np.inf, np.abs(d)), min(k, int(np.sum(~in_support))))] = True
        m = step_scale * _best_step(np.where(in_support, d, 0.0), G)
        new = _project(z + m * d, k)
        if debias:
            d = np.where(new > 0.0, G @ (y - new @ G), 0.0)
            new = np.maximum(new + step_scale * _best_step(d, G) * d, 0.0)
        if objective(G, new) < objective(G, best):
            best = new
        if np.linalg.norm(new - w) <= tol * np.linalg.norm(new):
            break
        move = (new - w) @ G
        tau = (y - new @ G) @ move / (move @ move) if momentum and move.any() else 0.0
        w, z = new, new + tau * (new - w)
    return best


def a_iht(G: Array, k: int, max_iter: int = 300, tol: float = 1e-5, debias: bool = False, step_scale: float = 1.0) -> Array:
    """Select by automated accelerated iterative hard thresholding, with `debias` its second form."""
    return _thresholding(G, k, max_iter, tol, debias, step_scale, momentum=True)


def iht(G: Array, k: int, max_iter: int = 300, tol: float = 1e-5) -> Array:
    """Select by iterative hard thresholding with exact steps and no momentum."""
    return _thresholding(G, k, max_iter, tol, debias=False, step_scale=1.0, momentum=False)


def giga(G: Array, k: int) -> Array:
    """Select by k steps of greedy iterative geodesic ascent on the unit sphere, then scale all weights at best."""
    y, norms = G.sum(0), np.linalg.norm(G, axis=1)
    w = np.zeros(len(G))  # the weights of unit vectors: w_n / norms_n is the weight of g_n
    if not y.any():
        return w
    goal = y / np.linalg.norm(y)
    units = G / np.where(norms > 0.0, norms, 1.0)[:, None]
    here = np.zeros_like(goal)
    for _ in range(k):
        ahead = goal - (goal @ here) * here
        if np.linalg.norm(ahead) <= 1e-14:  # there already
            break
        tangents = units - np.outer(units @ here, here)
        lengths = np.linalg.norm(tangents, axis=1)
        useful = lengths > 1e-14
        slopes = np.where(useful, tangents @ ahead / np.where(useful, lengths, 1.0), -np.inf)
        n = int(np.argmax(slopes))
        if slopes[n] <= 0.0:
            break
        zeta_0, zeta_1, zeta_2 = goal @ units[n], goal @ here, units[n] @ here
        gamma = (zeta_0 - zeta_1 * zeta_2) / ((zeta_0 - zeta_1 * zeta_2) + (zeta_1 - zeta_0 * zeta_2))
        if not 0.0 < gamma <= 1.0:  # rounding is all that is left
            break
        here = (1.0 - gamma) * here + gamma * units[n]
        w = (1.0 - gamma) * w
        w[n] += gamma
        w, here = w / np.linalg.norm(here), here / np.linalg.norm(here)
    scale = float(np.linalg.norm(y)) * max(float(goal @ here), 0.0)
    return scale * w / np.where(norms > 0.0, norms, 1.0)


def frank_wolfe(G: Array, k: int) -> Array:
    """Select by k Frank-Wolfe steps, the first to a vertex, on sum_n sigma_n w_n = sum_n sigma_n with sigma_n = ||g_n||."""
    y, norms = G.sum(0), np.linalg.norm(G, axis=1)
    total = norms.sum()
    w = np.zeros(len(G))
    for step in range(k):
        r = y - w @ G
        slopes = np.where(norms > 0.0, G @ r / np.where(norms > 0.0, norms, 1.0), -np.inf)
        n = int(np.argmax(slopes))
        if norms[n] == 0.0:
            break
        vertex = np.zeros(len(G))
        vertex[n] = total / norms[n]
        move = (vertex - w) @ G
        if not move.any():
            break
        gamma = 1.0 if step == 0 else float(np.clip(move @ r / (move @ move), 0.0, 1.0))
        w = (1.0 - gamma) * w + gamma * vertex
    return w


def _solved(G: Array, support: list[int] | NDArray[np.intp]) -> Array:
    """Return the weights that minimize the objective with no weight outside the support."""
    w = np.zeros(len(G))
    if len(support):
        w[support] = nnls(G[support].T, G.sum(0), maxiter=100 * len(support))[0]  # 3 * len can be too few near rounding
    return w


def nn_omp(G: Array, k: int) -> Array:
    """Select by non-negative orthogonal matching pursuit until k points, no positive correlation or no progress are left."""
    y, norms = G.sum(0), np.linalg.norm(G, axis=1)
    w = np.zeros(len(G))
    while np.count_nonzero(w) < k:
        candidate = (w == 0.0) & (norms > 0.0)
        correlations = np.where(candidate, G @ (y - w @ G) / np.where(norms > 0.0, norms, 1.0), -np.inf)
        n = int(np.argmax(correlations))
        if correlations[n] <= 0.0:
            break
        new = _solved(G, [*np.flatnonzero(w), n])
        if objective(G, new) >= objective(G, w):  # rounding is all that is left
            break
        w = new
    return w


def refit(G: Array, w: Array) -> Array:
    """Solve for the weights again on the support of w."""
    return _solved(G, np.flatnonzero(w))


def best_subset(G: Array, k: int) -> Array:
    """Return the weights of the smallest objective among all subsets of k points, the first of equal ones."""
    return min((_solved(G, list(subset)) for subset in combinations(range(len(G)), k)), key=lambda w: objective(G, w))
