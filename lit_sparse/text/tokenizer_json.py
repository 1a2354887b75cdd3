"""Checks the description of a tokenizer before the ``tokenizers`` package builds it.

A component may multiply the text, search for any regular expression, or panic. So only the components of common
tokenizers are allowed, with parameters of bounded size, so that encoding takes time and memory proportional to the
text.
"""

from __future__ import annotations

import base64
import json
import math
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lit_sparse.errors import DataError, LitSparseError
from lit_sparse.text.tokenization import WORDS

__all__ = ["guarded", "tokenizer_of"]

#: Components of each step, except for audio and fixed lengths.
NORMALIZERS = [
    *("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Replace"),
    *("Strip", "StripAccents"),
]
SPLITTERS = [
    *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"),
    *("Whitespace", "WhitespaceSplit"),
]
DECODERS = ["BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"]
#: Step -> the key of its sequences, and its components.
STEPS = {
    "normalizer": ("normalizers", NORMALIZERS),
    "pre_tokenizer": ("pretokenizers", SPLITTERS),
    "decoder": ("decoders", DECODERS),
}
#: Components that may occur several times in a step, since they never lengthen a text.
REPEATED = {"Replace", "Split", "Strip"}
#: Largest number of components of a step, of characters of a parameter, and of characters to strip.
MOST, LONGEST, STRIPPED = 32, 16, 16
#: Largest number of bytes that a character becomes in a table of characters. NFKC needs 33.
WIDEST = 64
#: Longest word of WordPiece, whose time grows with the cube of the length; by default 100.
LONGEST_WORD = 500
#: Longest token of Unigram, which tries all that begin at each place of a text. SentencePiece makes up to 16 characters.
LONGEST_TOKEN = 128
ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
#: Regular expressions that common tokenizers replace or split at; all of them take time proportional to the text.
PATTERNS = {
    *(WORDS, r"\n", r"\s+", " {2,}", r"[\n\r\t]", r"\s{2,}|[\n\r\t]"),
    rf"{ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
    *(rf"{start}{ENDINGS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+" for start in ("", r"<\|startoftext\|>|<\|endoftext\|>|")),
    *(
        rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in ("", "{1,3}")
    ),
}
#: Keys of a model that identify it if it has no type, as in older files.
MODELS = {"merges": "BPE", "max_input_chars_per_word": "WordPiece", "unk_id": "Unigram", "unk_token": "WordLevel"}


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn every error of the ``tokenizers`` package into a DataError, including panics, which are not an ``Exception``.

    Args:
        what: start of the message, such as ``"The lines cannot be encoded"``.

    Raises:
        DataError: in place of an error of the ``tokenizers`` package.
    """
    try:
        yield
    except LitSparseError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {str(error)[:300]}") from error


def tokenizer_of(described: Any) -> Tokenizer:
    """Return the tokenizer that a ``tokenizer.json`` describes, after a check, without its padding and truncation.

    Args:
        described: the content of the file.

    Raises:
        DataError: if it has a component that is not allowed, or cannot be built.
    """
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        raise DataError("This is not a vocabulary: it has no 'model'.")
    added = described.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(one, dict) and one.get("content") for one in added):
        raise DataError("Expected each added token of a tokenizer to have a content. Correct the file.")
    for step, (key, allowed) in STEPS.items():
        _check_step(step, key, allowed, described.get(step))
    kept = {"version": "1.0", "added_tokens": added, "model": _model(described["model"])}
    with guarded("This is no vocabulary"):
        tokenizer = Tokenizer.from_str(json.dumps({**kept, **{step: described.get(step) for step in STEPS}}))
    for one in added:  # the package numbers them anew, in their order
        if tokenizer.token_to_id(one["content"]) != one.get("id"):
            name, number = reprlib.repr(one["content"]), reprlib.repr(one.get("id"))
            raise DataError(f"Expected the added token {name} to have the next number but got {number}. Correct it.")
    return tokenizer


def _check_step(step: str, key: str, allowed: list[str], described: Any) -> None:
    pending, found = [] if described is None else [described], []
    while pending:
        component = pending.pop()
        kind = component.get("type") if isinstance(component, dict) else None
        found.append(kind)
        if kind == "Sequence" and isinstance(component.get(key), list) and len(found) <= MOST:
            pending += component[key]
            continue
        where = f"the component {reprlib.repr(kind)} of the {step}"
        if kind not in allowed:
            raise DataError(f"Expected {where} to be one of {', '.join(allowed)}. Use another tokenizer.")
        if len(found) > MOST or (kind in found[:-1] and kind not in REPEATED):
            raise DataError(f"Expected {where} only once, among at most {MOST} components. Use another tokenizer.")
        for name, value in component.items():
            if name != "type" and not _is_bounded(component, name, value):
                raise DataError(
                    f"Expected a short, supported `{name}` in {where} but got {reprlib.repr(value)}. Use another tokenizer."
                )


def _is_bounded(component: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether the value of a component's parameter cannot lengthen a text much, nor make the package panic."""
    if name == "stop":  # of the decoder Strip, which panics on a token that it strips as a whole
        return bool(value == 0)
    if name == "pattern":
        content = component.get("content", "")
        if not isinstance(value, dict) or len(value) != 1 or not isinstance(content, str):
            return False
        (way, text), *_ = value.items()
        if way == "Regex":
            return text in PATTERNS and len(content) <= 1
        return way == "String" and isinstance(text, str) and len(content) <= len(text) <= LONGEST and text != ""
    if name == "precompiled_charsmap":
        try:
            return _is_charsmap(base64.b64decode(value, validate=True))
        except (TypeError, ValueError):
            return False
    if isinstance(value, str):
        return len(value) <= LONGEST
    return value is None or isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= STRIPPED)


def _is_charsmap(content: bytes) -> bool:
    """Return whether a map of characters is a trie in units of SentencePiece, and short texts to which alone it leads.

    Source: Yata, darts-clone, https://github.com/s-yata/darts-clone, for the bits of a unit.
    """
    size = int.from_bytes(content[:4], "little")
    units, texts = content[4 : 4 + size], content[4 + size :]
    texts.decode()  # in UTF-8
    if not size or size % 1024 or len(units) < size or any(len(text) > WIDEST for text in texts.split(b"\0")):
        return False
    trie = np.frombuffer(units, "<u4").astype(np.int64)
    inner = trie < 2**31  # others are places of texts
    following = np.arange(len(trie))[inner] ^ (trie[inner] >> 10 << (trie[inner] >> 6 & 8))
    if (following >= len(trie)).any():  # a character changes the place within a block of 256 units
        return False
    found = trie[following[(trie[inner] & 256) > 0]] & (2**31 - 1)
    return bool(np.isin(found, [0, *(1 + place for place, byte in enumerate(texts) if not byte)]).all())


def _model(described: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a model with its type, after a check of what the package does not check.

    Raises:
        DataError: if a value is missing or outside its range.
    """
    kind = described.get("type") or next((name for key, name in MODELS.items() if key in described), None)
    if kind not in MODELS.values():
        raise DataError(f"Expected a model {', '.join(MODELS.values())} but got {reprlib.repr(kind)}. Use another tokenizer.")
    for name, value in described.items():
        most = {"max_input_chars_per_word": LONGEST_WORD, "unk_id": math.inf, "dropout": 1}.get(name, -1)
        number = isinstance(value, int | float) and 0 <= value <= most
        text = isinstance(value, str) and (len(value) <= LONGEST or name == "unk_token")
        if name not in ("vocab", "merges") and not (number or text or value is None or isinstance(value, bool)):
            raise DataError(
                f"Expected a supported `{name}` in the model {kind} but got {reprlib.repr(value)}. Correct the file."
            )
    tokens = described.get("vocab") if kind == "Unigram" else None
    pairs = [pair for pair in tokens if isinstance(pair, list)] if isinstance(tokens, list) else []  # others cannot be built
    if any(isinstance(text, str) and len(text) > LONGEST_TOKEN for text, *_ in filter(None, pairs)):
        raise DataError(f"Expected tokens of at most {LONGEST_TOKEN} characters in the model Unigram. Use another tokenizer.")
    prefix, merges = described.get("continuing_subword_prefix"), described.get("merges")
    if kind == "BPE" and prefix and isinstance(merges, list):
        seconds = [str(pair[-1] if isinstance(pair, list) and pair else pair).rpartition(" ")[2] for pair in merges]
        if not prefix.isascii() or not all(second.startswith(prefix) for second in seconds):
            raise DataError(f"Expected the second tokens of all merges to start with {prefix!r}, in ASCII. Correct the file.")
    if kind == "Unigram" and described.get("unk_id") is None:
        raise DataError("Expected `unk_id`, the number of the token for unknown text, in the model Unigram. Set it.")
    return {name: value for name, value in described.items() if name != "dropout"} | {"type": kind}  # encoding is no sample
