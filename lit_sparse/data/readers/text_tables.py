"""Tables of text: JSON lines and arrays, and cells between commas or tabs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

from lit_sparse.data.readers.places import Place
from lit_sparse.data.readers.sizes import check_rows
from lit_sparse.data.readers.text_files import BOM, ending_of, numbered_lines, open_bounded
from lit_sparse.errors import DataError
from lit_sparse.ground.stored import unique_keys

__all__ = [
    "LONGEST",
    "Chunk",
    "Row",
    "cell_chunks",
    "cell_rows",
    "chunks_of_rows",
    "decoded",
    "json_rows",
    "too_long",
    "value_at",
]

#: Digits of the longest integer that a float can hold.
LONGEST = 308
#: Number of rows that are read at once: more are slower, by the garbage collection.
AT_ONCE = 256
#: Number of bytes of a table of text that are read at once.
BLOCK = 2**20
DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)
#: Position of a row, such as "line 3", and its values by column.
Row = tuple[str, Mapping[str, Any]]
#: Role -> values of some rows, an array of Arrow.
Chunk = dict[str, Any]


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a row in a column, dotted if nested; None if it is missing."""
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    inside = row.get(outer)
    return value_at(inside, inner) if inner and isinstance(inside, Mapping) else None


def chunks_of_rows(path: Place, rows: Iterator[Row], columns: Mapping[str, str]) -> Iterator[Chunk]:
    """Yield rows in chunks: a column's values as text, or all as JSON in bytes from the first chunk that holds others.

    Raises:
        DataError: if an integer has too many digits for a float.
    """
    import pyarrow

    others: set[str] = set()  # roles of values that are not text, or have half of a character, which UTF-8 cannot encode
    while some := list(itertools.islice(rows, AT_ONCE)):
        chunk: Chunk = {}
        for role, column in columns.items():
            values = [row[column] if column in row else value_at(row, column) for _, row in some]  # mostly without a call
            with suppress(TypeError, UnicodeEncodeError):
                if role not in others:
                    chunk[role] = pyarrow.array(values, pyarrow.large_string())
            if role not in chunk:
                others.add(role)
                for (place, _), value in zip(some, values, strict=True):
                    if type(value) is int and abs(value) > sys.float_info.max:
                        raise too_long(column, path, place)
                cells = [None if value is None else json.dumps(value).encode() for value in values]
                chunk[role] = pyarrow.array(cells, pyarrow.large_binary())
        yield chunk


def too_long(column: str, path: Place | None, place: str) -> DataError:
    """Return the error for an integer with too many digits."""
    return DataError(
        f"Expected integers of at most {LONGEST} digits in column {column!r} of {str(path)!r} but got a longer integer in"
        f" {place}. Shorten it, or leave the row out."
    )


def decoded(cell: str | bytes) -> Any:
    """Return the value of a cell of :func:`chunks_of_rows`."""
    return json.loads(cell.decode()) if isinstance(cell, bytes) else cell


def json_rows(path: Place, _: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a JSON table with their positions: the objects of an array, or of the lines.

    Raises:
        DataError: if a row is not an object.
    """
    values = 0
    with closing(numbered_lines(path)) as lines:
        for number, line in lines:
            if not line.strip():
                continue
            array = line.lstrip().startswith("[")
            text = "\n".join([line, *(rest for _, rest in lines)]) if array else line
            values += text.count("{") + text.count("[")
            check_rows(path, values)
            found, kind = _parsed(path, number, text), "row" if array else "line"
            for place, row in enumerate(found, 1) if array else [(number, found)]:
                if not isinstance(row, dict):
                    raise DataError(
                        f"Expected objects, {{...}}, in {str(path)!r} but got {type(row).__name__} in {kind} {place}. Correct"
                        " it."
                    )
                yield f"{kind} {place}", row


def _parsed(path: Place, number: int, text: str) -> Any:
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError as error:
        line, what = number + error.lineno - 1, f"{error.msg} at character {error.colno}"
    except (ValueError, RecursionError) as error:  # thousands of digits or of brackets
        line, what = number, str(error)
    raise DataError(f"{str(path)!r} is not JSON in line {line}: {what}. Write one object per line, or an array of objects.")


def cell_chunks(path: Place, columns: Mapping[str, str]) -> Iterator[Chunk]:
    """Yield the rows of a CSV or TSV table in chunks, read by Arrow up to the first quotation mark or error, then by Python."""
    delimiter, done = "\t" if ending_of(path) == ".tsv" else ",", 0
    with open_bounded(path, lines=True) as file:
        header = file.readline().removeprefix(BOM)
        while block := file.read(BLOCK):
            try:
                chunk = _plain_chunk(block + file.readline(), delimiter, header, columns)
            except (ValueError, csv.Error):  # of Arrow, too
                break
            done += len(next(iter(chunk.values())))
            yield chunk
        else:
            return
    yield from chunks_of_rows(path, itertools.islice(cell_rows(path, columns), done, None), columns)


def _plain_chunk(block: bytes, delimiter: str, header: bytes, columns: Mapping[str, str]) -> Chunk:
    """Return the rows of lines that Arrow reads as Python does.

    Raises:
        ValueError, csv.Error: if it may not, because of a quotation mark, a line's end or the header.
    """
    from pyarrow import csv as arrow
    from pyarrow import large_string, nulls

    plain, text = delimiter == "\t", header.decode()
    (names,) = [text.rstrip("\r\n").split("\t")] if plain else csv.reader([text], strict=True)
    usual = plain or b'"' not in block
    if not usual or block.count(b"\r") > block.count(b"\r\n") or not 0 < len({*filter(None, names)}) == len(names):
        raise ValueError
    kept = [name for name in names if name in columns.values()] or names[:1]
    table = arrow.read_csv(
        io.BytesIO(block),
        arrow.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
        arrow.ParseOptions(delimiter=delimiter, quote_char=False),
        arrow.ConvertOptions(
            include_columns=kept,
            column_types=dict.fromkeys(kept, large_string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return {
        role: table[column].combine_chunks() if column in kept else nulls(len(table), large_string())
        for role, column in columns.items()
    }


def cell_rows(path: Place, _: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV table with their line numbers; empty lines are skipped, empty cells are missing values.

    Raises:
        DataError: if two columns have one name, or a line has another number of cells than the first.
    """
    with closing(_numbered_cells(path)) as rows:
        header = next(rows, (0, list[str]()))[1]
        if len({*header}) < len(header):
            raise DataError(f"Expected unique columns in {str(path)!r} but got {', '.join(header)[:200]}. Rename one.")
        for number, cells in rows:
            if len(cells) != len(header):
                raise DataError(
                    f"Expected {len(header)} cells per line in {str(path)!r} but got {len(cells)} in line {number}. Correct it."
                )
            yield f"line {number}", {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _numbered_cells(path: Place) -> Generator[tuple[int, list[str]], None, None]:
    """Yield the cells of each line, or of several with line ends in quotation marks, and the number of the last."""
    with closing(numbered_lines(path)) as lines:
        if ending_of(path) == ".tsv":
            yield from ((number, line.split("\t")) for number, line in lines if line)
            return
        reader = csv.reader((f"{line}\n" for _, line in lines), strict=True)
        try:
            while (cells := _next(reader)) is not None:
                if cells:
                    yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(f"{str(path)!r} is not a table in line {reader.line_num}: {error}. Correct the line.") from error


def _next(rows: Iterator[list[str]]) -> list[str] | None:
    """Return the next row, in which a cell may be long; None at the end."""
    limit = csv.field_size_limit(2**31 - 1)  # by default 131,072 characters, fewer than a long article
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(limit)
