"""Columns of tables in Arrow's format, in memory or mapped from the disk."""

from __future__ import annotations

import mmap
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import IO, Any, overload

import numpy as np

from lit_sparse.errors import DataError

__all__ = ["Column", "chosen", "joined", "stored", "unchecked"]

#: Number of bytes of a table that are kept in memory.
MEMORY = 2**26


class _Values(Sequence[Any]):
    """Values that are made when they are read; they equal a list of the same values."""

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Sequence) and not isinstance(other, str) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array([*self], dtype)

    def __repr__(self) -> str:
        return f"<{len(self)} values>"


class Column(_Values):
    """Values of a table's column, converted from Arrow when they are read.

    Args:
        chunks: Arrow arrays.
        decode: function from an Arrow value other than None to a value of the column; None to leave values unchanged.
    """

    def __init__(self, chunks: Iterable[Any], decode: Callable[[Any], Any] | None = None) -> None:
        self.chunks = [chunk for chunk in chunks if len(chunk)]
        self.decode = decode
        self._ends = [*accumulate(map(len, self.chunks))]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Any]:
        for chunk in self.chunks:
            values = chunk.to_pylist()
            yield from values if self.decode is None else (None if it is None else self.decode(it) for it in values)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            rows = range(len(self))[place]
            if rows.step != 1:
                return _Chosen(self, rows)
            starts = [0, *self._ends]
            first = bisect_right(self._ends, rows.start)
            last = bisect_right(self._ends, rows.stop - 1) if rows else first - 1
            kept = ((starts[number], self.chunks[number]) for number in range(first, last + 1))
            return type(self)([chunk[max(0, rows.start - start) : rows.stop - start] for start, chunk in kept], self.decode)
        place = range(len(self))[place]
        number = bisect_right(self._ends, place)
        value = self.chunks[number][place - self._ends[number]].as_py()
        return value if value is None or self.decode is None else self.decode(value)

    def __add__(self, other: Iterable[Any]) -> Sequence[Any]:
        if isinstance(other, Column) and other.decode is self.decode:
            return type(self)([*self.chunks, *other.chunks], self.decode)
        return [*self, *other]


class _Chosen(_Values):
    """Some values of a sequence, in any order.

    Args:
        values: the sequence.
        places: the places of the values.
    """

    def __init__(self, values: Sequence[Any], places: Sequence[int]) -> None:
        self._values, self._places = values, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Chosen(self._values, self._places[place])
        return self._values[int(self._places[place])]


def chosen(values: Sequence[Any], places: Any) -> Sequence[Any]:
    """Return the values of a column or list at some positions, as a column or list."""
    return [values[place] for place in places.tolist()] if isinstance(values, list) else _Chosen(values, places)


def unchecked(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values that need a check of their text: all but Arrow's own text, which is valid UTF-8."""
    if not isinstance(values, Column) or values.decode is not None:
        return values
    return () if {str(chunk.type) for chunk in values.chunks} <= {"string", "large_string"} else values


def joined(first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
    """Return the concatenation of two sequences of values."""
    return first + second if isinstance(first, Column) else [*first, *second]


def stored(chunks: Iterable[Mapping[str, Any]], *, mapped: bool = False) -> dict[str, list[Any]]:
    """Return a dict from roles, such as ``source``, to Arrow arrays of all chunks of a table, in memory or mapped from disk.

    A large table is written to a temporary file, and mapped from there. The file is unnamed, so the operating system
    removes it when the process ends.

    Args:
        chunks: dicts from roles to arrays of some rows.
        mapped: whether the chunks are already mapped from disk.

    Raises:
        DataError: if the disk is full.
    """
    import pyarrow  # it comes with datasets

    kept: list[Any] = []
    files: list[_File] = []
    size = 0
    try:
        with ExitStack() as stack:
            for chunk in (chunk for chunk in chunks if chunk):
                kept.append(pyarrow.RecordBatch.from_pydict(dict(chunk)))
                size += kept[-1].nbytes
                if size > MEMORY and not mapped:
                    for batch in kept:
                        if not files or files[-1].schema != batch.schema:
                            files.append(_File(stack.enter_context(tempfile.TemporaryFile()), batch.schema))
                        files[-1].writer.write_batch(batch)
                    kept = []
            kept = [batch for file in files for batch in file.mapped()] + kept
    except OSError as error:
        raise DataError(
            f"A table of {size:,} bytes or more cannot be kept in {tempfile.gettempdir()!r}: {error.strerror or error}. Set"
            " the environment variable TMPDIR to a folder with more space."
        ) from error
    return {role: [batch.column(role) for batch in kept] for role in (kept[0].schema.names if kept else ())}


class _File:
    """A file without a name, to which batches of the same types are written."""

    def __init__(self, file: IO[bytes], schema: Any) -> None:
        import pyarrow

        self.schema, self._file = schema, file
        self.writer = pyarrow.ipc.new_stream(file, schema)

    def mapped(self) -> list[Any]:
        """Return the batches, mapped from the disk, also after the file is closed."""
        import pyarrow

        self.writer.close()
        self._file.flush()
        content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return list(pyarrow.ipc.open_stream(pyarrow.py_buffer(content)))
