"""The interface of all coreset selectors, and their baseline: examples chosen at random."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import FLOATS, check_count, check_tensor
from lit_sparse.coresets.coreset import Coreset
from lit_sparse.coresets.pursuit import nonnegative_least_squares
from lit_sparse.coresets.state import Resumable, SelectionState
from lit_sparse.coresets.vectors import Vectors, as_vectors
from lit_sparse.errors import ConfigurationError, DataError, MissingExtraError, full_name
from lit_sparse.ground.arguments import checked, shown_arguments
from lit_sparse.ground.distributed import is_first

if TYPE_CHECKING:
    from rich.progress import Progress

    from lit_sparse.coresets.examples import Examples
    from lit_sparse.coresets.projections import Projection


__all__ = ["CoresetSelector", "Selection", "Uniform"]


@dataclass
class Selection:
    """Result of a selector's search, before it becomes a :class:`Coreset`.

    Attributes:
        indices: (n,) int64, without repetition.
        weights: (n,) nonnegative; entries of weight zero are dropped.
        trace: objective after each iteration.

    Raises:
        ConfigurationError: if indices or weights are not as described.
    """

    indices: Tensor
    weights: Tensor
    trace: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        what = "indices (n,) int64 of a selection"
        indices = check_tensor(self.indices, what, shape=(None,), dtypes=(torch.int64,))
        what = f"{len(indices)} floating weights of a selection"
        weights = check_tensor(self.weights, what, shape=indices.shape, dtypes=FLOATS)
        if len(set(indices.tolist())) < len(indices) or bool((indices < 0).any()):
            raise ConfigurationError(f"Expected different indices >= 0 of a selection but got {indices.tolist()}.")
        wrong = ~((weights >= 0) & (weights < torch.inf))
        if bool(wrong.any()):
            raise ConfigurationError(f"Expected nonnegative weights of a selection but got {float(weights[wrong][0]):g}.")


class CoresetSelector(nn.Module, ABC):
    r"""Base class of coreset selectors, which choose k of N examples with nonnegative weights.

    .. math:: \min_{w \ge 0} \; \lVert y - \Phi w \rVert^2 \;\text{ with }\; \lVert w \rVert_0 \le k

    where the columns of Phi are the examples' vectors, y is their sum and w are the weights. A subclass implements
    :meth:`select`.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the selected examples. If
            all of these are zero, the weights do not change.
        progress: whether to show a progress bar.

    Example:
        >>> from lit_sparse.coresets import NonnegativeOMP
        >>> coreset = NonnegativeOMP()(torch.randn(500, 20, dtype=torch.float64), 30)
        >>> len(coreset) <= 20 and coreset.objective < 1e-12  # S points are always enough
        True
    """

    _state: SelectionState | None = None
    #: Unit of the progress bar.
    counted = "iterations"
    #: Whether the search ends near the optimal weights of its support, not exactly at them.
    approximate: ClassVar[bool] = False

    def __init__(self, *, refit: bool = False, progress: bool = False) -> None:
        super().__init__()
        self.refit = refit
        self.progress = progress

    @abstractmethod
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        """Select at most k of the vectors, with weights; a subclass implements this search.

        Args:
            vectors: finite vectors, not all zero, whose norms to the fourth power neither overflow nor vanish.
            k: maximum number of vectors, in 1 .. N.
            generator: CPU generator for random choices, equal on all processes.
        """

    def prepared(self, projection: Projection, examples: Examples) -> CoresetSelector:
        """Return a selector that has taken from a projection what it needs besides vectors; by default the selector itself."""
        return self

    def within(self, members: Tensor) -> CoresetSelector:
        """Return a selector for a part of the examples, at indices (n,); by default the selector itself."""
        return self

    def problem(self, k: int) -> dict[str, int | float | str | None]:
        """Return the options that a resumed selection of at most k examples must share with the interrupted one."""
        arguments = {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}
        return {"selector": full_name(self), "k": k, **arguments, "training": None, "progress": None}

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests."""
        return [cls(), cls(refit=True)]

    @override
    def extra_repr(self) -> str:
        return shown_arguments(self)

    @torch.no_grad()
    @checked
    def forward(
        self,
        vectors: Vectors | Tensor,
        k: int,
        generator: torch.Generator | None = None,
        state: SelectionState | None = None,
    ) -> Coreset:
        """Return a coreset of at most k examples.

        Args:
            vectors: (N, S), one per example; or :class:`Vectors`, which need not be in memory. Computations use their
                dtype; use float64 for tiny objectives.
            k: maximum number of examples.
            generator: CPU generator for random choices; torch's own by default. With several processes, the generator of
                the first one is used.
            state: file for the state of a long selection, from which an interrupted one continues.

        Raises:
            CheckpointError: if the file of the state is damaged.
            ConfigurationError: if k is not in 1 .. N, or the state belongs to another selection.
            DataError: if a vector is not finite, or all of them are zero.
        """
        found = as_vectors(vectors)
        size = found.shape[0]
        if check_count("k", k) > size:
            raise ConfigurationError(f"Expected argument `k` to be at most {size}, the number of examples, but got {k}.")
        longest = float(found.norms.max())
        if longest == 0:
            raise DataError(f"Expected vectors that differ between examples but all {size} are zero. Use another projection.")
        unit = 2.0 ** math.floor(math.log2(longest))
        scaled = found.scaled(unit)
        seed = found.agree(torch.randint(2**62, (), generator=generator))
        drawn = torch.Generator().manual_seed(int(seed))
        if state is not None:
            state.open(scaled, self.problem(k), drawn)
        self._state = state
        try:
            selection = self.select(scaled, k, drawn)
        finally:
            self._state = None
        self._check(selection, k, size)
        coreset = self._finished(scaled, selection)
        if not math.isfinite(coreset.objective):
            raise DataError(
                f"{type(self).__name__} returned weights whose objective is not finite: the lengths of the vectors, up to"
                f" {longest:.3g}, vary too much for their dtype. Give them as float64, or leave out the longest ones."
            )
        trace = torch.tensor(selection.trace, dtype=torch.float64) * unit**2
        if state is not None:
            state.close()
        return Coreset(coreset.indices, coreset.weights, coreset.objective * unit**2, trace, size)

    def _check(self, selection: Selection, k: int, size: int) -> None:
        """Refuse a wrong result of a subclass.

        Raises:
            ConfigurationError: unless it is a selection of at most k of the examples.
        """
        name = f"Expected `select` of {full_name(self)} to return"
        if not isinstance(selection, Selection):
            raise ConfigurationError(f"{name} a Selection but got a {type(selection).__name__}.")
        indices = selection.indices
        if len(indices) > k:
            raise ConfigurationError(f"{name} at most {k} indices but got {len(indices)}.")
        if len(indices) and int(indices.max()) >= size:
            raise ConfigurationError(f"{name} indices in 0 .. {size - 1} but got {int(indices.max())}.")

    def _finished(self, vectors: Vectors, selection: Selection) -> Coreset:
        """Sort the selected examples, drop those without weight, and recompute the weights with ``refit``."""
        indices, order = selection.indices.sort()
        weights = selection.weights[order]
        there = weights > 0
        indices, weights = indices[there], weights[there]
        objective = squared_distance(vectors, indices, weights)
        if self.refit and len(indices):
            fitted = nonnegative_least_squares(vectors, indices)
            better = squared_distance(vectors, indices, fitted)
            if better <= objective and bool((fitted > 0).any()):  # a coreset needs at least one example
                there = fitted > 0
                indices, weights, objective = indices[there], fitted[there], better
        return Coreset(indices, weights, objective, size=vectors.shape[0])

    def steps(self, number: int, here: Resumable | None = None) -> Iterator[int]:
        """Yield step numbers from 0 to ``number - 1``, with a progress bar if requested, and store the state of the selection.

        Args:
            number: number of steps.
            here: variables that the steps change. They are written to the state of the selection, and a resumed selection
                continues with the step after them. All loops of a selector have the same variables.
        """
        state = self._state if here is not None else None
        done = state.begin(here, number) if state is not None and here is not None else 0
        if done is None:
            return
        with _bar() if self.progress and is_first() else nullcontext() as bar:
            task = bar.add_task(type(self).__name__, total=number, completed=done, counted=self.counted) if bar else None
            try:
                for step in range(done, number):
                    yield step
                    done = step + 1
                    if state is not None and here is not None:
                        state.keep(done, here)
                    if bar and task is not None:
                        bar.update(task, completed=done)
            except GeneratorExit:  # the selector needs no more steps
                if bar and task is not None:
                    bar.update(task, total=done)


def squared_distance(vectors: Vectors, indices: Tensor, weights: Tensor) -> float:
    """Return the objective ``||y - Phi w||^2`` for weights (n,) of some vectors, computed in float64."""
    made = vectors.combine(indices, weights.to(vectors.dtype)) if len(indices) else torch.zeros_like(vectors.total)
    return float((vectors.total - made.double()).square().sum())


def largest(values: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest values (N,), ascending; ties go to the lowest index on every device."""
    if k <= 0 or k >= len(values):
        return torch.arange(len(values) if k > 0 else 0, device=values.device)
    least = values.topk(k).values[-1]
    above = (values > least).nonzero().squeeze(-1)
    equal = (values == least).nonzero().squeeze(-1)[: k - len(above)]
    return torch.cat([above, equal]).sort().values


def _bar() -> Progress:
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise MissingExtraError("Progress bars of selectors", "train") from error
    number = MofNCompleteColumn(), TextColumn("{task.fields[counted]}")
    return Progress(TextColumn("{task.description}"), BarColumn(), *number, TimeRemainingColumn())


class Uniform(CoresetSelector):
    """Coreset selector that samples k examples without replacement, each with weight N / k: the baseline.

    Args:
        refit: whether to recompute the weights at the end, as the optimal nonnegative ones for the sampled examples.
        progress: whether to show a progress bar.

    Example:
        >>> Uniform()(torch.randn(10, 3), 5).weights
        tensor([2., 2., 2., 2., 2.])
    """

    @override
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        size = vectors.shape[0]
        indices = torch.randperm(size, generator=generator)[:k].to(vectors.device)
        return Selection(indices, torch.full((k,), size / k, dtype=vectors.dtype, device=vectors.device))
