"""Reads tables in JSON, CSV, TSV, Parquet and Arrow, a chunk of rows at a time.

The loaders of ``datasets`` turn NA into a missing value and 007 into 7, fill up short rows, drop the second of two
columns with the same name, decompress without a limit, and copy files to a cache. These readers keep the values
unchanged, name the line of an error, and need no cache or home folder.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lit_sparse.data.columns import Column, stored
from lit_sparse.data.readers.arrow_files import LISTED, arrow_batches, parquet_batches
from lit_sparse.data.readers.places import Place
from lit_sparse.data.readers.text_files import ending_of
from lit_sparse.data.readers.text_tables import (
    LONGEST,
    Chunk,
    Row,
    cell_chunks,
    cell_rows,
    chunks_of_rows,
    decoded,
    json_rows,
    too_long,
    value_at,
)
from lit_sparse.errors import DataError, did_you_mean

__all__ = [
    "TABLES",
    "chunks_of",
    "chunks_of_batches",
    "float_of",
    "from_chunks",
    "number_chunks",
    "of_batches",
    "read_numbers",
    "rows_of",
]

NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"


class _Format(NamedTuple):
    """How a table is read.

    Attributes:
        chunks: function from a file, and the column of each role, to the file's chunks.
        rows: function from the same to its rows, which is slower but finds the line and the cause of an error.
        decode: function from a value of a chunk to a value of a column; None for the same value.
    """

    chunks: Callable[[Place, Mapping[str, str]], Iterator[Chunk]]
    rows: Callable[[Place, Mapping[str, str]], Iterator[Row]]
    decode: Callable[[Any], Any] | None = None


def from_chunks(
    chunks: Iterable[Chunk], columns: Mapping[str, str], first: Place | None = None, *, mapped: bool = False
) -> dict[str, Column]:
    """Return a dict from roles, such as ``source``, to the values of a table, from its chunks.

    Args:
        chunks: see :func:`chunks_of`.
        columns: the column of each role, such as ``source``.
        first: first file of the table; None for a data set on the hub, and for parallel text.
        mapped: whether the chunks are already mapped from disk.

    Raises:
        DataError: see :func:`chunks_of`, or if the disk is full.
    """
    ending, read = "" if first is None else ending_of(first), {}
    for role, arrays in stored(chunks, mapped=mapped or ending == ".arrow").items():
        decode: Callable[[Any], Any] | None = None
        if ending in (".csv", ".tsv") and all(map(_are_numbers, arrays)):  # these formats have no types
            decode = _number
            _check_digits(arrays, columns[role], first)
        elif first is not None and any(str(cells.type) == "large_binary" for cells in arrays):
            decode = TABLES[ending].decode
        read[role] = Column(arrays, decode)
    return read


def read_numbers(path: Place, names: Sequence[str], others: Sequence[str] = ()) -> tuple[np.ndarray, dict[str, Column]]:
    """Return some columns of a table as numbers (N, D) float64, and others as values by name.

    Args:
        path: the table.
        names: D columns of numbers.
        others: other columns.

    Raises:
        DataError: see :func:`chunks_of`.
        ValueError: for a value that is not a number.
    """
    pieces: list[np.ndarray] = []

    def rest() -> Iterator[Chunk]:
        for piece, chunk in number_chunks(path, names, others):
            pieces.append(piece)
            yield {name: chunk[name] for name in others}

    read = from_chunks(rest(), {name: name for name in others}, path)
    numbers, row = np.empty((sum(map(len, pieces)), len(names))), 0
    while pieces:  # a piece is released when it has been copied
        piece = pieces.pop()
        row += len(piece)
        numbers[len(numbers) - row : len(numbers) - row + len(piece)] = piece
    return numbers, read


def number_chunks(path: Place, names: Sequence[str], others: Sequence[str] = ()) -> Iterator[tuple[np.ndarray, Chunk]]:
    """Yield chunks of a table's rows as numbers (n, D) float64, together with the whole chunk.

    Raises:
        DataError, ValueError: see :func:`read_numbers`.
    """
    decode, row = TABLES[ending_of(path)].decode, 0
    for chunk in chunks_of([path], {name: name for name in (*names, *others)}):
        piece = np.stack([_floats(chunk[name], decode) for name in names], axis=1)
        for name in itertools.compress(names, np.isinf(piece).any(0)):
            _check_digits([chunk[name]], name, path, row)
        row += len(piece)
        yield piece, chunk


def _floats(cells: Any, decode: Callable[[Any], Any] | None) -> np.ndarray:
    with suppress(ValueError, NotImplementedError):  # of Arrow; Python knows more spellings, and says what it does not know
        texts = cells if decode is None else cells.cast("large_string")
        return texts.cast("float64").to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    return np.array([*map(float_of, Column([cells], decode))])


def float_of(cell: Any) -> float:
    """Return the number in a table's cell, NaN for a missing one.

    Raises:
        ValueError: if it is not a number. 2026_01, which Python accepts as one, is a name or a date in a table.
    """
    if isinstance(cell, str) and "_" in cell:
        raise ValueError(f"could not convert string to float: {cell!r}")
    return math.nan if cell is None else float(cell)


def chunks_of(files: Sequence[Place], columns: Mapping[str, str], optional: Collection[str] = ()) -> Iterator[Chunk]:
    """Yield the rows of several table files in chunks, after a check of each.

    Args:
        files: the files.
        columns: the column of each role, such as ``source``.
        optional: roles that may lack values in some rows.

    Raises:
        DataError: if a file does not have the format of its ending, or lacks a column or a required value.
    """
    for path in files:
        kind = TABLES[ending_of(path)]
        yield from of_batches(kind.chunks(path, columns), partial(kind.rows, path, columns), columns, repr(str(path)), optional)


def of_batches(
    chunks: Iterator[Chunk],
    rows: Callable[[], Iterable[Row]],
    columns: Mapping[str, str],
    where: str,
    optional: Collection[str] = (),
) -> Iterator[Chunk]:
    """Yield the chunks of one table after a check that no value is missing.

    Args:
        chunks: chunks of the table.
        rows: function that returns the table's rows with their positions, read again to find where values are missing.
        columns: the column of each role, such as ``source``.
        where: name of the table in messages.
        optional: roles that may lack values in some rows.

    Raises:
        DataError: if the table is empty, or a column is missing in all rows or lacks a required value.
    """
    count, empty = 0, Counter[str]()
    with closing(chunks):  # type: ignore[type-var]  # a generator
        for chunk in chunks:
            count += len(next(iter(chunk.values())))
            empty.update({role: values.null_count for role, values in chunk.items()})
            if any(empty[role] and role not in optional for role in columns):
                break
            yield chunk
        else:
            if count and not any(empty[role] == count for role in optional):
                return
    _explain(rows(), columns, where, optional)


def _explain(rows: Iterable[Row], columns: Mapping[str, str], where: str, optional: Collection[str]) -> None:
    """Raise the error about a table that is empty or lacks values, if it does."""
    empty: dict[str, tuple[str, int]] = {}  # role -> the first row without a value, and their number
    names: dict[str, None] = {}  # columns in order
    size = 0
    for place, row in rows:
        size += 1
        for role in [role for role, column in columns.items() if value_at(row, column) is None]:
            first, count = empty.get(role, (place, 0))
            empty[role] = (first, count + 1)
            names.update(dict.fromkeys(itertools.islice(_names(row), LISTED)))
    if not size:
        raise DataError(f"{where} holds no rows. Fetch it again.")
    for role, (first, count) in empty.items():
        column = columns[role]
        if count == size and column not in names:
            known = ", ".join(names)
            raise DataError(f"{where} has no column {column!r}. Its columns are {known}.{did_you_mean(column, names)}")
        if role not in optional:
            more = f" and {count - 1} more" if count > 1 else ""
            raise DataError(f"{where} has no value in column {column!r} in {first}{more}. Fill it in, or leave the row out.")


def _names(row: Mapping[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _names(value))
        else:
            yield str(name)


def _are_numbers(cells: Any) -> bool:
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(cells, rf"\A{NUMBER}\z"), min_count=0).as_py())


def _number(cell: str) -> int | float:
    return float(cell) if "." in cell else int(cell)


def _check_digits(arrays: Iterable[Any], column: str, path: Place | None, row: int = 0) -> None:
    """Check that cells of digits are numbers which a float can hold.

    Raises:
        DataError: if one is longer.
    """
    from pyarrow import compute, types

    for cells in arrays:
        cells = cells.dictionary_decode() if types.is_dictionary(cells.type) else cells
        if types.is_string(cells.type) or types.is_large_string(cells.type):
            place = compute.index(compute.match_substring_regex(cells, rf"^-?[0-9]{{{LONGEST + 1},}}$"), True).as_py()
            if place >= 0:
                raise too_long(column, path, f"row {row + place + 1}")
        row += len(cells)


def chunks_of_batches(batches: Iterable[Any], columns: Mapping[str, str]) -> Iterator[Chunk]:
    """Yield Arrow batches as chunks of the needed columns."""
    for batch in batches:
        yield {role: _column(batch, column) for role, column in columns.items()}


def _column(batch: Any, column: str) -> Any:
    """Return the values in a column of a batch or in a field of structures; nulls if there is none."""
    import pyarrow

    structures = isinstance(batch, pyarrow.StructArray)
    names = [field.name for field in batch.type] if structures else batch.schema.names
    outer, _, inner = (column, "", "") if column in names else column.partition(".")
    if outer not in names or (inner and not pyarrow.types.is_struct(batch.field(outer).type)):
        return pyarrow.nulls(len(batch))
    values = pyarrow.compute.struct_field(batch, outer) if structures else batch.column(outer)
    return _column(values, inner) if inner else values


def rows_of(batches: Iterable[Any]) -> Iterator[Row]:
    """Return an iterator over the rows of Arrow batches as dicts, each after its position as text, such as ``row 3``."""
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    return ((f"row {place}", row) for place, row in enumerate(rows, 1))


def _of_arrow(batches: Callable[[Place, Mapping[str, str]], Iterable[Any]]) -> _Format:
    return _Format(
        lambda path, columns: chunks_of_batches(batches(path, columns), columns),
        lambda path, columns: rows_of(batches(path, columns)),
    )


_JSON = _Format(lambda path, columns: chunks_of_rows(path, json_rows(path, columns), columns), json_rows, decoded)
#: Endings of tables, and how they are read.
TABLES = {
    ".jsonl": _JSON,
    ".json": _JSON,
    ".csv": _Format(cell_chunks, cell_rows),
    ".tsv": _Format(cell_chunks, cell_rows),
    ".parquet": _of_arrow(parquet_batches),
    ".arrow": _of_arrow(arrow_batches),
}
