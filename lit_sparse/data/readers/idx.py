"""Reads files of the IDX format, in which MNIST and its relatives were published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lit_sparse.data.readers.sizes import bytes_of, check_unpacked
from lit_sparse.data.readers.text_files import open_bytes
from lit_sparse.errors import DataError

__all__ = ["find_idx", "read_idx"]


def find_idx(folder: Path, name: str) -> Path:
    """Return the file ``name`` in a folder, gzipped or not, with either of the two spellings in use.

    Args:
        folder: where to look.
        name: for example ``"train-images-idx3-ubyte"``.

    Raises:
        DataError: if the folder or the file is missing.
    """
    if not folder.is_dir():
        raise DataError(
            f"The data folder {str(folder)!r} does not exist. Give a folder with idx files such as {name}.gz:"
            " --data.init_args.folder=PATH"
        )
    spellings = [name, name.replace("-idx", ".idx")]
    for spelling in spellings:
        for candidate in (folder / spelling, folder / f"{spelling}.gz"):
            if candidate.is_file():
                return candidate
    found = sorted(path.name for path in folder.iterdir())[:8]
    raise DataError(f"Expected {name} or {name}.gz in {str(folder)!r} but found {found or 'nothing'}.")


def read_idx(path: Path, dimensions: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read an array of unsigned bytes.

    Args:
        path: an IDX file, gzipped or not.
        dimensions: how many the array must have.

    Raises:
        DataError: if the file is not what its header promises.
    """
    magic = bytes([0, 0, 8, dimensions])
    with open_bytes(path, strict=False) as file:
        header = file.read(4 + 4 * dimensions)
        if header[:4] != magic:
            raise DataError(
                f"{str(path)!r} is not an idx file of {dimensions} dimensions: it starts with {header[:4]!r}, not {magic!r}."
            )
        if len(header) < 4 + 4 * dimensions:
            raise DataError(f"{str(path)!r} ends within its header, after {len(header)} bytes.")
        shape = tuple(int(n) for n in np.frombuffer(header[4:], dtype=">u4"))
        if 0 in shape:
            raise DataError(f"Expected some examples in {str(path)!r} but its header says {shape}. Fetch it again.")
        size = bytes_of(shape, 1)
        check_unpacked(path, size, what=f"an array {shape}, as its header says,")
        raw = file.read(size + 1)
    if len(raw) != size:
        count = f"{len(raw)}" if len(raw) < size else "more"
        raise DataError(f"{str(path)!r} holds {count} bytes of data, not those of an array {shape}, {size}. Fetch it again.")
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)
