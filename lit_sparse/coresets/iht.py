"""Iterative hard thresholding, plain and accelerated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lit_sparse.checks import check_count, check_number, check_positive
from lit_sparse.coresets.pursuit import nonnegative_least_squares
from lit_sparse.coresets.selector import CoresetSelector, Selection, largest
from lit_sparse.coresets.vectors import Vectors

__all__ = ["IHT", "AcceleratedIHT"]


#: A relative difference of objectives above this one shows.
SENSITIVE = 1e-3
#: Rounds of polishing at most, and the products of numbers that they may take: no more than some iterations of large data.
POLISHES = 5
POLISH_WORK = 2 * 10**8


class _Point(NamedTuple):
    """Weights (N,), the sum of vectors (S,) that they make, and where they are not zero."""

    weights: Tensor
    made: Tensor
    support: Tensor


class IHT(CoresetSelector):
    """Steps along the gradient and keeps the k largest positive weights, again and again.

    The step is the best one for the gradient on the current support and the k strongest entries beside it. The best weights
    that were met are returned, for the objective may rise. Should the iteration be so sensitive that rounding
    alone decides where it gets, these weights are polished: by the best ones on their support, and by exchanges of it.

    An iteration is one product with all vectors and a few with the selected ones: nearly the same for every k.

    Args:
        max_iter: iterations at most.
        tol: it ends when no more than this share of the weights, by their norm, changes.
        step_scale: what the best step is multiplied by.
        batch: the share of examples, drawn anew in each iteration, whose gradient is looked at, beside those selected; 1.0
            for all.
        polish: improve the weights where rounding alone decides what they are.
        refit: choose the weights anew in the end, the best nonnegative ones for the selected examples.
        progress: show a progress bar.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Blumensath & Davies (2009, 2010); Zhang, Khanna, Kyrillidis & Koyejo (2021), Bayesian Coresets, algorithm 1.
    """

    def __init__(
        self,
        *,
        max_iter: int = 300,
        tol: float = 1e-5,
        step_scale: float = 1.0,
        batch: float = 1.0,
        polish: bool = True,
        refit: bool = False,
        progress: bool = False,
    ) -> None:
        super().__init__(refit=refit, progress=progress)
        self.max_iter = check_count("max_iter", max_iter)
        self.tol = check_number("tol", tol, 0.0, 1.0)
        self.step_scale = check_positive("step_scale", step_scale)
        self.polish = polish
        self.batch = check_number("batch", batch, 0.0, 1.0, open_low=True)

    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        """See :class:`CoresetSelector`."""
        best, trace, ended = self._run(vectors, k, generator, self.steps(self.max_iter))
        small = k * vectors.shape[1] * min(k, vectors.shape[1]) <= POLISH_WORK
        if self.polish and small and self.batch == 1.0 and self._is_sensitive(vectors, k, generator, trace, ended):
            best, least = self._polished(vectors, k, best, min(trace))
            trace.append(least)
        return Selection(best.support, best.weights[best.support], trace)

    def _run(
        self, vectors: Vectors, k: int, generator: torch.Generator, steps: Iterable[int], nudge: float = 0.0
    ) -> tuple[_Point, list[float], bool]:
        """Iterate from zero; return the best point, the objectives, and whether it came to an end.

        Args:
            vectors: see :meth:`select`.
            k: see :meth:`select`.
            generator: see :meth:`select`.
            steps: counts the iterations.
            nudge: by which share the first step is longer.
        """
        target = vectors.total.to(vectors.dtype)
        nothing = torch.zeros(vectors.shape[0], dtype=vectors.dtype, device=vectors.device)
        here = start = best = _Point(nothing, torch.zeros_like(target), nothing[:0].long())
        whole = least = float(target.square().sum())
        floor = (16 * torch.finfo(vectors.dtype).eps) ** 2 * whole
        trace: list[float] = []
        for _ in steps:
            gradient = self._gradient(vectors, target, start, generator)
            step = (1 + nudge) * self.step_scale * self._step(vectors, start, gradient, k)
            nudge = 0.0
            following = self._improved(vectors, target, self._kept(vectors, start.weights + step * gradient, k))
            trace.append(float((target - following.made).square().sum()))
            if trace[-1] < least:
                best, least = following, trace[-1]
            change = float((following.weights - here.weights).norm())
            start, here = self._continued(target, here, following), following
            if not math.isfinite(trace[-1]) or change <= self.tol * float(here.weights.norm()) or trace[-1] <= floor:
                return best, trace, True
        return best, trace, False

    def _is_sensitive(self, vectors: Vectors, k: int, generator: torch.Generator, trace: list[float], ended: bool) -> bool:
        """Tell whether a change of the first step by a billionth shows in what comes of it: in the end, or half way to none.

        Then rounding alone decides where the iteration gets: the same formulas in another order get elsewhere.
        """
        steps = range(self.max_iter if ended else len(trace) // 2)
        _, other, _ = self._run(vectors, k, generator, steps, nudge=2.0**-30)
        pairs = [(min(trace), min(other))] if ended else zip(trace, other, strict=False)
        return any(abs(a - b) > SENSITIVE * max(a, b) for a, b in pairs)

    def _polished(self, vectors: Vectors, k: int, point: _Point, least: float) -> tuple[_Point, float]:
        """Return a better point: with the best weights for its own support, and for the best k of that and k others."""
        target, work = vectors.total, POLISH_WORK
        following, work = self._fitted(vectors, point.support, work)
        for _ in range(POLISHES):
            objective = float((target - following.made.double()).square().sum())
            if not objective < least:
                break
            point, least = following, objective
            strength = vectors.correlate((target - point.made.double()).to(vectors.dtype)) / vectors.norms.to(vectors.dtype)
            strength = strength.nan_to_num(0.0, 0.0, 0.0)
            strength[point.support] = -torch.inf
            beside = largest(strength, min(k, len(strength) - len(point.support)))
            wide, work = self._fitted(vectors, torch.cat([point.support, beside]), work)
            following, work = self._fitted(vectors, largest(wide.weights, k), work)
        return point, least

    @staticmethod
    def _fitted(vectors: Vectors, support: Tensor, work: int) -> tuple[_Point, int]:
        """Return the best nonnegative weights on a support, or how far one gets with some work; and what is left of it."""
        step = len(support) * vectors.shape[1]
        found = nonnegative_least_squares(vectors, support, most=work // max(1, step)).to(vectors.dtype)
        there, kept = support[found > 0], found[found > 0]
        weights = torch.zeros(vectors.shape[0], dtype=vectors.dtype, device=vectors.device).index_put((there,), kept)
        return _Point(weights, vectors.combine(there, kept), there), work - step * int((found > 0).sum())

    def _gradient(self, vectors: Vectors, target: Tensor, point: _Point, generator: torch.Generator) -> Tensor:
        """Return the direction of steepest descent (N,), zero for examples that are not looked at."""
        residual = target - point.made
        if self.batch == 1.0:
            return vectors.correlate(residual)
        size = vectors.shape[0]
        drawn = torch.randperm(size, generator=generator)[: max(1, round(self.batch * size))].to(vectors.device)
        seen = torch.cat([drawn, point.support])
        return torch.zeros_like(point.weights).index_put((seen,), vectors.correlate_some(seen, residual))

    @staticmethod
    def _step(vectors: Vectors, point: _Point, gradient: Tensor, k: int) -> Tensor:
        """Return the best step along the gradient on the support of a point and the k strongest entries beside it."""
        strength = gradient.abs()
        strength[point.support] = -1.0
        beside = largest(strength, min(k, len(strength) - len(point.support)))
        subspace = torch.cat([point.support, beside])
        return best_step(vectors, subspace, gradient[subspace])[0]

    @staticmethod
    def _kept(vectors: Vectors, weights: Tensor, k: int) -> _Point:
        """Return the projection of weights (N,): the k largest positive ones."""
        support = largest(weights, k)
        support = support[weights[support] > 0]
        kept = torch.zeros_like(weights).index_put((support,), weights[support])
        return _Point(kept, vectors.combine(support, weights[support]), support)

    def _improved(self, vectors: Vectors, target: Tensor, point: _Point) -> _Point:
        """Return a point after what is done on its own support."""
        return point

    def _continued(self, target: Tensor, before: _Point, after: _Point) -> _Point:
        """Return where the next step starts."""
        return after


class AcceleratedIHT(IHT):
    """Automated accelerated iterative hard thresholding: momentum whose strength is found by exact line search.

    With ``debias`` this is A-IHT II: after each projection another step, the best one along the gradient on the selected
    examples. It is deterministic unless a batch is drawn.

    Args:
        debias: take a step on the selected examples in each iteration.
        max_iter: iterations at most; 500 is usual for large data.
        tol: it ends when no more than this share of the weights, by their norm, changes.
        step_scale: what the best step of the gradient is multiplied by; 0.5 in the code that was published.
        batch: the share of examples, drawn anew in each iteration, whose gradient is looked at, beside those selected; 1.0
            for all.
        polish: improve the weights where rounding alone decides what they are.
        refit: choose the weights anew in the end, the best nonnegative ones for the selected examples.
        progress: show a progress bar.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Zhang, Khanna, Kyrillidis & Koyejo (2021), Bayesian Coresets: Revisiting the Nonconvex Optimization Perspective,
    algorithms 2 and 3. The published strength of the momentum is half of that of the exact line search, which is taken here.

    Example:
        >>> vectors = torch.randn(500, 200, generator=torch.Generator().manual_seed(0))
        >>> plain, debiased = AcceleratedIHT()(vectors, 50), AcceleratedIHT(debias=True, refit=True)(vectors, 50)
        >>> len(plain) <= 50 and debiased.objective < vectors.sum(0).square().sum()
        tensor(True)
    """

    def __init__(
        self,
        *,
        debias: bool = False,
        max_iter: int = 300,
        tol: float = 1e-5,
        step_scale: float = 1.0,
        batch: float = 1.0,
        polish: bool = True,
        refit: bool = False,
        progress: bool = False,
    ) -> None:
        super().__init__(
            max_iter=max_iter, tol=tol, step_scale=step_scale, batch=batch, polish=polish, refit=refit, progress=progress
        )
        self.debias = debias

    @classmethod
    def examples(cls) -> list[AcceleratedIHT]:  # noqa: D102
        return [cls(), cls(debias=True), cls(debias=True, batch=0.5, step_scale=0.5, refit=True)]

    def _improved(self, vectors: Vectors, target: Tensor, point: _Point) -> _Point:
        if not self.debias or not len(point.support):
            return point
        gradient = vectors.correlate_some(point.support, target - point.made)
        step, change = best_step(vectors, point.support, gradient)
        raised = point.weights[point.support] + step * gradient
        there = raised > 0
        support, kept = point.support[there], raised[there]
        made = point.made + step * change if bool(there.all()) else vectors.combine(support, kept)
        return _Point(torch.zeros_like(point.weights).index_put((support,), kept), made, support)

    def _continued(self, target: Tensor, before: _Point, after: _Point) -> _Point:
        change = after.made - before.made
        momentum = line_search(target - after.made, change)
        weights = after.weights + momentum * (after.weights - before.weights)
        return _Point(weights, after.made + momentum * change, weights.nonzero().squeeze(-1))


def line_search(residual: Tensor, change: Tensor) -> Tensor:
    """Return the t that minimizes ``||residual - t change||^2`` for two vectors (S,); 0 where the change is none."""
    length = change.square().sum()
    return torch.where(length > 0, residual @ change / torch.where(length > 0, length, 1.0), 0.0)


def best_step(vectors: Vectors, subspace: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best step along a gradient (n,) on some examples, and the change of their sum (S,) for a step of 1."""
    change = vectors.combine(subspace, gradient)
    length = change.square().sum()
    return torch.where(length > 0, gradient.square().sum() / torch.where(length > 0, length, 1.0), 0.0), change
