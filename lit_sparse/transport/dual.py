"""Entropic optimal transport between samples or grids: dual values, and algorithms that maximize them without a model.

The cost is the squared Euclidean distance ``c(x, y) = |x - y|^2``. A measure is given by points, with weights if they are not
equal. Values are in units of the cost; functions of points return float64.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_sparse.checks import (
    FLOATS,
    INTEGERS,
    MOST_FEATURES,
    MOST_INPUTS,
    check_choice,
    check_count,
    check_number,
    check_positive,
    check_tensor,
)
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import checked

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
#: How far the sum of weights may be from 1: many float32 numbers add up to it roughly.
SUM = 1e-3
#: Largest total error of a plan's source weights that counts as converged, whatever the dual value does.
MISSED = 1e-2


@checked
def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared distances ``|x_i - y_j|^2``, (B, M), of points (B, d) and (M, d), to full precision.

    Half precision is computed and returned in float32.

    Example:
        >>> distance = squared_distances(
        ...     torch.zeros(1, 2, dtype=torch.bfloat16),
        ...     torch.ones(1, 2, dtype=torch.bfloat16),
        ... )
        >>> distance.dtype, bool(distance.sub(2).abs() < 1e-6)
        (torch.float32, True)
    """
    _check_points(x, y)
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(dtype), y.to(dtype)
    # The matrix-product form is faster but imprecise for nearby points, and dividing by eps amplifies the error.
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


@checked
def plan_penalty(surplus: Tensor, eps: float, rho: float, objective: TransportObjective) -> Tensor:
    r"""Return the penalty of a pair of points in the dual problem of entropic optimal transport.

    .. math:: \varepsilon\, e^s \;\text{(dual)}, \qquad \tfrac{\varepsilon}{\rho} \ln(1 + \rho\, e^s) \;\text{(safe)},
        \qquad s = (u(x) + v(y) - c(x, y)) / \varepsilon

    where u and v are the potentials and c is the cost.

    Args:
        surplus: s, of any shape.
        eps: strength of the entropy.
        rho: inverse of the bound on the plan's density; unused for ``"dual"``.
        objective: ``"safe"`` or ``"dual"``.

    Raises:
        ConfigurationError: for an ``eps`` that is not positive, another objective, or a ``rho`` that is not positive and
            used.
    """
    eps = check_positive("eps", eps)
    if _is_dual(objective, rho):
        return eps * surplus.exp()
    return (eps / rho) * F.softplus(surplus + math.log(rho), threshold=40.0)


@checked
def log_plan_density(surplus: Tensor, rho: float, objective: TransportObjective) -> Tensor:
    """Return the logarithm of the transport plan's density with respect to the product of the two measures.

    For a surplus s of any shape, see :func:`plan_penalty`, it is s for ``"dual"``, and ``ln(sigmoid(s + ln rho) / rho)`` for
    ``"safe"``.
    """
    if _is_dual(objective, rho):
        return surplus
    return F.logsigmoid(surplus + math.log(rho)) - math.log(rho)


@checked
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
    r"""Return the dual value of entropic optimal transport between two discrete measures, given both potentials.

    .. math:: E\,u(x) + E\,v(y) - E\,\mathrm{penalty}(x, y) + \varepsilon

    where x and y are independent source and target points, with the squared distance as cost; see :func:`plan_penalty`.

    Args:
        u: (n,) potential of the source points.
        v: (m,) potential of the target points.
        source: (n, d) points x.
        target: (m, d) points y.
        eps: strength of the entropy.
        rho: see :func:`plan_penalty`.
        objective: see :func:`plan_penalty`.
        source_weights: (n,), summing to 1; None for equal weights.
        target_weights: (m,), summing to 1; None for equal weights.

    Raises:
        ConfigurationError: for arguments out of range, or of shapes that do not match.

    Source: Genevay, Cuturi, Peyre & Bach (2016), Stochastic optimization for large-scale optimal transport, eq. (D_eps);
    for ``"safe"`` Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp,
    arXiv:2509.24894, eq. (15).
    """
    eps = check_positive("eps", eps)
    _check_points(source, target)
    a, b = _weights("source", source_weights, source), _weights("target", target_weights, target)
    u, v = _potential("u", u, a), _potential("v", v, b)
    penalty = torch.zeros((), dtype=torch.float64, device=u.device)
    for part, cost in _costs(source, target):
        surplus = (u.unsqueeze(1) + v[part] - cost) / eps
        penalty += a @ (plan_penalty(surplus, eps, rho, objective) @ b[part])
    return float(a @ u + b @ v - penalty + eps)


@checked
def semi_dual_value(
    u: Tensor,
    source: Tensor,
    target: Tensor,
    *,
    eps: float,
    source_weights: Tensor | None = None,
    target_weights: Tensor | None = None,
) -> float:
    r"""Return the semi-dual value of entropic optimal transport: the dual value at the best v for a given u.

    .. math:: S(u) = E_x\, u(x) - \varepsilon\, E_y \ln E_x \exp\bigl((u(x) - c(x, y)) / \varepsilon\bigr)

    where x are source points, y target points, and c is the squared distance.

    The result never exceeds the entropic transport cost between the two discrete measures.

    Args:
        u: (n,) potential of the source points.
        source: (n, d) points x.
        target: (m, d) points y.
        eps: strength of the entropy.
        source_weights: (n,), summing to 1; None for equal weights.
        target_weights: (m,), summing to 1; None for equal weights.

    Raises:
        ConfigurationError: for arguments out of range, or of shapes that do not match.

    Source: Genevay, Cuturi, Peyre & Bach (2016), eq. (S_eps).

    Example:
        >>> x, y = torch.randn(50, 2), torch.randn(40, 2)
        >>> u, _ = sinkhorn_potentials(x, y, eps=0.5)
        >>> semi_dual_value(u, x, y, eps=0.5) > semi_dual_value(
        ...     torch.zeros(50), x, y, eps=0.5
        ... )
        True
    """
    eps = check_positive("eps", eps)
    _check_points(source, target)
    a, b = _weights("source", source_weights, source), _weights("target", target_weights, target)
    u = _potential("u", u, a)
    start = (u / eps + a.log()).unsqueeze(1)
    smooth = sum(float(b[part] @ (start - cost / eps).logsumexp(0)) for part, cost in _costs(source, target))
    return float(a @ u) - eps * smooth


@checked
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
    r"""Return the optimal potentials u (n,) and v (m,) of entropic optimal transport, by log-domain Sinkhorn iterations.

    .. math:: v_j = -\varepsilon \ln \sum_i a_i\, e^{(u_i - c_{ij}) / \varepsilon}, \qquad
        u_i = -\varepsilon \ln \sum_j b_j\, e^{(v_j - c_{ij}) / \varepsilon}

    alternately, where a and b are the weights of source and target points and c their squared distances.

    Args:
        source: (n, d) points x.
        target: (m, d) points y; the cost matrix (n, m) is kept in memory.
        eps: strength of the entropy.
        source_weights: (n,), summing to 1; None for equal weights.
        target_weights: (m,), summing to 1; None for equal weights.
        tolerance: increase of the dual value per iteration below which the algorithm stops, once the plan's source weights
            are accurate to 1 %.
        max_iter: maximum number of iterations; if it is reached, there is a warning.

    Raises:
        ConfigurationError: for an ``eps`` or ``tolerance`` that is not positive, a ``max_iter`` below 1, points that are
            not finite, or weights that are negative or have another sum.

    Source: Cuturi (2013), Sinkhorn Distances, arXiv:1306.0895.
    """
    eps = check_positive("eps", eps)
    tolerance = check_positive("tolerance", tolerance)
    check_count("max_iter", max_iter)
    _check_points(source, target)
    a, b = _weights("source", source_weights, source), _weights("target", target_weights, target)
    scaled = squared_distances(source.double(), target.double()) / eps
    u, value = torch.zeros_like(a), -math.inf
    v = torch.zeros_like(b)
    for _ in range(max_iter):
        v = -eps * (u.unsqueeze(1) / eps + a.log().unsqueeze(1) - scaled).logsumexp(0)
        before, value = value, float(a @ u + b @ v)
        balanced = -eps * (v / eps + b.log() - scaled).logsumexp(1)
        # a weight times exp((u - balanced) / eps) is the plan's mass there
        missed = torch.where(a > 0, a * torch.expm1((u - balanced) / eps).abs(), 0.0).sum()
        if value - before <= tolerance and missed <= MISSED:
            break
        u = balanced
    else:
        warnings.warn(
            f"sinkhorn_potentials has not converged: after max_iter={max_iter} iterations the dual value still grows by more"
            f" than tolerance={tolerance:g} in each, or the plan's source weights are off by {float(missed):.0%} in all."
            f" Raise max_iter, or use a larger eps={eps:g} or tolerance.",
            RuntimeWarning,
            stacklevel=2,
        )
    return u, v


@checked
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
    """Return potentials (runs, n) of source points that nearly maximize the semi-dual value, by averaged SGD.

    Each gradient uses ``batch_size`` target points, sampled anew in each step and each run. The k-th step of run r has the
    learning rate ``eps C_r / sqrt(k)`` in the units of the potential, with C_r from 1 to 10. The mean over the second half
    of the steps is returned. For the semi-dual, see :func:`semi_dual_value`.

    Args:
        source: (n, d) points x, of equal weights.
        target: (m, d) points y, from which target points are drawn.
        eps: strength of the entropy.
        runs: number of potentials, computed in parallel.
        steps: number of steps per run.
        batch_size: target points per step.
        generator: CPU generator for the samples; torch's own by default.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Genevay, Cuturi, Peyre & Bach (2016), algorithm 2, with minibatches.
    """
    for name, count, most in (("runs", runs, MOST_FEATURES), ("steps", steps, None), ("batch_size", batch_size, MOST_INPUTS)):
        check_count(name, count, most=most)
    eps = check_positive("eps", eps)
    _check_points(source, target)
    _weights("source", None, source), _weights("target", None, target)
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


@checked
def grid_measure(log_prob: Callable[[Tensor], Tensor], low: float, high: float, size: int = 601) -> tuple[Tensor, Tensor]:
    """Return a measure on the real line as grid points (size, 1) and their weights (size,), float64.

    Args:
        log_prob: log density of points (N, 1), up to a constant.
        low: smallest point.
        high: largest point; mass outside the grid is ignored.
        size: number of points.

    Raises:
        ConfigurationError: for an empty grid, or densities that are NaN, or zero everywhere.

    Example:
        >>> points, weights = grid_measure(lambda x: -0.5 * x[:, 0] ** 2, -8.0, 8.0)
        >>> round(float(weights @ points[:, 0] ** 2), 6)
        1.0
    """
    check_count("size", size, 2, MOST_INPUTS)
    ends = {"low": low, "high": high}
    low, high = (check_number(*one, -math.inf, math.inf, open_low=True, open_high=True) for one in ends.items())
    if not low < high:
        raise ConfigurationError(f"Expected a grid with `low` < `high` but got {low} and {high}.")
    points = torch.linspace(low, high, size, dtype=torch.float64).unsqueeze(1)
    found = log_prob(points)
    weights = found.double().softmax(0) if isinstance(found, Tensor) and found.shape == (size,) else None
    if weights is None or not bool(weights.isfinite().all()):
        raise ConfigurationError(
            f"Expected `log_prob` to return {size} log densities, of which none is NaN and not all are -inf, but got others."
        )
    return points, weights


def _is_dual(objective: str, rho: float) -> bool:
    """Return whether an objective is ``"dual"``; check it, and the ``rho`` of the other one."""
    check_choice("objective", objective, get_args(TransportObjective))
    return objective == "dual" or not check_positive("rho", rho)


def _check_points(source: Tensor, target: Tensor) -> None:
    """Refuse what is not two arrays of points with equally many real coordinates, on one device."""
    what = "points (n, d) and (m, d) with equally many real coordinates, on one device,"
    for points in (source, target):
        width = source.shape[1] if isinstance(source, Tensor) and source.dim() == 2 else None
        if check_tensor(points, what, shape=(None, width), dtypes=(*FLOATS, *INTEGERS)).device != source.device:
            raise ConfigurationError(f"Expected {what} but got {source.device} and {points.device}.")


def _weights(name: str, weights: Tensor | None, points: Tensor) -> Tensor:
    """Return the weights (n,) float64 of points (n, d), after a check of both."""
    if points.is_meta or not len(points) or not bool(points.isfinite().all()):
        raise ConfigurationError(f"Expected finite `{name}` points, one or more, but got {len(points)} of which some are not.")
    if weights is None:
        return torch.full((len(points),), 1.0 / len(points), dtype=torch.float64, device=points.device)
    real = isinstance(weights, Tensor) and not weights.is_complex() and weights.shape == (len(points),)
    if not real or not bool((weights >= 0).all()) or not abs(float(weights.double().sum()) - 1.0) < SUM:
        got = f"{tuple(weights.shape)} of sum {weights.sum():g}" if isinstance(weights, Tensor) else full_name(weights)
        raise ConfigurationError(
            f"Expected `{name}_weights` to be {len(points)} numbers >= 0 that sum to 1 but got {got}. Divide them by their sum."
        )
    return weights.double()


def _potential(name: str, potential: Tensor, weights: Tensor) -> Tensor:
    """Return a potential (n,) in float64."""
    return check_tensor(potential, f"the potential `{name}` at each of {len(weights)} points", shape=weights.shape).double()


def _costs(source: Tensor, target: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the target points, and the cost of moving every source point to them, float64."""
    x, size = source.double(), max(1, PAIRS // max(1, len(source)))
    for start in range(0, len(target), size):
        part = slice(start, start + size)
        yield part, squared_distances(x, target[part].double())
