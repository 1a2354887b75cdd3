"""The augmented Lagrangian method for graphs of limits on counts and of pairs, compiled, row by row on the CPU.

The same method as in :mod:`lit_sparse.mappings.lp_sparsemap.solver`, which explains it and serves other factors and devices.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lit_sparse.kernels.cholesky import solve
from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, compile_rows, empty, zeros
from lit_sparse.kernels.cpu.threads import Array, over_rows

__all__ = ["FIRST", "GROWTH", "LARGEST", "ROUNDING", "SHARE", "Consensus", "Factors", "solve_graphs"]

SECONDS = 1.5e-7  # of one thread for one element of (rows, d, d), about
#: Penalty of the first round, its growth from one round to the next, and its largest value.
FIRST, GROWTH, LARGEST = 1.0, 2.0, 1e6
#: A round ends where the gradient is this share of the residual, the last round where it is a rounding error of that size.
SHARE, ROUNDING = 0.5, 1e-11
#: Rows of a workspace of entries: the anchor, and the nearest point; of one of variables.
ANCHOR, COPY = 0, 1
POINT, BASE, DIRECTION, GRADIENT = 0, 1, 2, 3
#: Entries that a factor's face joins: none, the sum of its inner entries, or two equal or opposite ones.
LOOSE, TIGHT, EQUAL, OPPOSITE = 0, 1, 2, 3


class Factors(NamedTuple):
    """The factors of a graph in flat arrays, one after another: F factors with E entries in total.

    Attributes:
        first: int64 (F + 1,), index of the first entry of each factor.
        limits: float64 (F, 2), smallest and largest allowed number of ones.
        pair: int64 (F,), index of a pair's potential; -1 for a factor of limits.
        index: int64 (E,), the variable of each entry.
        negated: uint8 (E,), whether the entry is one minus its variable.
    """

    first: Any
    limits: Any
    pair: Any
    index: Any
    negated: Any


class Consensus(NamedTuple):
    """The LP-SparseMAP solution of a batch of B rows with d variables, E factor entries and P potentials, as arrays or tensors.

    Attributes:
        marginals: (B, d).
        anchors: (B, E), points whose nearest points in the factors' convex hulls are the factors' copies of the
            marginals.
        penalty: (B,), final penalty.
        residuals: (B,), largest difference between a variable and a factor's copy of it.
        gaps: (B,), primal-dual gaps.
        copies: (B, E), the factors' copies of the marginals.
        counts: (B, P), expected count of each potential.
    """

    marginals: Any
    anchors: Any
    penalty: Any
    residuals: Any
    gaps: Any
    copies: Any
    counts: Any


class Work(NamedTuple):
    """Workspace for one row of LP-SparseMAP, with d variables, F factors, E entries of factors and P potentials.

    Attributes:
        variables: float64 (4, d), vectors over the variables, such as the marginals.
        entries: float64 (2, E), vectors over the factors' entries.
        multipliers: float64 (E,), multipliers of the augmented Lagrangian.
        matrix: float64 (d, d), matrix of Newton's method.
        inner: uint8 (E,), whether an entry is strictly between 0 and 1.
        faces: int64 (F,), the face on which each factor's nearest point lies.
        counts: float64 (P,), expected count of each potential.
    """

    variables: Any
    entries: Any
    multipliers: Any
    matrix: Any
    inner: Any
    faces: Any
    counts: Any


@compile_rows()
def clipped_sum(z: Any, first: Any, stop: Any, tau: Any) -> Any:
    """Return the sum of ``clip(z - tau, 0, 1)`` over entries ``first .. stop - 1``, with the counts that its slope needs.

    The other results are the number of entries strictly between 0 and 1, the sum of their z, and the number of ones.
    """
    total, count, between, ones = 0.0, 0, 0.0, 0
    for e in range(first, stop):
        value = z[e] - tau
        if value >= 1.0:
            total += 1.0
            ones += 1
        elif value > 0.0:
            total += value
            count += 1
            between += z[e]
    return total, count, between, ones


@compile_rows()
def limit_count(z: Any, first: Any, stop: Any, least: Any, most: Any) -> Any:
    """Return the tau for which ``clip(z - tau, 0, 1)`` sums to within ``least .. most``, and whether the sum is at a limit.

    The sum is over entries ``first .. stop - 1`` of z (E,), which may hold infinities. Tau is 0 if the limits then hold;
    the second result is ``TIGHT`` if the sum is at a limit, else ``LOOSE``.
    """
    total, count, between, ones = clipped_sum(z, first, stop, 0.0)
    if least <= total <= most:
        return 0.0, LOOSE
    goal = most if total > most else least
    low, high = 0.0, 0.0  # the sum is at least the goal at low, at most at high
    for e in range(first, stop):
        if abs(z[e]) < np.inf:
            low, high = min(low, z[e] - 1.0), max(high, z[e])
    if total > most:
        low = 0.0
    else:
        high = 0.0
    tau = 0.0
    for _ in range(200):
        following = (between + ones - goal) / count if count > 0 else 0.5 * (low + high)
        if not low < following < high:
            following = 0.5 * (low + high)
        if following == tau:
            break
        tau = following
        total, count, between, ones = clipped_sum(z, first, stop, tau)
        if total > goal:
            low = tau
        elif total < goal:
            high = tau
        else:
            break
    return tau, TIGHT


@compile_rows()
def join_pair(first: Any, second: Any, coupling: Any) -> Any:
    """Return the nearest point of a pair factor, which variables are tied on its face, and the pair's joint marginal.

    ``first`` and ``second`` are the points' coordinates, ``coupling`` the score of both variables being 1; see
    :func:`~lit_sparse.mappings.lp_sparsemap.projections.project_pairs`. The face is ``LOOSE``, ``EQUAL`` or ``OPPOSITE``.
    """
    apart, pull = coupling < 0.0, abs(coupling)
    if apart:
        first, second = first - pull, 1.0 - second
    face = LOOSE
    if first + pull <= second:
        first += pull
    elif second + pull <= first:
        second += pull
    else:
        first = 0.5 * (first + second + pull)
        second = first
        face = OPPOSITE if apart else EQUAL
    one, two = min(max(first, 0.0), 1.0), min(max(second, 0.0), 1.0)
    if apart:
        return one, 1.0 - two, face, one - min(one, two)
    return one, two, face, min(one, two)


@compile_rows(inline="source")
def evaluate(factors: Any, x: Any, potentials: Any, penalty: Any, work: Any) -> Any:
    """Compute the nearest points of all factors; return the value of the augmented Lagrangian and the largest residual.

    The scores x (d,) and potentials (P,) belong to one row, the marginals and multipliers are in the workspace, which also
    receives the nearest points and the gradient in the marginals.
    """
    mu, gradient, z, u = work.variables[POINT], work.variables[GRADIENT], work.entries[ANCHOR], work.entries[COPY]
    value, residual = 0.0, 0.0
    for i in range(len(mu)):
        gradient[i] = 0.0
        if x[i] != -np.inf:
            gradient[i] = mu[i] - x[i]
            value += mu[i] * (0.5 * mu[i] - x[i])
    for f in range(len(factors.pair)):
        first, stop = factors.first[f], factors.first[f + 1]
        for e in range(first, stop):
            i = factors.index[e]
            z[e] = -np.inf if x[i] == -np.inf else mu[i] + work.multipliers[e] / penalty
            if factors.negated[e]:
                z[e] = 1.0 - z[e]
        if factors.pair[f] >= 0:
            place = factors.pair[f]
            u[first], u[first + 1], work.faces[f], both = join_pair(z[first], z[first + 1], potentials[place] / penalty)
            work.counts[place] = both
            value -= potentials[place] * both
        else:
            tau, work.faces[f] = limit_count(z, first, stop, factors.limits[f, 0], factors.limits[f, 1])
            for e in range(first, stop):
                u[e] = min(max(z[e] - tau, 0.0), 1.0)
        for e in range(first, stop):
            i = factors.index[e]
            work.inner[e] = 0.0 < u[e] < 1.0
            if factors.negated[e]:
                z[e], u[e] = 1.0 - z[e], 1.0 - u[e]
            if x[i] != -np.inf:
                away = z[e] - u[e]
                value += 0.5 * penalty * away * away
                gradient[i] += penalty * away
                residual = max(residual, abs(mu[i] - u[e]))
    return value, residual


@compile_rows(inline="source")
def assemble(factors: Any, x: Any, penalty: Any, work: Any) -> None:
    """Write the lower triangle of the Newton matrix ``I + penalty * sum of the factors' (I - J)`` to the workspace."""
    matrix = work.matrix
    for i in range(len(matrix)):
        for j in range(i):
            matrix[i, j] = 0.0
        matrix[i, i] = 1.0
    for f in range(len(factors.pair)):
        first, stop, face = factors.first[f], factors.first[f + 1], work.faces[f]
        inner = 0
        for e in range(first, stop):
            inner += work.inner[e]
            if not work.inner[e] and x[factors.index[e]] != -np.inf:
                matrix[factors.index[e], factors.index[e]] += penalty
        if face == LOOSE or inner == 0:
            continue
        share = penalty / inner
        for e in range(first, stop):
            for other in range(first, e + 1):
                if work.inner[e] and work.inner[other]:
                    i, j = factors.index[e], factors.index[other]
                    same = factors.negated[e] == factors.negated[other]
                    if face == EQUAL and e != other:
                        same = not same
                    matrix[max(i, j), min(i, j)] += share if same else -share


@compile_rows(REDUCTION_FLAGS)
def reduced(matrix: Any, i: Any, j: Any) -> Any:
    """Return entry (i, j) of the matrix minus the inner product of the Cholesky factor's rows i and j before column j."""
    value = matrix[i, j]
    for k in range(j):
        value -= matrix[i, k] * matrix[j, k]
    return value


@compile_rows(inline="source")
def factorize(matrix: Any) -> None:
    """Replace the lower triangle of a positive definite matrix by its Cholesky factor."""
    for i in range(len(matrix)):
        for j in range(i):
            matrix[i, j] = reduced(matrix, i, j) / matrix[j, j]
        matrix[i, i] = math.sqrt(reduced(matrix, i, i))


@compile_rows()
def solve_rows(
    start: Any, stop: Any, rows: Any, factors: Any, x: Any, potentials: Any, goal: Any, tol: Any, max_iter: Any
) -> None:
    """Solve LP-SparseMAP for rows ``start .. stop - 1`` with finite scores or -inf; see :func:`solve_graphs`."""
    d, entries = x.shape[1], len(factors.index)
    work = Work(
        zeros((4, d), np.float64),
        zeros((2, entries), np.float64),
        zeros(entries, np.float64),
        empty((d, d), np.float64),
        zeros(entries, np.uint8),
        zeros(len(factors.pair), np.int64),
        zeros(potentials.shape[1], np.float64),
    )
    mu, base = work.variables[POINT], work.variables[BASE]
    direction, gradient = work.variables[DIRECTION], work.variables[GRADIENT]
    for row in range(start, stop):
        most = 0.0
        for i in range(d):
            mu[i] = min(max(x[row, i], 0.0), 1.0)
            base[i], direction[i] = mu[i], 0.0
            if x[row, i] != -np.inf:
                most = max(most, abs(x[row, i]))
        work.multipliers[:] = 0.0
        penalty, length, reference, slope = FIRST, 1.0, np.inf, 0.0
        step, residual, finished = 0, 0.0, False
        while not finished and step < max_iter:
            step += 1
            value, residual = evaluate(factors, x[row], potentials[row], penalty, work)
            ahead, steep, largest = 0.0, 0.0, 0.0
            for i in range(d):
                ahead += gradient[i] * direction[i]
                steep = max(steep, abs(gradient[i]))
            if ahead > 0.0 and value > reference + 1e-4 * length * slope + 1e-13 * (1.0 + abs(value)):
                length *= min(max(slope / (slope - ahead), 0.1), 0.9)
                for i in range(d):
                    mu[i] = base[i] + length * direction[i]
                continue
            for e in range(len(work.multipliers)):
                if x[row, factors.index[e]] != -np.inf:
                    largest = max(largest, penalty * abs(work.entries[ANCHOR, e] - work.entries[COPY, e]))
            exact = steep <= ROUNDING * (1.0 + most + largest) * math.sqrt(penalty)
            enough = min(goal * (1.0 + most), 0.1 * tol)
            finished = exact and residual <= enough
            length = 1.0
            if finished:
                break
            if exact or (steep <= SHARE * residual and residual > enough):
                for e in range(len(work.multipliers)):
                    if x[row, factors.index[e]] != -np.inf:
                        work.multipliers[e] = penalty * (work.entries[ANCHOR, e] - work.entries[COPY, e])
                penalty = min(penalty * GROWTH, LARGEST)
                reference, slope = np.inf, 0.0
                for i in range(d):
                    base[i], direction[i] = mu[i], 0.0
                continue
            assemble(factors, x[row], penalty, work)
            factorize(work.matrix)
            for i in range(d):
                base[i], direction[i] = mu[i], -gradient[i]
            solve(work.matrix, d, direction)
            reference, slope = value, 0.0
            for i in range(d):
                slope += gradient[i] * direction[i]
                mu[i] = base[i] + direction[i]
        # The last point evaluated is the anchors' own: a step after it was not.
        gap = 0.0
        if not finished:
            value, residual = evaluate(factors, x[row], potentials[row], penalty, work)
        for e in range(len(work.multipliers)):
            i = factors.index[e]
            rows.anchors[row, e], rows.copies[row, e] = work.entries[ANCHOR, e], work.entries[COPY, e]
            if x[row, i] != -np.inf:
                gap += penalty * (work.entries[ANCHOR, e] - work.entries[COPY, e]) * (mu[i] - work.entries[COPY, e])
        for i in range(d):
            rows.marginals[row, i] = mu[i]
        for p in range(len(work.counts)):
            rows.counts[row, p] = work.counts[p]
        rows.penalty[row], rows.residuals[row], rows.gaps[row] = penalty, residual, abs(gap)


def solve_graphs(factors: Factors, x: Array, potentials: Array, goal: float, tol: float, max_iter: int) -> Consensus:
    """Solve LP-SparseMAP for a batch on the CPU, with as many threads as torch uses.

    Args:
        factors: limits on the number of ones, and pairs.
        x: float64 (B, d), finite, or -inf where a variable is 0.
        potentials: float64 (B, P), finite, one for each pair.
        goal: residual to reach for scores of size 1.
        tol: user's tolerance; a residual of a tenth of it is always reached.
        max_iter: maximum number of evaluations of the factors for a row.
    """
    size, entries = len(x), (len(x), len(factors.index))
    shapes = (x.shape, entries, size, size, size, entries, potentials.shape)
    rows = Consensus(*[empty(shape, np.float64) for shape in shapes])
    over_rows(solve_rows, x.shape, SECONDS * x.shape[1], rows, factors, x, potentials, goal, tol, max_iter)
    return rows
