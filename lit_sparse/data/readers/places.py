"""Files and folders by their names: local paths, and URLs of fsspec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, TypeAlias

from lit_sparse.errors import DataError, LitSparseError
from lit_sparse.ground.stored import open_plain

__all__ = ["Place", "Remote", "brief", "is_url", "open_file", "place_of", "reading"]

#: File systems that are inside of other files, which would choose what is opened or unpacked.
INSIDE = {"blockcache", "cached", "filecache", "generic", "libarchive", "reference", "simplecache", "tar", "zip"}


class Remote:
    """File or folder of an fsspec file system, with the methods of ``pathlib.Path`` that readers use.

    Args:
        files: the fsspec file system.
        path: path in it.
    """

    def __init__(self, files: Any, path: str) -> None:
        self._files, self._path = files, path.rstrip("/")
        self.name = PurePosixPath(self._path).name
        self.suffix = PurePosixPath(self._path).suffix

    def __str__(self) -> str:
        return str(self._files.unstrip_protocol(self._path))

    def __truediv__(self, name: object) -> Remote:
        return Remote(self._files, f"{self._path}/{name}")

    @property
    def parent(self) -> Remote:
        """The folder that contains this file or folder."""
        return Remote(self._files, self._path.rpartition("/")[0])

    def is_file(self) -> bool:
        """Return whether this path exists and is a file."""
        with _reached(self):
            return bool(self._files.isfile(self._path))

    def is_dir(self) -> bool:
        """Return whether this path exists and is a folder."""
        with _reached(self):
            return bool(self._files.isdir(self._path))

    def iterdir(self) -> Iterator[Remote]:
        """Yield the files and folders in this folder."""
        with _reached(self):
            found = self._files.ls(self._path, detail=False)
        return (Remote(self._files, str(path)) for path in found)

    def stat(self) -> Any:
        """Return the size in bytes; 0 if the server does not report it."""
        with _reached(self):
            return SimpleNamespace(st_size=self._files.size(self._path) or 0)

    def open(self) -> IO[bytes]:
        """Return an open stream of the file's bytes."""
        with _reached(self):
            return self._files.open(self._path, "rb")  # type: ignore[no-any-return]


Place: TypeAlias = Path | Remote


def is_url(name: str) -> bool:
    """Return whether a name is a URL and not a local path."""
    return "://" in name


def place_of(name: str | Place) -> Place:
    """Return a path object for a local path or a URL.

    Args:
        name: a local path, in which ``~`` is the home folder, or a URL of fsspec, such as ``s3://bucket/train.csv``.

    Raises:
        DataError: for a URL of an unknown protocol, or of a file inside another file.
    """
    if not isinstance(name, str):
        return name
    if not is_url(name):
        return Path(name).expanduser()
    protocol = name.partition("://")[0]
    if protocol == "file":
        return Path(name.removeprefix("file://")).expanduser()
    if "::" in name or protocol in INSIDE:
        raise DataError(
            f"Expected the URL of a file or a folder but got {name!r}, which points into another file. Unpack that file first."
        )
    with _reached(name):
        from fsspec.core import url_to_fs  # it comes with torch

        return Remote(*url_to_fs(name))


def open_file(place: Place) -> IO[bytes]:
    """Return an open stream of a file's bytes; see :func:`lit_sparse.ground.stored.open_plain`."""
    return open_plain(place) if isinstance(place, Path) else place.open()


@contextmanager
def _reached(place: object) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each file system raises its own: of a driver that is not installed, of a login
        raise DataError(
            f"{str(place)!r} cannot be reached ({type(error).__name__}: {brief(error)}). Check the URL, the login, and that the"
            " driver of fsspec for it is installed."
        ) from error


@contextmanager
def reading(what: str, remedy: str, *, named: bool = False) -> Iterator[None]:
    """Turn the errors of a library that reads a file into a DataError: a truncated or forged file may raise anything.

    Args:
        what: start of the message, such as ``"'a.parquet' cannot be read as a Parquet file"``.
        remedy: last sentence of the message.
        named: whether the message has the error's class, as for errors of a network.

    Raises:
        DataError: in place of any error from outside this package, but for missing packages and a lack of memory.
    """
    try:
        yield
    except (LitSparseError, ImportError, MemoryError, AssertionError):
        raise
    except Exception as error:
        reason = f" ({type(error).__name__}: {brief(error)})" if named else f": {brief(error)}"
        raise DataError(f"{what}{reason}. {remedy}") from error


def brief(error: Exception) -> str:
    """Return the first line of an error's message, shortened."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return first if len(first) <= 200 else f"{first[:200]} ..."
