"""Reads integers from files: one per line of a text, or an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.data.readers.arrays import read_npy
from lit_sparse.data.readers.text_files import existing, read_lines
from lit_sparse.errors import DataError

__all__ = ["read_indices", "read_integer_lines"]


def read_integer_lines(path: Path, what: str) -> np.ndarray[Any, Any]:
    """Return the integers (N,) int64 of a text file, one per line; empty lines at its end are dropped.

    Args:
        path: path of the file.
        what: meaning of the integers, for the message.

    Raises:
        DataError: if a line holds anything but an integer of at least 0.
    """
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not (line.isascii() and line.strip().isdecimal()) or len(line) > 18:
            raise DataError(
                f"Expected one {what} per line, such as 7, in {str(path)!r} but got {line[:40]!r} in line {number}. Correct it."
            )
    return np.array([int(line) for line in lines], dtype=np.int64)


def read_indices(path: Path) -> Tensor:
    """Return the indices (N,) int64 of a file ``.npy``, or ``.txt`` with one per line.

    Raises:
        DataError: if the file is missing, of another kind, or unreadable, or if the indices are not integers, repeat, or
            are none.
    """
    if path.suffix not in (".npy", ".txt"):
        raise DataError(
            f"Expected a .npy or .txt file of indices but got {str(path)!r}. Save them with numpy.save; pickles are not read,"
            " because unpickling can run code."
        )
    existing(path, "indices")
    found = read_npy(path) if path.suffix == ".npy" else read_integer_lines(path, "index")
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise DataError(
            f"Expected a list of integers in {str(path)!r} but got {found.dtype} {found.shape}. Save the indices as one array."
        )
    values, counts = np.unique(found, return_counts=True)
    if len(values) < len(found):
        raise DataError(
            f"Expected each index once in {str(path)!r} but got {values[counts.argmax()]} {counts.max()} times. Remove the"
            " repeats."
        )
    return torch.from_numpy(found.astype(np.int64))
