"""Files that are replaced whole or appended to, through no link, and the files below a folder."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

from lit_sparse.errors import DISK_IS_FULL, ConfigurationError, cause_of

__all__ = [
    *("PART", "STATUS", "below", "make_folder", "matching", "not_plain", "open_to_append", "replaced", "result_file"),
    "user_cache",
]

#: Ending of the temporary files that :func:`replaced` writes.
PART = ".part"
#: File of a run folder that tells its state.
STATUS = "status.json"
#: Largest number of folders within each other.
DEEPEST = 100


def user_cache() -> Path | None:
    """Return this package's folder in the user's cache folder, or None without a home folder."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # the specification ignores relative paths
        return named / "lit_sparse"
    try:
        return Path.home() / ".cache" / "lit_sparse"
    except RuntimeError:
        return None


def open_to_append(path: Path) -> IO[str]:
    """Return a file opened to append text; links and pipes are refused.

    Raises:
        ConfigurationError: if it is a link, a pipe or not writable; the message names the file.
    """
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = open(path, "a", newline="", encoding="utf-8", opener=lambda name, mode: os.open(name, mode | flags, 0o666))  # noqa: SIM115
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise not_plain(path) from error
        raise
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        file.close()
        raise not_plain(path)
    return file


def not_plain(path: Path, expected: str = "plain file with one name") -> ConfigurationError:
    """Return the error for a path that is not of the expected kind."""
    found = "a link" if expected == "folder" else "a folder, a link, a pipe or a device"
    return ConfigurationError(f"Expected {str(path)!r} to be a {expected} but it is {found}. Remove it.")


def below(folder: Path, skipped: Collection[str] = ()) -> Iterator[Path]:
    """Yield all files, folders and links below a folder, without following links.

    Args:
        folder: the folder, which may be a link itself; nothing is below one that cannot be read.
        skipped: names of folders in it that are left out.

    Raises:
        ConfigurationError: if folders are nested too deeply, so that programs run out of stack or names become too long.
    """
    pending = [(folder, 0)]
    while pending:
        place, depth = pending.pop()
        if depth > DEEPEST:
            raise ConfigurationError(
                f"Expected at most {DEEPEST} folders within each other in {str(folder)!r} but got more. Remove them."
            )
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(place) as found:
            entries = [*found]
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not depth and entry.name in skipped:
                    continue
                pending.append((place / entry.name, depth + 1))
            yield place / entry.name


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return what is below a folder and matches a pattern of ``Path.glob``, without following links; see :func:`below`."""
    wanted = [part for part in pattern.split("/") if part not in ("", ".")]
    return [path for path in below(folder) if wanted and _fits(path.relative_to(folder).parts, wanted)]


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_fits(parts[start:], wanted[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it exists.

    Raises:
        ConfigurationError: if it, or a folder above it, is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"Expected {str(path)!r} to be a folder but it, or a folder above it, is a file. Choose another."
        ) from error


@contextmanager
def replaced(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Provide, within a context, a temporary file that replaces ``path`` once it is complete and on disk.

    The temporary file has a random name in the same folder and must be new, so a link that waits there is never followed.

    Args:
        path: file to write or replace.
        mode: ``"w"`` for text in UTF-8, ``"wb"`` for bytes.

    Raises:
        ConfigurationError: if a folder has the name of the file, a file the name of a folder above it, or no file can have it.
    """
    if "\0" in str(path):
        raise ConfigurationError(f"Expected the path of a file but got {str(path)!r}, with a null byte. Remove it.")
    if path.name in ("", ".."):
        raise ConfigurationError(f"Expected the path of a file but got the folder {str(path)!r}. Add the name of a file.")
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
    make_folder(path.parent)
    text = {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
    try:
        with part.open(mode.replace("w", "x"), **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        try:
            part.replace(path)
        except IsADirectoryError as error:
            raise not_plain(path) from error
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        full = cause_of(error, OSError) if isinstance(error, OSError) or type(error) is RuntimeError else None  # as torch's
        if full is None or full.errno not in DISK_IS_FULL:
            raise
        if full.filename in (None, str(part)):  # the system names no file when the disk is full
            full.filename = str(path)
        raise full from (None if full is error else error)
    if os.name == "posix":  # also synchronize the new name to the disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def result_file(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Provide, within a context, a file of results that the user names, as :func:`replaced` does; links and devices are kept.

    Raises:
        ConfigurationError: if it cannot be written.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(errno.EEXIST, "it is a link, a folder, a pipe or a device")
        with replaced(path, mode) as file:
            yield file
    except OSError as error:
        if error.filename is not None and Path(error.filename).parent != path.parent:  # of a file that the caller reads
            raise
        raise ConfigurationError(
            f"Expected to write {str(path)!r} but got: {error.strerror or error}. Choose another path."
        ) from error
