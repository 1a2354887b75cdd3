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
from lit_sparse.kernels.cpu.rows import ends_of, is_broken, plain_top, row_views
from lit_sparse.kernels.gpu.numba_rows import launch_rows
from lit_sparse.kernels.groups import group_sums, write_invalid_labels
from lit_sparse.kernels.loops import repeat_while
from lit_sparse.kernels.row_kernel import row_kernel
from lit_sparse.kernels.simplex import ROUNDINGS, project_sorted
from lit_sparse.mappings.fusedmax.rows import ROUNDING, WORK_ROWS, fuse_row, gather_near
from lit_sparse.mappings.fusedmax.support import LANES, find_candidates, fits_lanes, lane_workspace, list_candidates

__all__ = ["map_fused", "total_variation_prox"]

cuda: Any = None  # in the program for GPUs it is numba.cuda, once that is compiled


def total_variation_prox(z: Tensor, lam: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the total-variation proximal point ``argmin_w 1/2 ||w - z||^2 + lam sum |w_(i+1) - w_i|`` and labels of its runs.

    Runs are maximal stretches of allowed entries with equal values. As lam grows from zero they only ever merge; this
    function follows the values from merger to merger, one per row at a time, in at most d steps.

    Args:
        z: (..., d) numbers, finite.
        lam: (..., 1) strength of the penalty, >= 0.
        allowed: (..., d) boolean; a run ends where an entry is not allowed.

    Returns:
        w (..., d), and the labels (..., d) of its runs, as :func:`~lit_sparse.kernels.groups.label_of` packs them.
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
def fuse_rows(
    n: Any, out: Any, labels: Any, x: Any, gamma: Any, rows: Any, tops: Any, lams: Any, places: Any, work: Any, lanes: Any
) -> None:
    """Write the fusedmax of the first n rows listed in ``rows``, finding candidates of several rows at once in SIMD lanes.

    Args:
        n: number of rows, at most LANES.
        out: (rows, d) receives the results.
        labels: (rows, d) int32 receives the labels.
        x: (rows, d) scores, -inf where an entry is not allowed.
        gamma: strength of the regularizer.
        rows: (LANES,) indices of the rows.
        tops: (LANES,) maxima of these rows.
        lams: (LANES,) strengths of the penalty.
        places: (d,) int32 workspace.
        work: (6, 2d) float64 workspace.
        lanes: result of :func:`~lit_sparse.mappings.fusedmax.support.lane_workspace`.
    """
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
    """Write the fusedmax of rows ``start .. stop - 1`` of ``x`` to ``out``, and the labels of its runs to ``labels``.

    Args:
        start: first row.
        stop: row after the last one.
        out: (rows, d) receives the results.
        labels: (rows, d) int32 receives the labels.
        x: (rows, d) scores, -inf where an entry is not allowed.
        lams: (rows,) strengths of the penalty, or (1,) for one that all rows share.
        gamma: strength of the regularizer.
    """
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
            write_invalid_labels(x, row, ordinary or is_broken(out, row), out, labels)
        if n == LANES or (n > 0 and row == stop - 1):
            fuse_rows(n, out, labels, x, gamma, rows, tops, strengths, places, work, lanes)
            n = 0


def fused_rows(out: Any, labels: Any, x: Any, lams: Any, places: Any, work: Any, gamma: Any) -> None:
    """GPU program that computes fusedmax, one row per thread.

    Args:
        out: (rows, d) receives the results.
        labels: (rows, d) int32 receives the labels.
        x: (rows, d) scores, -inf where an entry is not allowed.
        lams: (rows,) strengths of the penalty, or (1,) for one that all rows share.
        places: (rows, d) int32 workspace.
        work: (rows, 6, 2d) float64 workspace.
        gamma: strength of the regularizer.
    """
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


@row_kernel(map_block, _map_cuda, seconds=3e-9, auxiliary=(torch.int32,))
def map_fused(x: Tensor, lam: float | Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return fusedmax of ``x / gamma`` (..., d), and the labels of its runs; lam is (..., 1) or a number.

    ``-inf`` marks a forbidden entry, which also separates groups. A row without allowed entries gives zeros. A row with NaN or
    +inf, or with a negative lam, gives NaN at its allowed entries.
    """
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
