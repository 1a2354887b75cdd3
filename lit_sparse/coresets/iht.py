"""Iterative hard thresholding, plain and accelerated."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import ITERATIONS, POSITIVE, Number, ranges
from lit_sparse.coresets.pursuit import exchanged, nonnegative_least_squares
from lit_sparse.coresets.selector import CoresetSelector, Selection, largest
from lit_sparse.coresets.state import Kept
from lit_sparse.coresets.vectors import Vectors

__all__ = ["IHT", "AcceleratedIHT"]


#: Largest number of rounds of exchanges in polishing.
ROUNDS = 20
#: Candidates per round of exchanges: examples outside the support whose direction is nearest to the residual.
CANDIDATES = 128
#: Polishing ends after a round that leaves more than this fraction of the objective.
ENOUGH = 0.95


class _Point(NamedTuple):
    """The support (n,) of weights, the weights there, and the weighted sum of vectors (S,)."""

    support: Tensor
    weights: Tensor
    made: Tensor

    def dense(self, vectors: Vectors) -> Tensor:
        """Return the weights (N,) of all vectors."""
        nothing = torch.zeros(vectors.shape[0], dtype=vectors.dtype, device=vectors.device)
        return nothing.index_put((self.support,), self.weights)


@ranges(max_iter=ITERATIONS, tol=Number(0.0, 1.0), step_scale=POSITIVE, batch=Number(0.0, 1.0, open_low=True))
class IHT(CoresetSelector):
    """Coreset selector by iterative hard thresholding: gradient steps, each followed by keeping the k largest positive weights.

    By default the step size is optimal for the gradient on the current support and the k strongest entries outside. The
    objective may rise, so the best weights of all iterations are returned. Polishing then replaces them by the optimal
    nonnegative weights of their support, and exchanges members of the support as long as the objective falls noticeably.
    Polished weights are never worse. ``polish=False`` is the algorithm of the paper.

    An iteration costs one product with all vectors and a few with the selected ones, nearly the same for every k. The time
    of polishing grows with k.

    Args:
        max_iter: largest number of iterations.
        tol: relative change of the weights, by norm, at which the iterations end.
        step: ``"optimal"`` by line search in each iteration, or ``"constant"``, the inverse square of the largest singular
            value of the vectors.
        step_scale: factor on the step size; a constant step is stable up to 2.
        batch: fraction of examples, drawn anew in each iteration, whose gradient is computed in addition to the selected
            ones; 1.0 for all.
        polish: whether to improve the weights after the iterations.
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples.
        progress: whether to show a progress bar.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Blumensath & Davies (2009), Iterative Hard Thresholding for Compressed Sensing, arXiv:0805.0510. Zhang, Khanna,
    Kyrillidis & Koyejo (2021), Bayesian Coresets: Revisiting the Nonconvex Optimization Perspective, algorithm 1,
    arXiv:2007.00715.
    """

    def __init__(
        self,
        *,
        max_iter: int = 300,
        tol: float = 1e-5,
        step: Literal["optimal", "constant"] = "optimal",
        step_scale: float = 1.0,
        batch: float = 1.0,
        polish: bool = True,
        refit: bool = False,
        progress: bool = False,
    ) -> None:
        super().__init__(refit=refit, progress=progress)
        self.max_iter, self.tol, self.step, self.step_scale = max_iter, tol, step, step_scale
        self.polish, self.batch = polish, batch

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        target = vectors.total.to(vectors.dtype)
        nothing = _Point(torch.zeros(0, dtype=torch.int64, device=target.device), target[:0].clone(), torch.zeros_like(target))
        # The last point, the start of the next step, and the point with the least objective; objectives of all iterations.
        search = Kept(here=nothing, start=nothing, best=nothing, least=float(target.square().sum()), trace=[])
        self._run(vectors, k, generator, search)
        if self.polish:
            self._polished(vectors, k, search)
        return Selection(search.best.support, search.best.weights, search.trace)

    def _run(self, vectors: Vectors, k: int, generator: torch.Generator, search: Kept) -> None:
        """Iterate from zero."""
        target = vectors.total.to(vectors.dtype)
        floor = self._floor(vectors)
        constant = 1 / squared_norm(vectors) if self.step == "constant" else None
        for _ in self.steps(self.max_iter, search):
            here, start, trace = search.here, search.start, search.trace
            gradient = self._gradient(vectors, target, start, generator)
            step = self.step_scale * (self._step(vectors, start, gradient, k) if constant is None else constant)
            weights = step * gradient
            weights[start.support] += start.weights
            kept = largest(weights, k)
            following = self._improved(vectors, target, self._at(vectors, kept, weights[kept]))
            trace.append(float((target - following.made).square().sum()))
            if trace[-1] < search.least:
                search.best, search.least = following, trace[-1]
            before = here.dense(vectors)
            change = float((following.dense(vectors) - before).norm())
            search.start, search.here = self._continued(vectors, target, here, following), following
            if not math.isfinite(trace[-1]) or change <= self.tol * float(before.norm()) or trace[-1] <= floor:
                break

    @staticmethod
    def _floor(vectors: Vectors) -> float:
        """Return the objective below which only rounding errors remain."""
        return (16 * torch.finfo(vectors.dtype).eps) ** 2 * float(vectors.total.square().sum())

    def _polished(self, vectors: Vectors, k: int, search: Kept) -> None:
        """Improve the best point by optimal weights for its support and exchanges of its members."""
        for turn in self.steps(ROUNDS + 1, search):
            point = self._exchanged(vectors, k, search.here, turn - 1) if turn else search.best
            fitted = nonnegative_least_squares(vectors, point.support, point.weights)
            following = search.here = self._at(vectors, point.support, fitted)
            before, objective = search.least, float((vectors.total - following.made.double()).square().sum())
            if objective < before:
                search.best, search.least = following, objective
            if search.least <= self._floor(vectors) or (turn and not search.least < ENOUGH * before):
                break
        search.trace.append(search.least)

    @classmethod
    def _exchanged(cls, vectors: Vectors, k: int, point: _Point, turn: int) -> _Point:
        """Return a point after exchanges with the examples nearest in direction to the residual, and evenly spaced ones.

        Examples near in direction to the residual resemble each other. So the same number of evenly spaced examples, different
        ones in each turn, are candidates too.
        """
        residual = vectors.total - point.made.double()
        nearness = (vectors.correlate(residual.to(vectors.dtype)) / vectors.norms).nan_to_num(0.0, 0.0, 0.0)
        nearness[point.support] = torch.inf
        size = len(nearness)
        wanted = torch.zeros(size, dtype=torch.bool, device=nearness.device)
        wanted[largest(nearness, min(len(point.support) + CANDIDATES, size))] = True
        stride = max(1, size // CANDIDATES)
        wanted[turn * stride // ROUNDS :: stride] = True
        indices = (wanted & (vectors.norms > 0)).nonzero().squeeze(-1)
        lengths = vectors.norms[indices]
        units = vectors.rows(indices).double() / lengths[:, None]
        weights = exchanged(units, point.dense(vectors)[indices] * lengths, residual, k) / lengths
        return cls._at(vectors, indices, weights)

    @staticmethod
    def _at(vectors: Vectors, indices: Tensor, weights: Tensor) -> _Point:
        """Return the point with the positive weights among those (n,) of some examples."""
        there = weights > 0
        support, kept = indices[there], weights[there].to(vectors.dtype)
        return _Point(support, kept, vectors.combine(support, kept))

    def _gradient(self, vectors: Vectors, target: Tensor, point: _Point, generator: torch.Generator) -> Tensor:
        """Return the direction of steepest descent (N,), zero for examples outside the batch and the support."""
        residual = target - point.made
        if self.batch == 1.0:
            return vectors.correlate(residual)
        size = vectors.shape[0]
        drawn = torch.randperm(size, generator=generator)[: max(1, round(self.batch * size))].to(vectors.device)
        seen = torch.cat([drawn, point.support])
        return residual.new_zeros(size).index_put((seen,), vectors.correlate_some(seen, residual))

    @staticmethod
    def _step(vectors: Vectors, point: _Point, gradient: Tensor, k: int) -> Tensor:
        """Return the optimal step along the gradient on a point's support and the k strongest entries outside."""
        strength = gradient.abs()
        strength[point.support] = -1.0
        beside = largest(strength, min(k, len(strength) - len(point.support)))
        subspace = torch.cat([point.support, beside])
        return best_step(vectors, subspace, gradient[subspace])[0]

    def _improved(self, vectors: Vectors, target: Tensor, point: _Point) -> _Point:
        """Return a point after an improvement on its own support."""
        return point

    def _continued(self, vectors: Vectors, target: Tensor, before: _Point, after: _Point) -> _Point:
        """Return the start of the next step."""
        return after


class AcceleratedIHT(IHT):
    """Coreset selector by automated accelerated iterative hard thresholding: IHT with momentum, chosen by exact line search.

    With ``debias`` this is A-IHT II, which follows each projection by an optimal gradient step on the selected examples. It
    is deterministic unless batches are drawn.

    Args:
        debias: whether to take a step on the selected examples in each iteration.
        options: options of :class:`IHT`. ``max_iter=500`` is usual for large data, and ``step_scale`` is 0.5 in the
            authors' code (commit c5b107e, ``iht_coreset.py``).

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Zhang, Khanna, Kyrillidis & Koyejo (2021), algorithms 2 and 3, arXiv:2007.00715. The formula that is
    printed for the momentum is half of its minimizer; the minimizer is used here, as in the authors' code.

    Example:
        >>> vectors = torch.randn(500, 200, generator=torch.Generator().manual_seed(0))
        >>> plain, debiased = (
        ...     AcceleratedIHT()(vectors, 50),
        ...     AcceleratedIHT(debias=True, refit=True)(vectors, 50),
        ... )
        >>> len(plain) <= 50 and debiased.objective < vectors.sum(0).square().sum()
        tensor(True)
    """

    def __init__(self, *, debias: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.debias = debias

    @classmethod
    @override
    def examples(cls) -> list[AcceleratedIHT]:
        return [cls(), cls(debias=True), cls(debias=True, batch=0.5, step_scale=0.5, refit=True)]

    def _improved(self, vectors: Vectors, target: Tensor, point: _Point) -> _Point:
        if not self.debias or not len(point.support):
            return point
        gradient = vectors.correlate_some(point.support, target - point.made)
        step, change = best_step(vectors, point.support, gradient)
        raised = point.weights + step * gradient
        there = raised > 0
        support, kept = point.support[there], raised[there]
        made = point.made + step * change if bool(there.all()) else vectors.combine(support, kept)
        return _Point(support, kept, made)

    def _continued(self, vectors: Vectors, target: Tensor, before: _Point, after: _Point) -> _Point:
        change = after.made - before.made
        momentum = line_search(target - after.made, change)
        here = after.dense(vectors)
        weights = here + momentum * (here - before.dense(vectors))
        support = weights.nonzero().squeeze(-1)
        return _Point(support, weights[support], after.made + momentum * change)


def line_search(residual: Tensor, change: Tensor) -> Tensor:
    """Return the t that minimizes ``||residual - t change||^2`` for two vectors (S,); 0 for a zero change."""
    length = change.square().sum()
    return torch.where(length > 0, residual @ change / torch.where(length > 0, length, 1.0), 0.0)


def squared_norm(vectors: Vectors, products: int = 50) -> Tensor:
    """Return the squared largest singular value of nonzero vectors, by power iteration from their sum.

    Args:
        vectors: (N, S), not all zero.
        products: number of iterations, each of which multiplies by all vectors twice.
    """
    everything = torch.arange(vectors.shape[0], device=vectors.device)
    direction = vectors.total.to(vectors.dtype)
    direction = torch.where(direction.norm() > 0, direction, 1.0)
    for _ in range(products):
        product = vectors.combine(everything, vectors.correlate(direction / direction.norm()))
        direction = torch.where(product.norm() > 0, product, torch.ones_like(product))
    norm: Tensor = direction.norm()
    return norm


def best_step(vectors: Vectors, subspace: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step size that minimizes the distance to the target along a gradient of the weights, by exact line search.

    Args:
        vectors: (N, S).
        subspace: indices (n,) of the examples whose weights change.
        gradient: (n,), the inner products of their vectors with the residual.

    Returns:
        The step size ``||g||^2 / ||V^T g||^2``, and the change ``V^T g`` (S,) of the weighted sum per unit step.
    """
    change = vectors.combine(subspace, gradient)
    length = change.square().sum()
    return torch.where(length > 0, gradient.square().sum() / torch.where(length > 0, length, 1.0), 0.0), change
