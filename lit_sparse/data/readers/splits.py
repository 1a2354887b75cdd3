"""Finds and reads a split: a table, parallel text, or a split of a data set of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lit_sparse.data.readers.hub import from_hub
from lit_sparse.data.readers.tables import TABLES, from_tables
from lit_sparse.data.readers.text_files import SGML, ending_of, in_folder, read_lines, segment_names
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["check_split", "read_split"]

#: Pattern of a data set's name on the hub.
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_split(
    path: str | None,
    split: str,
    columns: Mapping[str, str],
    *,
    config: str | None = None,
    optional: Collection[str] = (),
) -> dict[str, list[Any]]:
    """Return the columns of one split of a data set, with unchanged values: text, numbers, lists.

    A split of a local folder is one of these:

    - a table ``{split}.jsonl``, ``.json`` (an array of objects, or one object per line), ``.csv``, ``.tsv`` or
      ``.parquet``, or its parts in the hub's naming, ``{split}-00000-of-00002.parquet``, also in a folder ``data``;
    - parallel text ``{split}.{column}`` with one file per column, such as ``train.de`` and ``train.en``;
    - test sets in SGML, ``{split}-src.{column}.sgm`` for the role ``source`` and ``{split}-ref.{column}.sgm`` for others.

    Text may be gzipped (``.gz``), and parallel text may also end in ``.txt``. In ``.csv`` and ``.tsv`` files an empty cell is
    a missing value, and a column with only numbers is read as numbers. In a ``.tsv`` file quotation marks are characters.

    Args:
        path: a folder, or the name of a data set of the Hugging Face hub. A name that starts with ``.``, ``/`` or ``~`` or
            exists as a folder is local. With None, ``split`` is the path of a table or the common start of parallel files.
        split: name of the split, with or without the ending of a table; on the hub also a slice such as ``train[:1000]``.
        columns: role -> column of a table, dotted if nested (``translation.de``), or ending of a parallel file.
        config: name of the hub data set's configuration, or a subfolder of the local folder.
        optional: roles that may lack a value in a row of a table, which is then None.

    Returns:
        Role -> values, equally many per role.

    Raises:
        ConfigurationError: if ``columns`` is empty, or ``config`` is given without ``path``.
        DataError: if the split is missing or ambiguous, a column is missing or lacks a value, parallel files differ in
            length, or a file does not have the format of its ending.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "dev.jsonl").write_text('{"title": "Rain", "stars": 4}')
        ...     read_split(folder, "dev", {"target": "title", "label": "stars"})
        {'target': ['Rain'], 'label': [4]}
    """
    located = _located(path, split, columns, config)
    if located is None:
        return from_hub(str(path), split, columns, config, optional)
    files, base = located
    return _from_parallel(files, base) if isinstance(files, dict) else from_tables(files, columns, optional)


def check_split(path: str | None, split: str, columns: Mapping[str, str], *, config: str | None = None) -> None:
    """Check that the files of a local split exist, without reading them.

    Args:
        path: see :func:`read_split`.
        split: see :func:`read_split`.
        columns: see :func:`read_split`.
        config: see :func:`read_split`.

    Raises:
        DataError: if a file is missing.
    """
    _located(path, split, columns, config)


def _located(
    path: str | None, split: str, columns: Mapping[str, str], config: str | None
) -> tuple[list[Path] | dict[str, Path], Path] | None:
    """Return the files of a split and their common start; None for a data set of the hub."""
    if not columns:
        raise ConfigurationError("Expected argument `columns` to name a column per role but got none. Add one.")
    if path is None:
        if config is not None:
            raise ConfigurationError(f"Expected a `path` that contains `config` {config!r} but got none. Give `path`.")
        base = Path(split).expanduser()
    elif _is_local(path):
        folder = Path(path).expanduser()
        if not folder.is_dir():
            what = "is a file: give it as the split, without a path" if folder.is_file() else "does not exist"
            raise DataError(f"The folder {path!r} {what}.{in_folder(folder.parent, folder.name)}")
        base = (folder / config if config else folder) / Path(split).expanduser()
    else:
        return None
    if not split or not base.name:
        raise ConfigurationError(f"Expected argument `split` to name a split but got {split!r}. Give a name such as train.")
    return _find(base, columns), base


def _is_local(path: str) -> bool:
    return path.startswith((".", "/", "~", "\\")) or HUB_NAME.fullmatch(path) is None or Path(path).exists()


def _find(base: Path, columns: Mapping[str, str]) -> list[Path] | dict[str, Path]:
    """Return the table or its parts, or role -> parallel file, for a path without its ending."""
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


def _tables(base: Path) -> list[Path]:
    """Return the existing tables of a split; for a table in parts, the first part."""
    whole = [base.parent / (base.name + ending + packed) for ending in TABLES for packed in ("", ".gz")]
    tables = [path for path in whole if path.is_file()]
    part = re.compile(re.escape(base.name) + r"-0+-of-\d+(" + "|".join(map(re.escape, TABLES)) + r")(\.gz)?")
    for folder in (base.parent, base.parent / "data"):
        if folder.is_dir():
            tables += sorted(path for path in folder.iterdir() if part.fullmatch(path.name))
    return tables


def _parts(table: Path) -> list[Path]:
    """Return all parts of a table, given its first part."""
    numbered = re.search(r"-(0+)-of-(\d+)(?=\.)", table.name)
    if numbered is None:
        return [table]
    start, digits, count, end = table.name[: numbered.start()], len(numbered[1]), numbered[2], table.name[numbered.end() :]
    parts = []
    for number in range(int(count)):  # the count in the name may be wrong
        part = table.with_name(f"{start}-{number:0{digits}d}-of-{count}{end}")
        if not part.is_file():
            raise DataError(f"Expected all {count} parts of {table.name!r} but got no {str(part)!r}. Fetch it as well.")
        parts.append(part)
    return parts


def _parallel(base: Path, role: str, ending: str) -> list[Path]:
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


def _from_parallel(files: Mapping[str, Path], base: Path) -> dict[str, list[Any]]:
    read: dict[str, list[Any]] = {role: read_lines(path) for role, path in files.items()}
    counts = {path.name: len(read[role]) for role, path in files.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"Expected parallel files of equal length in {str(base.parent)!r} but got {listed}. Correct them.")
    if not all(counts.values()):
        raise DataError(f"Expected lines in {' and '.join(counts)} in {str(base.parent)!r} but got none. Fetch them again.")
    named = [(path.name, names) for path in files.values() if (names := segment_names(path))]
    for name, names in named[1:]:
        differing = (pair for pair in zip_longest(named[0][1], names, fillvalue=("no", "more")) if pair[0] != pair[1])
        for pair in differing:
            first, second = map(" ".join, pair)
            raise DataError(
                f"Expected equal documents and segments in {str(base.parent)!r} but got {first!r} in {named[0][0]} where"
                f" {name} has {second!r}. Sort them alike."
            )
    return read
