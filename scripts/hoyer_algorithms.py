"""The Hoyer projection as others compute it, and its passes as the package makes them; used by benchmark_hoyer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.float64]]


class Trace(NamedTuple):
    """A projection, and how many entries each iteration that led to it worked on."""

    y: Array
    sizes: list[int]


def l1_norm(n: int, sparseness: float, norm: float = 1.0) -> float:
    """Return the l1 norm of a vector with n entries of this Hoyer sparseness and l2 norm."""
    return norm * (math.sqrt(n) - sparseness * (math.sqrt(n) - 1))


def on_circle(s: Array, total: float, norm: float) -> Array:
    """Move s, whose sum is ``total``, to the nearest point of the same sum and the l2 norm ``norm``."""
    center = total / len(s)
    distance = s - center
    return center + distance * math.sqrt(max(norm**2 - total**2 / len(s), 0.0) / float(distance @ distance))


def hoyer_2004(x: Array, sparseness: float, norm: float = 1.0) -> Trace:
    """Project onto the non-negative vectors of a sparseness as Hoyer (2004) does.

    It goes to the right sum and from there to the right norm, drops what has become negative, and starts again with the rest.

    Args:
        x: (n,), its largest entry alone at its place.
        sparseness: sparseness of the result.
        norm: l2 norm of the result.
    """
    total = l1_norm(len(x), sparseness, norm)
    places, s, sizes = np.arange(len(x)), x, []
    while True:
        sizes.append(len(s))
        s = on_circle(s + (total - s.sum()) / len(s), total, norm)
        kept = s >= 0
        if kept.all():
            break
        places, s = places[kept], s[kept]
    y = np.zeros_like(x)
    y[places] = s
    return Trace(y, sizes)


def alternating(x: Array, sparseness: float, norm: float = 1.0) -> Trace:
    """Project likewise as Thom & Palm (2013) do: after each step to the norm stands one to the simplex, which drops more.

    The vector is sorted once. Every step keeps the order, so that what is left is always a prefix.

    Args:
        x: (n,), its largest entry alone at its place.
        sparseness: sparseness of the result.
        norm: l2 norm of the result.
    """
    total = l1_norm(len(x), sparseness, norm)
    order = np.argsort(-x)
    s = x[order]
    s = on_circle(s + (total - s.sum()) / len(s), total, norm)
    sizes = [len(s)]
    while s[-1] < 0:
        s = s[s > 0]  # what is not cannot stay in the simplex
        thresholds = (s.cumsum() - total) / np.arange(1, len(s) + 1)
        size = int(np.count_nonzero(s > thresholds))
        s = on_circle(s[:size] - thresholds[size - 1], total, norm)
        sizes.append(size)
    y = np.zeros_like(x)
    y[order[: len(s)]] = s
    return Trace(y, sizes)


def linear_time(x: Array, sparseness: float, norm: float = 1.0) -> Trace:
    """Project likewise by finding the threshold tau of ``y = norm (x - tau)_+ / ||(x - tau)_+||`` as the package does.

    One pass takes the moments of what exceeds a trial threshold. Left of the root they give the threshold that would have those
    entries as its support, which is exact once it has; right of it, Newton's method leads back.

    Args:
        x: (n,), its largest entry alone at its place, and l1 norm / l2 norm of the result below sqrt(n).
        sparseness: sparseness of the result.
        norm: l2 norm of the result.

    Returns:
        The projection, and how many entries exceed the trial threshold in each pass.
    """
    z, n, ratio = x - x.max(), len(x), l1_norm(len(x), sparseness)
    tau = float(z.mean())
    lower = tau - ratio * math.sqrt(float(np.square(z - tau).sum()) / (n * (n - ratio**2)))
    upper, size = 0.0, 0
    sizes: list[int] = []
    while True:
        excess = z[z > tau] - tau
        count, total, square = len(excess), float(excess.sum()), float(excess @ excess)
        sizes.append(count)
        if count == size:  # the set that tau was computed from
            break
        if count > ratio**2 and total >= ratio * math.sqrt(square):
            lower, size = tau, count
            spread = max(square - total**2 / count, 0.0)
            tau = max(tau + (total - ratio * math.sqrt(count * spread / (count - ratio**2))) / count, tau)
            continue
        upper, size = tau, 0
        slope = (total**2 / square - count) / math.sqrt(square)
        ahead = tau - (total / math.sqrt(square) - ratio) / slope if slope < 0 else -math.inf
        ahead = ahead if lower < ahead < upper else lower
        if ahead == tau:  # at the root, up to rounding
            break
        tau = ahead
    y, support, l1 = np.zeros_like(x), z > tau, norm * ratio
    s = z[support]
    y[support] = on_circle(s + (l1 - s.sum()) / len(s), l1, norm)  # with more digits than from tau
    return Trace(y, sizes)


def sorted_form(x: Tensor, sparseness: float, sort: Callable[[Tensor], Tensor]) -> Tensor:
    """Project onto the vectors of a sparseness and norm 1 by the first prefix of the sorted magnitudes that keeps the next out.

    Args:
        x: (n,).
        sparseness: sparseness of the result.
        sort: returns a vector in ascending order.
    """
    n, ratio = len(x), l1_norm(len(x), sparseness)
    sizes = x.abs()
    sizes -= sizes.max()
    ranked = sort(sizes).flip(0)
    count = torch.arange(1, n, dtype=x.dtype)
    below, total, square = ranked[1:], ranked.cumsum(0)[:-1], ranked.square().cumsum(0)[:-1]
    excess = total - count * below
    fits = excess.square() >= ratio**2 * (square - below * (total + excess))
    first = int(ratio**2)  # support sizes are above ratio^2
    fits = fits[first:]
    d = first + 1 + int(fits.to(torch.uint8).argmax()) if bool(fits.any()) else n
    mean = ranked[:d].mean()
    kappa = math.sqrt(1 - ratio**2 / d) / (ranked[:d] - mean).norm()
    y: Tensor = (ratio / d + kappa * (sizes - mean)).clamp_min(0).copysign(x)
    return y


def torch_sort(x: Tensor) -> Tensor:
    """Sort with torch."""
    return torch.sort(x).values


def numpy_sort(x: Tensor) -> Tensor:
    """Sort with numpy, which uses wide registers and computes no permutation."""
    return torch.from_numpy(np.sort(x.numpy()))


ALGORITHMS: dict[str, Callable[..., Trace]] = {
    "linear time": linear_time,
    "alternating": alternating,
    "Hoyer 2004": hoyer_2004,
}
