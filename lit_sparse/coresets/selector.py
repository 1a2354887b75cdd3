"""The interface of all coreset selectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import check_count
from lit_sparse.coresets.coreset import Coreset
from lit_sparse.coresets.pursuit import nonnegative_least_squares
from lit_sparse.coresets.vectors import Vectors, as_vectors
from lit_sparse.distributed import is_first
from lit_sparse.errors import ConfigurationError, DataError, shown_arguments

if TYPE_CHECKING:
    from rich.progress import Progress

    from lit_sparse.coresets.examples import Examples
    from lit_sparse.coresets.projections import Projection

__all__ = ["CoresetSelector", "Selection"]


@dataclass
class Selection:
    """What a selector has found.

    Attributes:
        indices: (n,) int64, none of them twice.
        weights: (n,), zeros among them are dropped.
        trace: the objective after each iteration.
    """

    indices: Tensor
    weights: Tensor
    trace: list[float] = field(default_factory=list)


class CoresetSelector(nn.Module, ABC):
    """Selects k of N examples and nonnegative weights: ``min_w ||y - Phi w||^2`` with at most k of the w_i not zero.

    Phi has the examples' vectors as its columns and y is their sum. A subclass implements :meth:`select`.

    Args:
        refit: choose the weights anew in the end, the best nonnegative ones for the selected examples. Where all of these are
            zero, the weights stay as they are.
        progress: show a progress bar.

    Example:
        >>> from lit_sparse.coresets import NonnegativeOMP
        >>> coreset = NonnegativeOMP()(torch.randn(500, 20, dtype=torch.float64), 30)
        >>> len(coreset) <= 20 and coreset.objective < 1e-12  # S points are always enough
        True
    """

    #: What the progress bar counts.
    counted = "iterations"
    #: Whether weights end near the best ones of a search for them, and not at them.
    approximate: ClassVar[bool] = False

    def __init__(self, *, refit: bool = False, progress: bool = False) -> None:
        super().__init__()
        self.refit = refit
        self.progress = progress

    @abstractmethod
    def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
        """Choose at most k of the vectors.

        Args:
            vectors: finite, not all of them zero, of a scale whose fourth power neither overflows nor vanishes.
            k: in 1 .. N.
            generator: of what is drawn; the same on all processes, on the CPU.
        """

    def prepared(self, projection: Projection, examples: Examples) -> CoresetSelector:
        """Return a selector with what it needs beside the vectors of a projection; most need nothing, and return themselves."""
        return self

    def within(self, members: Tensor) -> CoresetSelector:
        """Return a selector for the vectors of some examples (n,) alone; most return themselves."""
        return self

    @classmethod
    def examples(cls) -> list[Self]:
        """Return the instances that the shared tests run."""
        return [cls(), cls(refit=True)]

    @override
    def extra_repr(self) -> str:
        return shown_arguments(self)

    @torch.no_grad()
    def forward(self, vectors: Vectors | Tensor, k: int, generator: torch.Generator | None = None) -> Coreset:
        """Return a coreset of at most k examples.

        Args:
            vectors: (N, S), one for each example; or :class:`Vectors`, which need not be in memory. Work is done in their
                type, so float64 where tiny objectives matter.
            k: how many examples at most.
            generator: of what is drawn, on the CPU; torch's own by default. Of several processes the first one's counts.

        Raises:
            ConfigurationError: if k is not in 1 .. N.
            DataError: if a vector is not finite, or all of them are zero.
        """
        found = as_vectors(vectors)
        size = found.shape[0]
        if check_count("k", k) > size:
            raise ConfigurationError(f"Expected argument `k` to be at most {size}, the number of examples, but got {k}.")
        longest = float(found.norms.max())
        if longest == 0:
            raise DataError(
                f"All {size} vectors are zero: they do not tell the examples apart, so there is nothing to select by."
            )
        unit = 2.0 ** math.floor(math.log2(longest))
        scaled = found.scaled(unit)
        seed = found.agree(torch.randint(2**62, (), generator=generator))
        selection = self.select(scaled, k, torch.Generator().manual_seed(int(seed)))
        coreset = self._finished(scaled, selection)
        if not math.isfinite(coreset.objective):
            raise DataError(
                f"{type(self).__name__} found weights whose objective is not finite: the vectors, of lengths up to"
                f" {longest:.3g}, are too uneven for their type. Give them as float64, or leave out the longest ones."
            )
        trace = torch.tensor(selection.trace, dtype=torch.float64) * unit**2
        return Coreset(coreset.indices, coreset.weights, coreset.objective * unit**2, trace, size)

    def _finished(self, vectors: Vectors, selection: Selection) -> Coreset:
        """Sort what was selected, drop what has no weight, and choose the weights anew if that is wanted."""
        indices, order = selection.indices.sort()
        weights = selection.weights[order]
        there = weights > 0
        indices, weights = indices[there], weights[there]
        objective = squared_distance(vectors, indices, weights)
        if self.refit and len(indices):
            fitted = nonnegative_least_squares(vectors, indices)
            better = squared_distance(vectors, indices, fitted)
            if better <= objective and bool((fitted > 0).any()):  # a coreset of no example stands for nothing
                there = fitted > 0
                indices, weights, objective = indices[there], fitted[there], better
        return Coreset(indices, weights, objective, size=vectors.shape[0])

    def steps(self, number: int) -> Iterator[int]:
        """Count from 0 to ``number - 1``, and show it where that is wanted."""
        if not self.progress or not is_first():
            yield from range(number)
            return
        with _bar() as bar:
            task = bar.add_task(type(self).__name__, total=number, counted=self.counted)
            for step in range(number):
                yield step
                bar.update(task, completed=step + 1)


def squared_distance(vectors: Vectors, indices: Tensor, weights: Tensor) -> float:
    """Return ``||y - Phi w||^2`` for weights (n,) of some vectors; the difference is taken in float64."""
    made = vectors.combine(indices, weights.to(vectors.dtype)) if len(indices) else torch.zeros_like(vectors.total)
    return float((vectors.total - made.double()).square().sum())


def largest(values: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest values (N,), ascending; of equal ones the lowest, on every device."""
    if k <= 0 or k >= len(values):
        return torch.arange(len(values) if k > 0 else 0, device=values.device)
    least = values.topk(k).values[-1]
    above = (values > least).nonzero().squeeze(-1)
    equal = (values == least).nonzero().squeeze(-1)[: k - len(above)]
    return torch.cat([above, equal]).sort().values


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counted]}"),
        TimeRemainingColumn(),
    )
