"""Files of predictions: one for all processes, in the order of the inputs, whole or not there at all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from lit_sparse.distributed import gather_objects, gather_to_first
from lit_sparse.errors import DataError

__all__ = ["check_indices", "gather_in_order", "write_files"]

#: Indices that a message names.
NAMED = 5
Row = TypeVar("Row")


def gather_in_order(rows: Sequence[Row], indices: Sequence[int], *, complete: bool = True) -> list[Row]:
    """Return the rows of all processes in the order of their inputs, on the first process; call it on all of them.

    Args:
        rows: rows of this process.
        indices: number of the input of each row.
        complete: whether all numbers up to the largest must be there.

    Raises:
        DataError: on every process, if an input was predicted twice, or not at all where all must be there.
    """
    check_indices(chain.from_iterable(gather_objects(list(indices))), complete=complete)
    found = chain.from_iterable(gather_to_first(list(zip(indices, rows, strict=True))))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def check_indices(indices: Iterable[int], *, complete: bool = True) -> None:
    """Check that inputs are numbered from 0, each once.

    Args:
        indices: numbers of the inputs that were predicted.
        complete: whether all numbers up to the largest must be there.

    Raises:
        DataError: if they are not.

    Example:
        >>> check_indices([2, 0, 1])
        >>> check_indices([0, 3])
        Traceback (most recent call last):
        lit_sparse.errors.DataError: Nothing was predicted for input 1, 2 (numbered from 0). ...
    """
    counts = Counter(indices)
    if counts and min(counts) < 0:
        raise DataError(f"Expected inputs to be numbered from 0 but got index {min(counts)}.")
    if twice := sorted(index for index, count in counts.items() if count > 1):
        raise DataError(
            f"There is more than one prediction for input {_some(twice, len(twice))} (numbered from 0). Each input must come"
            " once: use one data loader, and over several processes no sampler that repeats examples."
        )
    if complete and (missing := max(counts, default=-1) + 1 - len(counts)):
        raise DataError(
            f"Nothing was predicted for input {_some(list(islice(_gaps(counts), NAMED)), missing)} (numbered from 0). Predict"
            " all inputs, without `limit_predict_batches`."
        )


def _gaps(indices: Iterable[int]) -> Iterator[int]:
    """Yield what is missing between 0 and the largest of some indices."""
    expected = 0
    for index in sorted(indices):
        yield from range(expected, index)
        expected = index + 1


def _some(indices: list[int], count: int) -> str:
    named = ", ".join(str(index) for index in indices[:NAMED])
    return named if count <= NAMED else f"{named}, ... ({count} in all)"


def write_files(files: dict[Path, Iterable[str]]) -> None:
    """Write lines to files that appear when all of them are whole."""
    with ExitStack() as cleanup:
        parts = {}
        for path, lines in files.items():
            part = parts[path] = path.with_name(f".{path.name}.part")
            cleanup.callback(part.unlink, missing_ok=True)
            with part.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            part.replace(path)
