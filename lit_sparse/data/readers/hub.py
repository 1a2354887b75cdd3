"""Reads data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lit_sparse.data.readers.tables import brief, collect, needed, rows_of
from lit_sparse.errors import DataError

__all__ = ["from_hub"]


def from_hub(
    name: str, split: str, columns: Mapping[str, str], config: str | None, optional: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Return role -> values of a split of a data set of the hub, downloaded once.

    Raises:
        DataError: if the data set is not available, or lacks a column.
    """
    import datasets

    with _writable_cache(Path(datasets.config.HF_DATASETS_CACHE)) as cache:
        try:
            table = datasets.load_dataset(name, config, split=split, cache_dir=cache)
            table = table.select_columns(needed(columns, table.column_names))
            return collect(rows_of(table.iter(batch_size=1000)), columns, f"The split {split!r} of {name!r}", optional)
        except DataError:
            raise
        except Exception as error:
            call = ", ".join(repr(argument) for argument in (name, config) if argument is not None)
            raise DataError(
                f"There is no folder {name!r}, and the split {split!r} of the data set {name!r} cannot be downloaded from"
                f" the Hugging Face hub ({type(error).__name__}: {brief(error)}). Download it once with a network,"
                f' python -c "import datasets; datasets.load_dataset({call})", or give a local folder.'
            ) from error


@contextmanager
def _writable_cache(usual: Path) -> Iterator[str | None]:
    """Yield None for the usual cache, or a temporary folder if that is not writable."""
    try:
        usual.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=usual):
            pass
    except OSError:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder
    else:
        yield None
