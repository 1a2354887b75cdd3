"""Reads files in IDX format, such as MNIST's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lit_sparse.data.readers.sizes import bytes_of, check_unpacked
from lit_sparse.data.readers.text_files import open_bounded
from lit_sparse.errors import DataError

__all__ = ["find_idx", "read_idx"]


def find_idx(folder: Path, name: str) -> Path:
    """Return the path of an IDX file in a folder, gzipped or not, in either of its two spellings.

    Args:
        folder: folder to search.
        name: name of the file, for example ``"train-images-idx3-ubyte"``.

    Raises:
        DataError: if the folder or the file is missing.
    """
    if not folder.is_dir():
        raise DataError(
            f"The data folder {str(folder)!r} does not exist. Give a folder with idx files, such as {name}.gz:"
            " --data.init_args.folder=PATH"
        )
    for spelling in (name, name.replace("-idx", ".idx")):
        for candidate in (folder / spelling, folder / f"{spelling}.gz"):
            if candidate.is_file():
                return candidate
    names = sorted(path.name for path in folder.iterdir())[:8]
    raise DataError(f"Expected {name} or {name}.gz in {str(folder)!r} but got {names or 'nothing'}. Add the file.")


def read_idx(path: Path, dimensions: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the array of unsigned bytes in an IDX file.

    Args:
        path: an IDX file, gzipped or not.
        dimensions: number of dimensions of the array.

    Raises:
        DataError: if the file contradicts its header.
    """
    magic = bytes([0, 0, 8, dimensions])
    with open_bounded(path, strict=False) as file:
        header = file.read(4 + 4 * dimensions)
        if header[:4] != magic:
            raise DataError(
                f"{str(path)!r} is not an idx file of {dimensions} dimensions: it starts with {header[:4]!r}, not {magic!r}."
                " Fetch it again."
            )
        if len(header) < 4 + 4 * dimensions:
            raise DataError(f"{str(path)!r} ends within its header, after {len(header)} bytes. Fetch it again.")
        shape = tuple(int(n) for n in np.frombuffer(header[4:], dtype=">u4"))
        if 0 in shape:
            raise DataError(f"Expected examples in {str(path)!r} but got the shape {shape} in its header. Fetch it again.")
        size = bytes_of(shape, 1)
        check_unpacked(path, size, what=f"an array {shape}, as in its header,")
        raw = file.read(size + 1)
    if len(raw) != size:
        count = f"{len(raw)}" if len(raw) < size else "more"
        raise DataError(f"Expected {size} bytes of data in {str(path)!r} for an array {shape} but got {count}. Fetch it again.")
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape)
