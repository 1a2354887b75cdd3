"""Opens files of text, plain or gzipped, and reads their lines."""

from __future__ import annotations

import gzip
import html
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lit_sparse.errors import DataError, did_you_mean

__all__ = ["ending_of", "in_folder", "numbered_lines", "open_bytes", "read_lines"]

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
SGML = (".sgm", ".sgml")
SEGMENT = re.compile(r"<seg(?:\s[^>]*)?>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|\w+);")


def read_lines(path: Path | str) -> list[str]:
    r"""Return the lines of a text file in UTF-8, plain or gzipped.

    Lines end at ``\n`` alone, so that line i of one file still belongs to line i of another where a text holds a form feed,
    U+2028 or another character at which ``str.splitlines`` would part it. A ``\r`` before the end is dropped, a byte-order mark
    at the start of the file too; everything else is kept. Of ``.sgm`` and ``.sgml`` files, the format of the test sets of NIST
    and WMT, the texts of the ``<seg>`` elements come in their order, with entities resolved and white space collapsed.

    Args:
        path: the file.

    Raises:
        DataError: if the file is missing, no whole gzip file, not in UTF-8, or SGML without segments.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "poem.txt"
        ...     _ = path.write_bytes("\ufeffone\u2028line\r\nanother".encode())
        ...     read_lines(path)
        ['one\u2028line', 'another']
    """
    path = Path(path).expanduser()
    lines = [line for _, line in numbered_lines(path)]
    return _segments(path, "\n".join(lines)) if ending_of(path) in SGML else lines


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read its bytes, gunzipped where it is gzip.

    Raises:
        DataError: if it cannot be opened, or, later, is found to be no whole gzip file.
    """
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == GZIP:
                with io.BufferedReader(gzip.GzipFile(fileobj=file)) as unzipped:
                    yield unzipped
            elif path.suffix.lower() == ".gz":
                raise DataError(f"{str(path)!r} is no gzip file: it starts with {start!r}. Fetch it again, or rename it.")
            else:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is not a whole gzip file ({error}). Fetch it again.") from error
    except FileNotFoundError as error:
        raise DataError(f"There is no file {str(path)!r}.{in_folder(path.parent, path.name)}") from error
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error


def in_folder(folder: Path, name: str) -> str:
    """Say what a folder holds and which of it a mistyped name may have meant: the end of a message."""
    if not folder.is_dir():
        return f" There is no folder {str(folder)!r}."
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:  # what may be opened may not always be listed
        return ""
    if not names:
        return f" The folder {str(folder)!r} is empty."
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    likely = [*(start.split(".")[0] for start in names), *names]
    guess = "" if name in likely else did_you_mean(name, likely)
    return f" The folder {str(folder)!r} holds {', '.join(names[:12])}{more}.{guess}"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers from 1."""
    with open_bytes(path) as file:
        if file.read(3) != BOM:
            file.seek(0)
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{str(path)!r} is not in UTF-8: line {number} has the byte 0x{line[error.start]:02x} at place"
                    f" {error.start + 1}. Convert it, for example by iconv -t UTF-8."
                ) from error
            yield number, text.removesuffix("\n").removesuffix("\r")


def _segments(path: Path, text: str) -> list[str]:
    found = SEGMENT.findall(text)
    begun = len(re.findall(r"<seg(?=[\s>])", text, re.IGNORECASE))
    if not found or begun != len(found):
        raise DataError(f"Expected <seg> ... </seg> elements in {str(path)!r} but {begun} begin and {len(found)} end.")
    return [" ".join(ENTITY.sub(lambda entity: html.unescape(entity[0]), segment).split()) for segment in found]


def ending_of(path: Path) -> str:
    """Return the ending of a file's name, that of its content where it is gzipped."""
    path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return path.suffix.lower()
