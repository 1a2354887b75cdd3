"""Oscarmax of rows, exactly, and the composition that was published first.

On the simplex nothing is negative, so with z sorted decreasingly the penalty is linear: ``lam sum_i (d - i) y_(i)``. The result
is the simplex projection of the decreasing isotonic regression of ``z_(i) - lam (d - i)``, in the order of z.

Only a prefix of a row is sorted. The threshold tau of a prefix is a lower bound of the row's threshold. A prefix suffices if no
block of later entries can have a mean above tau, which a histogram of these entries decides.

The published composition (Niculae & Blondel 2017) projects ``prox(z)`` of the penalty without the simplex, which keeps signs.
It does not maximize a regularized objective, and can be far from the exact mapping.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows, empty
from lit_sparse.kernels.cpu.rows import is_broken, plain_top, row_views, top_of, unit_of, write_zeros
from lit_sparse.kernels.cpu.threads import Array, over_rows
from lit_sparse.kernels.exact_support import SMALLEST, add_difference, stands_out
from lit_sparse.kernels.gpu.numba_rows import launch_rows
from lit_sparse.kernels.groups import label_of, write_invalid_labels
from lit_sparse.kernels.isotonic import (
    COUNTS,
    KEYS,
    MEANS,
    ORDER,
    SPARE,
    STARTS,
    SUMS,
    isotonic_blocks,
    pool_sorted,
    sort_decreasing,
)
from lit_sparse.kernels.row_kernel import row_kernel
from lit_sparse.kernels.simplex import ROUNDINGS, project_sorted

__all__ = ["map_oscar"]

cuda: Any = None  # in the program for GPUs it is numba.cuda, once that is compiled
FLOAT_ROWS, INT_ROWS = 4, 4  # of the workspace on a GPU

SECONDS = 10e-9  # for one element, on one thread
LEVELS, BUCKETS = 16, 32
EPS_DOUBLE = float(np.finfo(np.float64).eps)
LOWEST_SINGLE, LOWEST_DOUBLE = float(np.finfo(np.float32).min), float(np.finfo(np.float64).min)
NEAR = 1e-9  # of the scale of the row: what is as near to the threshold is decided without rounding
HUGE, SCALE = 1e290, 2.0**-600


@compile_rows()
def threshold_of_blocks(blocks: Any, floats: Any, ints: Any) -> Any:
    """Return the simplex threshold of blocks of decreasing means, relative to the first mean, and how many blocks are above it.

    Means and starts of the blocks are in the workspaces, as :func:`~lit_sparse.kernels.isotonic.pool_sorted` writes them.
    """
    best = floats[MEANS, 0]
    tau, total, used = 0.0, 0.0, 0
    for b in range(blocks):
        if b > 0 and floats[MEANS, b] - best <= tau:
            break
        size = ints[STARTS, b + 1] - ints[STARTS, b]
        total += (floats[MEANS, b] - best) * size
        tau = (total - 1.0) / ints[STARTS, b + 1]
        used = b + 1
    return tau, used


@compile_rows()
def gather_keys(x: Any, row: Any, top: Any, gamma: Any, bound: Any, floats: Any, ints: Any) -> Any:
    """Collect the scaled scores ``(x - top) / gamma`` of the entries >= ``bound``; return how many there are.

    Row KEYS of ``floats`` receives them, and row ORDER of ``ints`` their places in the row; ``top`` is the row's maximum.
    """
    n = 0
    for i in range(x.shape[1]):  # without a branch: what is dropped is overwritten by the next
        ints[ORDER, n] = i
        n += x[row, i] >= bound
    for j in range(n):
        floats[KEYS, j] = (np.float64(x[row, ints[ORDER, j]]) - top) / gamma
    return n


@compile_rows()
def bound_of(x: Any, top: Any, gamma: Any, key: Any) -> Any:
    """Return the finite score, in the dtype of x, whose scaled score ``(x - top) / gamma`` is ``key``."""
    return x.dtype.type(max(top + gamma * key, LOWEST_SINGLE if x.itemsize == 4 else LOWEST_DOUBLE))


@compile_rows()
def count_from(x: Any, row: Any, bound: Any) -> Any:
    """Return the number of entries of a row that are >= ``bound``."""
    count = 0
    for i in range(x.shape[1]):
        count += x[row, i] >= bound
    return count


@compile_rows()
def is_enough(x: Any, row: Any, top: Any, gamma: Any, lam: Any, n: Any, d: Any, limit: Any, height: Any) -> Any:
    """Return whether the n largest entries contain the support.

    They do if no block of the other entries, all below ``limit``, can have a mean above ``height``.

    The row has d allowed entries and the maximum ``top``. Each entry is bounded by the upper edge of its bucket. Within a
    bucket the sums over the first k entries are convex in k, so only the ends of buckets need a check.
    """
    if limit <= height:
        return True
    total, taken, edge = 0.0, n, limit
    for b in range(LEVELS):
        bound = bound_of(x, top, gamma, limit - (b + 1) * (limit - height) / LEVELS)
        count = max(count_from(x, row, bound) - taken, 0)
        total += count * (edge - height - lam * (d - taken - 0.5 * (count + 1)))
        taken += count
        edge = (np.float64(bound) - top) / gamma
        if total > 0.0:
            return False
    return True


@compile_rows()
def is_uniform(x: Any, row: Any, top: Any, gamma: Any, lam: Any, d: Any, floats: Any, ints: Any) -> Any:
    """Return whether a whole row is certainly one block, without sorting it: no prefix has a mean above the row's.

    Within a bucket, sums over a prefix have two bounds: from its start with all entries at its upper edge, or from its
    end with all entries at its lower edge. Both bounds are extreme at the ends of the bucket.
    """
    if lam == 0.0:
        return False
    least, total = 0.0, 0.0
    for i in range(x.shape[1]):
        if x[row, i] != -np.inf:
            key = (np.float64(x[row, i]) - top) / gamma
            total += key
            least = min(least, key)
    mean, width = total / d - 0.5 * lam * (d - 1), -least / BUCKETS
    if not (mean > -np.inf and width > 0.0):
        return False
    for b in range(BUCKETS):
        ints[COUNTS, b] = 0
        floats[SUMS, b] = 0.0
    for i in range(x.shape[1]):
        if x[row, i] != -np.inf:
            key = (np.float64(x[row, i]) - top) / gamma
            bucket = min(np.int64(-key / width), BUCKETS - 1)
            ints[COUNTS, bucket] += 1
            floats[SUMS, bucket] += key
    before, taken = 0.0, 0
    for b in range(BUCKETS):
        count = ints[COUNTS, b]
        level = count * (mean + lam * (d - taken - 0.5 * (count + 1)))
        after = before + floats[SUMS, b] - level
        from_start = before - count * b * width - level
        from_end = after + count * (b + 1) * width + level
        if from_start > 0.0 and from_end > 0.0:
            return False
        before = after
        taken += count
    return True


@compile_rows()
def settle_blocks(
    x: Any, row: Any, top: Any, gamma: Any, lam: Any, d: Any, blocks: Any, tau: Any, floats: Any, ints: Any
) -> Any:
    """Return how many of the decreasing blocks are in the support, deciding exactly for those close to the threshold.

    ``tau`` is the threshold relative to the first mean, and the blocks are in the workspaces; see :func:`map_row`.
    """
    best, used, n = floats[MEANS, 0], 0, ints[STARTS, blocks]
    bound = min(NEAR * (1.0 + lam * d), 0.5 / n)
    while used < blocks and floats[MEANS, used] - best - tau >= -bound:
        used += 1
    if floats[MEANS, used - 1] - best - tau > bound:
        return used
    high, low, code = 0.0, 0.0, 0
    for i in range(ints[STARTS, used]):
        high, low = add_difference(high, low, np.float64(x[row, ints[ORDER, i]]), top)
        code -= d - 1 - i
    while floats[MEANS, used - 1] - best - tau <= bound:
        own_high, own_low, own_code = 0.0, 0.0, 0
        first, size = ints[STARTS, used - 1], ints[STARTS, used]
        for i in range(first, size):
            own_high, own_low = add_difference(own_high, own_low, np.float64(x[row, ints[ORDER, i]]), top)
            own_code -= d - 1 - i
        if stands_out(own_high, own_low, own_code, size - first, high, low, code, size, gamma, lam):
            break
        high, low = add_difference(high, low, -own_high, own_low)
        code -= own_code
        used -= 1
    return used


@compile_rows()
def map_row(x: Any, row: Any, top: Any, gamma: Any, lam: Any, out: Any, labels: Any, floats: Any, ints: Any) -> None:
    """Write the exact oscarmax of a row of finite scores, and the labels of its groups.

    ``x``, ``out`` and ``labels`` (int32) are (rows, d), and ``top`` is the row's maximum; ``floats`` and ``ints`` are
    workspaces (4, > d), float64 and int32, of at least BUCKETS columns.
    """
    d = 0
    for i in range(x.shape[1]):
        labels[row, i] = -1
        d += x[row, i] != -np.inf
    blocks, tau, used, limit = 0, 0.0, 0, -1.0
    for attempt in range(3):
        bound = bound_of(x, top, gamma, limit)
        limit = (np.float64(bound) - top) / gamma
        n = gather_keys(x, row, top, gamma, bound, floats, ints)
        sort_decreasing(n, floats, ints)
        blocks = pool_sorted(n, d, lam, floats, ints)
        tau, used = threshold_of_blocks(blocks, floats, ints)
        height = tau + floats[MEANS, 0]
        if n == d or attempt == 2 or is_enough(x, row, top, gamma, lam, n, d, limit, height):
            break
        if attempt == 0 and is_uniform(x, row, top, gamma, lam, d, floats, ints):
            for i in range(x.shape[1]):
                if x[row, i] != -np.inf:
                    out[row, i] = 1.0 / d
                    labels[row, i] = label_of(0, 0)
            return
        limit = -1.0 - 0.5 * lam * (d - 1)
        if attempt == 1:
            limit = height - 1e-9 * (1.0 + abs(height))  # what is not above it changes nothing
    used = settle_blocks(x, row, top, gamma, lam, d, blocks, tau, floats, ints)
    best, total = floats[MEANS, 0], 0.0
    for b in range(used):
        total += (floats[MEANS, b] - best - tau) * (ints[STARTS, b + 1] - ints[STARTS, b])
    tau += (total - 1.0) / ints[STARTS, used]  # what rounding left over
    for b in range(used):
        value = max((floats[MEANS, b] - best) - tau, SMALLEST)
        label = label_of(b, 0)
        for i in range(ints[STARTS, b], ints[STARTS, b + 1]):
            out[row, ints[ORDER, i]] = value
            labels[row, ints[ORDER, i]] = label


@compile_rows()
def compose_row(x: Any, row: Any, gamma: Any, lam: Any, out: Any, labels: Any, floats: Any, ints: Any) -> None:
    """Write the paper's approximation of oscarmax for a row, and the labels of its groups.

    It is the simplex projection of the penalty's proximal operator. For the arguments, see :func:`map_row`.
    """
    n, largest = 0, 0.0
    for i in range(x.shape[1]):
        labels[row, i] = -1
        floats[KEYS, n] = abs(np.float64(x[row, i])) / gamma
        largest = max(largest, floats[KEYS, n]) if x[row, i] != -np.inf else largest
        ints[ORDER, n] = i
        n += x[row, i] != -np.inf
    scale = 1.0
    if largest > HUGE:  # their sum would not be a number: all is computed at this scale
        scale = SCALE
        for j in range(n):
            floats[KEYS, j] = abs(np.float64(x[row, ints[ORDER, j]])) * scale / gamma
    sort_decreasing(n, floats, ints)
    blocks = pool_sorted(n, n, lam * scale, floats, ints)
    for b in range(blocks):
        value = max(floats[MEANS, b], 0.0)
        for j in range(ints[STARTS, b], ints[STARTS, b + 1]):
            i = ints[ORDER, j]
            negative = x[row, i] < 0
            floats[SPARE, j] = -value if negative else value
            if value > 0.0:
                labels[row, i] = label_of(b, -1 if negative else 1)
    best = floats[SPARE, 0]
    for j in range(n):
        best = max(best, floats[SPARE, j])
    tau, count = -scale, 0  # less the largest
    for _ in range(n + 2):  # each pass but the last two drops an entry; the last shares out what rounding left over
        total, above = 0.0, 0
        for j in range(n):
            excess = floats[SPARE, j] - best - tau
            if excess > 0.0:
                total += excess
                above += 1
        tau += (total - scale) / above
        if above == count:
            break
        count = above
    bound = min(ROUNDINGS * EPS_DOUBLE * (scale * (1.0 + lam * n) + max(best, 0.0)), 0.5 * scale / n)  # the largest entry stays
    for j in range(n):
        excess = floats[SPARE, j] - best - tau
        if excess > bound:
            out[row, ints[ORDER, j]] = excess / scale


@compile_rows()
def map_block(start: Any, stop: Any, out: Any, labels: Any, x: Any, lams: Any, gamma: Any, published: Any) -> None:
    """Write the oscarmax of rows ``start .. stop - 1`` of ``x`` to ``out``, and the labels of its groups to ``labels``.

    All three arrays are (rows, d); ``lams`` holds one strength for each row, or one for all. The paper's approximation is
    computed unless ``published`` is None.
    """
    d = x.shape[1]
    bits, cell, cell_bits = row_views(x)
    floats, ints = empty((4, max(d + 1, BUCKETS)), np.float64), empty((4, max(d + 1, BUCKETS)), np.int32)
    for row in range(start, stop):
        lam = lams[row if len(lams) > 1 else 0]
        ordinary = top_of(x, bits, row, out, cell, cell_bits)
        if ordinary and lam >= 0.0 and lam < np.inf:
            if published is None:  # then the other way is not compiled
                map_row(x, row, np.float64(cell[0]), gamma, lam, out, labels, floats, ints)
            else:
                compose_row(x, row, gamma, lam, out, labels, floats, ints)
            continue
        write_invalid_labels(x, row, ordinary or is_broken(out, row), out, labels)


def _map_cpu(out: Array, labels: Array, x: Array, lams: Array, gamma: float, exact: bool) -> None:
    over_rows(map_block, x.shape, SECONDS, out, labels, x, lams, gamma, None if exact else True)


def oscar_rows(out: Any, labels: Any, x: Any, lams: Any, floats: Any, ints: Any, gamma: Any, exact: Any) -> None:
    """GPU program that computes oscarmax, one row per thread; arrays as in :func:`map_block`, with a workspace per row."""
    row = cuda.grid(1)
    if row < x.shape[0]:
        lam = lams[row if lams.shape[0] > 1 else 0]
        state, top = plain_top(x, row)
        if state == 0 and lam >= 0.0 and lam < np.inf:
            write_zeros(row, out)
            if exact:
                map_row(x, row, top, gamma, lam, out, labels, floats[row], ints[row])
            else:
                compose_row(x, row, gamma, lam, out, labels, floats[row], ints[row])
        else:
            write_invalid_labels(x, row, state != 1, out, labels)


def _map_cuda(x: Tensor, lam: float | Tensor, gamma: float, exact: bool) -> Any:
    """Map rows on a GPU; NotImplemented where numba-cuda is not installed or finds no GPU."""
    size = max(x.shape[-1] + 1, BUCKETS)
    shapes = [((FLOAT_ROWS, size), torch.float64), ((INT_ROWS, size), torch.int32)]
    return launch_rows(oscar_rows, x, lam, (float(gamma), bool(exact)), shapes)


@row_kernel(_map_cpu, _map_cuda, auxiliary=(torch.int32,))
def map_oscar(x: Tensor, lam: float | Tensor, gamma: float, exact: bool) -> tuple[Tensor, Tensor]:
    """Return oscarmax of ``x / gamma`` (..., d), and the labels of its groups; lam is (..., 1) or a number.

    With ``exact=False`` it is the published composition, with the labels of its first step. ``-inf`` marks a forbidden
    entry. A row without allowed entries gives zeros. A row with NaN or +inf, or with a negative lam, gives NaN at its allowed
    entries.
    """
    lam = torch.as_tensor(lam, dtype=x.dtype, device=x.device)
    allowed = x != -torch.inf
    n = allowed.sum(-1, keepdim=True)
    top = x.amax(-1, keepdim=True)
    invalid = ~(x < torch.inf).all(-1, keepdim=True) | ~((lam >= 0) & (lam < torch.inf))
    plain = ~invalid & (n > 0)
    use = plain & allowed
    scale = torch.ones_like(top)
    if not exact:  # sums of the largest numbers would be infinite: all is computed at this scale
        scale = 1 / unit_of(torch.where(use, x.abs() / gamma, 0.0)).clamp_min(1)
        lam = lam * scale
    z = torch.where(use, ((x - top) if exact else x.abs() * scale) / gamma, 0.0)
    order = torch.where(use, z, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    ranked = z.gather(-1, order)
    rank = torch.arange(1, x.shape[-1] + 1, device=x.device)
    # Forbidden entries come last, each lower than the previous one, so they are not pooled.
    behind = ranked.amin(-1, keepdim=True) - lam * n - rank
    a = torch.where(rank <= n, ranked - lam * (n - rank), behind)
    tied = (lam > 0) & (ranked[..., 1:] == ranked[..., :-1]) & (rank[1:] <= n)
    w, ids = isotonic_blocks(a, tied)
    w = torch.zeros_like(x).scatter(-1, order, w)
    ids = torch.zeros_like(order).scatter(-1, order, ids)
    roundings = torch.where(plain, ROUNDINGS * (1 + lam * n), 0.0)
    if exact:
        y = project_sorted(torch.where(use, w, -torch.inf), 1.0, 0, roundings)
        labels = torch.where((y > 0) & use, (ids << 3) | 2, -1)
    else:
        w = w.clamp_min(0)
        negative = x < 0
        roundings = roundings / scale + ROUNDINGS * w.amax(-1, keepdim=True) / scale
        y = project_sorted(torch.where(use, torch.where(negative, -w, w), -torch.inf), scale, 0, roundings)
        labels = torch.where((w > 0) & use, (ids << 3) | torch.where(negative, 1, 3), -1)
    return torch.where(allowed & invalid, torch.nan, y).to(x.dtype), torch.where(allowed & invalid, 2, labels).to(torch.int32)
