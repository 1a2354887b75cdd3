"""Exchanges of vectors in and outside the support of a nonnegative least-squares problem."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.coresets.pursuit import DEPENDENT

__all__ = ["exchanged"]

#: Largest number of exchanges before the weights must be computed anew, because of rounding.
MOST = 100
#: Required decrease of the objective per exchange, as a fraction of the objective.
SIGNIFICANT = 1e-3


def exchanged(units: Tensor, weights: Tensor, residual: Tensor, k: int) -> Tensor:
    """Return weights (n,), at most k positive, after exchanges of vectors that bring their weighted sum nearer to a target.

    In each step one vector enters, and if k vectors have a weight, one leaves: the pair with the largest decrease of the
    objective, by its closed form. Vectors whose optimal weights then become negative leave too. A step without a
    significant decrease is undone.

    A table (n + 1, n + 1) of Gram products, with the target last, is kept swept on the support P. Its blocks are the
    negative inverse of the Gram matrix of P, the coefficients of the other vectors' projections onto the span of P, and the
    Gram products of their residuals. Its last row holds the weights of P, the gradient of the other vectors, and the
    objective. A vector enters or leaves in O(n^2).

    Args:
        units: (n, S) vectors of unit length, float64.
        weights: (n,) optimal weights of a support, positive, and zeros; vectors of the support are linearly independent.
        residual: (S,) target minus the weighted sum.
        k: largest number of positive weights.

    Source: Beaton (1964), The Use of Special Matrix Operators in Statistical Calculus, for the sweep. Lawson & Hanson
    (1974), Solving Least Squares Problems, chapter 23, doi:10.1137/1.9781611971217, for the vectors that leave.
    """
    inside = weights > 0
    table = _table(units, inside, weights, residual)
    barred = torch.zeros_like(inside)
    for _ in range(MOST):
        objective = float(table[-1, -1])
        swept = _best(table, inside, barred, k)
        if not swept:
            break
        barred[swept[-1]] = True
        for which in swept:
            _sweep(table, inside, which)
        swept += _settled(table, inside, weights)
        if float(table[-1, -1]) < (1 - SIGNIFICANT) * objective:
            barred[swept] = False
        else:
            for which in reversed(swept):
                _sweep(table, inside, which)
        weights = torch.where(inside, table[-1, :-1], 0.0)
    return weights


def _table(units: Tensor, inside: Tensor, weights: Tensor, residual: Tensor) -> Tensor:
    """Return the table, by orthogonal factors, because Gram products lose twice as many digits."""
    base, triangle = torch.linalg.qr(units[inside].T)
    products = units[~inside] @ base
    rest = units[~inside] - products @ base.T
    coefficients = torch.linalg.solve_triangular(triangle, products.T, upper=True)
    upper = torch.cat([-torch.cholesky_inverse(triangle, upper=True), coefficients], 1)
    order = torch.cat([inside.nonzero(), (~inside).nonzero()])
    table = units.new_zeros(len(units) + 1, len(units) + 1)
    table[order, order.T] = torch.cat([upper, torch.cat([coefficients.T, rest @ rest.T], 1)])
    table[-1, :-1] = table[:-1, -1] = torch.where(inside, weights, units @ residual)
    table[-1, -1] = residual.square().sum()
    return table


def _best(table: Tensor, inside: Tensor, barred: Tensor, k: int) -> list[int]:
    """Return the vector that leaves, if k are inside, and the vector that enters; empty without a significant decrease."""
    leaving, entering = inside.nonzero().squeeze(-1), (~inside & ~barred).nonzero().squeeze(-1)
    gradient, distance, loss = table[-1, entering], table.diagonal()[entering], torch.zeros(())
    if full := len(leaving) >= k:
        coefficients = table[leaving[:, None], entering]
        weights, inverse = table[-1, leaving, None], -table.diagonal()[leaving, None]
        gradient = gradient + weights / inverse * coefficients
        distance = distance + coefficients.square() / inverse
        loss = weights.square() / inverse
    gain = torch.where((gradient > 0) & (distance > DEPENDENT), gradient.square() / distance, 0.0) - loss
    if not gain.numel() or not float(gain.max()) > SIGNIFICANT * abs(float(table[-1, -1])):  # rounding may make it negative
        return []
    out, into = divmod(int(gain.argmax()), len(entering))
    return [int(leaving[out]), int(entering[into])] if full else [int(entering[into])]


def _settled(table: Tensor, inside: Tensor, weights: Tensor) -> list[int]:
    """Move weights (n,) to the optimal weights of the support, and return the vectors whose weight becomes zero."""
    left: list[int] = []
    while True:
        aim = torch.where(inside, table[-1, :-1], 0.0)
        falling = inside & (aim <= 0)
        if not bool(falling.any()):
            return left
        share = torch.where(falling, weights / (weights - aim).clamp_min(torch.finfo(aim.dtype).tiny), torch.inf)
        left.append(int(share.argmin()))
        weights = torch.where(inside, weights + share.min() * (aim - weights), 0.0)
        _sweep(table, inside, left[-1])


def _sweep(table: Tensor, inside: Tensor, which: int) -> None:
    """Move a vector into or out of the support."""
    row = table[which].clone()
    pivot = float(row[which])
    table.addr_(row, row, alpha=-1.0 / pivot)
    table[which] = table[:, which] = row / abs(pivot)
    table[which, which] = -1.0 / pivot
    inside[which] = ~inside[which]
