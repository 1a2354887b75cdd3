"""Rows of a table that are read from its files in each epoch, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.columns import Column
from lit_sparse.data.splits import in_batches, share_of, shuffled
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["Stream", "check_streaming", "stream_batches", "stream_order"]


def stream_order(size: int, buffer: int, seed: int, epoch: int) -> Tensor:
    """Return the order of a streamed table's rows in an epoch: successive groups of ``buffer`` rows, each shuffled.

    0 keeps the rows in order.

    Example:
        >>> (
        ...     stream_order(6, 0, 0, 0).tolist(),
        ...     sorted(stream_order(6, 3, 0, 0)[:3].tolist()),
        ... )
        ([0, 1, 2, 3, 4, 5], [0, 1, 2])
    """
    if buffer < 2:
        return torch.arange(size)
    order = shuffled(size, seed, epoch)
    return order[torch.sort(order // buffer, stable=True).indices]


def stream_batches(data: ResumableDataModule, buffer: int, epoch: int, rank: int, processes: int) -> list[Tensor]:
    """Return the indices of each training batch of one process for streamed rows; see :func:`stream_order`."""
    order = stream_order(data.size("train"), buffer, data.seed, epoch)
    return in_batches(share_of(order, rank, processes), data.batch_size)


def check_streaming(whole: Mapping[str, Any], shuffle_buffer: int, *, streaming: bool) -> None:
    """Check the options of data that can be streamed.

    Args:
        whole: name of each option that needs all rows -> its value; None if it is not used.
        shuffle_buffer: number of rows that are shuffled together.
        streaming: whether the data are streamed.

    Raises:
        ConfigurationError: for options that exclude each other.
    """
    if shuffle_buffer and not streaming:
        raise ConfigurationError("Expected `shuffle_buffer` only with `streaming` but got it without. Leave it out.")
    if streaming and (names := [name for name, given in whole.items() if given is not None]):
        raise ConfigurationError(f"Expected no `streaming` with {names[0]}, which needs all rows. Leave one out.")


class Stream:
    """Rows of a table by index, read from its files on access; only the last ones read stay in memory.

    The table is read from row to row. For a row before the ones in memory, it is opened again.

    Args:
        chunks: function that opens the table and yields chunks of rows, dicts from roles to Arrow arrays; picklable for
            worker processes.
        decode: function from an Arrow value to a value; None to leave values unchanged.
        size: number of rows to use, the first ones; None for all, which are then counted once.
        buffer: number of rows that stay in memory.

    Raises:
        DataError: if there are fewer rows.
    """

    def __init__(
        self,
        chunks: Callable[[], Iterator[dict[str, Any]]],
        decode: Callable[[Any], Any] | None = None,
        *,
        size: int | None = None,
        buffer: int = 0,
    ) -> None:
        self._open, self._decode, self._buffer = chunks, decode, buffer
        self._size = size
        self._chunks: Iterator[dict[str, Any]] | None = None
        self._kept: deque[tuple[int, dict[str, Any]]] = deque()
        self._end = 0  # of the rows that have been read

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(len(next(iter(chunk.values()))) for chunk in self._open())
        return self._size

    def __getstate__(self) -> dict[str, Any]:
        len(self)  # so that each worker process need not count
        return {**vars(self), "_chunks": None, "_kept": deque(), "_end": 0}

    def values(self, role: str) -> Iterator[Any]:
        """Yield the values of one role, such as ``source``, in all rows."""
        left = len(self)
        for chunk in self._open():
            yield from Column([chunk[role][:left]], self._decode)
            left -= min(left, len(chunk[role]))
            if not left:
                return

    def rows(self, indices: Tensor) -> dict[str, list[Any]]:
        """Return a dict from roles, such as ``source``, to the values of the rows at indices (n,).

        Raises:
            DataError: if the table has fewer rows than before.
        """
        low, high = (int(end) for end in indices.aminmax())
        if self._chunks is None or low < (self._kept[0][0] if self._kept else self._end):
            self._chunks, self._end = self._open(), 0
            self._kept.clear()
        while self._end <= high:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise DataError(
                    f"Expected {high + 1:,} or more rows in the stream but got {self._end:,}. Lower `train_size`, and do"
                    " not change the files."
                )
            self._kept.append((self._end, chunk))
            self._end += len(next(iter(chunk.values())))
            while len(self._kept) > 1 and self._kept[1][0] <= min(low, self._end - self._buffer):
                self._kept.popleft()
        places = (indices - self._kept[0][0]).tolist()
        kept = {role: Column((chunk[role] for _, chunk in self._kept), self._decode) for role in self._kept[-1][1]}
        return {role: [column[place] for place in places] for role, column in kept.items()}
