"""Vocabularies, which convert text to token numbers and back."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, trainers

from lit_sparse.checks import check_choice, check_count, check_integer
from lit_sparse.errors import ConfigurationError, DataError, full_name, needs_extra
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import open_plain, unique_keys
from lit_sparse.text.tokenization import KINDS, Kind, join_words, kind_of, make_tokenizer, with_breaks
from lit_sparse.text.tokenizer_json import guarded, tokenizer_of

__all__ = ["BOS", "EOS", "PAD", "UNK", "Vocabulary", "check_sizes"]

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIALS = (PAD, BOS, EOS, UNK)
#: Names of the special tokens in other projects.
SYNONYMS = {PAD: ("<blank>", "[PAD]"), BOS: ("<sos>", "<s>", "[BOS]"), EOS: ("</s>", "[EOS]"), UNK: ("[UNK]", "UNK")}
#: Largest ``max_size``, for which memory is allocated in advance, and largest ``min_count``.
LARGEST, OFTENEST = 10_000_000, 2**31


class Vocabulary:
    """Vocabulary with its tokenizer, which converts text to token ids and back.

    In built vocabularies, the tokens 0 to 3 are ``<pad> <bos> <eos> <unk>``. Methods are named as in
    ``torchtext.vocab.Vocab``. Text is tokenized by the ``tokenizers`` package, in threads, or by ``sacremoses`` for the
    kind ``"moses"``.

    Args:
        tokenizer: tokenizer that has the four special tokens.
        kind: see :class:`VocabularyOptions`.
        language: language of the Moses tokenizer.

    Raises:
        DataError: if a special token is missing.

    Example:
        >>> vocabulary = Vocabulary.build(["A dog runs.", "A cat sleeps."])
        >>> vocabulary.lookup_tokens(vocabulary.encode(["a dog sleeps"])[0])
        ['a', 'dog', 'sleeps']
        >>> vocabulary.decode(vocabulary.encode(["A dog runs."])[0])
        'a dog runs.'
        >>> Vocabulary.from_json(vocabulary.to_json()) == vocabulary
        True
    """

    def __init__(self, tokenizer: Tokenizer, kind: Kind = "words", language: str = "en") -> None:
        self.kind = check_choice("kind", kind, KINDS)
        self.language = language
        if kind == "bpe" and tokenizer.decoder is None:
            raise DataError("Expected a tokenizer with a decoder for the kind 'bpe' but got none. Choose another kind.")
        self._tokenizer = tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        stoi = tokenizer.get_vocab()
        self._itos = [token for token, _ in sorted(stoi.items(), key=lambda item: item[1])]
        if list(range(len(stoi))) != sorted(stoi.values()):
            raise DataError(f"Expected the numbers of the {len(stoi)} tokens to be 0 .. {len(stoi) - 1}, each of them once.")
        missing = [token for token in SPECIALS if token not in stoi]
        if missing:
            raise DataError(f"Expected a vocabulary with the tokens {' '.join(SPECIALS)} but {' '.join(missing)} is missing.")
        unknown = getattr(tokenizer.model, "unk_token", None)
        if unknown is not None and unknown not in stoi:
            raise DataError(f"Expected a vocabulary with its token for unknown words, {unknown!r}, but it is missing.")
        self.pad, self.bos, self.eos, self.unk = (stoi[token] for token in SPECIALS)
        self._stoi = stoi
        self._default: int | None = self.unk

    @classmethod
    def build(
        cls,
        lines: Iterable[str],
        *,
        kind: Kind = "words",
        lowercase: bool = True,
        max_size: int = 50_000,
        min_count: int = 1,
        language: str = "en",
    ) -> Vocabulary:
        """Return a vocabulary of the most frequent tokens of a text; equal counts are ordered alphabetically.

        Args:
            lines: lines of text.
            kind: see :class:`VocabularyOptions`.
            lowercase: whether to lower-case text.
            max_size: maximum number of tokens, including special ones.
            min_count: minimum count of a token.
            language: language of the Moses tokenizer.

        Raises:
            ConfigurationError: for a size outside its range, or a count that leaves no token.
        """
        _check_many("lines", lines)
        check_sizes(max_size, min_count)
        if check_choice("kind", kind, KINDS) == "bpe":
            tokenizer = make_tokenizer(models.BPE(unk_token=UNK, fuse_unk=False), kind, lowercase)
            trainer = trainers.BpeTrainer(
                vocab_size=max_size,
                min_frequency=max(2, min_count),
                special_tokens=list(SPECIALS),
                limit_alphabet=max_size - len(SPECIALS),
                show_progress=False,
            )
            with guarded("The lines cannot be tokenized"):
                tokenizer.train_from_iterator(map(with_breaks, lines), trainer)
            return cls(tokenizer, kind, language)
        empty = cls.from_tokens(SPECIALS, kind=kind, lowercase=lowercase, language=language)
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(empty.tokenize(line))
        ranked = sorted(((count, token) for token, count in counts.items() if count >= min_count), key=lambda x: (-x[0], x[1]))
        tokens = [token for _, token in ranked if token not in SPECIALS]
        if counts and not ranked:
            raise ConfigurationError(
                f"Expected argument `min_count` to leave some tokens but got {min_count}: the most frequent one occurs"
                f" {max(counts.values())} times. Choose a smaller one."
            )
        return cls.from_tokens([*SPECIALS, *tokens][:max_size], kind=kind, lowercase=lowercase, language=language)

    @classmethod
    def from_tokens(
        cls, tokens: Sequence[str], *, kind: Kind = "spaces", lowercase: bool = False, language: str = "en"
    ) -> Vocabulary:
        """Return a vocabulary of whole tokens in a given order; missing special tokens are appended.

        Args:
            tokens: distinct tokens; the id of a token is its position.
            kind: see :class:`VocabularyOptions`.
            lowercase: whether to lower-case text.
            language: language of the Moses tokenizer.

        Raises:
            DataError: if a token is there twice.
            ConfigurationError: for tokens that are not texts.
        """
        known = _texts("tokens", tokens)
        twice = [token for token, count in Counter(known).items() if count > 1]
        if twice:
            raise DataError(f"Expected every token once but {twice[0]!r} occurs {Counter(known)[twice[0]]} times.")
        for special, names in SYNONYMS.items():
            if special in known:
                continue
            found = [name for name in names if name in known]
            if found:
                known[known.index(found[0])] = special
            else:
                known.append(special)
        stoi = {token: number for number, token in enumerate(known)}
        return cls(make_tokenizer(models.WordLevel(stoi, UNK), kind, lowercase), kind, language)

    @classmethod
    def of(cls, source: Any) -> Vocabulary:
        """Return a vocabulary unchanged, or one made from a ``torchtext.vocab.Vocab``, which splits text at spaces.

        Raises:
            ConfigurationError: if the argument is neither.
        """
        if isinstance(source, Vocabulary):
            return source
        if not callable(getattr(source, "get_itos", None)):
            raise ConfigurationError(
                f"Expected a Vocabulary, VocabularyOptions or a torchtext.vocab.Vocab but got {type(source).__name__}."
            )
        tokens = list(source.get_itos())
        default = source.get_default_index() if hasattr(source, "get_default_index") else None
        if default is not None and UNK not in tokens and default >= 0:
            tokens[default] = UNK
        return cls.from_tokens(tokens)

    @property
    def lowercase(self) -> bool:
        """Whether text is lower-cased before it is tokenized."""
        return '"Lowercase"' in json.dumps(json.loads(self._tokenizer.to_str())["normalizer"])

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line's tokens, without ``<bos>`` and ``<eos>``."""
        _check_many("lines", lines)
        if self.kind == "moses":
            lines = [_moses(self.language)[0].tokenize(line, return_str=True, escape=False) for line in lines]
        with guarded("The lines cannot be encoded"):
            encoded = [found.ids for found in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]
        for row, line in enumerate(lines):
            if "<" in line:  # text does not say where a sequence ends
                encoded[row] = [self.unk if i in (self.pad, self.bos, self.eos) else i for i in encoded[row]]
        return encoded

    def tokenize(self, line: str) -> list[str]:
        """Return the tokens of a line, including those that are not in the vocabulary."""
        if self.kind == "moses":
            line = _moses(self.language)[0].tokenize(line, return_str=True, escape=False)
        with guarded("The line cannot be tokenized"):
            if self.kind == "bpe":
                found = self._tokenizer.encode(line, add_special_tokens=False)
                pieces = zip(found.ids, found.tokens, found.offsets, strict=True)
                return [line[start:end] if number == self.unk else token for number, token, (start, end) in pieces]
            normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer  # a foreign one may have none
            normal = line if normalizer is None else normalizer.normalize_str(line)
            return [normal] if splitter is None else [token for token, _ in splitter.pre_tokenize_str(normal)]

    def decode(self, indices: Sequence[int]) -> str:
        """Return the text of some token ids, up to the first ``<eos>``; ``<pad>`` and ``<bos>`` are left out."""
        _check_many("indices", indices)
        kept: list[int] = []
        for index in indices:
            number = check_integer("indices", index)
            if number == self.eos:
                break
            if number not in (self.pad, self.bos):
                kept.append(number)
        return self.join(self.lookup_tokens(kept))

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of a list of tokens."""
        tokens = _texts("tokens", tokens)
        if self.kind == "bpe":
            with guarded("The tokens cannot be decoded"):
                text: str = self._tokenizer.decoder.decode(tokens)
            return text.strip()
        if self.kind == "moses":
            return str(_moses(self.language)[1].detokenize(tokens))
        return join_words(tokens) if self.kind == "words" else " ".join(tokens)

    def get_itos(self) -> list[str]:
        """Return all tokens, ordered by id."""
        return list(self._itos)

    def get_stoi(self) -> dict[str, int]:
        """Return a dict of all tokens and their ids."""
        return dict(self._stoi)

    def lookup_token(self, index: int) -> str:
        """Return the token with an id.

        Raises:
            DataError: if there is none.
            ConfigurationError: if it is no integer.
        """
        if not 0 <= check_integer("index", index) < len(self._itos):
            raise DataError(f"Expected the number of a token, 0 .. {len(self._itos) - 1}, but got {index}.")
        return self._itos[index]

    def lookup_tokens(self, indices: Iterable[int]) -> list[str]:
        """Return the tokens with some ids."""
        _check_many("indices", indices)
        return [self.lookup_token(index) for index in indices]

    def lookup_indices(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of some tokens; the default id for tokens that are not in the vocabulary."""
        _check_many("tokens", tokens)
        return [self[token] for token in tokens]

    def set_default_index(self, index: int | None) -> None:
        """Set the id that :meth:`lookup_indices` returns for unknown tokens; initially ``<unk>``, None for an error."""
        if index is not None:
            self.lookup_token(index)
        self._default = index

    def get_default_index(self) -> int | None:
        """Return the id that :meth:`lookup_indices` returns for unknown tokens."""
        return self._default

    def to_json(self) -> str:
        """Return the vocabulary with its tokenizer as JSON text, for :meth:`from_json`."""
        return json.dumps({"kind": self.kind, "language": self.language, "tokenizer": json.loads(self._tokenizer.to_str())})

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Return the vocabulary of a text written by :meth:`to_json`, or of a ``tokenizer.json``.

        Raises:
            DataError: if the text is neither.
        """
        try:
            described = json.loads(text, object_pairs_hook=unique_keys)
            ours = "tokenizer" in described
            tokenizer = tokenizer_of(described["tokenizer"] if ours else described)
            kind, language = (described["kind"], described["language"]) if ours else (kind_of(tokenizer), "en")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise DataError(f"This is not a vocabulary: {what}") from error
        if kind not in KINDS:
            raise DataError(f"Expected the kind of a vocabulary to be one of {', '.join(KINDS)} but got {kind!r}.")
        if not isinstance(language, str) or not re.fullmatch(r"[A-Za-z]{1,8}([-_][A-Za-z0-9]{1,8})*", language):  # names a file
            raise DataError(f"Expected the language of a vocabulary to be a code such as 'en' but got {language!r}.")
        return cls(tokenizer, kind, language)

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a file, for :meth:`load`."""
        with replaced(Path(path), "w") as file:
            file.write(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Return the vocabulary in a file written by :meth:`save`, or in a ``tokenizer.json``.

        Raises:
            DataError: if the file does not exist or is not a vocabulary.
        """
        path = Path(path).expanduser()
        if not path.is_file():
            raise DataError(f"There is no vocabulary {str(path)!r}.")
        try:
            with open_plain(path) as file:
                return cls.from_json(file.read().decode())
        except (DataError, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{str(path)!r} cannot be read as a vocabulary: {error}") from error

    def __len__(self) -> int:
        return len(self._itos)

    def __contains__(self, token: object) -> bool:
        return token in self._stoi

    def __getitem__(self, token: str) -> int:
        if not isinstance(token, str):
            raise ConfigurationError(f"Expected a token, which is a text, but got {full_name(token)}.")
        index = self._stoi.get(token, self._default)
        if index is None:
            raise DataError(f"The token {token!r} is not in the vocabulary, and no default index is set.")
        return index

    def __call__(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of some tokens, as :meth:`lookup_indices` does."""
        return self.lookup_indices(tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self._itos)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((len(self._itos), self.kind))

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens, kind={self.kind!r}, lowercase={self.lowercase})"


@lru_cache(maxsize=16)  # not an attribute, because vocabularies are copied and pickled
def _moses(language: str) -> tuple[Any, Any]:
    """Return the Moses tokenizer and detokenizer of a language."""
    with needs_extra("text", "The tokens of Moses"):
        from sacremoses import MosesDetokenizer, MosesTokenizer
    return MosesTokenizer(lang=language), MosesDetokenizer(lang=language)


def _check_many(name: str, texts: Iterable[Any]) -> None:
    """Check that an argument is a sequence of texts, and not a single text.

    Raises:
        ConfigurationError: if it is a single text.
    """
    if isinstance(texts, str):
        raise ConfigurationError(f"Expected `{name}` to be a list of texts but got one text: write [{texts[:20]!r}].")
    if not isinstance(texts, Iterable):
        raise ConfigurationError(f"Expected `{name}` to be a list but got {full_name(texts)}.")


def _texts(name: str, values: Iterable[Any]) -> list[str]:
    """Return an argument as a list after checking that its values are texts.

    Raises:
        ConfigurationError: if it is a single text, or a value is no text.
    """
    _check_many(name, values)
    texts = list(values)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ConfigurationError(f"Expected `{name}` to be texts but got {wrong[0]!r}.")
    return texts


def check_sizes(max_size: int, min_count: int) -> None:
    """Check that a vocabulary's maximum size and minimum count are valid.

    Raises:
        ConfigurationError: if one of them is out of its range.
    """
    least = len(SPECIALS) + 1
    if check_count("max_size", max_size, least) > LARGEST:
        raise ConfigurationError(f"Expected argument `max_size` to be in {least} .. {LARGEST:,} but got {max_size:,}.")
    if check_count("min_count", min_count) > OFTENEST:
        raise ConfigurationError(f"Expected argument `min_count` to be in 1 .. {OFTENEST:,} but got {min_count:,}.")
