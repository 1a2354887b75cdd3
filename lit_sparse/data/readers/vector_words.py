"""The words that a file of word vectors has, for vocabularies that go beyond the training text."""

from __future__ import annotations

from pathlib import Path

from lit_sparse.data.readers.word_vectors import _carried, _from_arrays, _from_cache, _from_text, _Wanted, read_vectors

__all__ = ["read_words"]


def read_words(path: str, width: int | None = None) -> list[str]:
    r"""Return the words of a file of word vectors in its order, which is by frequency in published ones, each of them once.

    Args:
        path: whatever :func:`read_vectors` takes.
        width: the width that is expected; None for any.

    Raises:
        DataError: as :func:`read_vectors`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "some.txt"
        ...     _ = file.write_text("the 0.5 -1\ncat 2 0.25\nthe 1 1")
        ...     read_words(str(file))
        ['the', 'cat']
    """
    listed = _Listed(width)
    file = Path(path).expanduser()
    if file.is_file():
        (_from_cache if file.suffix == ".pt" else _from_text)(file, listed)
    elif (carried := _carried(path)) is not None:
        _from_arrays(*carried, listed)
    else:
        read_vectors(path, ())  # which says what is wrong
    return [word for word in (_text(word) for word in listed.words) if word is not None]


def _text(word: bytes) -> str | None:
    """Return a word as text, or None for one that is not in UTF-8, which no text contains."""
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        return None


class _Listed(_Wanted):
    """Takes down every word, and no vector."""

    def __init__(self, width: int | None) -> None:
        super().__init__((), width)
        self.words: dict[bytes, None] = {}

    def takers(self, word: bytes) -> list[tuple[int, int]]:
        self.words.setdefault(word)
        return []
