"""Reads data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lit_sparse.data.readers.arrow_files import brief, needed
from lit_sparse.data.readers.tables import chunks_of_batches, of_batches, rows_of
from lit_sparse.data.readers.text_tables import Chunk
from lit_sparse.errors import DataError

__all__ = ["hub_chunks", "load"]


def hub_chunks(
    name: str,
    split: str,
    columns: Mapping[str, str],
    config: str | None,
    optional: Collection[str] = (),
    *,
    streaming: bool = False,
) -> Iterator[Chunk]:
    """Yield the chunks of a split of a data set of the hub, downloaded once and mapped from the disk, or not downloaded.

    Raises:
        DataError: if the data set is not available, or lacks a column.
    """
    table = load(name, config, split, **({"streaming": True} if streaming else {}))
    if table.column_names is not None:  # a stream may not know them
        table = table.select_columns(needed(columns, table.column_names))
    table = table.with_format("arrow")

    where = f"The split {split!r} of {name!r}"

    def batches() -> Iterator[Any]:
        try:
            yield from (batch for part in table.iter(batch_size=10_000) for batch in part.to_batches())
        except Exception as error:  # of the network, or of the files
            raise DataError(f"{where} cannot be read ({type(error).__name__}: {brief(error)}). Try again.") from error

    return of_batches(chunks_of_batches(batches(), columns), lambda: rows_of(batches()), columns, where, optional)


def load(name: str, config: str | None, split: str, **options: Any) -> Any:
    """Return a split of a data set of the hub.

    Raises:
        DataError: if it cannot be downloaded.
    """
    import datasets

    with _writable_cache(Path(datasets.config.HF_DATASETS_CACHE)) as cache:
        try:
            return datasets.load_dataset(name, config, split=split, cache_dir=cache, **options)
        except Exception as error:
            call = ", ".join(repr(argument) for argument in (name, config) if argument is not None)
            raise DataError(
                f"There is no folder {name!r}, and the split {split!r} of the data set {name!r} cannot be downloaded from"
                f" the Hugging Face hub ({type(error).__name__}: {brief(error)}). Download it once with a network,"
                f' python -c "import datasets; datasets.load_dataset({call})", or give a local folder.'
            ) from error


@contextmanager
def _writable_cache(usual: Path) -> Iterator[str | None]:
    """Yield None for the usual cache, or a temporary folder if that is not writable; what is mapped outlives the folder."""
    try:
        usual.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=usual):
            pass
    except OSError:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder
    else:
        yield None
