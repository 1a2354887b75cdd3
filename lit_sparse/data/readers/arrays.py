"""Reads arrays from ``.npy``, ``.npz`` and HDF5 files; headers are checked before memory is allocated."""

from __future__ import annotations

import itertools
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from lit_sparse.data.readers.places import Place, open_file, reading
from lit_sparse.data.readers.sizes import ROWS, bytes_of, check_rows, check_unpacked
from lit_sparse.errors import DataError, did_you_mean, needs_extra
from lit_sparse.ground.stored import RATIO, check_members

__all__ = ["Arrays", "check_kind", "open_arrays", "read_npy"]

Array = np.ndarray[Any, np.dtype[Any]]
#: Allowed kinds of numpy types: booleans, integers, floats and words.
KINDS = "biufSU"
#: Number of bytes per read; some streams copy what they read.
PIECE = 2**22
#: Largest ratio of deflate, and bytes that a checksum adds to a chunk of HDF5.
DEFLATED, CHECKSUM = 1032, 4
#: Remedy for a valid array with too high a compression ratio.
UNCOMPRESSED = "save it uncompressed, with numpy.savez"


class _Entry(NamedTuple):
    """An array of a file, before it is read."""

    shape: tuple[int, ...]
    read: Callable[[], Array]


class Arrays(Mapping[str, Array]):
    """Mapping from names to the arrays of an open file, each read at its first access.

    Args:
        path: path of the file.
        entries: name -> description of the array, before it is read.
    """

    def __init__(self, path: Place, entries: Mapping[str, _Entry]) -> None:
        self.path = path
        self._entries = entries

    def __getitem__(self, name: str) -> Array:
        if name not in self._entries:
            raise DataError(
                f"Expected an array {name!r} in {str(self.path)!r} but got {', '.join(self) or 'nothing'}."
                f"{did_you_mean(name, self)}"
            )
        with _reading(self.path):
            array = self._entries[name].read()
        if array.dtype.kind in "SU":
            check_rows(self.path, array.size)  # each becomes an object
        return _decoded(array, f"the array {name!r} of {str(self.path)!r}" if name else repr(str(self.path)))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def shapes(self) -> str:
        """Names and shapes of the arrays as text, for messages."""
        return ", ".join(f"{name} {entry.shape}" for name, entry in sorted(self._entries.items()))


@contextmanager
def open_arrays(path: Place) -> Iterator[Arrays]:
    """Return the arrays of a file ``.npy``, ``.npz`` or HDF5 by name; the array of a ``.npy`` file has the name ``""``.

    Args:
        path: a file ``.npy``, ``.npz``, ``.h5`` or ``.hdf5``.

    Raises:
        DataError: if the file cannot be read, its header contradicts its size, or an array holds anything but real numbers
            or words.
        MissingExtraError: if h5py is needed but not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "some.npz"
        ...     np.savez(path, x=np.eye(2), y=np.arange(3))
        ...     with open_arrays(path) as arrays:
        ...         print(arrays.shapes, arrays["y"])
        x (2, 2), y (3,) [0 1 2]
    """
    openers = {".npy": _open_npy, ".npz": _open_npz, ".h5": _open_h5, ".hdf5": _open_h5}
    if path.suffix not in openers:
        raise DataError(f"Expected a file of type {', '.join(openers)} but got {str(path)!r}. Convert it.")
    with ExitStack() as stack:
        with _reading(path):
            entries = stack.enter_context(openers[path.suffix](path))
        yield Arrays(path, entries)  # outside of the handlers: errors of the caller are not errors of the file


def _reading(path: Place) -> AbstractContextManager[None]:
    return reading(f"{str(path)!r} cannot be read as an array", "Save it again with numpy.save or h5py.")


def read_npy(path: Place, *, memory_mapped: bool = False) -> Array:
    """Return the array of a ``.npy`` file.

    Args:
        path: the file.
        memory_mapped: whether to leave the array on disk and read its entries when they are needed.

    Raises:
        DataError: see :func:`open_arrays`.
    """
    if not memory_mapped:
        with open_arrays(path) as arrays:
            return arrays[""]
    with _reading(path), open_file(path) as file:
        where = repr(str(path))
        shape, in_columns, dtype = _header(file, path.stat().st_size, where)
        check_kind(dtype, where)
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if in_columns else "C")


def check_kind(dtype: np.dtype[Any], where: str) -> None:
    """Check that a type of numpy is one of real numbers, booleans or words.

    Raises:
        DataError: if it is another type.
    """
    if dtype.kind == "c":
        raise DataError(f"Expected real numbers but got complex ones in {where}. Save one part, such as `x.real`.")
    if dtype.hasobject:
        raise DataError(
            f"Expected numbers or words but got Python objects in {where}, which are not read: unpickling can run code."
            " Save it with another dtype, such as float32."
        )
    if dtype.kind not in KINDS:
        raise DataError(f"Expected numbers or words but got the type {dtype} in {where}. Convert it.")


def _decoded(array: Array, where: str) -> Array:
    """Return an array with words as text instead of bytes."""
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"Expected words in UTF-8 but got {error.object[:40]!r} in {where}. Convert them.") from error


@contextmanager
def _open_npy(path: Place) -> Iterator[dict[str, _Entry]]:
    yield {"": _npy_entry(partial(open_file, path), path.stat().st_size, repr(str(path)))}


@contextmanager
def _open_npz(path: Place) -> Iterator[dict[str, _Entry]]:
    with open_file(path) as opened, zipfile.ZipFile(opened) as archive:
        check_members(archive)
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        check_unpacked(path, sum(member.file_size for member in members), what="its content", remedy=UNCOMPRESSED)
        entries = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            where = f"the array {name!r} of {str(path)!r}"
            entries[name] = _npy_entry(partial(archive.open, member), member.file_size, where)
        yield entries


def _header(file: IO[bytes], size: int, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return an array's shape, whether its first index changes fastest, and its type, after a check of the file's length."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in readers:
        raise DataError(
            f"Expected numbers or words but got named fields in {where} (version {version}). Save each field separately."
        )
    shape, in_columns, dtype = readers[version](file)
    if not dtype.hasobject:  # objects have unknown sizes and are refused later
        claimed, available = bytes_of(shape, dtype.itemsize), size - file.tell()
        if not 0 <= claimed <= available or min(shape, default=0) < 0 or _is_endless(shape, claimed):
            raise DataError(
                f"Expected an array {shape} of {dtype} in {where}, as in its header, but got {available} bytes. Fetch the file"
                " again."
            )
    return shape, in_columns, dtype


def _is_endless(shape: tuple[int, ...], claimed: int) -> bool:
    """Return whether an array without any bytes has so many rows that counting them takes long."""
    return claimed == 0 and max(shape, default=0) > ROWS


def _npy_entry(opened: Callable[[], IO[bytes]], size: int, where: str) -> _Entry:
    """Return an array in numpy's format, read without a second copy in memory."""

    def read() -> Array:
        with opened() as file:
            shape, in_columns, dtype = _header(file, size, where)
            check_kind(dtype, where)
            content = np.empty(bytes_of(shape, dtype.itemsize), dtype=np.uint8)
            for start in range(0, len(content), PIECE):
                piece = content[start : start + PIECE]
                if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                    raise EOFError("it ends within the array")
        return content.view(dtype).reshape(shape, order="F" if in_columns else "C")

    with opened() as file:
        return _Entry(_header(file, size, where)[0], read)


@contextmanager
def _open_h5(path: Place) -> Iterator[dict[str, _Entry]]:
    with needs_extra("h5", "Feature vectors in HDF5 files"):
        import h5py
    with open_file(path) as opened, h5py.File(path if isinstance(path, Path) else opened) as file:
        entries = {}
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):  # others may lead to other files
                continue
            dataset = file[name]
            if isinstance(dataset, h5py.Dataset):
                shape = () if dataset.external or dataset.is_virtual else dataset.shape or ()  # which may open the other files
                entries[name] = _Entry(shape, partial(_from_h5, dataset, path, name))
        yield entries


def _from_h5(dataset: Any, path: Place, name: str) -> Array:
    import h5py

    where = f"the array {name!r} of {str(path)!r}"
    if dataset.external or dataset.is_virtual:
        raise DataError(
            f"Expected numbers or words but got references to other files in {where}. Save the values in this file."
        )
    if dataset.shape is None:
        raise DataError(f"Expected numbers or words but got none in {where}. Name another array.")
    check_unpacked(path, claimed := bytes_of(dataset.shape, dataset.dtype.itemsize), what=f"the array {name!r}")
    if dataset.chunks:
        _check_chunks(dataset, path, where)
    if _is_endless(dataset.shape, claimed):
        raise DataError(f"Expected an array with entries but got {dataset.shape} in {where}. Save it again.")
    if (text := h5py.check_string_dtype(dataset.dtype)) is not None:
        if text.length is None and dataset.shape:  # many entries may share a text
            longest, (*outer, last) = 0, dataset.shape
            for place in itertools.product(*map(range, outer), range(0, last, RATIO)):
                piece = dataset[(*place[:-1], slice(place[-1], place[-1] + RATIO))]
                longest = max(longest, *map(len, piece))
                check_unpacked(path, bytes_of(dataset.shape, 4 * longest), what=f"the array {name!r}")
        return np.asarray(dataset.asstr()[()], dtype=str)
    check_kind(dataset.dtype, where)
    return np.asarray(dataset[()])


def _check_chunks(dataset: Any, path: Place, where: str) -> None:
    """Check what the chunks of a dataset unpack to: one is unpacked whole, whatever the shape of the dataset.

    Raises:
        DataError: if it is more than the header says, or than is plausible.
    """
    import h5py

    size, large = bytes_of(dataset.chunks, dataset.dtype.itemsize), []
    check_unpacked(path, size, what=f"a chunk of {where}")
    check_rows(path, math.prod(-(-length // part) for length, part in zip(dataset.shape, dataset.chunks, strict=True)))
    filters = dataset.id.get_create_plist()
    kinds = [filters.get_filter(place)[0] for place in range(filters.get_nfilters())]
    if len({*kinds}) < len(kinds):  # two compressions, one in the other
        raise DataError(f"Expected each filter once but got two of a kind in {where}. Save it again.")
    if h5py.h5z.FILTER_DEFLATE in kinds:  # None goes on to the next chunk
        dataset.id.chunk_iter(lambda chunk: large.append(chunk.chunk_offset) if chunk.size * DEFLATED > size else None)
    for place in large:
        _, packed = dataset.id.read_direct_chunk(place)
        if len(zlib.decompressobj().decompress(packed, size + CHECKSUM + 1)) > size + CHECKSUM:
            raise DataError(f"Expected chunks of {size:,} bytes in {where} but got a larger one. Save it again.")
