"""Reads Parquet and Arrow files in batches, after a check of what they unpack to."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from lit_sparse.data.readers.parquet_pages import pages_of
from lit_sparse.data.readers.places import Place, open_file, reading
from lit_sparse.data.readers.sizes import check_rows, check_unpacked
from lit_sparse.errors import DataError

__all__ = ["LISTED", "arrow_batches", "needed", "parquet_batches"]

#: Bytes that each level of nesting takes for a value of a Parquet file, and largest number of leaves of the nested columns.
NESTED, MOST_LEAVES = 64, 1000
#: Largest number of columns that are read for a message, and that it lists.
LISTED = 100
#: First bytes of an Arrow file that is no stream, types of messages that hold values, and types of text and bytes.
MAGIC, DICTIONARY, BATCH_OF_ROWS, TEXTS = b"ARROW1", 2, 3, ("string", "large_string", "binary", "large_binary")
#: Number of rows of a batch.
BATCH = 4096


def parquet_batches(path: Place, columns: Mapping[str, str]) -> Iterator[Any]:
    """Yield batches of the needed columns of a Parquet file.

    Raises:
        DataError: if the file cannot be read, or is implausibly large when decompressed.
    """
    parquet = import_module("pyarrow.parquet")  # it comes with datasets
    handled = reading(f"{str(path)!r} cannot be read as a Parquet file", "Fetch it again.")
    with handled, open_file(path) as file, parquet.ParquetFile(file) as table:
        kept = needed(columns, table.schema_arrow.names)
        check_rows(path, table.metadata.num_rows)
        check_unpacked(path, _unpacked(path, file, table, kept), what="its table", remedy="write it without dictionaries")
        for batch in table.iter_batches(BATCH, columns=kept):
            yield _checked(batch)


def _unpacked(path: Place, file: IO[bytes], table: Any, kept: Sequence[str]) -> int:
    """Return the largest number of bytes of columns when unpacked, since a text is stored once for all of its entries."""
    parquet, size = import_module("pyarrow.parquet"), 8 * int(table.metadata.num_rows) * len(kept)
    kinds = [table.schema.column(number) for number in range(table.metadata.num_columns)]
    leaves = [(place, kind) for place, kind in enumerate(kinds) if any(f"{kind.path}.".startswith(f"{it}.") for it in kept)]
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
                raise DataError(
                    f"Expected no DELTA_BYTE_ARRAY in column {name!r} of {str(path)!r}. Write the column without this encoding."
                )
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


def arrow_batches(path: Place, _: Mapping[str, str]) -> Iterator[Any]:
    """Yield the batches of an Arrow file, such as ``datasets`` caches, memory-mapped if it is local.

    Raises:
        DataError: if the file cannot be read, is compressed, or has overlapping values.
    """
    arrow, rows, size = import_module("pyarrow"), 0, 0
    with reading(f"{str(path)!r} cannot be read as an Arrow file", "Write it again."):
        with open_file(path) as file:
            content = arrow.py_buffer(
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if isinstance(path, Path) else file.read()
            )
        stream = content.slice(8) if content[:6].to_pybytes() == MAGIC else content
        for message in arrow.ipc.MessageReader.open_stream(stream):
            if _is_compressed(message.metadata.to_pybytes()):
                raise ValueError("its values are compressed; write it without compression")
        source = arrow.BufferReader(stream)
        for batch in arrow.ipc.open_stream(source):
            for field in batch.schema:
                _check_type(field.type)
            rows, size = rows + len(batch), size + batch.nbytes
            check_rows(path, rows)
            if size > len(content):  # columns and fields may refer to the same bytes
                raise ValueError("its values overlap")
            yield _checked(batch)
        footer = 0 if stream is content else 10 + int.from_bytes(content[-10:-6].to_pybytes(), "little")
        if source.tell() + footer != len(stream):  # two files may be joined
            raise ValueError("it is truncated, or more follows after its end")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether an Arrow message has compressed values, according to the vtables of its flatbuffer."""

    def number(kind: str, place: int) -> int:
        return int(struct.unpack_from(kind, metadata, place)[0])

    def field(table: int, place: int) -> int:
        """Return the offset of a table's field; 0 if it is left out."""
        vtable, slot = table - number("<i", table), 4 + 2 * place
        offset = number("<H", vtable + slot) if slot < number("<H", vtable) else 0
        return table + offset if offset else 0

    def inner(place: int) -> int:
        return place + number("<I", place)

    message = inner(0)
    kind = metadata[place] if (place := field(message, 1)) else 0
    if kind not in (DICTIONARY, BATCH_OF_ROWS):
        return False
    header = inner(field(message, 2))
    return field(inner(field(header, 1)) if kind == DICTIONARY else header, 3) > 0


def _check_type(kind: Any) -> None:
    """Check that each value has its own bytes.

    Raises:
        ValueError: if some may share theirs, or have none.
    """
    types = import_module("pyarrow.types")
    inside = [kind.field(number).type for number in range(kind.num_fields)]
    plain = types.is_primitive(kind) or types.is_boolean(kind) or types.is_decimal(kind) or str(kind) in TEXTS
    nested = types.is_struct(kind) or types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind)
    if not plain and not (nested and inside):
        raise ValueError(f"values of type {kind} are not read; convert them to text, numbers, lists or structures")
    for one in inside:
        _check_type(one)


def _checked(batch: Any) -> Any:
    """Return a batch after a check of its values; dates that Python cannot hold would raise later."""
    types = import_module("pyarrow.types")
    batch.validate(full=True)
    for column in batch.columns:
        if types.is_nested(column.type) or types.is_temporal(column.type):
            column.to_pylist()
    return batch


def needed(columns: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return the columns to read, or all columns if one is nested or missing, so that an error can list them."""
    wanted = {*columns.values()}
    if not wanted <= {*names}:
        wanted |= {column.partition(".")[0] for column in wanted} | {*names[:LISTED]}
    return [name for name in names if name in wanted]
