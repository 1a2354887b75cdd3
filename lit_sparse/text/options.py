"""Options of vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import ClassVar

from lit_sparse.errors import ConfigurationError
from lit_sparse.text.tokenization import Kind
from lit_sparse.text.vocabulary import Vocabulary, check_sizes

__all__ = ["VocabularyOptions"]


@dataclass(frozen=True)
class VocabularyOptions:
    """Options of a vocabulary that is built from the training text.

    Attributes:
        kind: kind of tokens. ``"words"``: words and punctuation marks. ``"spaces"``: strings between spaces, for tokenized
            text. ``"moses"``: tokens of the Moses tokenizer (extra ``text``). ``"bpe"``: subwords from byte-pair
            encoding, the only kind that restores every text exactly; the others infer spaces from punctuation.
        lowercase: whether to lower-case text.
        max_size: maximum number of tokens, including special ones, at most 10,000,000.
        min_count: minimum count of a token in the text; for ``"bpe"``, of a pair of subwords.
        language: two-letter code for ``"moses"``.
        file: path of a saved vocabulary that is used instead; None to build one.

    Raises:
        ConfigurationError: for an unknown kind or a number below 1. :meth:`make` raises it for a file of another kind or
            case.
    """

    #: Whether a parameter of this type takes nothing else; a given vocabulary may stand in its place.
    exclusive: ClassVar[bool] = False

    kind: Kind = "words"
    lowercase: bool = True
    max_size: int = 50_000
    min_count: int = 1
    language: str = "en"
    file: str | None = None

    def __post_init__(self) -> None:
        check_sizes(self.max_size, self.min_count)

    def make(self, lines: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of the given file, or one that is built from the lines.

        Raises:
            ConfigurationError: if the file holds a vocabulary of another kind or case.
        """
        if self.file is not None:
            loaded = Vocabulary.load(self.file)
            for name, default in (("kind", "words"), ("lowercase", True)):
                expected, actual = getattr(self, name), getattr(loaded, name)
                if expected not in (default, actual):
                    raise ConfigurationError(
                        f"The vocabulary {self.file!r} has {name}={actual!r}, not {expected!r}. Leave `{name}` out."
                    )
            return loaded
        options = asdict(self)
        options.pop("file")
        return Vocabulary.build(lines, **options)
