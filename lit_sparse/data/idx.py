"""Reads files of the IDX format, in which MNIST and its relatives were published."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

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
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{str(path)!r} is not a whole gzip file ({error}). Fetch it again.") from error
    magic = bytes([0, 0, 8, dimensions])
    if raw[:4] != magic:
        raise DataError(
            f"{str(path)!r} is not an idx file of {dimensions} dimensions: it starts with {raw[:4]!r}, not {magic!r}."
        )
    header = 4 + 4 * dimensions
    if len(raw) < header:
        raise DataError(f"{str(path)!r} ends within its header, after {len(raw)} bytes.")
    shape = tuple(int(n) for n in np.frombuffer(raw[4:header], dtype=">u4"))
    if len(raw) - header != math.prod(shape):
        raise DataError(f"{str(path)!r} holds {len(raw) - header} bytes of data, not those of an array {shape}.")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
