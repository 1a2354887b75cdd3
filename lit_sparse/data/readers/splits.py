"""Finds and reads a split: a table, parallel text, or a split of a data set of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from lit_sparse.data.columns import Column
from lit_sparse.data.readers.hub import hub_chunks
from lit_sparse.data.readers.places import Place, is_url, place_of
from lit_sparse.data.readers.tables import TABLES, chunks_of, from_chunks
from lit_sparse.data.readers.text_files import SGML, ending_of, in_folder, lines_of, segment_names
from lit_sparse.data.readers.text_tables import Chunk
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["is_of_hub", "open_split", "read_split"]

#: Number of pairs of lines in a chunk.
ROWS = 4096
#: Name of the first file that ``save_to_disk`` of ``datasets`` writes.
SAVED = re.compile(r"data-0+-of-\d+\.arrow")
#: Pattern of a data set's name on the hub.
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_split(
    path: str | None,
    split: str,
    columns: Mapping[str, str],
    *,
    config: str | None = None,
    optional: Collection[str] = (),
) -> dict[str, Column]:
    """Return the columns of one split of a data set, with unchanged values: text, numbers, lists.

    A split of a folder is one of these:

    - a table ``{split}.jsonl``, ``.json`` (an array of objects, or one object per line), ``.csv``, ``.tsv``, ``.parquet`` or
      ``.arrow``, or its parts in the hub's naming, ``{split}-00000-of-00002.parquet``, also in a folder ``data``; or a folder
      ``{split}`` written by ``save_to_disk`` of ``datasets``;
    - parallel text ``{split}.{column}`` with one file per column, such as ``train.de`` and ``train.en``;
    - test sets in SGML, ``{split}-src.{column}.sgm`` for the role ``source`` and ``{split}-ref.{column}.sgm`` for others.

    Text may be gzipped (``.gz``), and parallel text may also end in ``.txt``. In ``.csv`` and ``.tsv`` files an empty cell is
    a missing value, and a column with only numbers is read as numbers. In a ``.tsv`` file quotation marks are characters.

    Values are kept in Arrow's format; large tables lie on the disk.

    Args:
        path: a folder, its URL for fsspec such as ``s3://bucket/snli``, or the name of a data set of the Hugging Face hub. A
            name that starts with ``.``, ``/`` or ``~`` or exists as a folder is local. With None, ``split`` is the path or URL
            of a table, or the common start of parallel files.
        split: name of the split, with or without the ending of a table; on the hub also a slice such as ``train[:1000]``.
        columns: for each role, such as ``source``, the column of a table, dotted if nested (``translation.de``), or the ending
            of a parallel file.
        config: name of the hub data set's configuration, or a subfolder of the local folder.
        optional: roles that may lack a value in a row of a table, which is then None.

    Returns:
        A dict from roles to their values, equally many per role.

    Raises:
        ConfigurationError: if ``columns`` is empty, or ``config`` is given without ``path``.
        DataError: if the split is missing or ambiguous, a column is missing or lacks a value, parallel files differ in
            length, or a file does not have the format of its ending.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "dev.jsonl").write_text(
        ...         '{"title": "Rain", "stars": 4}'
        ...     )
        ...     read_split(folder, "dev", {"target": "title", "label": "stars"})
        {'target': <1 values>, 'label': <1 values>}
    """
    files = _located(path, split, columns, config)
    if files is None:
        return from_chunks(hub_chunks(str(path), split, columns, config, optional), columns, mapped=True)
    if isinstance(files, dict):
        return from_chunks(_parallel_chunks(files), columns)
    return from_chunks(chunks_of(files, columns, optional), columns, files[0])


def open_split(
    path: str | None,
    split: str,
    columns: Mapping[str, str],
    *,
    config: str | None = None,
    optional: Collection[str] = (),
) -> tuple[Callable[[], Iterator[Chunk]], Callable[[Any], Any] | None]:
    """Return a function that yields a split's rows in chunks, and one that converts an Arrow value.

    Nothing is read, downloaded or stored beforehand. The cells of ``.csv`` and ``.tsv`` files are text.

    Args:
        path: see :func:`read_split`.
        split: see :func:`read_split`.
        columns: see :func:`read_split`.
        config: see :func:`read_split`.
        optional: see :func:`read_split`.

    Raises:
        DataError: if the split is missing or ambiguous; other errors of :func:`read_split` are raised with a chunk.
    """
    files = _located(path, split, columns, config)
    if files is None:
        return partial(hub_chunks, str(path), split, columns, config, optional, streaming=True), None
    if isinstance(files, dict):
        return partial(_parallel_chunks, files), None
    return partial(chunks_of, files, columns, optional), TABLES[ending_of(files[0])].decode


def _located(
    path: str | None, split: str, columns: Mapping[str, str], config: str | None
) -> list[Place] | dict[str, Place] | None:
    """Return the files of a split's table, or its parallel files by role; None for a data set of the hub."""
    if not columns:
        raise ConfigurationError("Expected argument `columns` to name a column per role but got none. Add one.")
    if path is None:
        if config is not None:
            raise ConfigurationError(f"Expected a `path` that contains `config` {config!r} but got none. Give `path`.")
        base = place_of(split)
    elif not is_of_hub(path):
        folder = place_of(path)
        if not folder.is_dir():
            what = "is a file: give it as the split, without a path" if folder.is_file() else "does not exist"
            raise DataError(f"The folder {path!r} {what}.{in_folder(folder.parent, folder.name)}")
        base = (folder / config if config else folder) / (split if is_url(path) else Path(split).expanduser())
    else:
        return None
    if not split or not base.name:
        raise ConfigurationError(f"Expected argument `split` to name a split but got {split!r}. Give a name such as train.")
    return _find(base, columns)


def is_of_hub(path: str | None) -> bool:
    """Return whether a path is the name of a data set on the Hugging Face hub."""
    local = path is None or path.startswith((".", "/", "~", "\\")) or HUB_NAME.fullmatch(path) is None
    return not local and not Path(str(path)).exists()


def _find(base: Place, columns: Mapping[str, str]) -> list[Place] | dict[str, Place]:
    """Return the table or its parts, or a dict from roles to parallel files, for a path without its ending."""
    if base.is_file() and ending_of(base) in TABLES:
        return [base]
    tables = _tables(base)
    parallel = {role: _parallel(base, role, ending) for role, ending in columns.items()}
    complete = all(parallel.values())
    if len(tables) + complete > 1:
        listed = [*tables, *(files[0] for files in parallel.values() if complete)]
        names = ", ".join(dict.fromkeys(path.name for path in listed))
        raise DataError(f"Expected one split {str(base)!r} but got {names}. Give the full name of one, or move the others.")
    if tables:
        return _parts(tables[0])
    for files in parallel.values():
        if len(files) > 1:
            names = " and ".join(path.name for path in files)
            raise DataError(f"Expected one file but got {names} in {str(base.parent)!r}. Move the others.")
    if complete:
        return {role: files[0] for role, files in parallel.items()}
    wanted = {f"{base.name}.{columns[role]}": bool(files) for role, files in parallel.items()}
    if base.is_dir():
        reason = "It is a folder: give it as the path, and the name of the split separately."
    elif any(wanted.values()):
        reason = f"There is no {' and no '.join(name for name, exists in wanted.items() if not exists)}."
    else:
        table = f"{base.name}{{{','.join(TABLES)}}}"
        reason = f"There is neither a table {table} nor parallel text {' and '.join(wanted)}, plain or gzipped."
    raise DataError(f"The split {str(base)!r} does not exist. {reason}{in_folder(base.parent, base.name)}")


def _tables(base: Place) -> list[Place]:
    """Return the existing tables of a split; for a table in parts, the first part."""
    whole = [base.parent / (base.name + ending + packed) for ending in TABLES for packed in ("", ".gz")]
    tables = [path for path in whole if path.is_file()]
    part = re.compile(re.escape(base.name) + r"-0+-of-\d+(" + "|".join(map(re.escape, TABLES)) + r")(\.gz)?")
    tables += [first for first in base.iterdir() if SAVED.fullmatch(first.name)] if base.is_dir() else []
    for folder in (base.parent, base.parent / "data"):
        if folder.is_dir():
            tables += sorted((path for path in folder.iterdir() if part.fullmatch(path.name)), key=str)
    return tables


def _parts(table: Place) -> list[Place]:
    """Return all parts of a table, given its first part."""
    numbered = re.search(r"-(0+)-of-(\d+)(?=\.)", table.name)
    if numbered is None:
        return [table]
    start, digits, count, end = table.name[: numbered.start()], len(numbered[1]), numbered[2], table.name[numbered.end() :]
    parts = []
    for number in range(int(count)):  # the count in the name may be wrong
        part = table.parent / (f"{start}-{number:0{digits}d}-of-{count}{end}")
        if not part.is_file():
            raise DataError(f"Expected all {count} parts of {table.name!r} but got no {str(part)!r}. Fetch it as well.")
        parts.append(part)
    return parts


def _parallel(base: Place, role: str, ending: str) -> list[Place]:
    """Return the candidates for the file of one role; in SGML the role decides the side of the test set."""
    kinds = ("src", "ref") if role == "source" else ("ref", "src")
    stems = [[f"{base.name}.{ending}{form}" for form in ("", ".txt", *SGML)]]
    stems += [[f"{base.name}-{kind}.{ending}{form}" for form in SGML] for kind in kinds]
    for names in stems:
        paths = [base.parent / (name + packed) for name in names for packed in ("", ".gz")]
        existing = [path for path in paths if path.is_file()]
        if existing:
            return existing
    return []


def _parallel_chunks(files: Mapping[str, Place]) -> Iterator[Chunk]:
    """Yield the lines of parallel files in chunks.

    Raises:
        DataError: if the files have no lines, different numbers of lines, or differently named segments.
    """
    import pyarrow

    folder, done = str(next(iter(files.values())).parent), False
    _check_names([*files.values()], folder)
    with ExitStack() as stack:
        lines = [stack.enter_context(closing(lines_of(path))) for path in files.values()]
        while any(some := [list(islice(these, ROWS)) for these in lines]):
            if len({*map(len, some)}) > 1:
                counts = ", ".join(f"{path.name} {sum(1 for _ in lines_of(path))}" for path in files.values())
                raise DataError(f"Expected parallel files of equal length in {folder!r} but got {counts}. Correct them.")
            yield {role: pyarrow.array(texts, "large_string") for role, texts in zip(files, some, strict=True)}
            done = True
    if not done:
        names = " and ".join(path.name for path in files.values())
        raise DataError(f"Expected lines in {names} in {folder!r} but got none. Fetch them again.")


def _check_names(files: Sequence[Place], folder: str) -> None:
    """Check that documents and segments of parallel SGML files have the same names."""
    named = [(path.name, names) for path in files if (names := segment_names(path))]
    for name, names in named[1:]:
        differing = (pair for pair in zip_longest(named[0][1], names, fillvalue=("no", "more")) if pair[0] != pair[1])
        for pair in differing:
            first, second = map(" ".join, pair)
            raise DataError(
                f"Expected the same documents and segments in {folder!r} but got {first!r} in {named[0][0]} where"
                f" {name} has {second!r}. Put them in the same order."
            )
