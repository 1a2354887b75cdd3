"""Supports of mappings in rational arithmetic, and scores on whose boundaries rounding decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "boundary_rows",
    "entmax_root_support",
    "fused",
    "hoyer_support",
    "oscar",
    "pnorm_support",
    "simplex_support",
    "simplex_threshold",
    "tied_rows",
    "top_support",
]

Row = list[Fraction]


def simplex_support(x: Row, gamma: Fraction) -> list[bool]:
    """The support of the projection of ``x / gamma``: the entries by which those above stand out by less than gamma in all."""
    return [sum((a - b for a in x if a > b), Fraction(0)) < gamma for b in x]


def simplex_threshold(x: Row, gamma: Fraction) -> Fraction:
    """The threshold of the projection of ``x / gamma``."""
    above = [a for a, inside in zip(x, simplex_support(x, gamma), strict=True) if inside]
    return (sum(above, Fraction(0)) - gamma) / len(above)


def hoyer_support(x: Row, sparseness: Fraction) -> list[bool] | None:
    """The support of the nonnegative Hoyer projection of d entries, d a square; None where it is not unique."""
    root = Fraction(math.isqrt(len(x)))
    ratio = root - sparseness * (root - 1)

    def inside(b: Fraction) -> bool:
        above = [a - b for a in x if a > b]
        return sum(above, Fraction(0)) ** 2 < ratio**2 * sum((m**2 for m in above), Fraction(0))

    if x.count(max(x)) >= ratio**2:
        return None
    return [b == max(x) or inside(b) for b in x]


def top_support(x: Row, gamma: Fraction, k: int) -> list[bool]:
    """The same of the k largest entries, the first of equal ones."""
    chosen = sorted(range(len(x)), key=lambda i: (-x[i], i))[:k]
    inside = dict(zip(chosen, simplex_support([x[i] for i in chosen], gamma), strict=True))
    return [inside.get(i, False) for i in range(len(x))]


def entmax_root_support(x: Row, gamma: Fraction) -> list[bool]:
    """The support of 1.5-entmax, whose threshold is a root, by a comparison without one."""
    return [sum(((a - b) ** 2 for a in x if a > b), Fraction(0)) < 4 * gamma**2 for b in x]


def pnorm_support(x: Row, gamma: Fraction) -> list[bool]:
    """The support of sq-pnorm-max with p = 1.5."""

    def inside(b: Fraction) -> bool:
        above = [a - b for a in x if a > b]
        return gamma**3 * sum(m**3 for m in above) > sum((m**2 for m in above), Fraction(0)) ** 3

    top = max(x)
    return [b == top or inside(b) for b in x]


def fused(x: Row, lam: Fraction) -> Row:
    """The total-variation proximal operator: runs merge one after another as the strength grows from 0 to lam."""
    runs = [[a, 1, a] for a in x]  # sum, size, value
    reached = Fraction(0)
    while True:
        merged: list[list[Fraction]] = []
        for run in runs:
            if merged and merged[-1][2] == run[2]:
                merged[-1][0] += run[0]
                merged[-1][1] += run[1]
            else:
                merged.append(run)
        runs = merged
        ends = [0, *[1 if a[2] > b[2] else -1 for a, b in pairwise(runs)], 0]
        rates = [Fraction(before - after) / run[1] for run, before, after in zip(runs, ends, ends[1:], strict=False)]
        waits = [
            (a[2] - b[2]) / (q - p)
            for a, b, p, q in zip(runs, runs[1:], rates, rates[1:], strict=False)
            if (a[2] - b[2]) * (q - p) > 0
        ]
        step = min([lam - reached, *waits])
        for run, rate in zip(runs, rates, strict=True):
            run[2] += step * rate
        reached += step
        if reached == lam and step not in waits:
            return [value for _, size, value in runs for _ in range(int(size))]


def oscar(x: Row, lam: Fraction) -> Row:
    """The decreasing isotonic regression of ``x_(i) - lam (d - i)``, in the order of x."""
    order = sorted(range(len(x)), key=lambda i: -x[i])
    blocks: list[list[Fraction]] = []
    for place, i in enumerate(order):
        blocks.append([x[i] - lam * (len(x) - 1 - place), Fraction(1)])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] <= blocks[-1][0] * blocks[-2][1]:
            total, size = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += size
    found = [Fraction(0)] * len(x)
    values = [total / size for total, size in blocks for _ in range(int(size))]
    for i, value in zip(order, values, strict=True):
        found[i] = value
    return found


def tied_rows(rows: int, d: int, dtype: torch.dtype, seed: int, grid: float = 2.0) -> Tensor:
    """Scores on a grid."""
    generator = torch.Generator().manual_seed(seed)
    return ((torch.randn(rows, d, generator=generator) * grid).round() / grid).to(dtype)


def boundary_rows(rows: int, d: int, dtype: torch.dtype, seed: int, threshold: Callable[[Row], Fraction | None]) -> Tensor:
    """Scores of all digits, some of which equal the threshold of the others exactly."""
    rng = np.random.default_rng(seed)
    kind = np.float32 if dtype == torch.float32 else np.float64
    made: list[np.ndarray] = []
    while len(made) < rows:
        size = int(rng.integers(1, d))
        head = (rng.standard_normal(size) * 2.0 ** rng.integers(-3, 2)).astype(kind)
        tau = threshold([Fraction(float(a)) for a in head])
        if tau is None or Fraction(float(kind(float(tau)))) != tau:
            continue
        low = np.minimum(kind(float(tau)) - kind(1) - rng.random(d - size).astype(kind), kind(float(tau)))
        low[: int(rng.integers(1, d - size + 1))] = kind(float(tau))
        made.append(rng.permutation(np.concatenate([head, low])))
    return torch.from_numpy(np.stack(made)).to(dtype)
