"""Watch the memory of programs in Triton's interpreter, which runs them one after another and lets them touch anything.

An access has to be within a tensor of the launch. No program may touch what another one writes. A program has to wait at a
barrier before it reads what it wrote, for its threads do not run in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

__all__ = ["watched_memory"]

NOBODY, SEVERAL = -1, -2
Array = np.ndarray[Any, Any]


class _Span:
    """Memory from ``first`` to ``last``: who read and wrote each of its cells, and before which barrier."""

    def __init__(self, first: int, last: int, cell: int) -> None:
        self.first, self.last, self.cell = first, last, cell
        count = (last - first) // cell
        self.readers, self.writers, self.times = (np.full(count, NOBODY, np.int32) for _ in range(3))


class _Watch:
    """Stands for the module that reads and writes memory for the interpreter."""

    def __init__(self, real: Any, builder: Any) -> None:
        self._real, self._builder = real, builder
        self._spans: list[_Span] = []
        self._starts = np.zeros(0, np.uint64)
        self._time = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self, given: Any) -> None:
        """Begin a launch with these arguments."""
        spans: list[_Span] = []
        tensors = [x for x in given if isinstance(x, Tensor) and x.numel()]
        for x in sorted(tensors, key=Tensor.data_ptr):
            reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
            first, last, cell = x.data_ptr(), x.data_ptr() + reach * x.itemsize, x.itemsize
            if spans and first < spans[-1].last:
                before = spans.pop()
                first, last, cell = before.first, max(last, before.last), min(cell, before.cell)
            spans.append(_Span(first, last, cell))
        self._spans, self._starts = spans, np.array([span.first for span in spans], np.uint64)

    def wait(self) -> None:
        """Let all threads of a program arrive."""
        self._time += 1

    def load(self, places: Array, mask: Array, other: Array, dtype: Any) -> Array:
        """Load."""
        program = self._program()
        for span, cells in self._cells(places[mask]):
            owners = span.writers[cells]
            assert bool(((owners == NOBODY) | (owners == program)).all()), "a program reads what another one writes"
            assert bool(((owners == NOBODY) | (span.times[cells] < self._time)).all()), "no barrier after a write"
            readers = span.readers[cells]
            span.readers[cells] = np.where((readers == NOBODY) | (readers == program), program, SEVERAL)
        loaded: Array = self._real.load(places, mask, other, dtype)
        return loaded

    def store(self, places: Array, values: Array, mask: Array) -> None:
        """Store."""
        program = self._program()
        for span, cells in self._cells(places[mask]):
            assert len(np.unique(cells)) == len(cells), "a program writes twice at once"
            for owners in (span.readers[cells], span.writers[cells]):
                assert bool(((owners == NOBODY) | (owners == program)).all()), "a program writes what another one touches"
            span.writers[cells], span.times[cells] = program, self._time
        self._real.store(places, values, mask)

    def _program(self) -> int:
        (x, y, z), (_, width, depth) = self._builder.grid_idx, self._builder.grid_dim
        return int((x * width + y) * depth + z)

    def _cells(self, places: Array) -> Iterator[tuple[_Span, Array]]:
        """Yield which cells of which spans are touched."""
        which = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(which):
            assert number >= 0, "before all memory"
            span, some = self._spans[number], places[which == number]
            assert int(some.max()) + span.cell <= span.last, "out of bounds"
            yield span, ((some - np.uint64(span.first)) // np.uint64(span.cell)).astype(np.int64)


@contextmanager
def watched_memory() -> Iterator[None]:
    """Watch, and fill memory that nothing was written to: with NaN, or the largest integers."""
    from triton.runtime import interpreter

    watch = _Watch(interpreter._interpreter, interpreter.interpreter_builder)
    prepare = interpreter.GridExecutor._init_args_hst

    def begin(executor: Any, given: Any, named: Any) -> Any:
        prepared = prepare(executor, given, named)
        watch.begin(prepared[0])
        return prepared

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            mock.patch.object(interpreter, "_interpreter", watch),
            mock.patch.object(interpreter.GridExecutor, "_init_args_hst", begin),
            mock.patch.object(interpreter.InterpreterBuilder, "create_barrier", lambda builder: watch.wait()),
        ):
            yield
    finally:
        torch.use_deterministic_algorithms(False)
