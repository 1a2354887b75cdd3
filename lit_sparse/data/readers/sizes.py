"""Limits on what a file decompresses to, so that a small file cannot fill the memory or be read for minutes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from typing_extensions import Buffer

from lit_sparse.data.readers.places import Place
from lit_sparse.errors import DataError
from lit_sparse.ground.stored import largest_unpacked

__all__ = ["BoundedReader", "bytes_of", "check_rows", "check_unpacked"]

#: Number of lines or rows that any file may hold, and their maximal number per byte beyond that.
ROWS, ROWS_PER_BYTE = 2**22, 4
#: Number of bytes that a line of any file may have, and their maximal number per byte of the file beyond that.
LINE, LINE_PER_BYTE = 2**28, 16


def check_unpacked(
    path: Place, unpacked: int, packed: int | None = None, what: str = "it", remedy: str = "save less in it"
) -> None:
    """Check that the decompressed size of a file is plausible.

    Args:
        path: path of the file.
        unpacked: number of decompressed bytes.
        packed: number of compressed bytes; None for the size of the file.
        what: subject of the message's sentence, such as ``"the array 'x'"``.
        remedy: end of the message, on how to save valid data.

    Raises:
        DataError: if the ratio of both sizes is too large.
    """
    packed = path.stat().st_size if packed is None else packed
    if unpacked > (most := largest_unpacked(packed)):
        raise DataError(
            f"Expected {str(path)!r}, of {_readable(packed)}, to unpack to at most {_readable(most)} but got more:"
            f" {what} takes {_readable(unpacked)} or more. Check the source of the file, or {remedy}."
        )


def check_rows(path: Place, rows: int, packed: int | None = None) -> None:
    """Check that the number of lines, rows or values of a compressed file is plausible.

    Args:
        path: path of the file.
        rows: number of lines, rows or values.
        packed: number of compressed bytes; None for the size of the file.

    Raises:
        DataError: if there are too many.
    """
    if rows <= ROWS:  # as of nearly all files, whose sizes are not asked for
        return
    packed = path.stat().st_size if packed is None else packed
    if rows > (most := max(ROWS, ROWS_PER_BYTE * packed)):
        raise DataError(
            f"Expected at most {most:,} lines, rows or values in {str(path)!r}, of {_readable(packed)}, but got more. Check the"
            " source of the file, or save it uncompressed."
        )


def bytes_of(shape: Sequence[int], itemsize: int) -> int:
    """Return the number of bytes of an array, without integer overflow.

    Example:
        >>> bytes_of((10**12, 10**12), 8)
        8000000000000000000000000
    """
    return math.prod(int(size) for size in shape) * itemsize


class BoundedReader(io.RawIOBase):
    """Stream of decompressed bytes that raises an error if there are implausibly many.

    Args:
        stream: stream that decompresses a file while it is read.
        path: path of the file.
        lines: whether the bytes are text, whose lines, cells, tags and sparse values are bounded, too.
    """

    def __init__(self, stream: io.RawIOBase | io.BufferedIOBase, path: Place, *, lines: bool = False) -> None:
        self._stream = stream
        self._path = path
        self._packed = path.stat().st_size
        self._left = largest_unpacked(self._packed)
        self._lines = 0 if lines else None
        self._line = 0  # bytes of the line so far

    def readable(self) -> bool:
        """Return whether bytes can be read, which is always True."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Read bytes into a buffer, and return their number."""
        count = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            check_unpacked(self._path, largest_unpacked(self._packed) - self._left, self._packed)
        if self._lines is not None:
            piece = bytes(memoryview(buffer)[:count])
            self._lines += sum(map(piece.count, (b"\n", b"\t", b",", b"<", b":")))
            check_rows(self._path, self._lines, self._packed)
            end = piece.rfind(b"\n")
            self._line = count - end - 1 + (self._line if end < 0 else 0)
            if self._line > (most := max(LINE, LINE_PER_BYTE * self._packed)):
                raise DataError(
                    f"Expected lines of at most {_readable(most)} in {str(self._path)!r} but got a longer one. Check the source"
                    " of the file."
                )
        return count


def _readable(size: int) -> str:
    """Format a number of bytes with a unit.

    Example:
        >>> _readable(3 * 2**30), _readable(12)
        ('3 GiB', '12 bytes')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:.3g} {unit}" if size < 2**60 else f"{size >> power:.0e} {unit}"
    return f"{size} bytes"
