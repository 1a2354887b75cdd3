"""Entropic transport between two measures on the real line, with kernel SGD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from lit_sparse.transport import GaussianMixture, KernelPotentials
from lit_sparse.transport.dual import dual_value, grid_measure, semi_dual_value, sinkhorn_potentials

__all__ = ["ascend"]

SOURCE, TARGET, EPS = GaussianMixture([0.0], [1.0]), GaussianMixture([-1.0, 1.5], [0.25, 0.16]), 0.1


def ascend(
    seed: int,
    *,
    objective: Literal["safe", "dual"],
    rho: float,
    width: float,
    step_size: float,
    iterations: int | Sequence[int],
) -> list[dict[str, float]]:
    """Run kernel SGD on a one-dimensional transport problem, and return the gap to the optimum after some iterations.

    The source is N(0, 1), the target a mixture of N(-1, 0.25) and N(1.5, 0.16) with equal weights, the cost is
    (x - y)^2, and eps is 0.1.

    Args:
        seed: seed of the samples.
        objective: ``safe`` for the safe Kullback-Leibler divergence, ``dual`` for the usual one.
        rho: inverse of the bound on the plan's density; unused for ``dual``.
        width: width of the kernel ``exp(-d^2 / (2 width^2))``.
        step_size: C, the initial learning rate.
        iterations: numbers of iterations after which the gap is measured; a single N stands for numbers up to
            N that are evenly spaced on a logarithmic scale.

    Returns:
        A dict for each number of ``iterations``, with the ``gap`` (the optimal semi-dual value minus the value S(u) of the
        potential u, both by quadrature on 601 points; infinite after an overflow) and the number of ``overflows``.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    section 3.1 and appendix B.
    """
    stops = marks(iterations) if isinstance(iterations, int) else list(iterations)
    potentials = KernelPotentials(width, step_size, capacity=stops[-1]).build(1)
    index = torch.arange(stops[-1])
    x, y = SOURCE.sample(2 * seed, index), TARGET.sample(2 * seed + 1, index)  # independent: seeds of their own
    results, done, overflows = [], 0, 0
    for stop in stops:
        if not overflows:
            overflows = potentials.ascend(x[done:stop], y[done:stop], eps=EPS, rho=rho, objective=objective)[1]
        done = stop
        results.append({"iterations": stop, "gap": math.inf if overflows else gap(potentials), "overflows": overflows})
    return results


def marks(last: int) -> list[int]:
    """Return numbers of iterations up to the last, evenly spaced on a logarithmic scale."""
    return sorted({min(last, max(10, round(last ** (k / 40)))) for k in range(8, 41)})


@cache
def optimum() -> tuple[Tensor, dict[str, Any], float]:
    """Return the grid points, the weights of both measures, and the optimal semi-dual value."""
    points, source = grid_measure(SOURCE.log_prob, -6.0, 6.0)
    weights: dict[str, Any] = {"source_weights": source, "target_weights": grid_measure(TARGET.log_prob, -6.0, 6.0)[1]}
    u, v = sinkhorn_potentials(points, points, eps=EPS, **weights)
    return points, weights, dual_value(u, v, points, points, eps=EPS, **weights)


def gap(potentials: KernelPotentials) -> float:
    """Return the optimal semi-dual value minus the value S(u) of some potentials."""
    points, weights, best = optimum()
    return best - semi_dual_value(potentials.source_potential(points), points, points, eps=EPS, **weights)
