"""Opens text files, plain or compressed with gzip or bzip2, and reads their lines."""

from __future__ import annotations

import bz2
import gzip
import html
import io
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from typing_extensions import Buffer

from lit_sparse.data.readers.places import Place, open_file, place_of
from lit_sparse.data.readers.sizes import BoundedReader
from lit_sparse.errors import DataError, did_you_mean

__all__ = ["ending_of", "existing", "in_folder", "lines_of", "numbered_lines", "open_bounded", "read_lines", "segment_names"]

#: Endings of compressed files, their first bytes, and their decompressors.
PACKED: dict[str, tuple[str, re.Pattern[bytes], Callable[[IO[bytes]], io.RawIOBase | io.BufferedIOBase]]] = {
    ".gz": ("gzip", re.compile(rb"\x1f\x8b"), lambda file: gzip.GzipFile(fileobj=file)),
    ".bz2": ("bzip2", re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), lambda file: _Bzip2(file)),
}
BOM = b"\xef\xbb\xbf"
SGML = (".sgm", ".sgml")
SEGMENT = re.compile(r"<(/?)seg(?:\s[^<>]*)?>", re.IGNORECASE)
#: Start of a document or segment with its name, by which test sets are aligned.
NAMED = re.compile(r"""<(doc|seg)\s(?:[^<>]*\s)?(?:doc)?id\s*=\s*["']?([^"'<>\s]*)""", re.IGNORECASE)
#: Start of a document or segment.
TAG = re.compile(r"<(doc|seg)(?:\s[^<>]*)?>", re.IGNORECASE)
#: An entity; one with more digits stands for no character, and stays as it is.
ENTITY = re.compile(r"&(?:#0*[0-9]{1,7}|#[xX]0*[0-9a-fA-F]{1,6}|\w+);")


def read_lines(path: Place | str) -> list[str]:
    r"""Return the lines of a text file in UTF-8, plain or compressed with gzip or bzip2.

    Lines end only at ``\n``, so that parallel files stay aligned. ``str.splitlines`` would also split at a form feed or
    U+2028. A ``\r`` before the end and a byte-order mark at the start of the file are dropped; all other characters are
    kept. In ``.sgm`` and ``.sgml`` files, the format of NIST and WMT test sets, the lines are the ``<seg>`` elements with
    entities resolved and white space collapsed.

    Args:
        path: path or URL of the file.

    Raises:
        DataError: if the file is missing, truncated, not in UTF-8, or SGML without segments.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "poem.txt"
        ...     _ = path.write_bytes("\ufeffone\u2028line\r\nanother".encode())
        ...     read_lines(path)
        ['one\u2028line', 'another']
    """
    return [*lines_of(place_of(path))]


def lines_of(path: Place) -> Generator[str, None, None]:
    """Yield the lines of a text file; see :func:`read_lines`."""
    with closing(numbered_lines(path)) as numbered:
        lines = (line for _, line in numbered)
        yield from _segments(path, "\n".join(lines)) if ending_of(path) in SGML else lines


def segment_names(path: Place) -> list[tuple[str, str]]:
    """Return the kinds of the elements of an SGML file in order, "doc" or "seg", with their names; none for other files."""
    if ending_of(path) not in SGML:
        return []
    return [(kind.lower(), name) for kind, name in NAMED.findall("\n".join(line for _, line in numbered_lines(path)))]


class _Bzip2(io.RawIOBase):
    """Bytes of the streams in a bzip2 file; anything after one must be another stream, while ``bz2.BZ2File`` would stop."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._stream = file, bz2.BZ2Decompressor()

    def readinto(self, buffer: Buffer) -> int:
        """Decompress into a buffer."""
        piece, room = b"", memoryview(buffer)
        while not piece:
            packed = self._stream.unused_data or (
                self._file.read(1 << 16) if self._stream.needs_input or self._stream.eof else b""
            )
            if self._stream.eof:
                if not packed:
                    return 0
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input and not packed:
                raise EOFError("it is truncated")
            try:
                piece = self._stream.decompress(packed, len(room))
            except OSError as error:  # not of the system
                raise EOFError(str(error)) from error
        room[: len(piece)] = piece
        return len(piece)


@contextmanager
def open_bounded(path: Place, *, strict: bool = True, lines: bool = False) -> Iterator[IO[bytes]]:
    """Return an open stream of a file's bytes from its start to its end, decompressed if it is gzip or bzip2.

    Args:
        path: path of the file.
        strict: whether a file ``.gz`` or ``.bz2`` must really be compressed that way.
        lines: whether it is text, the number of whose lines is bounded as well.

    Raises:
        DataError: if it cannot be opened or, while it is read, is truncated or implausibly large.
    """
    try:
        with open_file(path) as file:
            start = file.read(10)
            file.seek(0)
            for ending, (kind, magic, unpack) in PACKED.items():
                if magic.match(start):
                    with io.BufferedReader(BoundedReader(unpack(file), path, lines=lines), 1 << 16) as unpacked:
                        yield unpacked
                    return
                if strict and path.suffix.lower() == ending:
                    raise DataError(
                        f"{str(path)!r} is not a {kind} file: it starts with {start[:2]!r}. Fetch it again, or rename it."
                    )
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is not a complete {kind} file ({error}). Fetch it again.") from error
    except FileNotFoundError as error:
        raise DataError(f"There is no file {str(path)!r}.{in_folder(path.parent, path.name)}") from error
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror or error}. Check its permissions.") from error


def existing(name: str | Path, what: str) -> Path:
    """Return the path of a user's file after a check that it exists.

    Args:
        name: path of the file.
        what: content of the file, for the message.

    Raises:
        DataError: if there is no such file.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"There is no file of {what} {str(path)!r}.{in_folder(path.parent, path.name)}")
    return path


def in_folder(folder: Place, name: str) -> str:
    """Return the end of an error message: the content of a folder, with a suggestion for a mistyped name."""
    if not folder.is_dir():
        return f" There is no folder {str(folder)!r}."
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:  # a folder may be readable without being listable
        return ""
    if not names:
        return f" The folder {str(folder)!r} is empty."
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    likely = [*(start.split(".")[0] for start in names), *names]
    guess = "" if name in likely else did_you_mean(name, likely)
    return f" The folder {str(folder)!r} holds {', '.join(names[:12])}{more}.{guess}"


def numbered_lines(path: Place) -> Generator[tuple[int, str], None, None]:
    """Yield the lines of a text file with their numbers, from 1.

    Raises:
        DataError: if a line is not in UTF-8.
    """
    with open_bounded(path, lines=True) as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(BOM) if number == 1 else line
            if not line:  # of a file that is only a byte-order mark
                return
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{str(path)!r} is not in UTF-8: line {number} has the byte 0x{line[error.start]:02x} at position"
                    f" {error.start + 1}. Convert it, for example with iconv -t UTF-8."
                ) from error
            yield number, text.removesuffix("\n").removesuffix("\r")


def _segments(path: Place, text: str) -> list[str]:
    _, *parts = SEGMENT.split(text)  # in turn: a slash or nothing, and what follows the tag
    slashes, segments = parts[::2], parts[1::4]
    if not slashes or slashes != ["", "/"] * (len(slashes) // 2):
        ends = slashes.count("/")
        raise DataError(
            f"Expected <seg> ... </seg> elements in {str(path)!r} but got {len(slashes) - ends} starts and {ends} ends."
            " Fetch it again."
        )
    seen = set()
    document = ""
    for number, tag in enumerate(TAG.finditer(text)):
        named = NAMED.match(tag[0])
        if tag[1].lower() == "doc":
            document = named[2] if named else str(number)
        elif named and (document, named[2]) in seen:
            raise DataError(f"Expected different segments in {str(path)!r} but got {named[2]!r} twice. Fetch it again.")
        elif named:
            seen.add((document, named[2]))
    return [" ".join(ENTITY.sub(lambda entity: html.unescape(entity[0]), segment).split()) for segment in segments]


def ending_of(path: Place) -> str:
    """Return the extension of a file's name, ignoring the extension of a compression."""
    name = path.name.removesuffix(path.suffix) if path.suffix.lower() in PACKED else path.name
    return Path(name).suffix.lower()
