"""Fusedmax of one row, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.exact_support import SMALLEST, add_difference, stands_out
from lit_sparse.kernels.groups import label_of

__all__ = ["ROUNDING", "WORK_ROWS", "fuse_row", "gather_near"]

LOWER, UPPER, KNOTS, SLOPES, INTERCEPTS, VALUES = 0, 1, 2, 3, 4, 5  # rows of the workspace
EPS_SINGLE, EPS_DOUBLE = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)
WORK_ROWS = 6
EXCESS = LOWER  # once the runs are known
NEAR = 1e-9  # of the scale of the row: what is as near to the threshold is decided without rounding
ROUNDING = 2e-15  # of the scale of the row in float64
MARGIN = 1e-6  # of the scale of the row: rounding must not make a wall of an entry that counts


@compile_rows()
def forward_clips(x: Any, row: Any, first: Any, last: Any, top: Any, scale: Any, lam: Any, walls: Any, work: Any) -> Any:
    """Compute, first to last, the interval of each entry's value given its successor's; return the value of the last entry.

    This is the forward pass of Johnson's dynamic program for one segment; :func:`write_runs` walks back. A wall is an allowed
    entry so low that no entry of the support is fused with it.

    Args:
        x: (rows, d).
        row: which row.
        first: first entry of the segment, all of whose entries take part.
        last: its last entry.
        top: maximum of the row.
        scale: factor of the differences from the maximum.
        lam: strength of the penalty, > 0.
        walls: 1 if the entry before the segment is a wall, plus 2 if the one after it is.
        work: (6, 2d) workspace; rows LOWER and UPPER receive the results, at the entries' places.
    """
    size = last - first + 1
    left, right = size, size - 1  # knots in use: left .. right
    z = (np.float64(x[row, first]) - top) * scale - (lam if walls & 1 else 0.0)
    left_slope, left_intercept, right_slope, right_intercept = 1.0, -z, 1.0, -z
    for i in range(first, last):
        slope, intercept, low = left_slope, left_intercept, left
        while low <= right and slope * work[KNOTS, low] + intercept <= -lam:
            slope += work[SLOPES, low]
            intercept += work[INTERCEPTS, low]
            low += 1
        lower = (-lam - intercept) / slope
        lower_slope, lower_intercept = slope, intercept
        slope, intercept, high = right_slope, right_intercept, right
        while high >= low and slope * work[KNOTS, high] + intercept >= lam:
            slope -= work[SLOPES, high]
            intercept -= work[INTERCEPTS, high]
            high -= 1
        upper = (lam - intercept) / slope
        left, right = low - 1, high + 1
        work[KNOTS, left], work[SLOPES, left], work[INTERCEPTS, left] = lower, lower_slope, lower_intercept + lam
        work[KNOTS, right], work[SLOPES, right], work[INTERCEPTS, right] = upper, -slope, lam - intercept
        work[LOWER, i], work[UPPER, i] = lower, upper
        z = (np.float64(x[row, i + 1]) - top) * scale
        if i + 1 == last and walls & 2:
            z -= lam
        left_slope, left_intercept, right_slope, right_intercept = 1.0, -lam - z, 1.0, lam - z
    slope, intercept, low = left_slope, left_intercept, left
    while low <= right and slope * work[KNOTS, low] + intercept <= 0.0:
        slope += work[SLOPES, low]
        intercept += work[INTERCEPTS, low]
        low += 1
    return -intercept / slope


@compile_rows()
def write_runs(
    x: Any, row: Any, first: Any, last: Any, top: Any, scale: Any, lam: Any, walls: Any, runs: Any, labels: Any, work: Any
) -> Any:
    """Solve the total-variation problem of a segment and write values and labels run by run; return the number of runs so far.

    A run with n entries has the value mean(z) + lam (s_left - s_right) / n, s the signs of the steps into and out of
    it; the code of its label is s_left - s_right. Signs come from which end of its interval an entry lies at, never
    from comparing values that rounding has touched. A step that the type of x would round away does not end a run. A wall
    is an allowed entry so low that no entry of the support is fused with it.

    Args:
        x: (rows, d) scores.
        row: which row.
        first: first entry of the segment.
        last: its last entry.
        top: maximum of the row.
        scale: factor of the differences from the maximum.
        lam: strength of the penalty, >= 0.
        walls: 1 if the entry before the segment is a wall, plus 2 if the one after it is.
        runs: number of runs before this segment.
        labels: (rows, d) int32 receives the labels.
        work: (6, 2d) workspace; row VALUES receives the values, at the entries' places.
    """
    step = (EPS_SINGLE if x.itemsize == 4 else EPS_DOUBLE) + ROUNDING * (1.0 + 4.0 * lam)
    value, total = 0.0, 0.0
    if lam > 0.0 and last > first:
        value = forward_clips(x, row, first, last, top, scale, lam, walls, work)
    end, after = last, 1 if walls & 2 else 0
    for i in range(last, first - 1, -1):
        total += (np.float64(x[row, i]) - top) * scale
        before = -1 if walls & 1 else 0  # sign of the value before, less this one
        closed = i == first
        if i > first:
            if lam == 0.0:
                difference = np.float64(x[row, i - 1]) - np.float64(x[row, i])
                before = 1 if difference > 0 else (-1 if difference < 0 else 0)
                closed = True
            elif value < work[LOWER, i - 1] - step:
                value, before, closed = work[LOWER, i - 1], 1, True
            elif value > work[UPPER, i - 1] + step:
                value, before, closed = work[UPPER, i - 1], -1, True
        if closed:
            code = before - after
            size = end - i + 1
            mean = total / size + lam * code / size
            label = label_of(runs, code)
            for j in range(i, end + 1):
                work[VALUES, j] = mean
                labels[row, j] = label
            runs += 1
            end, after, total = i - 1, before, 0.0
    return runs


@compile_rows()
def gather_near(x: Any, row: Any, top: Any, gamma: Any, lam: Any, places: Any) -> Any:
    """List the entries whose scores are high enough to affect the result; return their number.

    Args:
        x: (rows, d) scores, -inf where an entry is not allowed.
        row: which row.
        top: maximum of the row.
        gamma: strength of the regularizer.
        lam: strength of the penalty.
        places: (d,) int32 receives the places of the entries.
    """
    wall = top - gamma * (1.0 + 4.0 * lam) * (1.0 + MARGIN)
    n = 0
    for i in range(x.shape[1]):
        if np.float64(x[row, i]) >= wall and x[row, i] != -np.inf:
            places[n] = i
            n += 1
    return n


@compile_rows()
def sum_run(x: Any, row: Any, top: Any, first: Any, n: Any, labels: Any, places: Any) -> Any:
    """Return the sum, as two floats, of ``x - top`` over the run that starts at a place, and the place after the run.

    Args:
        x: (rows, d) scores.
        row: which row.
        top: maximum of the row.
        first: position in ``places`` of the run's first entry.
        n: number of places.
        labels: (rows, d) labels of the runs.
        places: (>= n,) places of entries, in their order.
    """
    high, low, end = 0.0, 0.0, first
    while end < n and labels[row, places[end]] == labels[row, places[first]]:
        high, low = add_difference(high, low, np.float64(x[row, places[end]]), top)
        end += 1
    return high, low, end


@compile_rows()
def settle_runs(
    x: Any, row: Any, top: Any, gamma: Any, lam: Any, n: Any, labels: Any, places: Any, work: Any, bound: Any
) -> None:
    """Decide exactly which runs within ``bound`` of the threshold are in the support, and correct the sign of their excess.

    Starting from a superset of the support, runs whose mean is not above the threshold are removed until all are.

    Args:
        x: (rows, d) scores.
        row: which row.
        top: maximum of the row.
        gamma: strength of the regularizer.
        lam: strength of the penalty.
        n: number of entries that take part.
        labels: (rows, d) labels of the runs.
        places: (>= n,) places of these entries, in their order.
        work: (6, 2d) workspace, whose row EXCESS holds the excess of each entry over the threshold.
        bound: largest distance from the threshold that rounding explains.
    """
    high, low, code, size, j = 0.0, 0.0, 0, 0, 0
    while j < n:
        first = j
        more, rest, j = sum_run(x, row, top, first, n, labels, places)
        if work[EXCESS, places[first]] >= -bound:
            high, low = add_difference(high, low, more, -rest)
            code += (labels[row, places[first]] & 7) - 2
            size += j - first
    changed = True
    while changed:
        changed, j = False, 0
        while j < n:
            first, i = j, places[j]
            own_high, own_low, j = sum_run(x, row, top, first, n, labels, places)
            own_code, own_size = (labels[row, i] & 7) - 2, j - first
            if abs(work[EXCESS, i]) <= bound:
                inside = stands_out(own_high, own_low, own_code, own_size, high, low, code, size, gamma, lam)
                for k in range(first, j):
                    work[EXCESS, places[k]] = max(work[EXCESS, places[k]], SMALLEST) if inside else -1.0
                if not inside:
                    high, low = add_difference(high, low, -own_high, own_low)
                    code, size, changed = code - own_code, size - own_size, True


@compile_rows()
def fuse_row(x: Any, row: Any, top: Any, gamma: Any, lam: Any, n: Any, out: Any, labels: Any, places: Any, work: Any) -> None:
    """Write the fusedmax of a row of finite scores, and the labels of its runs.

    Args:
        x: (rows, d) scores.
        row: which row.
        top: its maximum.
        gamma: strength of the regularizer.
        lam: strength of the fusion penalty, >= 0.
        n: number of entries that take part, >= 1.
        out: (rows, d) receives the result.
        labels: (rows, d) int32 receives the labels; -1 outside the support.
        places: (d,) int32, the entries that take part, in their order. All of the support must be among them.
        work: (6, 2d) float64 workspace.
    """
    d = x.shape[1]
    scale = 1.0 / gamma
    for i in range(d):
        out[row, i] = 0
        labels[row, i] = -1
    runs, begin = 0, 0
    while begin < n:
        end = begin + 1
        while end < n and places[end] == places[end - 1] + 1:
            end += 1
        first, last = places[begin], places[end - 1]
        walls = 0
        if first > 0 and x[row, first - 1] != -np.inf:
            walls += 1
        if last + 1 < d and x[row, last + 1] != -np.inf:
            walls += 2
        runs = write_runs(x, row, first, last, top, scale, lam, walls, runs, labels, work)
        begin = end
    best = work[VALUES, places[0]]
    for j in range(n):
        best = max(best, work[VALUES, places[j]])
    tau, count = best - 1.0, 0
    for _ in range(n + 1):  # each pass but the last drops an entry
        total, above = 0.0, 0
        for j in range(n):
            value = work[VALUES, places[j]] - best
            if value > tau - best:
                total += value
                above += 1
        if above == count:
            break
        count = above
        tau = best + (total - 1.0) / above
    tau -= best
    total, above = 0.0, 0
    for j in range(n):
        value = (work[VALUES, places[j]] - best) - tau
        if value > 0.0:
            total += value
            above += 1
    rest = (total - 1.0) / above  # what rounding tau left over, shared out among small numbers, where it is exact
    bound, near = min(NEAR * (1.0 + lam), 0.5 / n), False  # no larger than half of the largest weight
    for j in range(n):
        i = places[j]
        work[EXCESS, i] = (work[VALUES, i] - best) - tau - rest
        near |= abs(work[EXCESS, i]) <= bound
    if near:
        settle_runs(x, row, top, gamma, lam, n, labels, places, work, bound)
    used, latest = -1, -1
    for j in range(n):
        i = places[j]
        value = work[EXCESS, i]
        if value > 0.0:
            out[row, i] = value
            used += labels[row, i] >> 3 != latest
            latest = labels[row, i] >> 3
            labels[row, i] = (used << 3) | (labels[row, i] & 7)  # independent of runs outside the support
        else:
            labels[row, i] = -1
