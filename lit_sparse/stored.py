"""Reads the files of runs, results and studies: plain ones of bounded size, whose content is checked before it is used."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import reprlib
import stat
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError

__all__ = ["check_members", "read_attention", "read_json", "read_metrics", "read_png", "read_table", "read_yaml"]

#: Largest file, and largest YAML file, whose parser is slow.
MAX_BYTES, MAX_YAML_BYTES = 2**26, 2**20
#: Largest number of cells of a table, and of values and levels of a YAML or JSON file.
MAX_CELLS, MAX_VALUES, MAX_DEPTH = 10**7, 100_000, 50
#: Largest finite number. Sums, squares and axes of larger ones overflow.
LARGEST = 1e100
INTEGER = re.compile(r"-?[0-9]{1,19}")
REPAIR, ORIGIN = "Correct or restore the file", "Check where the file comes from"
PNG = b"\x89PNG\r\n\x1a\n"
KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def read_bytes(path: Path, within: Path | None = None, limit: int = MAX_BYTES) -> bytes | None:
    """Return the content of a plain file, or None if there is none.

    Args:
        path: the file.
        within: folder below which symbolic links are refused, since the file's writer need not be its reader; None for a file
            that the user names.
        limit: largest number of bytes.

    Raises:
        ConfigurationError: if it is a link, a folder, a pipe or a device, too large, or not readable.
    """
    below = [] if within is None else [part for part in (path, *path.parents) if part != within and part.is_relative_to(within)]
    try:
        kind = stat.S_IFLNK if any(part.is_symlink() for part in below) else stat.S_IFMT(path.stat().st_mode)
        content = b""
        if kind == stat.S_IFREG:
            with path.open("rb") as file:
                content = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise _refusal(path, "readable data", got, "Check the name and the permissions") from error
    if kind != stat.S_IFREG:
        raise _refusal(path, "plain data", f"a {KINDS.get(kind, 'special file')}", "Put a plain file there, or remove it")
    if len(content) > limit:
        raise _refusal(path, f"at most {limit:,} bytes", "more", ORIGIN)
    return content


def read_text(path: Path, within: Path | None = None, limit: int = MAX_BYTES) -> str | None:
    """Return the text of a file in UTF-8, or None if there is none; see :func:`read_bytes`."""
    content = read_bytes(path, within, limit)
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"the byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise _refusal(path, "text in UTF-8", got, "Restore the file, or remove it") from error


def read_yaml(path: Path, within: Path | None = None) -> dict[Any, Any] | None:
    """Return the content of a YAML file of keys and values, or None if there is no file; see :func:`read_bytes`."""
    text = read_text(path, within, MAX_YAML_BYTES)
    if text is None:
        return None
    import yaml

    try:
        loader: Any = yaml.SafeLoader(text)
        if within is not None:  # without `<<`: some nested merges make a small file large, and configs of runs have none
            loader.flatten_mapping = lambda node: None
        content = loader.get_single_data()
    except Exception as error:  # constructors of PyYAML raise anything
        got = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            got = f"in line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        raise _refusal(path, "YAML", got, REPAIR) from error
    return _checked(path, content)


def read_json(path: Path, within: Path | None = None) -> dict[Any, Any] | None:
    """Return the object in a JSON file, or None if there is no file; see :func:`read_bytes`."""
    content = _parsed(path, within)
    return None if content is None else _checked(path, content[0])


def _parsed(path: Path, within: Path | None) -> tuple[Any] | None:
    text = read_text(path, within)
    try:
        return None if text is None else (json.loads(text),)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, "JSON", str(error), "Restore the file, or remove it") from error


def _checked(path: Path, content: Any) -> dict[Any, Any]:
    """Return a dictionary that is small enough to be compared and written, with aliases written out."""
    if not isinstance(content, dict):
        raise _refusal(path, "keys and values", type(content).__name__, REPAIR)
    pending: list[tuple[Any, int]] = [(content, 1)]
    values = 0
    while pending:
        value, depth = pending.pop()
        values += 1
        inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        pending += [(one, depth + 1) for one in inner]
        if depth > MAX_DEPTH or values + len(pending) > MAX_VALUES:
            expected = f"at most {MAX_VALUES:,} values and {MAX_DEPTH} levels, with aliases written out,"
            raise _refusal(path, expected, "more", ORIGIN)
        if isinstance(value, int) and value.bit_length() > 64:
            raise _refusal(path, "integers of at most 64 bits", "a longer one", REPAIR)
    return content


def read_table(
    path: Path,
    within: Path | None = None,
    *,
    needed: Collection[str] = (),
    integers: Collection[str] = (),
    numbers: Collection[str] | None = (),
    lists: Collection[str] = (),
) -> list[dict[str, str]]:
    """Return the rows of a CSV file; none if there is no file. A last line that a killed process left unfinished is dropped.

    Args:
        path: the file.
        within: see :func:`read_bytes`.
        needed: columns that it must have.
        integers: columns whose cells must be integers.
        numbers: columns whose cells must be empty or numbers; None for all.
        lists: columns of several numbers, separated by spaces.

    Raises:
        ConfigurationError: if it is not such a table, or see :func:`read_bytes`.
    """
    text = read_text(path, within) or ""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next((cells for cells in reader if cells), [])
        if odd := [name for name in header if not name.isprintable()]:
            raise _refusal(path, "column names of printable characters", reprlib.repr(odd[0]), REPAIR)
        if header and (missing := [name for name in needed if name not in header]):
            raise _refusal(path, f"the columns {', '.join(needed)}", f"none of the name {missing[0]!r}", REPAIR)
        checked = [place for place, name in enumerate(header) if numbers is None or name in numbers or name in lists]
        rows: list[dict[str, str]] = []
        for cells in filter(None, reader):
            where = f"in line {reader.line_num}"
            if len(cells) != len(header):
                if len(cells) < len(header) and text[-1] not in "\r\n" and next(reader, None) is None:
                    break
                raise _refusal(path, f"{len(header)} cells {where}", f"{len(cells)}", REPAIR)
            for place in checked:
                words = cells[place].split() if header[place] in lists else [cells[place]] if cells[place] else []
                if wrong := [word for word in words if not _is_number(word)]:
                    expected = f"numbers of at most {LARGEST:g} in column {header[place]!r} {where}"
                    raise _refusal(path, expected, reprlib.repr(wrong[0]), REPAIR)
            row = dict(zip(header, cells, strict=True))
            if wrong := [name for name in integers if not INTEGER.fullmatch(row.get(name, ""))]:
                raise _refusal(path, f"an integer as `{wrong[0]}` {where}", reprlib.repr(row.get(wrong[0], "")), REPAIR)
            rows.append(row)
            if len(rows) * len(header) > MAX_CELLS:
                raise _refusal(path, f"at most {MAX_CELLS:,} cells", "more", ORIGIN)
    except csv.Error as error:
        raise _refusal(path, "a table", f"in line {reader.line_num}: {error}", REPAIR) from error
    return rows


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return abs(value) <= LARGEST or not math.isfinite(value)


def read_metrics(folder: Path, within: Path | None = None) -> list[dict[str, float]]:
    """Return the lines of a ``metrics.csv``, without empty cells; none if there is no such file.

    Args:
        folder: folder of the file.
        within: see :func:`read_bytes`; by default the same folder.

    Raises:
        ConfigurationError: see :func:`read_table`.
    """
    path = folder / "metrics.csv"
    table = read_table(path, within or folder, numbers=None)
    lines = [{key: float(cell) for key, cell in row.items() if cell} for row in table]
    for line in lines:
        for key in ("epoch", "step"):
            if not math.isfinite(line.get(key, 0.0)):
                raise _refusal(path, f"finite numbers in column {key!r}", str(line[key]), REPAIR)
    return lines


def read_attention(path: Path, within: Path) -> dict[str, Any]:
    """Return the tokens and weights that ``AttentionPlot`` wrote.

    Raises:
        ConfigurationError: if the file has another content, or see :func:`read_bytes`.
    """
    content: Any = (_parsed(path, within) or (None,))[0]
    if not _is_attention(content):
        expected = "a title, lists `source` and `output` of words, and `heads` with a row of weights for each word of `output`"
        raise _refusal(path, expected, reprlib.repr(content), "Remove the file, or let AttentionPlot write it again")
    return dict(content)


def _is_attention(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("title"), str):
        return False
    source, output, heads = (content.get(key) for key in ("source", "output", "heads"))
    if not isinstance(source, list) or not isinstance(output, list) or not isinstance(heads, list):
        return False
    return all(isinstance(word, str) for word in (*source, *output)) and all(
        _has_length(head, output) and all(_has_length(row, source) and {*map(type, row)} <= {int, float} for row in head)
        for head in heads
    )


def _has_length(some: Any, of: list[Any]) -> bool:
    return isinstance(some, list) and len(some) == len(of)


def read_png(path: Path, within: Path) -> bytes:
    """Return the content of a PNG picture.

    Raises:
        ConfigurationError: if it is another file, or see :func:`read_bytes`.
    """
    content = read_bytes(path, within) or b""
    if not content.startswith(PNG):
        raise _refusal(path, "a PNG picture", reprlib.repr(content[:8]), "Remove the file, or draw it again")
    return content


def check_members(archive: zipfile.ZipFile) -> None:
    """Check the compression of an archive: bzip2 and LZMA make gigabytes of a few kilobytes in one call.

    Raises:
        zipfile.BadZipFile: for another method than none and deflate.
    """
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"{member.filename[:80]!r} in it is compressed by another method than deflate")


def _refusal(path: Path, expected: str, got: str, step: str) -> ConfigurationError:
    return ConfigurationError(f"Expected {expected} in {str(path)!r} but got {got[:300].rstrip('.')}. {step}.")
