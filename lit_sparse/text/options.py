"""How a vocabulary is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lit_sparse.checks import check_choice
from lit_sparse.errors import ConfigurationError
from lit_sparse.text.tokenization import KINDS, Kind
from lit_sparse.text.vocabulary import Vocabulary, check_sizes

__all__ = ["VocabularyOptions"]


@dataclass(frozen=True)
class VocabularyOptions:
    """How a vocabulary is made from the training text.

    Attributes:
        kind: what a token is: ``"words"`` and punctuation marks; whatever stands between ``"spaces"``, for text that is
            tokenized already; the tokens of ``"moses"`` (extra ``text``); or pieces of words by byte-pair encoding, ``"bpe"``,
            which alone gives back every text to the letter: with words, where spaces stood is guessed from the marks.
        lowercase: whether text is lower-cased.
        max_size: largest number of tokens, special ones included, at most 10,000,000.
        min_count: how often a token must occur to be in the vocabulary; of pairs of pieces for ``"bpe"``.
        language: for ``"moses"``, a code of two letters.
        file: a vocabulary that was saved, in place of making one.

    Raises:
        ConfigurationError: for an unknown kind or a number below 1; and when it is made, for a file of another kind or case.
    """

    kind: Kind = "words"
    lowercase: bool = True
    max_size: int = 50_000
    min_count: int = 1
    language: str = "en"
    file: str | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_sizes(self.max_size, self.min_count)

    def make(self, lines: Iterable[str]) -> Vocabulary:
        """Return the vocabulary: that of the file, or one of the lines."""
        if self.file is not None:
            found = Vocabulary.load(self.file)
            for name, default in (("kind", "words"), ("lowercase", True)):
                asked, its = getattr(self, name), getattr(found, name)
                if asked not in (default, its):
                    raise ConfigurationError(
                        f"The vocabulary {self.file!r} has {name}={its!r}, not {asked!r}. Leave `{name}` out."
                    )
            return found
        return Vocabulary.build(
            lines,
            kind=self.kind,
            lowercase=self.lowercase,
            max_size=self.max_size,
            min_count=self.min_count,
            language=self.language,
        )
