"""Fusedmax of rows: the total-variation proximal operator, then the simplex.

The proximal operator is solved exactly by dynamic programming (Johnson 2013). The state is the derivative of the cost of a
prefix as a function of its last value: an increasing, piecewise linear function, clipped at -lam and lam. Knots are added and
removed at its two ends. The time is linear in the worst case, and rounding cannot lead to an index out of bounds.

Only a part of a row is needed. With z = (x - max x) / gamma, all values of the operator are within 2 lam of z. The threshold of
the projection is therefore at least -1 - 2 lam. An entry below -1 - 4 lam can neither enter the support nor be fused with an
entry of the support, so it separates its neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows, empty
from lit_sparse.kernels.cpu.rows import ends_of, is_broken, plain_top, row_views, write_zeros
from lit_sparse.kernels.exact_support import SMALLEST, add_difference, stands_out
from lit_sparse.kernels.gpu.numba_rows import launch_rows
from lit_sparse.kernels.groups import group_sums, label_of, write_invalid_labels
from lit_sparse.kernels.loops import repeat_while
from lit_sparse.kernels.row_kernel import RowKernel
from lit_sparse.kernels.simplex import ROUNDINGS, project_sorted
from lit_sparse.mappings.fusedmax.support import LANES, find_candidates, fits_lanes, lane_workspace, list_candidates

__all__ = ["map_fused", "total_variation_prox"]

cuda: Any = None  # in the program for GPUs it is numba.cuda, once that is compiled

LOWER, UPPER, KNOTS, SLOPES, INTERCEPTS, VALUES = 0, 1, 2, 3, 4, 5  # rows of the workspace
WORK_ROWS = 6
EXCESS = LOWER  # once the runs are known
NEAR = 1e-9  # of the scale of the row: what is as near to the threshold is decided without rounding
ROUNDING = 2e-15  # of the scale of the row in float64
EPS_SINGLE, EPS_DOUBLE = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)
MARGIN = 1e-6  # of the scale of the row: rounding must not make a wall of an entry that counts


def _map_reference(x: Tensor, lam: float | Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    lam = torch.as_tensor(lam, dtype=x.dtype, device=x.device)
    allowed = x != -torch.inf
    top = x.amax(-1, keepdim=True)
    invalid = ~(x < torch.inf).all(-1, keepdim=True) | ~((lam >= 0) & (lam < torch.inf))
    plain = ~invalid & allowed.any(-1, keepdim=True)
    z = torch.where(plain & allowed, (x - top) / gamma, torch.zeros_like(x))
    w, labels = total_variation_prox(z, torch.where(plain, lam, torch.zeros_like(lam)), allowed)
    roundings = torch.where(plain, ROUNDINGS * (1 + 4 * lam), 0.0)
    y = project_sorted(torch.where(plain & allowed, w, -torch.inf), 1.0, 0, roundings)
    y = torch.where(allowed & invalid, torch.full_like(y, torch.nan), y)
    labels = torch.where((y > 0) & plain, labels, torch.full_like(labels, -1))
    return y, torch.where(y.isnan(), torch.full_like(labels, 2), labels)


def total_variation_prox(z: Tensor, lam: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``argmin_w 1/2 ||w - z||^2 + lam sum |w_(i+1) - w_i|`` over maximal runs of allowed entries, and the labels.

    As lam grows from zero, runs of equal values only ever merge: this follows their values from merger to merger, one of each
    row at a time, in at most d steps.

    Args:
        z: (..., d), finite.
        lam: (..., 1), >= 0.
        allowed: (..., d); a run ends where an entry is not allowed.
    """
    lam = lam.to(z.dtype).expand(*z.shape[:-1], 1)
    neighbours = allowed[..., 1:] & allowed[..., :-1]
    joined = torch.zeros_like(neighbours)  # whether entry i + 1 belongs to the run of entry i
    joined, _, step = repeat_while(
        lambda joined, reached, step, z, lam, neighbours: (reached < lam) & (neighbours.sum(-1, keepdim=True) > 0),
        _merged,
        (joined, torch.zeros_like(lam), torch.where(neighbours, torch.sign(z[..., :-1] - z[..., 1:]), 0.0)),
        (z, lam, neighbours),
    )
    ids, size, mean = _runs(z, joined)
    w = mean + lam * _slopes(step, ids) / size
    least = torch.finfo(z.dtype).eps + ROUNDING * (1 + 4 * lam)
    joined = joined | (neighbours & (lam > 0) & (w.diff(dim=-1).abs() <= least))
    ids, size, mean = _runs(z, joined)
    slope = _slopes(torch.where(joined, 0.0, step), ids)
    return mean + lam * slope / size, ((ids << 3) | (slope.long() + 2)).to(torch.int32)


def _runs(z: Tensor, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of each entry's run, the run's size and its mean of z, all (..., d)."""
    ids = torch.cat([torch.zeros_like(z[..., :1]).long(), (~joined).long()], -1).cumsum(-1)
    size = group_sums(torch.ones_like(z), ids)
    return ids, size, group_sums(z, ids) / size


def _slopes(step: Tensor, ids: Tensor) -> Tensor:
    """Return the derivative (..., d) of the sum of each entry's run in the strength reached, from the signs at its ends."""
    edge = torch.zeros_like(ids[..., :1], dtype=step.dtype)
    left, right = torch.cat([edge, step], -1), torch.cat([step, edge], -1)
    return group_sums(left - right, ids)


def _merged(
    joined: Tensor, reached: Tensor, step: Tensor, z: Tensor, lam: Tensor, neighbours: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Raise the strength of each row to its next merger of runs, or to ``lam`` if there is none before."""
    ids, size, mean = _runs(z, joined)
    rate = _slopes(step, ids) / size
    w = mean + reached * rate
    gap, closing = (w[..., :-1] - w[..., 1:]) * step, (rate[..., 1:] - rate[..., :-1]) * step
    open_ = neighbours & ~joined
    wait = torch.where(open_ & (closing > 0), gap.clamp_min(0) / torch.where(closing > 0, closing, 1.0), torch.inf)
    wait = torch.where(open_ & (step == 0) & (lam > 0), 0.0, wait)  # equal neighbours are one run
    soonest, which = wait.min(-1, keepdim=True)
    merges = reached + soonest <= lam
    joined = joined | ((torch.zeros_like(wait).scatter(-1, which, 1.0) > 0) & merges)
    return joined, torch.where(merges, reached + soonest, lam), torch.where(joined, 0.0, step)


@compile_rows()
def forward_clips(x: Any, row: Any, first: Any, last: Any, top: Any, scale: Any, lam: Any, walls: Any, work: Any) -> Any:
    """Fill in between which two numbers each entry lies, given the next; return the value of the last one.

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
    """Solve a segment, and walk back through it: write values and labels run by run; return how many runs there are so far.

    A run with n entries has the value mean(z) + lam (s_left - s_right) / n, s the signs of the steps into and out of it; the
    code of its label is s_left - s_right. Signs come from which end of its interval an entry lies at, never from comparing
    values that rounding has touched. A step that the type of x would round away does not end a run.
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
    """List the entries that are not so far below the maximum that they cannot matter; return their number."""
    wall = top - gamma * (1.0 + 4.0 * lam) * (1.0 + MARGIN)
    n = 0
    for i in range(x.shape[1]):
        if np.float64(x[row, i]) >= wall and x[row, i] != -np.inf:
            places[n] = i
            n += 1
    return n


@compile_rows()
def sum_run(x: Any, row: Any, top: Any, first: Any, n: Any, labels: Any, places: Any) -> Any:
    """Return the sum, in two parts, of ``x - top`` over the run that starts at a place, and the place after the run."""
    high, low, end = 0.0, 0.0, first
    while end < n and labels[row, places[end]] == labels[row, places[first]]:
        high, low = add_difference(high, low, np.float64(x[row, places[end]]), top)
        end += 1
    return high, low, end


@compile_rows()
def settle_runs(
    x: Any, row: Any, top: Any, gamma: Any, lam: Any, n: Any, labels: Any, places: Any, work: Any, bound: Any
) -> None:
    """Decide which runs whose excess is within ``bound`` of zero are in the support, and correct the sign of their excess.

    From a set of runs that holds the support, those that do not stand out leave until all do.
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
    """Write result and labels of an ordinary row.

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


@compile_rows()
def fuse_rows(
    n: Any, out: Any, labels: Any, x: Any, gamma: Any, rows: Any, tops: Any, lams: Any, places: Any, work: Any, lanes: Any
) -> None:
    """Map the first n of the rows in ``rows``. Candidates are found side by side for those that allow it."""
    few = empty(LANES, np.float64)
    for lane in range(n):
        few[lane] = lams[lane] if fits_lanes(x, gamma, lams[lane]) else 0.0
    if fits_lanes(x, gamma, 0.0):
        find_candidates(x, rows, tops, few, n, gamma, lanes)
    for lane in range(n):
        row, top, lam = rows[lane], np.float64(tops[lane]), lams[lane]
        if fits_lanes(x, gamma, lam):
            count = list_candidates(lane, lanes, places)
        else:
            count = gather_near(x, row, top, gamma, lam, places)
        fuse_row(x, row, top, gamma, lam, count, out, labels, places, work)


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, labels: Any, x: Any, lams: Any, gamma: Any) -> None:
    """Map rows ``start .. stop - 1``."""
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    places, work = empty(d, np.int32), empty((WORK_ROWS, 2 * d), np.float64)
    tops, strengths, rows = empty(LANES, x.dtype), empty(LANES, np.float64), empty(LANES, np.int64)
    lanes, n = lane_workspace(x, gamma), 0
    for row in range(start, stop):
        lam = lams[row if len(lams) > 1 else 0]
        ordinary = ends_of(x, bits, row, out, cell, cell_bits)
        if ordinary and lam >= 0.0 and lam < np.inf:
            rows[n], tops[n], strengths[n] = row, cell[0], lam
            n += 1
        else:
            if ordinary:
                write_zeros(row, out)
            write_invalid_labels(x, row, ordinary or is_broken(out, row), out, labels)
        if n == LANES or (n > 0 and row == stop - 1):
            fuse_rows(n, out, labels, x, gamma, rows, tops, strengths, places, work, lanes)
            n = 0


def fused_rows(out: Any, labels: Any, x: Any, lams: Any, places: Any, work: Any, gamma: Any) -> None:
    """Map one row a thread by fusedmax."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        lam = lams[row if lams.shape[0] > 1 else 0]
        state, top = plain_top(x, row)
        if state == 0 and lam >= 0.0 and lam < np.inf:
            n = gather_near(x, row, top, gamma, lam, places[row])
            fuse_row(x, row, top, gamma, lam, n, out, labels, places[row], work[row])
        else:
            write_invalid_labels(x, row, state != 1, out, labels)


def _map_cuda(x: Tensor, lam: float | Tensor, gamma: float) -> Any:
    """Map rows on a GPU; NotImplemented where numba-cuda is not installed or finds no GPU."""
    d = x.shape[-1]
    return launch_rows(fused_rows, x, lam, (float(gamma),), [((d,), torch.int32), ((WORK_ROWS, 2 * d), torch.float64)])


map_fused = RowKernel(
    "map_fused",
    "(Tensor x, Tensor lam, float gamma) -> (Tensor, Tensor)",
    map_block,
    _map_reference,
    _map_cuda,
    seconds=3e-9,
    parameters=1,
    auxiliary=(torch.int32,),
)
"""Row kernel ``(x (..., d), lam (..., 1) or a number, gamma) -> (y, labels)``: fusedmax of ``x / gamma``, and its runs.

``-inf`` marks a forbidden entry, which also separates groups. A row without allowed entries gives zeros. A row with NaN or
+inf, or with a negative lam, gives NaN at its allowed entries.
"""
