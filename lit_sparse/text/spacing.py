"""Joins words and punctuation marks to text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["join_words"]

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
