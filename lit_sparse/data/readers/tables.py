"""Reads tables in JSON, CSV, TSV and Parquet.

The hub's loader converts dates, numbers its errors by byte, and copies local files into a cache. These readers keep the values
unchanged, and need no network, cache or home folder.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from lit_sparse.data.readers.parquet_pages import pages_of
from lit_sparse.data.readers.sizes import check_rows, check_unpacked
from lit_sparse.data.readers.text_files import ending_of, numbered_lines
from lit_sparse.errors import DataError, did_you_mean
from lit_sparse.ground.stored import open_plain, unique_keys

__all__ = ["TABLES", "Row", "brief", "collect", "float_of", "from_tables", "needed", "rows_of"]

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
#: Digits of the longest integer that a float can hold.
LONGEST = 308
#: Bytes that each level of nesting takes for a value of a Parquet file, and largest number of leaves of the nested columns.
NESTED, MOST_LEAVES = 64, 1000
#: Largest number of columns that an error lists.
LISTED = 100
#: Number of rows of a Parquet file that are converted at once.
BATCH = 1024
#: Position of a row, such as "line 3", and its values by column.
Row = tuple[str, Mapping[str, Any]]


def from_tables(files: Sequence[Path], columns: Mapping[str, str], optional: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return role -> values of the rows of several files.

    Raises:
        DataError: if a file does not have the format of its ending, or lacks a column.
    """
    read: dict[str, list[Any]] = {role: [] for role in columns}
    for path in files:
        for role, values in collect(TABLES[ending_of(path)](path, columns), columns, repr(str(path)), optional).items():
            read[role] += values
    if ending_of(files[0]) in (".csv", ".tsv"):  # these formats have no types
        read = {role: _numbers(values) for role, values in read.items()}
    for role, values in read.items():
        for row, value in enumerate(values, 1):
            if type(value) is int and abs(value) > sys.float_info.max:
                raise DataError(
                    f"Expected integers of at most {LONGEST} digits in column {columns[role]!r} of {str(files[0])!r} but got a"
                    f" longer integer in row {row}. Shorten it, or leave the row out."
                )
    return read


def collect(
    rows: Iterable[Row], columns: Mapping[str, str], where: str, optional: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Return role -> values of the rows of a table.

    Args:
        rows: rows of the table, with their positions.
        columns: role -> column.
        where: name of the table in messages.
        optional: roles that may lack values in some rows.

    Raises:
        DataError: if the table is empty, or a column is missing in all rows or lacks a required value.
    """
    values: dict[str, list[Any]] = {role: [] for role in columns}
    empty: dict[str, tuple[str, int]] = {}  # role -> the first row without a value, and their number
    names: dict[str, None] = {}  # columns in order, if one is missing
    place = ""
    for place, row in rows:
        for role, column in columns.items():
            value = _value(row, column)
            if value is None:
                first, count = empty.get(role, (place, 0))
                empty[role] = (first, count + 1)
                names.update(dict.fromkeys(_names(row)))
            values[role].append(value)
    if not place:
        raise DataError(f"{where} holds no rows. Fetch it again.")
    size = len(next(iter(values.values())))
    for role, (first, count) in empty.items():
        column = columns[role]
        if count == size and column not in names:
            known = ", ".join(names)
            raise DataError(f"{where} has no column {column!r}. Its columns are {known}.{did_you_mean(column, names)}")
        if role in optional:
            continue
        more = f" and {count - 1} more" if count > 1 else ""
        raise DataError(f"{where} has no value in column {column!r} in {first}{more}. Fill it in, or leave the row out.")
    return values


def _value(row: Mapping[str, Any], column: str) -> Any:
    """Return the value in a column, or None."""
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    inside = row.get(outer)
    return _value(inside, inner) if inner and isinstance(inside, Mapping) else None


def _names(row: Mapping[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _names(value))
        else:
            yield str(name)


def _numbers(cells: list[str | None]) -> list[Any]:
    if not all(cell is None or NUMBER.fullmatch(cell) for cell in cells):
        return list(cells)
    return [cell if cell is None else _number(cell) for cell in cells]


def _number(cell: str) -> int | float:
    if "." in cell:
        return float(cell)
    return int(cell) if len(cell) <= LONGEST + 2 else 10 ** (LONGEST + 1)  # refused later; converting a long one takes long


def float_of(cell: Any) -> float:
    """Return a cell's number.

    Raises:
        ValueError: if it has none; Python also takes 2026_01 for one, which is a name or a date in a table.
    """
    if isinstance(cell, str) and "_" in cell:
        raise ValueError(f"could not convert string to float: {cell!r}")
    return float(cell)


def _json_rows(path: Path, _: Mapping[str, str]) -> Iterator[Row]:
    """Yield the objects of an array, or of the lines."""
    lines, values = numbered_lines(path), 0
    for number, line in lines:
        if not line.strip():
            continue
        whole = "\n".join([line, *(rest for _, rest in lines)]) if line.lstrip().startswith("[") else line
        values += whole.count("{") + whole.count("[")
        check_rows(path, values)
        if whole.lstrip().startswith("["):
            rows = [(f"row {place}", row) for place, row in enumerate(_parsed(path, number, whole), 1)]
        else:
            rows = [(f"line {number}", _parsed(path, number, line))]
        for place, row in rows:
            if not isinstance(row, dict):
                raise DataError(
                    f"Expected objects, {{...}}, in {str(path)!r} but got {type(row).__name__} in {place}. Correct the file."
                )
            yield place, row


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        line, what = number + error.lineno - 1, f"{error.msg} at character {error.colno}"
    except (ValueError, RecursionError) as error:  # thousands of digits or of brackets
        line, what = number, str(error)
    raise DataError(f"{str(path)!r} is not JSON in line {line}: {what}. Write one object per line, or an array of objects.")


def _csv_rows(path: Path, _: Mapping[str, str]) -> Iterator[Row]:
    def rows() -> Iterator[tuple[int, list[str]]]:
        limit = csv.field_size_limit(2**31 - 1)  # by default 131,072 characters, fewer than a long article
        reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
        try:
            for cells in reader:
                yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(f"{str(path)!r} is not a table in line {reader.line_num}: {error}. Correct the line.") from error
        finally:
            csv.field_size_limit(limit)

    return _cells(path, rows())


def _tsv_rows(path: Path, _: Mapping[str, str]) -> Iterator[Row]:
    return _cells(path, ((number, line.split("\t") if line else []) for number, line in numbered_lines(path)))


def _cells(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    """Yield the rows below a header; empty rows are skipped, and empty cells are missing values."""
    header: list[str] = []
    for number, cells in rows:
        if not cells:
            continue
        if not header:
            header = cells
            if len(set(header)) < len(header):
                raise DataError(f"Expected unique columns in {str(path)!r} but got {', '.join(header)[:200]}. Rename one.")
        elif len(cells) != len(header):
            raise DataError(
                f"Expected {len(header)} cells per line in {str(path)!r} but got {len(cells)} in line {number}. Correct it."
            )
        else:
            yield f"line {number}", {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _parquet_rows(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    parquet = import_module("pyarrow.parquet")  # it comes with datasets
    try:
        with open_plain(path) as file, parquet.ParquetFile(file) as table:
            kept = needed(columns, table.schema_arrow.names)
            check_rows(path, table.metadata.num_rows)
            check_unpacked(path, _unpacked(path, file, table, kept), what="its table", remedy="write it without dictionaries")
            yield from rows_of(batch.to_pydict() for batch in table.iter_batches(BATCH, columns=kept))
    except DataError:
        raise
    except Exception as error:  # the values of a file, such as dates, raise anything when they are converted
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {brief(error)}. Fetch it again.") from error


def _unpacked(path: Path, file: IO[bytes], table: Any, kept: Sequence[str]) -> int:
    """Return the largest number of bytes that columns may take: a text is stored once for all entries that have it."""
    parquet, size = import_module("pyarrow.parquet"), 8 * int(table.metadata.num_rows) * len(kept)
    kinds, tops = [table.schema.column(number) for number in range(table.metadata.num_columns)], {*kept}
    leaves = [(number, kind) for number, kind in enumerate(kinds) if kind.path.partition(".")[0] in tops]
    if len(leaves) > MOST_LEAVES:
        raise DataError(f"Expected at most {MOST_LEAVES:,} values in a row of {str(path)!r} but got more. Leave columns out.")
    texts = [kind.path for _, kind in leaves if kind.physical_type == "BYTE_ARRAY"]
    reader = parquet.ParquetFile(file, read_dictionary=texts)
    for place in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(place)
        for leaf, kind in ((group.column(number), kind) for number, kind in leaves):
            name = leaf.path_in_schema
            starts = [start for start in (leaf.dictionary_page_offset, leaf.data_page_offset) if start]
            pages = pages_of(file, min(starts), leaf.total_compressed_size)
            if pages.repeats:
                raise DataError(f"Expected no DELTA_BYTE_ARRAY in column {name!r} of {str(path)!r}. Write it without.")
            each = 8 + NESTED * name.count(".")
            size += max(each, kind.length or 0) * pages.values + pages.size
            check_unpacked(path, size, what="its table", remedy="write it without dictionaries")  # before a page is read
            if leaf.physical_type == "BYTE_ARRAY" and pages.dictionary:
                rows = reader.iter_batches(1, [place], [name])
                size += pages.values * next(filter(None, map(_longest, rows)), 0)
    return size


def _longest(batch: Any) -> int:
    """Return the number of bytes of the longest text in the dictionary of a column, once an entry has been read."""
    types, array = import_module("pyarrow.types"), batch.column(0)
    while not types.is_dictionary(array.type):
        array = array.items if types.is_map(array.type) else array.flatten()
        array = array[0] if isinstance(array, list) else array
    longest: int = max((len(text.as_buffer()) for text in array.dictionary), default=0)
    return longest


def rows_of(batches: Iterable[Mapping[str, list[Any]]]) -> Iterator[Row]:
    """Yield the rows of a table that is given in batches of columns."""
    places = itertools.count(1)
    for batch in batches:
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield f"row {next(places)}", dict(zip(names, values, strict=True))


def needed(columns: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return the columns to read: some others, too, if one is nested or missing, whose error lists them."""
    wanted = {*columns.values()}
    if not wanted <= {*names}:
        wanted |= {column.partition(".")[0] for column in wanted} | {*names[:LISTED]}
    return [name for name in names if name in wanted]


def brief(error: Exception) -> str:
    """Return the first line of an error's message, shortened."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return first if len(first) <= 200 else f"{first[:200]} ..."


#: Endings of tables -> their readers, which also get the wanted columns.
TABLES: dict[str, Callable[[Path, Mapping[str, str]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".parquet": _parquet_rows,
}
