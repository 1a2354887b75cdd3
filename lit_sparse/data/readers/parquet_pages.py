"""Sizes of a Parquet file's pages from their own headers, which decide what is decompressed; the footer may claim less."""

from __future__ import annotations

from typing import IO, Any, NamedTuple

__all__ = ["Pages", "pages_of"]

#: Number of bytes of the longest page header, and levels of structures in one.
LONGEST, DEEPEST = 2**16, 4
#: Types of Thrift's compact protocol, and the sizes of those that have no length: true, false, a byte and a float.
INTEGERS, BINARY, STRUCT, SIZES = (4, 5, 6), 8, 12, {1: 0, 2: 0, 3: 1, 7: 8}
#: Numbers of the fields of a page header; structures of data and of a dictionary have the number of values first.
UNPACKED, PACKED, DATA, DICTIONARY, DATA_V2 = 2, 3, 5, 7, 8
#: Structure -> number of the field with the encoding of its values.
ENCODINGS = {DATA: 2, DATA_V2: 4}
#: Encoding of texts that each may repeat the one before.
DELTA_BYTE_ARRAY = 7


class Pages(NamedTuple):
    """Summary of the pages of a Parquet column: their size when decompressed, and their number of values.

    Attributes:
        size: number of bytes when decompressed.
        values: number of values, with the entries of dictionaries.
        dictionary: whether there is a dictionary page.
        repeats: whether a page uses an encoding in which texts share prefixes with the one before.
    """

    size: int
    values: int
    dictionary: bool
    repeats: bool


def pages_of(file: IO[bytes], start: int, length: int) -> Pages:
    """Return a summary of the pages in a part of a Parquet file, from their own headers.

    Args:
        file: the file.
        start: offset of the first page.
        length: number of bytes of all pages.

    Raises:
        ValueError: if the part does not consist of pages.
    """
    size, values, dictionary, repeats, end = 0, 0, False, False, start + length
    while start < end:
        file.seek(start)
        header, read = _structure(file.read(min(LONGEST, end - start)), 0)
        parts = {name: header[name] for name in (DATA, DICTIONARY, DATA_V2) if name in header}
        unpacked, packed = header.get(UNPACKED, -1), header.get(PACKED, -1)
        counts = [part.get(1, -1) for part in parts.values()]
        if min(unpacked, packed, *counts, 0) < 0:
            raise ValueError("the header of a page has no size, or a negative one")
        size, values, dictionary = size + unpacked, values + sum(counts), dictionary or DICTIONARY in parts
        repeats |= any(parts[name].get(number) == DELTA_BYTE_ARRAY for name, number in ENCODINGS.items() if name in parts)
        start += read + packed
    return Pages(size, values, dictionary=dictionary, repeats=repeats)


def _structure(data: bytes, at: int, level: int = 0) -> tuple[dict[int, Any], int]:
    """Return the integers and structures of a structure by the numbers of their fields, and the place behind it."""
    found: dict[int, Any] = {}
    field = 0
    while at < len(data) and (kind := data[at] & 15):
        step = data[at] >> 4
        field, at = (field + step, at + 1) if step else _integer(data, at + 1)
        if field in found or level > DEEPEST:
            raise ValueError("a page header has a field twice, or too many levels")
        found[field] = None
        if kind in INTEGERS:
            found[field], at = _integer(data, at)
        elif kind == STRUCT:
            found[field], at = _structure(data, at, level + 1)
        elif kind == BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind in SIZES:
            at += SIZES[kind]
        else:
            raise ValueError(f"a page header has a field of type {kind}")
    if at >= len(data):
        raise ValueError("a page header is cut off")
    return found, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at
    raise ValueError("a page header is cut off")
