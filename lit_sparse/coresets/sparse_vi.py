"""Sparse variational inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Count, ranges
from lit_sparse.coresets.examples import Examples
from lit_sparse.coresets.projections import Projection
from lit_sparse.coresets.selector import CoresetSelector, Selection
from lit_sparse.coresets.state import Kept
from lit_sparse.coresets.vectors import ScaledVectors, Vectors, as_vectors, part_of
from lit_sparse.errors import DataError

__all__ = ["SparseVI"]

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
