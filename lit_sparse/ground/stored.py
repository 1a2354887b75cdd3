"""Reads plain files of bounded size, whose content is checked before it is used: bytes, text, YAML, JSON and tables."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import reprlib
import stat
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from lit_sparse.errors import ConfigurationError

__all__ = [
    *("ALWAYS", "LARGEST", "MAX_YAML_BYTES", "ORIGIN", "RATIO", "REPAIR", "NotPlainError", "check_members", "is_file"),
    *("largest_unpacked", "open_inside", "open_plain", "parse_json", "read_bytes", "read_json", "read_table", "read_text"),
    *("read_yaml", "refusal", "unique_keys"),
]

#: Largest file, and largest YAML file, whose parser is slow.
MAX_BYTES, MAX_YAML_BYTES = 2**26, 2**20
#: Number of bytes that any file may unpack to, and the largest ratio beyond that; holes count as packed. Text and images
#: reach ratios of 5 to 30; the limit of deflate is 1032.
ALWAYS, RATIO = 2**28, 250
#: Largest number of cells of a table, and of values and levels of a YAML or JSON file.
MAX_CELLS, MAX_VALUES, MAX_DEPTH = 10**7, 100_000, 50
#: Number of cells that take the memory of a row beside its cells.
CELLS_OF_ROW = 4
TOO_MANY = f"more than {MAX_VALUES:,} values or {MAX_DEPTH} levels, with aliases written out"
#: Largest finite number. Sums, squares and axes of larger ones overflow.
LARGEST = 1e100
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # in one spelling
#: A number as programs write it; Python's ``float`` also takes digits of other scripts, underscores and spaces.
NUMBER = re.compile(r"[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|inf|nan)")
REPAIR, ORIGIN = "Correct or restore the file", "Check where the file comes from"
KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class NotPlainError(OSError):
    """Error for a link, folder, pipe or device in place of a plain file; ``kind`` names it."""

    def __init__(self, mode: int) -> None:
        self.kind = KINDS.get(stat.S_IFMT(mode), "special file")
        super().__init__(errno.EINVAL, f"it is a {self.kind} and not a plain file")


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; also for names that the system refuses, such as a long one."""
    return os.path.isfile(path)  # noqa: PTH113


def open_plain(path: str | Path, within: Path | None = None, buffering: int = -1) -> IO[bytes]:
    """Return a plain file opened to read bytes, checked after opening so that it cannot be replaced in between.

    Args:
        path: path of the file.
        within: folder below which symbolic links are refused, for files written by someone else; None for a file that the
            user names.
        buffering: as in ``open``.

    Raises:
        NotPlainError: if it is not a plain file.
        OSError: if it does not exist, has a name that no file has, cannot be read, or consists of holes: a small file that
            looks large.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a null byte")
    descriptor = _opened(Path(path), within)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPlainError(found.st_mode)
        on_disk = 512 * getattr(found, "st_blocks", found.st_size)
        if found.st_size > largest_unpacked(on_disk) and os.lseek(descriptor, 0, os.SEEK_HOLE) < found.st_size:
            raise OSError(errno.EINVAL, f"nearly all of its {found.st_size:,} bytes are holes, which take no space on the disk")
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.fdopen(descriptor, "rb", buffering)
    except OSError:
        os.close(descriptor)
        raise


def open_inside(path: Path, folder: Path) -> IO[bytes]:
    """Return a plain file in a folder opened to read bytes; links within the folder are followed.

    Raises:
        NotPlainError: if a link leads out of the folder, or it is not a plain file.
    """
    real, root = path.resolve(), folder.resolve()
    if not real.is_relative_to(root):
        raise NotPlainError(stat.S_IFLNK)
    return open_plain(real, root)


def _opened(path: Path, within: Path | None) -> int:
    """Return the descriptor of a file, which may still be of any kind; a pipe does not block."""
    inner = path.relative_to(within).parts if within is not None and path.is_relative_to(within) else ()
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if within is None or not inner or os.open not in os.supports_dir_fd:
        if any(path.parents[place].joinpath(part).is_symlink() for place, part in enumerate(reversed(inner))):
            raise NotPlainError(stat.S_IFLNK)
        if not stat.S_ISREG(mode := path.stat().st_mode):  # opening a device may act
            raise NotPlainError(mode)
        return os.open(path, flags)
    descriptor = os.open(within, flags)
    for part in inner:
        above = descriptor
        try:
            descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPlainError(stat.S_IFLNK) from error
            raise
        finally:
            os.close(above)
    return descriptor


def read_bytes(path: Path, within: Path | None = None, limit: int | None = MAX_BYTES) -> bytes | None:
    """Return the bytes of a plain file, or None if it does not exist.

    Args:
        path: path of the file.
        within: see :func:`open_plain`.
        limit: maximum number of bytes; None for no limit.

    Raises:
        ConfigurationError: if it is a link, a folder, a pipe or a device, too large, or not readable.
    """
    try:
        with open_plain(path, within) as file:
            content = file.read(-1 if limit is None else limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except NotPlainError as error:
        raise refusal(path, "plain data", f"a {error.kind}", "Put a plain file there, or remove it") from error
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise refusal(path, "readable data", got, "Check the name and the permissions") from error
    if limit is not None and len(content) > limit:
        raise refusal(path, f"at most {limit:,} bytes", "more", ORIGIN)
    return content


def read_text(path: Path, within: Path | None = None, limit: int | None = MAX_BYTES) -> str | None:
    """Return the text of a UTF-8 file, or None if it does not exist; see :func:`read_bytes`."""
    content = read_bytes(path, within, limit)
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"the byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise refusal(path, "text in UTF-8", got, "Restore the file, or remove it") from error


def read_yaml(path: Path, within: Path | None = None) -> dict[Any, Any] | None:
    """Return the dict in a YAML file, or None if the file does not exist.

    Args:
        path: path of the file.
        within: see :func:`open_plain`; None for a file that the user names, which may be of any size.

    Raises:
        ConfigurationError: if it has other content, or cannot be read; see :func:`read_bytes`.
    """
    text = read_text(path, within, MAX_YAML_BYTES if within is not None else None)
    if text is None:
        return None
    from lit_sparse.ground import yaml_loaders  # PyYAML is not installed with layers alone

    try:
        loader = yaml_loaders.Loader(text)
        if within is not None:
            loader = yaml_loaders.StoredLoader(text, (MAX_VALUES, MAX_DEPTH), TOO_MANY)
        content = loader.get_single_data()
    except Exception as error:  # constructors of PyYAML raise anything
        got = " ".join(str(error).split())
        if (mark := getattr(error, "problem_mark", None)) is not None:
            got = f"in line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', got)}"
        raise refusal(path, "YAML", got, REPAIR) from error
    return _mapping(path, content) if within is None else _checked(path, content)


def read_json(path: Path, within: Path | None = None) -> dict[Any, Any] | None:
    """Return the dict in a JSON file, or None if the file does not exist; see :func:`read_bytes`."""
    content = parse_json(path, within)
    return None if content is None else _checked(path, content[0])


def parse_json(path: Path, within: Path | None) -> tuple[Any] | None:
    """Return the value in a JSON file as a tuple of one entry, or None if the file does not exist; see :func:`read_bytes`."""
    text = read_text(path, within)
    try:
        return None if text is None else (json.loads(text, object_pairs_hook=unique_keys),)
    except (ValueError, RecursionError) as error:
        raise refusal(path, "JSON", str(error), "Restore the file, or remove it") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of a JSON object's pairs, in which no key may occur twice.

    Raises:
        ValueError: if a key occurs twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice in an object with {reprlib.repr([*found])}")
    return found


def _mapping(path: Path, content: Any) -> dict[Any, Any]:
    if not isinstance(content, dict):
        raise refusal(path, "keys and values", type(content).__name__, REPAIR)
    return content


def _checked(path: Path, content: Any) -> dict[Any, Any]:
    """Return a dictionary that is small enough to be compared and written, with aliases written out."""
    checked = _mapping(path, content)
    pending: list[tuple[Any, int]] = [(checked, 1)]
    values = 0
    while pending:
        value, depth = pending.pop()
        values += 1
        inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        pending += [(one, depth + 1) for one in inner]
        if depth > MAX_DEPTH or values + len(pending) > MAX_VALUES:
            raise refusal(path, f"no {TOO_MANY}", "them", ORIGIN)
        if isinstance(value, int) and value.bit_length() > 64:
            raise refusal(path, "integers of at most 64 bits", "a longer one", REPAIR)
    return checked


def read_table(
    path: Path,
    within: Path | None = None,
    *,
    needed: Collection[str] = (),
    filled: Collection[str] = (),
    integers: Collection[str] = (),
    numbers: Collection[str] | None = (),
    lists: Collection[str] = (),
) -> list[dict[str, str]]:
    """Return the rows of a CSV file as dicts; none if the file does not exist.

    A last line that an interrupted process left unfinished is dropped.

    Args:
        path: path of the file.
        within: see :func:`read_bytes`.
        needed: columns that the table must have.
        integers: columns whose cells must be integers.
        numbers: columns whose cells must be empty or numbers; None for all.
        filled: columns of numbers without empty cells.
        lists: columns whose cells hold several numbers, separated by spaces.

    Raises:
        ConfigurationError: if it is not such a table, or cannot be read; see :func:`read_bytes`.
    """
    text = read_text(path, within) or ""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    begun, cut = 0, text[-1:] not in ("", "\r", "\n")
    try:
        header = next((cells for cells in reader if cells), [])
        if odd := [name for name in header if not name.isprintable()]:
            raise refusal(path, "column names of printable characters", reprlib.repr(odd[0]), REPAIR)
        if len({*header}) < len(header):
            raise refusal(path, "unique columns", reprlib.repr(", ".join(header)), REPAIR)
        if header and (missing := [name for name in needed if name not in header]):
            raise refusal(path, f"the columns {', '.join(needed)}", f"none named {missing[0]!r}", REPAIR)
        checked = [place for place, name in enumerate(header) if numbers is None or name in numbers or name in lists]
        rows: list[dict[str, str]] = []
        for cells in filter(None, reader):
            begun, where = reader.line_num, f"in line {reader.line_num}"
            if len(cells) != len(header):
                if len(cells) < len(header) and cut and next(reader, None) is None:
                    break
                raise refusal(path, f"{len(header)} cells {where}", f"{len(cells)}", REPAIR)
            for place in (it for it in checked if cells[it] or header[it] in filled):
                for word in cells[place].split() if header[place] in lists else (cells[place],):
                    if not _is_number(word):
                        expected = f"numbers of at most {LARGEST:g} in column {header[place]!r} {where}"
                        raise refusal(path, expected, reprlib.repr(word), REPAIR)
            row = dict(zip(header, cells, strict=True))
            if wrong := [name for name in integers if not INTEGER.fullmatch(row.get(name, ""))]:
                raise refusal(path, f"an integer as `{wrong[0]}` {where}", reprlib.repr(row.get(wrong[0], "")), REPAIR)
            rows.append(row)
            if len(rows) * (len(header) + CELLS_OF_ROW) > MAX_CELLS:
                raise refusal(path, f"at most {MAX_CELLS:,} cells", "more", ORIGIN)
    except csv.Error as error:
        if not cut or not 0 < begun == reader.line_num - 1:
            raise refusal(path, "a table", f"in line {reader.line_num}: {error}", REPAIR) from error
    return rows


def _is_number(text: str) -> bool:
    if not NUMBER.fullmatch(text):
        return False
    return abs(value := float(text)) <= LARGEST or not math.isfinite(value)


def largest_unpacked(packed: int) -> int:
    """Return the largest plausible number of bytes to which a file with so many bytes decompresses."""
    return max(ALWAYS, RATIO * packed)


def check_members(archive: zipfile.ZipFile) -> None:
    """Check that an archive has no repeated names, and no compression that turns kilobytes into gigabytes.

    Raises:
        zipfile.BadZipFile: for a repeated name, or a compression method other than none and deflate.
    """
    if len(archive.NameToInfo) < len(archive.infolist()):
        raise zipfile.BadZipFile("two of its members have the same name")
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"{member.filename[:80]!r} in it is compressed with a method other than deflate")


def refusal(path: Path, expected: str, got: str, step: str) -> ConfigurationError:
    """Return an error about a file that says what was expected, what it has, and the next step."""
    return ConfigurationError(f"Expected {expected} in {str(path)!r} but got {got[:300].rstrip('.')}. {step}.")
