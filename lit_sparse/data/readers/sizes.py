"""Bounds of what a file may unpack to, so that a small file cannot fill the memory."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Buffer

from lit_sparse.errors import DataError

__all__ = ["BoundedReader", "bytes_of", "check_dense", "check_unpacked"]

#: Every file may unpack to this many bytes.
ALWAYS = 2**28
#: Beyond that, a file may unpack to this many times its size. Text and images reach 5 to 30; deflate ends at 1032.
RATIO = 250
#: Every sparse table may become a dense one of this many bytes.
DENSE = 2**32


def check_unpacked(
    path: Path, unpacked: int, packed: int | None = None, what: str = "it", remedy: str = "save less in it"
) -> None:
    """Check that the size of an unpacked file is believable.

    Args:
        path: the file.
        unpacked: bytes that the file unpacks to.
        packed: bytes that they are unpacked from; None for the size of the file.
        what: subject of the sentence in the message, such as ``"the array 'x'"``.
        remedy: end of the message: how to save valid data.

    Raises:
        DataError: if it is not.
    """
    packed = path.stat().st_size if packed is None else packed
    if unpacked > _largest(packed):
        raise DataError(
            f"Expected {str(path)!r}, of {_readable(packed)}, to unpack to at most {_readable(_largest(packed))} but got more:"
            f" {what} takes {_readable(unpacked)} or more. Check where the file comes from, or {remedy}."
        )


def check_dense(path: Path, shape: tuple[int, int], entries: int) -> None:
    """Check that a sparse table of float64 may become a dense one.

    Args:
        path: the file of the table.
        shape: rows and features.
        entries: number of stored values. They take 12 bytes each in memory, so a dense table of that size always fits.

    Raises:
        DataError: if the dense table is too large.
    """
    size = bytes_of(shape, 8)
    if size > max(DENSE, 12 * entries):
        raise DataError(
            f"Expected data of at most {_readable(DENSE)} in {str(path)!r} but a dense table of its {shape[0]} rows and"
            f" {shape[1]} features would take {_readable(size)}. Leave out rows or features, or number the features closely."
        )


def bytes_of(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of an array; the product cannot overflow.

    Example:
        >>> bytes_of((10**12, 10**12), 8)
        8000000000000000000000000
    """
    return math.prod(int(size) for size in shape) * itemsize


class BoundedReader(io.RawIOBase):
    """Stream of unpacked bytes that ends with an error where they become more than is believable.

    Args:
        stream: unpacks a file while it is read.
        path: the file.
        packed: bytes that the stream is unpacked from; None for the size of the file.
    """

    def __init__(self, stream: io.BufferedIOBase, path: Path, packed: int | None = None) -> None:
        self._stream = stream
        self._path = path
        self._packed = path.stat().st_size if packed is None else packed
        self._left = _largest(self._packed)

    def readable(self) -> bool:
        """Return whether bytes can be read: always."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Read bytes into a buffer, and return their number."""
        count = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            check_unpacked(self._path, _largest(self._packed) - self._left, self._packed)
        return count

    def seekable(self) -> bool:
        """Return whether a place can be sought."""
        return self._stream.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place, and count anew from the start."""
        place = self._stream.seek(offset, whence)
        self._left = _largest(self._packed) - place
        return place


def _largest(packed: int) -> int:
    return max(ALWAYS, RATIO * packed)


def _readable(size: int) -> str:
    """Return a number of bytes for people.

    Example:
        >>> _readable(3 * 2**30), _readable(12)
        ('3 GiB', '12 bytes')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:.3g} {unit}" if size < 2**60 else f"{size >> power:.0e} {unit}"
    return f"{size} bytes"
