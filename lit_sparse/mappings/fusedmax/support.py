"""Entries that may be in the support of fusedmax, for many rows side by side in SIMD lanes.

With w the total-variation proximal operator of z, the entries above a level t are the set that attains

    h(t) = max over sets S of  sum over S of (z_i - t)  -  lam * (number of ends of the runs of S),

and h(t) is the sum of ``(w_i - t)_+``. The threshold of the simplex projection is the root of the convex function ``h - 1``,
whose slope is minus the size of S. A two-state recursion along the row computes h (Kolmogorov, Pock & Rolinek 2016), and
Newton's method approaches the root. The set of any level to the left of the root holds the support.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_sparse.kernels.cpu.compile import compile_rows, empty, lowest_bit

__all__ = ["LANES", "find_candidates", "fits_lanes", "lane_workspace", "list_candidates"]

LANES = 32
FEW_ROWS, LONGEST = 8, 1 << 17  # lanes would be empty, or rows leave the cache
LARGEST = 1e30  # gamma, its inverse and lam, for float32
PASSES = 3
WORD = 32
SLACK = 16.0  # roundings of a score's difference from the level
# Places of the states of a lane in one array: with separate ones, SIMD code would check at each step whether they overlap.
GAIN, TOTAL, INSIDE, OUTSIDE, LEVEL, LAM, LOWER = tuple([LANES * k for k in range(7)])
EPS_SINGLE, EPS_DOUBLE = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)


@compile_rows()
def fits_lanes(x: Any, gamma: Any, lam: Any) -> Any:
    """Return whether candidates can be found in SIMD lanes, whatever the number of rows that a thread gets.

    Args:
        x: (rows, d) scores, -inf where an entry is not allowed.
        gamma: strength of the regularizer.
        lam: strength of the penalty.
    """
    return x.shape[0] >= FEW_ROWS and x.shape[1] <= LONGEST and 1.0 / LARGEST < gamma < LARGEST and lam < LARGEST


@compile_rows()
def lane_workspace(x: Any, gamma: Any) -> Any:
    """Return workspace for :data:`LANES` rows: scores, messages, states, and one bit per candidate."""
    d = x.shape[1] if fits_lanes(x, gamma, 0.0) else 1
    tile, messages = empty((d + 2) * LANES, x.dtype), empty((d + 2) * LANES, x.dtype)
    return tile, messages, empty(7 * LANES, x.dtype), empty((d + WORD - 1) // WORD * LANES, np.int32)


@compile_rows()
def fill_lane(x: Any, row: Any, top: Any, scale: Any, floor: Any, lane: Any, tile: Any) -> None:
    """Write the scaled scores ``(x - top) * scale`` of a row to a lane, raised to at least ``floor``.

    Args:
        x: (rows, d) scores, -inf where an entry is not allowed.
        row: which row.
        top: maximum of the row.
        scale: factor of the differences.
        floor: smallest value that is written.
        lane: which lane.
        tile: ((d + 2) * LANES,) receives the scores; the entries of all lanes at one place stand together.
    """
    factor, least, none = x.dtype.type(scale), x.dtype.type(floor), x.dtype.type(-np.inf)
    tile[lane] = none
    for i in range(x.shape[1]):
        z = max((x[row, i] - top) * factor, least)
        tile[(i + 1) * LANES + lane] = none if x[row, i] == -np.inf else z
    tile[(x.shape[1] + 1) * LANES + lane] = none


@compile_rows()
def sweep(d: Any, tile: Any, state: Any) -> None:
    """Compute h and the size of its set at the levels of all lanes, and move the levels by a Newton step.

    Args:
        d: length of the rows.
        tile: scores of all lanes, as :func:`fill_lane` writes them.
        state: (7 * LANES,) numbers of each lane, such as its level.
    """
    zero, one, none = tile.dtype.type(0), tile.dtype.type(1), tile.dtype.type(-np.inf)
    for r in range(4 * LANES):
        state[r] = zero
    for i in range(1, d + 2):
        before, here = tile[(i - 1) * LANES : i * LANES], tile[i * LANES : (i + 1) * LANES]
        for r in range(LANES):
            gain, size, rest = state[GAIN + r], state[INSIDE + r], state[OUTSIDE + r]
            edge = state[LAM + r] if min(here[r], before[r]) > none else zero
            state[TOTAL + r] += max(gain - edge, zero)
            state[GAIN + r] = min(max(gain, -edge), edge) + (here[r] - state[LEVEL + r])
            state[INSIDE + r] = (size if gain > -edge else rest) + one
            state[OUTSIDE + r] = size if gain > edge else rest
    for r in range(LANES):
        level, lower, excess = state[LEVEL + r], state[LOWER + r], state[TOTAL + r] - one
        lower = max(level, lower) if excess >= zero else lower
        state[LOWER + r] = lower
        state[LEVEL + r] = max(level + excess / state[OUTSIDE + r], lower) if state[OUTSIDE + r] > zero else lower


@compile_rows()
def mark(d: Any, tile: Any, messages: Any, state: Any, words: Any) -> None:
    """Write the set at each lane's lower level as bits.

    Args:
        d: length of the rows.
        tile: scores of all lanes, as :func:`fill_lane` writes them.
        messages: workspace like ``tile``.
        state: (7 * LANES,) numbers of each lane, such as its level.
        words: int32, receives the bits: one word for 32 places of a lane.
    """
    zero, one, none = tile.dtype.type(0), tile.dtype.type(1), tile.dtype.type(-np.inf)
    for r in range(LANES):
        state[GAIN + r], state[INSIDE + r] = zero, zero
    for i in range(1, d + 1):
        before, here = tile[(i - 1) * LANES : i * LANES], tile[i * LANES : (i + 1) * LANES]
        message = messages[i * LANES : (i + 1) * LANES]
        for r in range(LANES):
            edge = state[LAM + r] if min(here[r], before[r]) > none else zero
            gain = min(max(state[GAIN + r], -edge), edge) + (here[r] - state[LOWER + r])
            state[GAIN + r] = gain
            message[r] = gain
    for r in range(len(words)):
        words[r] = 0
    for i in range(d, 0, -1):
        here, after = tile[i * LANES : (i + 1) * LANES], tile[(i + 1) * LANES : (i + 2) * LANES]
        message = messages[i * LANES : (i + 1) * LANES]
        for r in range(LANES):
            edge = state[LAM + r] if min(here[r], after[r]) > none else zero
            state[INSIDE + r] = one if message[r] > (-edge if state[INSIDE + r] > zero else edge) else zero
        word, bit = words[(i - 1) // WORD * LANES : (i - 1) // WORD * LANES + LANES], np.int32(1 << ((i - 1) % WORD))
        for r in range(LANES):
            word[r] |= bit if state[INSIDE + r] > zero else np.int32(0)


@compile_rows()
def find_candidates(x: Any, rows: Any, tops: Any, lams: Any, n: Any, gamma: Any, workspace: Any) -> None:
    """Mark the entries of up to :data:`LANES` rows that may be in the support of fusedmax, for :func:`list_candidates`.

    Args:
        x: (rows, d) scores.
        rows: (LANES,) index of the row in each lane.
        tops: (LANES,) maxima of these rows.
        lams: (LANES,) strengths of the penalty, finite.
        n: number of lanes in use.
        gamma: strength of the regularizer.
        workspace: result of :func:`lane_workspace`.
    """
    d = x.shape[1]
    tile, messages, state, words = workspace
    for r in range(LANES):
        lane = min(r, n - 1)  # lanes without a row repeat the last
        lam = lams[lane]
        fill_lane(x, rows[lane], tops[lane], 1.0 / gamma, -1.5 * (1.0 + 4.0 * lam), r, tile)
        state[LAM + r] = lam
        state[LOWER + r] = -1.0 - 2.0 * lam
        state[LEVEL + r] = state[LOWER + r]
    for _ in range(PASSES):
        sweep(d, tile, state)
    for r in range(LANES):
        state[LOWER + r] -= (EPS_SINGLE if x.itemsize == 4 else EPS_DOUBLE) * (2.0 * d + SLACK * (1.0 + 4.0 * state[LAM + r]))
    mark(d, tile, messages, state, words)


@compile_rows()
def list_candidates(lane: Any, workspace: Any, places: Any) -> Any:
    """List the marked entries of a lane in their order; return their number.

    Args:
        lane: which lane.
        workspace: result of :func:`lane_workspace`, after :func:`find_candidates`.
        places: (d,) int32 receives the places of the entries.
    """
    words, n = workspace[3], 0
    for first in range(len(words) // LANES):
        word = np.int64(words[first * LANES + lane]) & 0xFFFFFFFF
        while word != 0:
            places[n] = first * WORD + lowest_bit(word)
            word &= word - 1
            n += 1
    return n
