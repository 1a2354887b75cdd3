"""Nonnegative least squares on a support that grows and shrinks by single vectors, or exchanges them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.coresets.state import indices
from lit_sparse.coresets.vectors import DenseVectors, Vectors
from lit_sparse.ground.state_checks import NUMBER, ListOf
from lit_sparse.kernels import cholesky

__all__ = ["NonnegativeFit", "exchanged", "nonnegative_least_squares"]

#: Squared distance of a unit vector from the span of the support, below which it lies in the span.
DEPENDENT = 1e-13
#: Largest number of candidates whose products are recomputed exactly after rough ones.
MOST_LOOKED_AT = 256
#: Relative size of a residual whose products consist of rounding errors.
ROUNDING = 1e-15
#: Largest number of exchanges before the weights must be computed anew, because of rounding.
MOST_EXCHANGES = 100
#: Required decrease of the objective per exchange, as a fraction of the objective.
SIGNIFICANT = 1e-3


class NonnegativeFit:
    """Nonnegative least squares on a changing support: weights that bring a weighted sum of vectors nearest to a target.

    Vectors are normalized internally. Their Gram matrix is stored as a Cholesky factor, so that adding a vector to, or
    removing it from, a support of size n takes O(n S + n^2). All computations are in float64.

    Args:
        target: y (S,).
        capacity: maximum number of vectors.

    Source: Lawson & Hanson (1974), Solving Least Squares Problems, chapter 23, doi:10.1137/1.9781611971217.
    """

    def __init__(self, target: Tensor, capacity: int) -> None:
        self.target = target.double()
        capacity = min(capacity, len(target)) + 1
        self.units = self.target.new_zeros(capacity, len(target))
        self.lengths = self.target.new_zeros(capacity)
        self.members: list[int] = []
        self.residual = self.target.clone()
        self._factor = np.zeros((capacity, capacity))
        self._products = np.zeros(capacity)
        self._scaled = np.zeros(0)  # weights of the normalized vectors

    @property
    def objective(self) -> float:
        """Squared distance of the weighted sum to the target."""
        return float(self.residual.square().sum())

    @property
    def indices(self) -> Tensor:
        """Indices of the vectors in the support, (n,) int64, in order of insertion."""
        return torch.tensor(self.members, dtype=torch.int64, device=self.target.device)

    @property
    def weights(self) -> Tensor:
        """Weights (n,) of the vectors in the support, positive."""
        return self._on_device(self._scaled) / self.lengths[: len(self.members)]

    def state_dict(self) -> dict[str, Any]:
        """Return the support and all quantities computed from it."""
        n = len(self.members)
        arrays = {"factor": self._factor[:n, :n], "products": self._products[:n], "scaled": self._scaled}
        tensors = {"units": self.units[:n], "lengths": self.lengths[:n], "residual": self.residual}
        copies = {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}
        return {"members": list(self.members), **copies, **{name: value.clone() for name, value in tensors.items()}}

    def state_example(self, state: Any, size: int) -> dict[str, Any]:
        """Return an example of the state of a fit of ``size`` vectors, against which a stored state is checked."""
        members = indices(size, [], len(self.units))
        given = state.get("members") if isinstance(state, dict) else None
        n = len(given) if given is not None and members.holds(given) else 0
        square, units = self.units.new_zeros(n, n), self.units.new_zeros(n, self.units.shape[1])
        vectors = dict.fromkeys(("products", "scaled", "lengths"), self.units.new_zeros(n))
        return {"members": members, "factor": square, "units": units, "residual": self.residual, **vectors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a fit with the same target and capacity."""
        self.members = list(state["members"])
        n = len(self.members)
        self.units[:n], self.lengths[:n] = state["units"].to(self.units), state["lengths"].to(self.lengths)
        self.residual = state["residual"].to(self.residual)
        self._factor[:n, :n], self._products[:n] = state["factor"].numpy(), state["products"].numpy()
        self._scaled = state["scaled"].double().numpy()

    def begin(self, indices: list[int], vectors: Tensor, weights: Tensor) -> None:
        """Add vectors (n, S) at once, and move from their positive weights (n,) to the optimal ones.

        They are added in descending order of their weights, up to the first one in the span of its predecessors.
        """
        lengths = vectors.norm(dim=1)
        scaled = weights * lengths
        order = scaled.argsort(descending=True, stable=True)[: len(self.units) - 1]
        while n := len(order):
            units = vectors[order] / lengths[order, None]
            factor, failed = torch.linalg.cholesky_ex(units @ units.T)
            pivots = factor.diagonal()[: int(failed) - 1 if failed else n].square()
            good = int((pivots > DEPENDENT).long().cumprod(0).sum())
            if good == n:
                self.members = [indices[which] for which in order.tolist()]
                self.units[:n], self.lengths[:n], self._factor[:n, :n] = units, lengths[order], factor.cpu().numpy()
                self._products[:n], self._scaled = (units @ self.target).cpu().numpy(), scaled[order].cpu().numpy()
                break
            order = order[:good]
        self._settle()

    def add(self, index: int, vector: Tensor) -> bool:
        """Add a vector (S,) to the support and update all weights; return whether it lies outside the span of the others."""
        n = len(self.members)
        if n == len(self.units):
            return False
        vector = vector.double()
        length = vector.norm()
        unit = vector / length
        column = (self.units[:n] @ unit).cpu().numpy()
        if not cholesky.grow(self._factor, n, column, 1.0, DEPENDENT) > DEPENDENT:
            return False
        self.units[n], self.lengths[n] = unit, length
        self._products[n] = float(unit @ self.target)
        self.members.append(index)
        self._scaled = np.append(self._scaled, 0.0)
        self._settle()
        return True

    def _settle(self) -> None:
        """Move to the optimal weights; vectors whose weight would become negative on the way leave."""
        while self.members:
            aim = self._best()
            falling = aim <= 0
            if not falling.any():
                self._scaled = aim
                break
            here = self._scaled[falling]
            share = np.where(here > 0, here / np.where(here > 0, here - aim[falling], 1.0), 0.0)
            self._scaled = self._scaled + share.min() * (aim - self._scaled)
            leaving = np.flatnonzero(falling)[share <= share.min()]
            for which in sorted({*leaving.tolist(), *np.flatnonzero(self._scaled <= 0).tolist()}, reverse=True):
                self._remove(which)
        self.residual = self._residual(self._scaled)

    def _best(self) -> np.ndarray:
        """Return the unconstrained optimal weights of the unit vectors, refined, because a Gram matrix doubles rounding."""
        n = len(self.members)
        weights = self._products[:n].copy()
        cholesky.solve(self._factor, n, weights)
        correction = (self.units[:n] @ self._residual(weights)).cpu().numpy()
        cholesky.solve(self._factor, n, correction)
        refined: np.ndarray = weights + correction
        return refined

    def _residual(self, scaled: np.ndarray) -> Tensor:
        return self.target - self._on_device(scaled) @ self.units[: len(scaled)]

    def _remove(self, which: int) -> None:
        n = len(self.members)
        cholesky.shrink(self._factor, n, which)
        for values in (self.units, self.lengths):
            values[which : n - 1] = values[which + 1 : n].clone()
        self._products[which : n - 1] = self._products[which + 1 : n].copy()
        self._scaled = np.delete(self._scaled, which)
        del self.members[which]

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.target.device)


class Pursuit:
    """Matching pursuit: repeatedly adds the vector most aligned with the residual.

    Args:
        fit: nonnegative fit to which vectors are added.
        norms: (N,) norms of all candidates.

    Attributes:
        trace: objective after each step.
    """

    def __init__(self, fit: NonnegativeFit, norms: Tensor) -> None:
        self.fit = fit
        self.norms = norms
        self.least = ROUNDING * float(fit.target.norm())
        self._barred = norms <= 0
        self._idle: list[int] = []
        self.trace: list[float] = []

    def next(self, vectors: Vectors) -> int | None:
        """Return the index of the next vector to add; None if none decreases the objective."""
        length = self.fit.residual.norm()
        direction = self.fit.residual / length.clamp_min(torch.finfo(torch.float64).tiny)
        products, off = vectors.correlate_roughly(direction.to(vectors.dtype))
        cosines = self._cosines(products)
        if off > 0:
            near = (cosines >= cosines.max() - 2 * off).nonzero().squeeze(-1)
            if len(near) > MOST_LOOKED_AT:
                cosines = self._cosines(vectors.correlate(direction.to(vectors.dtype)))
            else:
                exact = vectors.correlate_some(near, direction.to(vectors.dtype)).double() / self.norms[near]
                cosines = torch.full_like(cosines, -torch.inf).index_put((near,), exact)
                cosines[self._barred] = -torch.inf
                cosines[self.fit.indices] = -torch.inf
        value, which = cosines.max(0)
        return int(which) if float(value * length) > self.least else None

    def _cosines(self, products: Tensor) -> Tensor:
        """Return the cosines (N,) of the angles between vectors and the residual, -inf for excluded vectors."""
        cosines = torch.where(self._barred, -torch.inf, products.double() / self.norms)
        cosines[self.fit.indices] = -torch.inf
        return cosines

    def enter(self, which: int, vector: Tensor) -> None:
        """Add a vector (S,) to the support; one that does not decrease the objective is excluded until another vector does."""
        before = self.fit.objective
        if self.fit.add(which, vector) and self.fit.objective < before:
            self._barred[self._idle] = False
            self._idle = []
        else:
            self._barred[which] = True
            self._idle.append(which)

    def run(self, vectors: Vectors, k: int, steps: Iterable[int]) -> None:
        """Add one vector per step, until there are k or none decreases the objective; record the objective after each step."""
        for _ in steps:
            which = None if len(self.fit.members) >= k or self.stuck else self.next(vectors)
            if which is None:
                return
            self.enter(which, vectors.rows(torch.tensor([which], device=vectors.device))[0])
            self.trace.append(self.fit.objective)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the fit, the excluded vectors, and the trace."""
        return {"fit": self.fit.state_dict(), "idle": self._idle, "trace": self.trace}

    def state_example(self, state: dict[str, Any], size: int) -> dict[str, Any]:
        """Return an example of the state of a pursuit among ``size`` vectors, against which a stored state is checked."""
        return {"fit": self.fit.state_example(state.get("fit"), size), "idle": indices(size, []), "trace": ListOf(NUMBER)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned."""
        self.fit.load_state_dict(state["fit"])
        self._idle, self.trace = state["idle"], state["trace"]
        self._barred = self.norms <= 0
        self._barred[self._idle] = True

    @property
    def stuck(self) -> bool:
        """Whether only rounding errors are left, or the last ten candidates had no effect."""
        return len(self._idle) >= 10 or float(self.fit.residual.norm()) <= 10 * self.least


def nonnegative_least_squares(vectors: Vectors, indices: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the nonnegative weights (n,) that bring a weighted sum of some vectors nearest to the sum of all.

    Args:
        vectors: vectors whose norms to the fourth power neither overflow nor vanish.
        indices: (n,) indices of the vectors that get weights.
        start: (n,) initial weights.
    """
    rows = vectors.rows(indices).double()
    fit = NonnegativeFit(vectors.total, len(indices))
    if start is not None:
        given = (start > 0).nonzero().squeeze(-1)
        fit.begin(given.tolist(), rows[given], start[given].double())
    Pursuit(fit, rows.norm(dim=1)).run(DenseVectors(rows), len(indices), range(3 * len(indices)))
    return torch.zeros(len(indices), dtype=torch.float64, device=rows.device).index_put((fit.indices,), fit.weights).to(rows)


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
    for _ in range(MOST_EXCHANGES):
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
