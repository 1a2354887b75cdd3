"""Reads data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lit_sparse.data.readers.arrow_files import needed
from lit_sparse.data.readers.places import reading
from lit_sparse.data.readers.tables import chunks_of_batches, of_batches, rows_of
from lit_sparse.data.readers.text_tables import Chunk

__all__ = ["hub_chunks", "load", "load_all", "table_chunks"]


def hub_chunks(
    name: str,
    split: str,
    columns: Mapping[str, str],
    config: str | None,
    optional: Collection[str] = (),
    *,
    streaming: bool = False,
) -> Iterator[Chunk]:
    """Yield chunks of rows of a split of a Hugging Face data set, downloaded and memory-mapped, or streamed.

    Raises:
        DataError: if the data set is not available, or lacks a column.
    """
    table = load(name, config, split, **({"streaming": True} if streaming else {}))
    return table_chunks(table, columns, f"The split {split!r} of {name!r}", optional)


def table_chunks(table: Any, columns: Mapping[str, str], where: str, optional: Collection[str] = ()) -> Iterator[Chunk]:
    """Yield chunks of rows of a table of ``datasets``; see :func:`lit_sparse.data.readers.tables.of_batches`."""
    if table.column_names is not None:  # a stream may not know them
        table = table.select_columns(needed(columns, table.column_names))
    table = table.with_format("arrow")

    def batches() -> Iterator[Any]:
        with reading(f"{where} cannot be read", "Try again.", named=True):
            yield from (batch for part in table.iter(batch_size=10_000) for batch in part.to_batches())

    return of_batches(chunks_of_batches(batches(), columns), lambda: rows_of(batches()), columns, where, optional)


def load(name: str, config: str | None, split: str, **options: Any) -> Any:
    """Return a split of a data set on the Hugging Face hub.

    Raises:
        DataError: if it cannot be downloaded.
    """
    import datasets

    call = ", ".join(repr(argument) for argument in (name, config) if argument is not None)
    handled = reading(
        f"There is no folder {name!r}, and the split {split!r} of the data set {name!r} cannot be downloaded from the Hugging"
        " Face hub",
        f'Download it once with a network, python -c "import datasets; datasets.load_dataset({call})", or give a local folder.',
        named=True,
    )
    with _writable_cache(Path(datasets.config.HF_DATASETS_CACHE)) as cache, handled:
        return datasets.load_dataset(name, config, split=split, cache_dir=cache, **options)


def load_all(name: str, remedy: str) -> Any:
    """Return all splits of a data set on the Hugging Face hub, by their names.

    Args:
        name: name of the data set.
        remedy: end of the message on what to do without it.

    Raises:
        DataError: if it cannot be downloaded.
    """
    from datasets import load_dataset

    with reading(f"The data set {name!r} cannot be fetched", remedy, named=True):
        return load_dataset(name)


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
