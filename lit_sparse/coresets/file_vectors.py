"""Vectors in a file that is larger than memory."""

from __future__ import annotations

import io
import mmap
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import FLOATS, Count, check_count, check_indices, check_tensor, ranges
from lit_sparse.coresets.vectors import MOST_GATHERED, BlockVectors, DenseVectors, Vectors
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import open_plain
from lit_sparse.kernels.row_sums import add_exactly, measured, row_products, row_sum

__all__ = ["FileVectors"]

#: Bytes of a block: few enough to be forgotten, and many enough that this takes little time.
BLOCK_BYTES = 2**26
#: Largest number of entries that are converted to float32 at a time: they stay in the processor's cache.
CONVERTED = 2**19
#: dtype on disk -> its name in a file of numpy. ``ml_dtypes`` writes bfloat16 under the name of two bytes, too.
NAMES = {torch.float32: "<f4", torch.float64: "<f8", torch.float16: "<f2", torch.bfloat16: "<V2"}


class _RowWise(BlockVectors):
    """Vectors on the CPU whose products do not depend on other vectors, and whose sum is rounded once.

    So every division of them among processes gives the same numbers.
    """

    device = torch.device("cpu")

    @override
    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        direction, found = self._direction(direction), torch.empty(len(indices), dtype=self.dtype)
        for start, rows in self._some(indices):
            found[start : start + len(rows)] = row_products(rows, torch.arange(len(rows)), direction)
        return found

    @override
    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        check_tensor(weights, f"floating weights ({len(indices)},)", shape=(len(indices),), dtypes=FLOATS)
        total = torch.zeros(self.shape[1], dtype=torch.float64)
        for start, rows in self._some(indices):
            total += row_sum(rows, torch.arange(len(rows)), weights[start : start + len(rows)])
        return total.to(self.dtype)

    @override
    def measure(self) -> tuple[Tensor, Tensor]:
        norms = torch.empty(self.shape[0], dtype=torch.float64)
        total = torch.zeros(2, self.shape[1], dtype=torch.float64)
        for start, block in self.blocks():
            total = add_exactly(torch.cat([total, measured(block, norms[start : start + len(block)])]))
        return norms, total

    @override
    def _products(self, block: Tensor, direction: Tensor) -> Tensor:
        return row_products(block, None, direction)

    @override
    def _alike(self, rows: Callable[[Tensor], Tensor], size: int) -> _Rows:
        return _Rows(rows, size, block_size=MOST_GATHERED)

    def _some(self, indices: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Iterate over the vectors at some indices, each time with the number of those before."""
        for start in range(0, len(indices), MOST_GATHERED):
            yield start, self.rows(indices[start : start + MOST_GATHERED])


class _Rows(_RowWise):
    """Vectors that a function reads from others, in blocks on each access."""


@ranges(first=Count(0))
class FileVectors(_RowWise):
    """Vectors of a coreset problem in a ``.npy`` file, read in blocks, so that memory does not grow with the file.

    The file is memory-mapped, and the pages of a block are released after it was read; they stay in the operating system's
    cache as far as memory is free. Products of a vector are sums in float64 that do not depend on other vectors, and the
    sum of all is rounded once. So every division of the file among processes that run the same machine code gives the same
    coreset, whole or by group, to the last bit if it has at most 16,384 examples.

    Args:
        path: file of a matrix (N, S) of float64, float32, float16 or bfloat16, as :meth:`save` or ``numpy.save`` write it.
            The last two are converted to float32 when they are read.
        first: first row.
        last: row after the last one; None for all rows.

    Raises:
        ConfigurationError: if the rows are not in the file.
        DataError: if the file is missing, cut off, or not such a matrix.

    Example:
        >>> import tempfile
        >>> from lit_sparse.coresets import BlockVectors, NonnegativeOMP
        >>> made = BlockVectors(
        ...     lambda indices: torch.stack([indices.cos(), indices.sin()], 1),
        ...     1000,
        ...     block_size=128,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     vectors = FileVectors.save(
        ...         made, f"{folder}/vectors.npy", dtype=torch.bfloat16
        ...     )
        ...     print(vectors.shape, len(NonnegativeOMP()(vectors, 5)) <= 2)
        (1000, 2) True
    """

    def __init__(self, path: str | Path, *, first: int = 0, last: int | None = None) -> None:
        self.path = Path(path)
        try:
            opened: Any = open_plain(self.path, buffering=0)
        except OSError as error:
            raise DataError(
                f"Expected to read the vectors {str(path)!r} but got: {error.strerror}. Check the path, or write the file by"
                " FileVectors.save."
            ) from error
        self._file: io.FileIO = opened
        weakref.finalize(self, self._file.close)
        self._matrix, self._mapping, self._start = _mapped(self._file, repr(str(path)))
        size = len(self._matrix)
        self.first = first
        self.last = size if last is None else check_count("last", last, 0)
        if not self.first <= self.last <= size:
            raise ConfigurationError(
                f"Expected rows in 0 .. {size} of {str(path)!r} but got first={first} and last={last}. Correct them."
            )
        self._matrix = self._matrix[self.first : self.last]
        self.shape = (len(self._matrix), self._matrix.shape[1])
        self.dtype = torch.float64 if self._matrix.dtype == torch.float64 else torch.float32

    @classmethod
    def save(cls, vectors: Vectors | Tensor, path: str | Path, *, dtype: torch.dtype = torch.float32) -> FileVectors:
        """Write vectors to a file block by block, and return them as :class:`FileVectors`.

        Args:
            vectors: (N, S); :class:`BlockVectors` need not fit into memory.
            path: file, usually with the ending ``.npy``.
            dtype: type of the numbers on disk; bfloat16 has 8 bits of precision.

        Raises:
            ConfigurationError: for another dtype.
            DataError: if a number is not finite, or becomes infinite in float16.
        """
        if dtype not in NAMES:
            raise ConfigurationError(f"Expected argument `dtype` to be one of {', '.join(map(str, NAMES))} but got {dtype}.")
        given = vectors if isinstance(vectors, Vectors) else DenseVectors(vectors)
        step = max(1, BLOCK_BYTES // (8 * given.shape[1]))
        with replaced(Path(path), "wb") as file:
            header = {"descr": NAMES[dtype], "fortran_order": False, "shape": given.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, given.shape[0], step):
                block = given.rows(torch.arange(start, min(start + step, given.shape[0]), device=given.device))
                written = block.cpu().to(dtype)
                if not bool(written.isfinite().all()):
                    raise DataError(f"Expected values that are finite in {dtype} but some are not. Use torch.float32.")
                file.write(written.contiguous().view(torch.uint8).numpy().data)
        return cls(path)

    def part(self, first: int, last: int) -> FileVectors:
        """Return the vectors ``first .. last - 1`` of these, such as the share of a process.

        Raises:
            ConfigurationError: if there are fewer.
        """
        if not 0 <= check_count("first", first, 0) <= check_count("last", last, 0) <= self.shape[0]:
            raise ConfigurationError(
                f"Expected rows in 0 .. {self.shape[0]} but got first={first} and last={last}. Correct them."
            )
        return FileVectors(self.path, first=self.first + first, last=self.first + last)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.path, self.first, self.last)

    @override
    def rows(self, indices: Tensor) -> Tensor:
        check_indices(indices, self.shape[0])
        if len(indices) > 1 and bool((indices.diff() == 1).all()):
            start, stop = int(indices[0]), int(indices[-1]) + 1
            found = self._matrix[start:stop].to(self.dtype, copy=True)
            self._release(start, stop)
            return found
        # Read, not mapped: the first access to a mapped row may map megabytes around it.
        width = self._matrix.element_size() * self.shape[1]
        read = bytearray(width * len(indices))
        for place, index in enumerate(indices.tolist()):
            self._file.seek(self._start + (self.first + index) * width)
            self._file.readinto(memoryview(read)[place * width : (place + 1) * width])
        if not read:
            return torch.empty(len(indices), self.shape[1], dtype=self.dtype)
        return torch.frombuffer(read, dtype=self._matrix.dtype).view(len(indices), -1).to(self.dtype)

    @override
    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        width = max(1, self.shape[1])
        step = max(1, BLOCK_BYTES // (self._matrix.element_size() * width))
        converted = max(1, CONVERTED // width)
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            if self._matrix.dtype == self.dtype:
                yield start, self._matrix[start:stop]
            else:
                for place in range(start, stop, converted):
                    yield place, self._matrix[place : min(place + converted, stop)].to(self.dtype)
            self._release(start, stop)

    def _release(self, start: int, stop: int) -> None:
        """Release the pages of some rows. They stay in the cache of the operating system."""
        if self._mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        width = self._matrix.element_size() * self.shape[1]
        low, high = (self._start + (self.first + row) * width for row in (start, stop))
        low -= low % mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_DONTNEED, low, high - low)


def _opened(path: Path, first: int, last: int) -> FileVectors:
    return FileVectors(path, first=first, last=last)


def _mapped(file: io.FileIO, name: str) -> tuple[Tensor, mmap.mmap | None, int]:
    """Return the matrix in a file, its mapping, which is None for an empty matrix, and the place of its first byte.

    Raises:
        DataError: if the file is cut off, or not a matrix of floating numbers.
    """
    try:
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, kind = reader[np.lib.format.read_magic(file)](file)
        start, end = file.tell(), os.fstat(file.fileno()).st_size
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if end > start else None
    except Exception as error:  # numpy's reader of headers raises anything
        raise DataError(f"{name} cannot be read as a numpy matrix: {error}. Write it by FileVectors.save.") from error
    dtype = next((dtype for dtype, known in NAMES.items() if np.dtype(known) == kind), None)
    shape = tuple(map(int, shape))  # numpy's reader also accepts True
    if dtype is None or len(shape) != 2 or min(shape) < 0 or max(shape) >= 2**63 or (fortran and min(shape) > 1):
        order = " by columns" if fortran else ""
        raise DataError(
            f"Expected a matrix (N, S) of float64, float32, float16 or bfloat16, row by row, but got {shape} {kind}{order} in"
            f" {name}. Write it by FileVectors.save."
        )
    if end - start != (size := kind.itemsize * shape[0] * shape[1]):
        raise DataError(
            f"Expected {size:,} bytes of vectors in {name} but got {end - start:,}. The file is truncated; copy it again."
        )
    if mapping is None:
        return torch.empty(shape, dtype=dtype), None, start
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        matrix = torch.frombuffer(mapping, dtype=dtype, offset=start).view(shape)
    return matrix, mapping, start
