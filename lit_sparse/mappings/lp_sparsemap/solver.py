"""The nearest point that all factors of a graph agree on: an augmented Lagrangian method with semismooth Newton steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import on_values
from lit_sparse.mappings.lp_sparsemap.kernel import FIRST, GROWTH, LARGEST, ROUNDING, SHARE, Consensus, solve_graphs
from lit_sparse.mappings.lp_sparsemap.local import Local

__all__ = ["contradicts", "solve_graph"]

#: After so many steps it is asked whether the factors contradict one another.
CHECK = 40


class _State(NamedTuple):
    """Rows that are not finished: numbers, scores, potentials, multipliers, penalties, and a point that is not accepted yet.

    ``point = base + length * direction``; at the base the objective is ``value`` and its derivative ``slope``.
    """

    row: Tensor
    x: Tensor
    potentials: Tensor
    multipliers: Tensor
    penalty: Tensor
    base: Tensor
    direction: Tensor
    length: Tensor
    value: Tensor
    slope: Tensor


@on_values
def solve_graph(local: Local, x: Tensor, potentials: Tensor, max_iter: int, goal: float, tol: float) -> Consensus:
    """Return the maximizer mu of ``<mu, x> + <counts, potentials> - 1/2 ||mu||^2`` over the local polytope of a factor graph.

    The local polytope holds the points that lie in the convex hull of each factor's structures. Each round of the
    augmented Lagrangian method minimizes, over all mu, the negative objective plus ``penalty / 2`` times the squared
    distances of ``mu + multipliers / penalty`` from the hulls. This is convex and smooth, and solved by Newton steps
    with the matrix ``I + penalty * sum of the factors' (I - J)``. The residuals then update the multipliers. Since the
    hulls are polytopes, a few rounds of a few steps suffice.

    Args:
        local: the factors.
        x: float64 (B, d), finite, or -inf where a variable is masked, then 0.
        potentials: float64 (B, P), finite.
        max_iter: maximum number of evaluations of the factors.
        goal: residual to reach for scores of size 1; proportionally more for larger scores, because of rounding.
        tol: user's tolerance; a residual of a tenth of it is always reached.

    Source: Li, Sun & Toh (2018), A Highly Efficient Semismooth Newton Augmented Lagrangian Method for Solving Lasso
    Problems, arXiv:1607.05428, for the method; Niculae & Martins (2020), arXiv:2001.04437, for the problem.
    """
    if x.is_cpu and local.packed is not None:
        scores, links = x.contiguous().numpy(), potentials.contiguous().numpy()
        rows = solve_graphs(local.packed, scores, links, goal, tol, max_iter)
        return Consensus(*[torch.from_numpy(array) for array in rows])
    size, entries = len(x), len(local.index)
    numbers = torch.arange(size, device=x.device)
    zeros, ones = x.new_zeros(size), x.new_ones(size)
    start = torch.where(x == -torch.inf, 0.0, x).clamp(0.0, 1.0)
    still, multipliers = torch.zeros_like(start), x.new_zeros(size, entries)
    empty = (start, multipliers, ones, zeros, zeros, multipliers, potentials)
    result = Consensus(*[part.clone() for part in empty])
    state = _State(numbers, x, potentials, multipliers, FIRST * ones, start, still, ones, ones * torch.inf, zeros)
    for step in range(1, max_iter + 1):
        if not len(state.row):
            break
        state = _advance(local, state, result, goal, tol)
        if step % CHECK == 0 and bool(contradicts(local, result, x != -torch.inf).any()):
            break  # an error follows
    return result


def _advance(local: Local, state: _State, result: Consensus, goal: float, tol: float) -> _State:
    """Evaluate the factors once; then shorten the last step, or take a new one, or begin a new round, or finish."""
    allowed = state.x != -torch.inf
    x, open_ = torch.where(allowed, state.x, 0.0), local.gather(allowed)
    penalty = state.penalty.unsqueeze(-1)
    point = state.base + state.length.unsqueeze(-1) * state.direction
    copies = local.gather(point)
    anchors = torch.where(open_, copies + state.multipliers / penalty, -torch.inf)
    faces = local.solve(anchors, state.potentials / penalty)
    away = torch.where(open_, anchors - faces.points, 0.0)
    multipliers = penalty * away
    gradient = torch.where(allowed, point - x + local.scatter(multipliers), 0.0)
    quadratic = (point * (0.5 * point - x)).sum(-1) + 0.5 * state.penalty * away.square().sum(-1)
    value = quadratic - (faces.counts * state.potentials).sum(-1)
    ahead = (gradient * state.direction).sum(-1)
    enough = state.value + 1e-4 * state.length * state.slope + 1e-13 * (1.0 + value.abs())
    accepted = (ahead <= 0) | (value <= enough)

    differences = torch.where(open_, copies - faces.points, 0.0)
    residual, steep = differences.abs().amax(-1), gradient.abs().amax(-1)
    scale = 1.0 + x.abs().amax(-1)
    exact = accepted & (steep <= ROUNDING * (scale + multipliers.abs().amax(-1)) * state.penalty.sqrt())
    apart = residual > (goal * scale).clamp(max=0.1 * tol)
    settled = exact | (accepted & (steep <= SHARE * residual) & apart)
    finished = exact & ~apart
    gap = (multipliers * differences).sum(-1).abs()
    ended = (point, anchors, state.penalty, residual, gap, faces.points, faces.counts)
    for kept, new in zip(result, ended, strict=True):
        kept[state.row] = new

    moving = accepted & ~settled
    direction, slope = state.direction.clone(), state.slope.clone()
    if bool(moving.any()):
        normals = [normal[moving] for normal in faces.normals]
        direction[moving] = _newton(local, gradient[moving], normals, state.penalty[moving], allowed[moving])
        slope[moving] = (gradient[moving] * direction[moving]).sum(-1)
    shorter = state.length * (state.slope / (state.slope - ahead)).clamp(0.1, 0.9)  # where a parabola has its minimum
    rest = settled.unsqueeze(-1)
    following = _State(
        state.row,
        state.x,
        state.potentials,
        torch.where(rest, multipliers, state.multipliers),
        torch.where(settled, (GROWTH * state.penalty).clamp(max=LARGEST), state.penalty),
        torch.where(accepted.unsqueeze(-1), point, state.base),
        torch.where(rest, 0.0, direction),
        torch.where(accepted, 1.0, shorter),
        torch.where(settled, torch.inf, torch.where(moving, value, state.value)),
        torch.where(settled, 0.0, slope),
    )
    return _State(*[part[~finished] for part in following]) if bool(finished.any()) else following


def _newton(local: Local, gradient: Tensor, normals: list[Tensor], penalty: Tensor, allowed: Tensor) -> Tensor:
    """Return Newton's direction (B, d)."""
    matrix = local.matrix(normals).mul_(penalty[:, None, None])
    if not bool(allowed.all()):
        matrix = torch.where(allowed.unsqueeze(-1) & allowed.unsqueeze(-2), matrix, 0.0)
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor = torch.linalg.cholesky(matrix)
    return -torch.cholesky_solve(gradient.unsqueeze(-1), factor).squeeze(-1)


def contradicts(local: Local, found: Consensus, allowed: Tensor) -> Tensor:
    """Return which rows (B,) have contradictory factors, without a common point, as far as the residuals prove it.

    For the residuals r, differences between variables and copies, any common point mu satisfies ``<sum of r, mu> <= sum
    of the factors' max <r, u>``. If the smallest left side in the unit cube exceeds the right, there is none.

    Args:
        local: the factors.
        found: where the solver stopped.
        allowed: boolean (B, d).
    """
    open_ = local.gather(allowed)
    zeros = found.marginals.new_zeros(len(allowed), len(local.order))
    differences = torch.where(open_, local.gather(found.marginals) - found.copies, 0.0)
    size = differences.square().sum(-1)
    far = 1e6 * differences / size.sqrt().clamp_min(1e-30).unsqueeze(-1)
    best = local.solve(torch.where(open_, far, -torch.inf), zeros).points
    most = (differences * best).sum(-1)
    least = torch.where(allowed, local.scatter(differences), 0.0).clamp(max=0.0).sum(-1)
    return (size.sqrt() > 1e-6) & (least - most > 1e-3 * size)
