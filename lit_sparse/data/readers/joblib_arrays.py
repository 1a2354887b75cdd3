"""Reads the array of a joblib file, such as scikit-learn's caches, without joblib's unpickling."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from lit_sparse.data.readers.arrays import check_real, read_array
from lit_sparse.data.readers.sizes import BoundedReader, bytes_of, check_unpacked
from lit_sparse.errors import DataError
from lit_sparse.ground.pickles import check_pickle
from lit_sparse.ground.stored import open_plain

__all__ = ["read_joblib_array"]

#: Number of bytes of the longest description of an array.
LONGEST = 2**16


class _Description:
    """Stand-in for joblib's ``NumpyArrayWrapper``, which describes an array before its bytes."""

    shape: tuple[int, ...]
    order: str
    dtype: np.dtype[Any]
    numpy_array_alignment_bytes: int | None = None


#: All names that a description may contain.
ALLOWED: dict[tuple[str, str], Any] = {
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): _Description,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


CALLED = ("joblib.numpy_pickle.NumpyArrayWrapper", "numpy.dtype")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of an array")
        return ALLOWED[module, name]


def read_joblib_array(path: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the array of a file by ``joblib.dump(array, path, compress=...)``, with zlib, gzip or no compression.

    Only the description of the array is unpickled, with only three allowed names. joblib itself would run any function that
    the file names.

    Args:
        path: the file.

    Raises:
        DataError: if the file holds anything else.

    Example:
        >>> import joblib
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = joblib.dump(np.eye(2), Path(folder) / "some.pkz", compress=3)
        ...     read_joblib_array(Path(folder) / "some.pkz")
        array([[1., 0.],
               [0., 1.]])
    """
    try:
        with _unpacked(path) as file:
            described = _description(file)
            dtype, shape = check_dtype(described.dtype, path), tuple(int(size) for size in described.shape)
            if min(shape, default=0) < 0:
                raise ValueError(f"an array cannot have the shape {shape}")
            check_unpacked(path, bytes_of(shape, dtype.itemsize), what=f"an array {shape}")
            if described.numpy_array_alignment_bytes is not None:
                file.read(file.read(1)[0])
            return read_array(file, dtype, shape, in_columns=described.order == "F")
    except DataError:
        raise
    except Exception as error:  # a truncated or forged file may raise anything
        raise DataError(f"{str(path)!r} cannot be read as an array by joblib: {error}. Fetch it again.") from error


def check_dtype(dtype: object, path: Path) -> np.dtype[Any]:
    """Return the type of the entries, which must be numbers."""
    if not isinstance(dtype, np.dtype):
        raise ValueError("it does not hold an array")
    check_real(np.empty(0, dtype=dtype), repr(str(path)))
    return dtype


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file and decompress its bytes while they are read."""
    with open_plain(path) as file:
        start = file.read(2)
        file.seek(0)
        if start == b"\x1f\x8b":
            yield io.BufferedReader(BoundedReader(gzip.GzipFile(fileobj=file), path))
        elif start[:1] == b"\x78":
            yield io.BufferedReader(BoundedReader(_Inflated(file), path))
        else:
            yield file


class _Inflated(io.BufferedIOBase):
    """Stream of bytes that zlib decompresses in pieces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._stream = file, zlib.decompressobj()

    def readinto(self, buffer: Any) -> int:
        """Decompress into a buffer."""
        piece = b""
        while not piece and not self._stream.eof:
            packed = self._stream.unconsumed_tail or self._file.read(1 << 16)
            piece = self._stream.decompress(packed, len(buffer))
            if not packed and not piece:
                raise EOFError("it is truncated")
        buffer[: len(piece)] = piece
        return len(piece)


class _Recorder:
    """Reader of a file that stores the bytes it has read; those that describe an array are few."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.content = file, bytearray()

    def read(self, size: int) -> bytes:
        """Read bytes."""
        return self._kept(self._file.read(min(size, LONGEST + 1)))

    def readline(self) -> bytes:
        """Read a line."""
        return self._kept(self._file.readline(LONGEST + 1))

    def _kept(self, piece: bytes) -> bytes:
        self.content += piece
        if len(self.content) > LONGEST:
            raise ValueError("it does not describe an array at its start")
        return piece


def _description(file: IO[bytes]) -> _Description:
    """Read the description of an array; the bytes of the array come next in the file."""
    recorder, built = _Recorder(file), 0
    for opcode, _, _ in pickletools.genops(recorder):  # type: ignore[arg-type]
        built += opcode.name == "BUILD"  # first the type of the entries, then the description
        if built == 2:
            break
    content = bytes(recorder.content) + pickle.STOP
    check_pickle(content, CALLED)
    described = _Unpickler(io.BytesIO(content)).load()
    if not isinstance(described, _Description):
        raise ValueError("it does not hold a single array")
    return described
