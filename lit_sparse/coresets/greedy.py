"""Selectors that add one example a step: by its distance, by its direction, or by a posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Count, ranges
from lit_sparse.coresets.examples import Examples
from lit_sparse.coresets.projections import Projection
from lit_sparse.coresets.pursuit import NonnegativeFit, Pursuit
from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.state import Kept
from lit_sparse.coresets.vectors import ScaledVectors, Vectors, as_vectors, part_of
from lit_sparse.errors import DataError

__all__ = ["GIGA", "FrankWolfe", "KCenter", "NonnegativeOMP", "SparseVI"]

#: Squared sine below which two unit vectors are equal.
SMALL = 1e-12


class KCenter(CoresetSelector):
    """Coreset selector by greedy k-center: the largest distance of a vector to the nearest chosen one is small.

    The first example is drawn at random. Each further one is the farthest from the examples chosen so far; the largest
    distance is at most twice the optimum. Its weight is the number of examples that it is nearest to. Equal vectors are
    chosen once, so the coreset may have fewer than k. Distances are computed from inner products, so vectors closer than
    0.0014 of their norm count as equal in float32. Subtract a large common offset, or pass float64 vectors.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the chosen examples.
        progress: whether to show a progress bar.

    Source: Gonzalez (1985), Clustering to Minimize the Maximum Intercluster Distance. Sener & Savarese (2018), Active
    Learning for Convolutional Neural Networks: A Core-Set Approach.

    Example:
        >>> import torch
        >>> vectors = torch.tensor(
        ...     [[0.0, 1.0], [0.0, 1.1], [5.0, 0.0], [5.1, 0.0], [5.2, 0.0]]
        ... )
        >>> sorted(KCenter()(vectors, 2).weights.tolist())
        [2.0, 3.0]
    """

    counted = "examples"

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        squares = vectors.norms.square()
        first = torch.randint(len(squares), (), generator=generator).to(squares.device)
        none = torch.full_like(squares, torch.inf)
        here = Kept(indices=first.new_empty(0), distances=none, nearest=torch.zeros_like(squares, dtype=torch.int64))
        for step in self.steps(k, here):
            which = first if step == 0 else here.distances.argmax()
            if not float(here.distances[which]) > 0:
                break
            center = vectors.rows(which.unsqueeze(0))[0]
            products = vectors.correlate(center).double()
            rounding = 8 * torch.finfo(vectors.dtype).eps * (squares + squares[which])
            apart = squares + squares[which] - 2 * products
            apart = torch.where(apart > rounding, apart, 0.0)
            nearer = apart < here.distances
            here.nearest = torch.where(nearer, step, here.nearest)
            here.distances = torch.where(nearer, apart, here.distances)
            here.distances[which], here.nearest[which] = 0.0, step
            here.indices = torch.cat([here.indices, which.unsqueeze(0)])
        size = len(here.indices)
        counts = torch.zeros(size, dtype=vectors.dtype, device=squares.device)
        counts.index_add_(0, here.nearest.clamp(0, size - 1), torch.ones_like(squares, dtype=vectors.dtype))
        return Selection(here.indices, counts)


class FrankWolfe(CoresetSelector):
    r"""Coreset selector that runs k Frank-Wolfe steps with exact line search on a scaled simplex of weights.

    .. math:: \min_w \; \lVert y - \Phi w \rVert^2 \;\text{ with }\; \sum_n \lVert g_n \rVert w_n = \sum_n \lVert g_n \rVert,
        \; w \ge 0

    where g_n, the columns of Phi, are the examples' vectors and y is their sum.

    Each step moves towards one vertex, where a single example has all the weight. Examples may repeat, so the coreset may
    have fewer than k.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples.
        progress: whether to show a progress bar.

    Source: Campbell & Broderick (2019), Automated Scalable Bayesian Inference via Hilbert Coresets, algorithm 2,
    arXiv:1710.05053.
    """

    counted = "steps"

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        target, norms = vectors.total.to(vectors.dtype), vectors.norms.to(vectors.dtype)
        whole = norms.sum()
        here = Kept(weights=torch.zeros_like(norms), made=torch.zeros_like(target), trace=[])
        for step in self.steps(k, here):
            weights, made = here.weights, here.made
            cosines = torch.where(norms > 0, vectors.correlate(target - made) / norms, -torch.inf)
            which = cosines.argmax()
            size = whole / norms[which]
            corner = size * vectors.rows(which.unsqueeze(0))[0]
            if step == 0:
                share = torch.ones_like(size)
            else:
                towards = corner - made
                length = towards.square().sum()
                share = torch.where(length > 0, towards @ (target - made) / length, 0.0).clamp(0, 1)
            weights *= 1 - share
            weights[which] += share * size
            here.made = (1 - share) * made + share * corner
            here.trace.append(float((target - here.made).square().sum()))
            if float(share) == 0:
                break
        chosen = here.weights.nonzero().squeeze(-1)
        return Selection(chosen, here.weights[chosen], here.trace)


class GIGA(CoresetSelector):
    """Coreset selector by greedy iterative geodesic ascent: k steps on the unit sphere towards the sum of all vectors.

    Each step rotates the normalized weighted sum along the geodesic, towards one example, that comes nearest to the
    direction of the full sum; the weights are scaled at the end. Examples may repeat, so the coreset may have fewer than k.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples.
        progress: whether to show a progress bar.

    Source: Campbell & Broderick (2018), Bayesian Coreset Construction via Greedy Iterative Geodesic Ascent, algorithm 2,
    arXiv:1802.01737.
    """

    counted = "steps"

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        target, norms = vectors.total.to(vectors.dtype), vectors.norms.to(vectors.dtype)
        length, usable = target.norm(), norms > 0
        if float(length) == 0:
            return Selection(norms[:0].long(), norms[:0])
        # Weights of unit vectors; the weighted sum of these.
        here = Kept(weights=torch.zeros_like(norms), made=torch.zeros_like(target), trace=[])
        aim = target / length
        for step in self.steps(k, here):
            weights, made = here.weights, here.made
            tangent = aim - (aim @ made) * made
            size = tangent.norm()
            if float(size) <= torch.finfo(vectors.dtype).eps:
                break
            apart = 1 - (vectors.correlate(made) / norms).square()  # squared sines of the angles to the current sum
            turns = vectors.correlate(tangent / size) / (norms * apart.clamp_min(SMALL).sqrt())
            turns[~usable | (apart <= SMALL)] = -torch.inf
            which = turns.argmax()
            if not float(turns[which]) > 0:
                break
            unit = vectors.rows(which.unsqueeze(0))[0] / norms[which]
            if step == 0:
                share = torch.ones_like(size)
            else:
                to_unit, to_made, between = aim @ unit, aim @ made, unit @ made
                first, second = to_unit - to_made * between, to_made - to_unit * between
                share = (first / (first + second)).clamp(0, 1)
            made = (1 - share) * made + share * unit
            weights *= 1 - share
            weights[which] += share
            stretch = made.norm()
            here.made, here.weights = made / stretch, weights / stretch
            here.trace.append(float((target - target @ here.made * here.made).square().sum()))
        chosen = here.weights.nonzero().squeeze(-1)
        scale = (target @ here.made).clamp_min(0)
        return Selection(chosen, scale * here.weights[chosen] / norms[chosen], here.trace)


class NonnegativeOMP(CoresetSelector):
    """Coreset selector by orthogonal matching pursuit: adds the example most aligned with the residual, then refits weights.

    Weights are nonnegative: examples whose optimal weight would be negative are removed. The objective decreases in every
    iteration, and is zero up to rounding at the latest when the coreset spans all S dimensions.

    Each iteration costs one product with all vectors.

    Args:
        progress: whether to show a progress bar.

    Source: Pati, Rezaiifar & Krishnaprasad (1993), Orthogonal Matching Pursuit, doi:10.1109/ACSSC.1993.342465. The weights
    follow Lawson & Hanson (1974), Solving Least Squares Problems.

    Example:
        >>> vectors = torch.eye(4, dtype=torch.float64).repeat(2, 1)
        >>> coreset = NonnegativeOMP()(vectors, 4)
        >>> coreset.indices.tolist(), coreset.weights.tolist()
        ([0, 1, 2, 3], [2.0, 2.0, 2.0, 2.0])
    """

    counted = "examples"

    def __init__(self, *, progress: bool = False) -> None:
        super().__init__(progress=progress)

    @classmethod
    @override
    def examples(cls) -> list[NonnegativeOMP]:
        return [cls()]

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        fit = NonnegativeFit(vectors.total, k)
        pursuit = Pursuit(fit, vectors.norms)
        pursuit.run(vectors, k, self.steps(3 * k, pursuit))
        return Selection(fit.indices, fit.weights.to(vectors.dtype), pursuit.trace)


#: Decay rates of the means of gradients and of their squares.
DECAY, DECAY_2 = 0.9, 0.99

Resample = Callable[[Tensor, Tensor, torch.Generator], Tensor | Vectors]


@ranges(updates=Count())
class SparseVI(CoresetSelector):
    """Coreset selector by sparse variational inference, which resamples vectors from the coreset's posterior in each step.

    Slow by design. Each of k rounds adds the example whose vector is most correlated with the residual. It then takes
    ``updates`` gradient steps on the divergence between the coreset's and the full posterior, with weights kept nonnegative
    and the learning rate 1 / t. Adam scales the steps, because gradients differ by factors of a thousand.

    Args:
        resample: function that returns vectors (N, S) at samples from the posterior of a coreset, given its indices (n,),
            its weights (n,) and a generator; see :meth:`lit_sparse.coresets.projections.Projection.weighted`. None to use
            the given vectors throughout.
        updates: number of gradient steps per round.
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples and
            the given vectors.
        progress: whether to show a progress bar.

    Raises:
        ConfigurationError: for an argument outside its range.

    Attributes:
        rounds: indices (n,) and weights (n,) after each round of the last call: the coresets of all sizes up to k.

    Source: Campbell & Beronov (2019), Sparse Variational Inference: Bayesian Coresets from Scratch, algorithm 1,
    arXiv:1906.03329.
    """

    counted = "examples"
    approximate: ClassVar[bool] = True

    def __init__(
        self, resample: Resample | None = None, *, updates: int = 100, refit: bool = False, progress: bool = False
    ) -> None:
        super().__init__(refit=refit, progress=progress)
        self.rounds: list[tuple[Tensor, Tensor]] = []
        self.resample, self.updates = resample, updates

    def prepared(self, projection: Projection, examples: Examples) -> SparseVI:
        """Return a selector that resamples from the posteriors of a projection, unless ``resample`` was given."""
        return self if self.resample is not None else self._with(projection.weighted(examples))

    def within(self, members: Tensor) -> SparseVI:
        """Return a selector for the examples at indices (n,), which resamples from the posterior of their coreset."""
        resample = self.resample
        if resample is None:
            return self

        def of_members(indices: Tensor, weights: Tensor, generator: torch.Generator) -> Vectors:
            drawn = as_vectors(resample(members[indices], weights, generator))
            return part_of(drawn, members.to(drawn.device))

        return self._with(of_members)

    def _with(self, resample: Resample) -> SparseVI:
        return SparseVI(resample, updates=self.updates, refit=self.refit, progress=self.progress)

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        target = vectors.total
        here = Kept(support=[], weights=torch.zeros(0, dtype=vectors.dtype, device=vectors.device), trace=[], rounds=[])
        for _ in self.steps(k, here):
            support, weights = here.support, here.weights
            drawn = self._drawn(vectors, support, weights, generator)
            which = self._next(drawn, support, weights)
            if which not in support:
                support.append(which)
                weights = torch.cat([weights, weights.new_zeros(1)])
            first, second = torch.zeros_like(weights), torch.zeros_like(weights)
            for t in range(1, self.updates + 1):
                drawn = self._drawn(vectors, support, weights, generator)
                gradient = drawn.correlate_some(self._at(support, drawn), self._residual(drawn, support, weights))
                first, second = DECAY * first + (1 - DECAY) * gradient, DECAY_2 * second + (1 - DECAY_2) * gradient.square()
                size = (second / (1 - DECAY_2**t)).sqrt()
                step = first / (1 - DECAY**t) / torch.where(size > 0, size, 1.0)
                weights = (weights + step / t).clamp_min(0)
            made = vectors.combine(self._at(support, vectors), weights)
            here.trace.append(float((target - made.double()).square().sum()))
            here.weights = weights
            here.rounds.append((self._at(support, vectors), weights))
        self.rounds = here.rounds
        return Selection(self._at(here.support, vectors), here.weights, here.trace)

    def _drawn(self, vectors: Vectors, support: list[int], weights: Tensor, generator: torch.Generator) -> Vectors:
        if self.resample is None:
            return vectors
        found = self.resample(self._at(support, vectors), weights, generator)
        drawn = as_vectors(found.to(vectors.device) if isinstance(found, Tensor) else found)
        if drawn.shape[0] != vectors.shape[0]:
            raise DataError(f"Expected `resample` to return {vectors.shape[0]} vectors but got {drawn.shape[0]}.")
        return drawn.scaled(vectors.unit) if isinstance(vectors, ScaledVectors) else drawn

    def _next(self, drawn: Vectors, support: list[int], weights: Tensor) -> int:
        """Return the most correlated example; in the coreset by absolute value."""
        residual = self._residual(drawn, support, weights)
        norms = drawn.norms.to(drawn.dtype)
        cosines = torch.where(norms > 0, drawn.correlate(residual) / norms, -torch.inf)
        at = self._at(support, drawn)
        cosines[at] = cosines[at].abs()
        return int(cosines.argmax())

    def _residual(self, drawn: Vectors, support: list[int], weights: Tensor) -> Tensor:
        total = drawn.total.to(drawn.dtype)
        return total - drawn.combine(self._at(support, drawn), weights.to(drawn.dtype)) if support else total

    @staticmethod
    def _at(support: list[int], vectors: Vectors) -> Tensor:
        return torch.tensor(support, dtype=torch.int64, device=vectors.device)
