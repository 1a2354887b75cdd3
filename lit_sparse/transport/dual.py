"""Entropic optimal transport between samples or grids: dual values, and algorithms that maximize them without a model.

The cost is the squared Euclidean distance ``c(x, y) = |x - y|^2``. A measure is given by points, with weights if they are not
equal. Values are in units of the cost; functions of points return float64.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_sparse.checks import check_count, check_positive
from lit_sparse.errors import ConfigurationError

__all__ = [
    "TransportObjective",
    "dual_value",
    "grid_measure",
    "log_plan_density",
    "plan_penalty",
    "semi_discrete_potentials",
    "semi_dual_value",
    "sinkhorn_potentials",
    "squared_distances",
]

#: ``"safe"`` penalizes the plan's safe KL divergence from the product measure, ``"dual"`` its KL divergence.
TransportObjective: TypeAlias = Literal["safe", "dual"]
#: Pairs of points per block.
PAIRS = 1 << 22


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return ``|x_i - y_j|^2``, (B, M), of points (B, d) and (M, d), to full precision.

    Half precision is computed and returned in float32.

    Example:
        >>> distance = squared_distances(torch.zeros(1, 2, dtype=torch.bfloat16), torch.ones(1, 2, dtype=torch.bfloat16))
        >>> distance.dtype, bool(distance.sub(2).abs() < 1e-6)
        (torch.float32, True)
    """
    x, y = (points.to(torch.promote_types(points.dtype, torch.float32)) for points in (x, y))
    # The matrix-product form is faster but imprecise for nearby points, and dividing by eps amplifies the error.
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def plan_penalty(surplus: Tensor, eps: float, rho: float, objective: TransportObjective) -> Tensor:
    """Return the dual's penalty on a pair of points: ``eps e^s``, or ``(eps / rho) ln(1 + rho e^s)`` for ``"safe"``.

    Args:
        surplus: ``s = (u(x) + v(y) - c(x, y)) / eps``, of any shape.
        eps: strength of the entropy.
        rho: inverse of the bound on the plan's density; unused for ``"dual"``.
        objective: ``"safe"`` or ``"dual"``.
    """
    if objective == "dual":
        return eps * surplus.exp()
    return (eps / rho) * F.softplus(surplus + math.log(rho), threshold=40.0)


def log_plan_density(surplus: Tensor, rho: float, objective: TransportObjective) -> Tensor:
    """Return the logarithm of the plan's density with respect to the product: s, or ``ln(sigmoid(s + ln rho) / rho)``."""
    if objective == "dual":
        return surplus
    return F.logsigmoid(surplus + math.log(rho)) - math.log(rho)


def dual_value(
    u: Tensor,
    v: Tensor,
    source: Tensor,
    target: Tensor,
    *,
    eps: float,
    rho: float = 0.1,
    objective: TransportObjective = "dual",
    source_weights: Tensor | None = None,
    target_weights: Tensor | None = None,
) -> float:
    """Return ``E u + E v - E penalty + eps``, over all pairs of points.

    Args:
        u: (n,) potential of the source points.
        v: (m,) potential of the target points.
        source: (n, d) points x.
        target: (m, d) points y.
        eps: strength of the entropy.
        rho: see :func:`plan_penalty`.
        objective: see :func:`plan_penalty`.
        source_weights: (n,) of sum 1; None for equal ones.
        target_weights: (m,) of sum 1; None for equal ones.

    Source: Genevay, Cuturi, Peyre & Bach (2016), Stochastic optimization for large-scale optimal transport, eq. (D_eps); for
    ``"safe"`` Gladin et al. (2025), LogSumExp approximation, eq. (15).
    """
    a, b = _weights(source_weights, source), _weights(target_weights, target)
    u, v = u.double(), v.double()
    penalty = torch.zeros((), dtype=torch.float64, device=u.device)
    for part, cost in _costs(source, target):
        surplus = (u.unsqueeze(1) + v[part] - cost) / eps
        penalty += a @ (plan_penalty(surplus, eps, rho, objective) @ b[part])
    return float(a @ u + b @ v - penalty + eps)


def semi_dual_value(
    u: Tensor,
    source: Tensor,
    target: Tensor,
    *,
    eps: float,
    source_weights: Tensor | None = None,
    target_weights: Tensor | None = None,
) -> float:
    """Return ``S(u) = E_x u(x) - eps E_y ln E_x exp((u(x) - c(x, y)) / eps)``, the dual value at the best v for this u.

    The result never exceeds the entropic transport cost between the two discrete measures.

    Args:
        u: (n,) potential of the source points.
        source: (n, d) points x.
        target: (m, d) points y.
        eps: strength of the entropy.
        source_weights: (n,) of sum 1; None for equal ones.
        target_weights: (m,) of sum 1; None for equal ones.

    Source: Genevay, Cuturi, Peyre & Bach (2016), eq. (S_eps).

    Example:
        >>> x, y = torch.randn(50, 2), torch.randn(40, 2)
        >>> u, _ = sinkhorn_potentials(x, y, eps=0.5)
        >>> semi_dual_value(u, x, y, eps=0.5) > semi_dual_value(torch.zeros(50), x, y, eps=0.5)
        True
    """
    a, b = _weights(source_weights, source), _weights(target_weights, target)
    u = u.double()
    start = (u / eps + a.log()).unsqueeze(1)
    smooth = sum(float(b[part] @ (start - cost / eps).logsumexp(0)) for part, cost in _costs(source, target))
    return float(a @ u) - eps * smooth


def sinkhorn_potentials(
    source: Tensor,
    target: Tensor,
    *,
    eps: float,
    source_weights: Tensor | None = None,
    target_weights: Tensor | None = None,
    tolerance: float = 1e-10,
    max_iter: int = 10_000,
) -> tuple[Tensor, Tensor]:
    """Return the optimal potentials u (n,) and v (m,), by Sinkhorn's iterations in the log domain.

    Args:
        source: (n, d) points x.
        target: (m, d) points y; the cost matrix (n, m) is kept in memory.
        eps: strength of the entropy.
        source_weights: (n,) of sum 1; None for equal ones.
        target_weights: (m,) of sum 1; None for equal ones.
        tolerance: growth of the dual value at which the iterations end.
        max_iter: largest number of iterations; a warning tells when they were too few.

    Raises:
        ConfigurationError: for an ``eps`` or ``tolerance`` that is not positive, or a ``max_iter`` below 1.

    Source: Cuturi (2013), Sinkhorn Distances, arXiv:1306.0895.
    """
    check_positive("eps", eps)
    check_positive("tolerance", tolerance)
    check_count("max_iter", max_iter)
    a, b = _weights(source_weights, source), _weights(target_weights, target)
    scaled = squared_distances(source.double(), target.double()) / eps
    u, value = torch.zeros_like(a), -math.inf
    v = torch.zeros_like(b)
    for _ in range(max_iter):
        v = -eps * (u.unsqueeze(1) / eps + a.log().unsqueeze(1) - scaled).logsumexp(0)
        before, value = value, float(a @ u + b @ v)
        if value - before <= tolerance:
            break
        u = -eps * (v / eps + b.log() - scaled).logsumexp(1)
    else:
        warnings.warn(
            f"sinkhorn_potentials has not converged: after max_iter={max_iter} iterations the dual value still grows by more"
            f" than tolerance={tolerance:g} in each. Raise max_iter, or take a larger eps={eps:g} or tolerance.",
            RuntimeWarning,
            stacklevel=2,
        )
    return u, v


def semi_discrete_potentials(
    source: Tensor,
    target: Tensor,
    *,
    eps: float,
    runs: int = 10,
    steps: int = 1000,
    batch_size: int = 32,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return potentials (runs, n) of source points that nearly maximize the semi-dual, by averaged stochastic gradient ascent.

    A gradient uses ``batch_size`` target points, drawn anew in each step and each run. The k-th step of run r has length
    ``eps C_r / sqrt(k)`` in the units of the potential, with C_r from 1 to 10. The mean over the second half is returned.

    Args:
        source: (n, d) points x, of equal weights.
        target: (m, d) points y, from which target points are drawn.
        eps: strength of the entropy.
        runs: number of potentials, computed in parallel.
        steps: number of steps per run.
        batch_size: target points per step.
        generator: CPU generator for the draws; torch's own by default.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Genevay, Cuturi, Peyre & Bach (2016), algorithm 2, with minibatches.
    """
    for name, count in (("runs", runs), ("steps", steps), ("batch_size", batch_size)):
        check_count(name, count)
    check_positive("eps", eps)
    x = source.double()
    u = torch.zeros(runs, len(x), dtype=torch.float64, device=x.device)
    mean = torch.zeros_like(u)
    lengths = eps * torch.logspace(0, 1, runs, dtype=torch.float64, device=x.device).unsqueeze(1)
    for k in range(1, steps + 1):
        which = torch.randint(len(target), (runs * batch_size,), generator=generator).to(target.device)
        cost = squared_distances(target[which].double(), x).view(runs, batch_size, len(x))
        shares = ((u.unsqueeze(1) - cost) / eps).softmax(-1)
        u += lengths / math.sqrt(k) * (1 - len(x) * shares.mean(1))
        done = k - (steps - 1) // 2
        if done > 0:
            mean += (u - mean) / done
    return mean


def grid_measure(log_prob: Callable[[Tensor], Tensor], low: float, high: float, size: int = 601) -> tuple[Tensor, Tensor]:
    """Return a measure on the line as points (size, 1) of a grid and their weights (size,), float64.

    Args:
        log_prob: log density of points (N, 1), up to a constant.
        low: smallest point.
        high: largest point; mass outside the grid is lost.
        size: number of points.

    Raises:
        ConfigurationError: for an empty grid.

    Example:
        >>> points, weights = grid_measure(lambda x: -0.5 * x[:, 0] ** 2, -8.0, 8.0)
        >>> round(float(weights @ points[:, 0] ** 2), 6)
        1.0
    """
    check_count("size", size, 2)
    if not low < high:
        raise ConfigurationError(f"Expected a grid with `low` < `high` but got {low} and {high}.")
    points = torch.linspace(low, high, size, dtype=torch.float64).unsqueeze(1)
    return points, log_prob(points).double().softmax(0)


def _weights(weights: Tensor | None, points: Tensor) -> Tensor:
    if weights is None:
        return torch.full((len(points),), 1.0 / max(1, len(points)), dtype=torch.float64, device=points.device)
    return weights.double()


def _costs(source: Tensor, target: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the target points, and the cost of moving every source point to them, float64."""
    x, size = source.double(), max(1, PAIRS // max(1, len(source)))
    for start in range(0, len(target), size):
        part = slice(start, start + size)
        yield part, squared_distances(x, target[part].double())
