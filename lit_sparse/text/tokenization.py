"""Tokenizers for each kind of vocabulary, and the text of their tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from lit_sparse.checks import check_flag

__all__ = ["KINDS", "Kind", "join_words", "kind_of", "make_tokenizer", "with_breaks"]

KINDS = ("words", "spaces", "moses", "bpe")
#: Longest word for counting byte pairs, whose time grows with the square of the length; longer words are split.
UNBROKEN = 250
#: Token pattern: a suffix after an apostrophe, a number with separators, a hyphenated word, or another character.
WORDS = r"(?<=\w)['\u2019]\w+|\d+(?:[.,:]\d+)+|\w+(?:-\w+)*|[^\w\s]"

LONG_WORD = re.compile(rf"\S{{{UNBROKEN}}}(?=\S)")

Kind = Literal["words", "spaces", "moses", "bpe"]


def with_breaks(line: str) -> str:
    """Return a line in which a space follows each ``UNBROKEN`` characters without one, so that words are not too long.

    Example:
        >>> [len(word) for word in with_breaks("so " + "x" * 600).split()]
        [2, 250, 250, 100]
    """
    return LONG_WORD.sub(lambda word: f"{word[0]} ", line) if len(line) > UNBROKEN else line


def kind_of(tokenizer: Tokenizer) -> Kind:
    """Return the kind of an external tokenizer, inferred from its decoder and pre-tokenizer."""
    if tokenizer.decoder is not None:
        return "bpe"
    return "words" if isinstance(tokenizer.model, models.WordLevel) and tokenizer.pre_tokenizer is not None else "spaces"


def make_tokenizer(model: Any, kind: Kind, lowercase: bool) -> Tokenizer:
    """Return a tokenizer of the ``tokenizers`` package that adds a kind's normalization and splitting to a model."""
    tokenizer = Tokenizer(model)
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if check_flag("lowercase", lowercase) else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    if kind == "bpe":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
        tokenizer.decoder = decoders.Metaspace()
    elif kind == "words":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


#: Marks at a word's left, at its right, and those that are at its left at first and at its right the next time.
OPENING, CLOSING, PAIRED = tuple("([{\u201c\u2018\u201e\u00bf\u00a1"), tuple(".,!?;:%)]}\u2026\u201d"), ('"', "'")
APOSTROPHES = ("'", "\u2019")


def join_words(tokens: Sequence[str]) -> str:
    """Return the text of words and punctuation marks, with spaces where people write them.

    There is none before a closing mark, and none after an opening mark.

    Example:
        >>> print(join_words(["he", "said", ":", '"', "don", "'t", '"', "."]))
        he said: "don't".
    """
    paired = {mark for mark in PAIRED if list(tokens).count(mark) % 2 == 0}
    text, opened, near = "", set[str](), True
    for token in tokens:
        opens, closes = token in OPENING, token in CLOSING or (len(token) > 1 and token[0] in APOSTROPHES)
        if token in paired:
            opened ^= {token}
            opens, closes = token in opened, token not in opened
        elif token in APOSTROPHES:
            closes = True
        text += token if near or closes else f" {token}"
        near = opens
    return text
