"""Finds the files of a split, a table or parallel text, or the split of a data set of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lit_sparse.data.readers.hub import from_hub
from lit_sparse.data.readers.tables import TABLES, from_tables
from lit_sparse.data.readers.text_files import SGML, ending_of, in_folder, read_lines
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["check_split", "read_split"]

#: What a name of the hub looks like.
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_split(
    path: str | None,
    split: str,
    columns: Mapping[str, str],
    *,
    config: str | None = None,
    optional: Collection[str] = (),
) -> dict[str, list[Any]]:
    """Return the columns of one split of a data set, as they are: text, numbers, lists.

    A split of a local folder is one of

    - a table ``{split}.jsonl``, ``.json`` (an array of objects, or one object a line), ``.csv``, ``.tsv`` or ``.parquet``, or
      its parts as the hub names them, ``{split}-00000-of-00002.parquet``, also in a folder ``data``;
    - parallel text ``{split}.{column}`` with one file for each column, such as ``train.de`` and ``train.en``;
    - test sets in SGML, ``{split}-src.{column}.sgm`` for the role ``source`` and ``{split}-ref.{column}.sgm`` for others.

    Text may be gzipped (``.gz``), parallel text may also end in ``.txt``. An empty cell of a ``.csv`` or ``.tsv`` file is a
    missing value; a column of which every cell is a number holds numbers; in a ``.tsv`` file quotation marks are characters.

    Args:
        path: a folder; or the name of a data set of the Hugging Face hub, where no folder of that name exists and it does not
            start with ``.``, ``/`` or ``~``; or None, where ``split`` is the path of a table or the start of those of
            parallel files.
        split: name of the split, with or without the ending of a table; of the hub's also such as ``train[:1000]``.
        columns: role -> column of a table, dotted for what is nested (``translation.de``), or ending of a parallel file.
        config: name of the hub data set's configuration; or a folder within the local one.
        optional: roles of which a row of a table may have no value, which is None then.

    Returns:
        Role -> values, as many for each role.

    Raises:
        ConfigurationError: if no column is asked for, or ``config`` is given without ``path``.
        DataError: if there is no such split or several, a column is missing or lacks a value, parallel files differ in
            length, or a file is not what its name says.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "dev.jsonl").write_text('{"title": "Rain", "stars": 4}')
        ...     read_split(folder, "dev", {"target": "title", "label": "stars"})
        {'target': ['Rain'], 'label': [4]}
    """
    found = _located(path, split, columns, config)
    if found is None:
        return from_hub(str(path), split, columns, config, optional)
    files, base = found
    return _from_parallel(files, base) if isinstance(files, dict) else from_tables(files, columns, optional)


def check_split(path: str | None, split: str, columns: Mapping[str, str], *, config: str | None = None) -> None:
    """Check that the files of a split are there, without reading them; of the hub's data sets nothing is checked.

    Args:
        path: see :func:`read_split`, as for the others.
        split: name of the split.
        columns: role -> column.
        config: name of a configuration, or a folder.

    Raises:
        DataError: if they are not.
    """
    _located(path, split, columns, config)


def _located(
    path: str | None, split: str, columns: Mapping[str, str], config: str | None
) -> tuple[list[Path] | dict[str, Path], Path] | None:
    """Return the files of a split and the path that they begin with; None for a data set of the hub."""
    if not columns:
        raise ConfigurationError("Expected argument `columns` to name a column for each role but it is empty.")
    if path is None:
        if config is not None:
            raise ConfigurationError(f"Expected `config` only beside a `path` in which {config!r} is.")
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
        raise ConfigurationError(f"Expected argument `split` to name a split, such as train, but got {split!r}.")
    return _find(base, columns), base


def _is_local(path: str) -> bool:
    return path.startswith((".", "/", "~", "\\")) or HUB_NAME.fullmatch(path) is None or Path(path).exists()


def _find(base: Path, columns: Mapping[str, str]) -> list[Path] | dict[str, Path]:
    """Return the table or its parts, or role -> parallel file, that a path without its ending means."""
    if base.is_file() and ending_of(base) in TABLES:
        return [base]
    tables = _tables(base)
    parallel = {role: _parallel(base, role, ending) for role, ending in columns.items()}
    complete = all(parallel.values())
    if len(tables) + complete > 1:
        listed = [*tables, *(files[0] for files in parallel.values() if complete)]
        names = ", ".join(dict.fromkeys(path.name for path in listed))
        raise DataError(f"{str(base)!r} could be each of {names}. Give the whole name of one, or put the others elsewhere.")
    if tables:
        return _parts(tables[0])
    for files in parallel.values():
        if len(files) > 1:
            names = " and ".join(path.name for path in files)
            raise DataError(f"Expected one file but found {names} in {str(base.parent)!r}. Put the others elsewhere.")
    if complete:
        return {role: files[0] for role, files in parallel.items()}
    wanted = {f"{base.name}.{columns[role]}": bool(files) for role, files in parallel.items()}
    if base.is_dir():
        reason = "It is a folder: give it as the path, and the split's name beside it."
    elif any(wanted.values()):
        reason = f"There is no {' and no '.join(name for name, there in wanted.items() if not there)}."
    else:
        table = f"{base.name}{{{','.join(TABLES)}}}"
        reason = f"There is neither a table {table} nor parallel text {' and '.join(wanted)}, plain or gzipped."
    raise DataError(f"The split {str(base)!r} was not found. {reason}{in_folder(base.parent, base.name)}")


def _tables(base: Path) -> list[Path]:
    """Return the tables of a split that there are; of one in parts the first part."""
    whole = [base.parent / (base.name + ending + packed) for ending in TABLES for packed in ("", ".gz")]
    found = [path for path in whole if path.is_file()]
    part = re.compile(re.escape(base.name) + r"-0+-of-\d+(" + "|".join(map(re.escape, TABLES)) + r")(\.gz)?")
    for folder in (base.parent, base.parent / "data"):
        if folder.is_dir():
            found += sorted(path for path in folder.iterdir() if part.fullmatch(path.name))
    return found


def _parts(table: Path) -> list[Path]:
    """Return all parts of a table whose first part, or only one, is given."""
    numbered = re.search(r"-(0+)-of-(\d+)(?=\.)", table.name)
    if numbered is None:
        return [table]
    start, digits, count, end = table.name[: numbered.start()], len(numbered[1]), numbered[2], table.name[numbered.end() :]
    parts = []
    for number in range(int(count)):  # which may be a number far beyond what there is
        part = table.with_name(f"{start}-{number:0{digits}d}-of-{count}{end}")
        if not part.is_file():
            raise DataError(f"{table.name!r} is one of {count} parts but there is no {str(part)!r}. Fetch it too.")
        parts.append(part)
    return parts


def _parallel(base: Path, role: str, ending: str) -> list[Path]:
    """Return the files that could be those of one role; the side of a test set in SGML is chosen by the role."""
    kinds = ("src", "ref") if role == "source" else ("ref", "src")
    stems = [[f"{base.name}.{ending}{form}" for form in ("", ".txt", *SGML)]]
    stems += [[f"{base.name}-{kind}.{ending}{form}" for form in SGML] for kind in kinds]
    for names in stems:
        paths = [base.parent / (name + packed) for name in names for packed in ("", ".gz")]
        found = [path for path in paths if path.is_file()]
        if found:
            return found
    return []


def _from_parallel(files: Mapping[str, Path], base: Path) -> dict[str, list[Any]]:
    read: dict[str, list[Any]] = {role: read_lines(path) for role, path in files.items()}
    counts = {path.name: len(read[role]) for role, path in files.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"Parallel files have as many lines each, but in {str(base.parent)!r} their numbers are {listed}.")
    if not all(counts.values()):
        raise DataError(f"{' and '.join(counts)} in {str(base.parent)!r} hold no lines.")
    return read
