"""Docstrings, comments, messages and pages use plain words and short sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT
from .support.prose import Passage, number_of_words, passages, sentences

LONGEST = 35  # words of a sentence

FOLDERS = {"lit_sparse": (".py", ".yaml"), "scripts": (".py",), "tests": (".py",), "docs": (".md",)}

WORDS = {
    r"\b(who|whom|whoever|nobody|somebody|someone|anybody)\b": "code is not a person: name the part",
    r"\b(wants?|speaks?|knows?)\b": "code is not a person: say what it computes or needs",
    r"\b(is|are) told\b|\btold (by|apart|of)\b|\b(un|is )told\b|\buntold\b": "labelled, given, distinguished",
    r"\btells? (whether|apart|how|which|what)\b": "return whether, distinguish",
    r"\btolls?\b": "cost",
    r"\blook(s|ed|ing)? (at|into)\b|\bthe look\b": "read, check, inspect",
    r"\bbeside\b": "besides, next to, together with",
    r"\bwhatever\b": "for every, independent of",
    r"(?<!there )\b(is|are|was|were) no\b(?! (longer|more|less|greater|larger|smaller))": "is not a",
    r"\bnone of this package's\b|\b(is|are) none of\b": "is not a, is not one of",
    r"\bodd rows?\b": "invalid rows",
    r"\bwhat (there )?is there\b|\bwhat there is\b|\bwhat is not there\b": "name the thing",
    r"\bby way of\b|\bby so much\b|\bas what\b|\bas it were\b": "by, through, as",
    r"\bone (or|and) the other\b|\bor other\b|\bsuch (as are|a one|ones)\b": "name the thing",
    r"\bat the door\b|\bhalf ?way to\b|\bfor want of\b|\bbut for\b|\bso to speak\b|\bas such\b": "say it plainly",
    r"\b(one|once|twice|number) an? (class|example|token|process|row|batch|step|epoch|bit|sentence|image)\b": "per",
    r"\bof (one|another|each) an?\b": "per",
    r"\b(does|did|do) (not|so) (speak|look)\b": "code is not a person",
}
ANY_WORD = re.compile("|".join(WORDS), re.IGNORECASE)
OPENINGS = r"(Of|What|Where|Whose|By so much|At it|Whoever) (?!.*\?$)"
SUMMARIES = r"(Tell|Tells|Say|Says) "
ARGUMENTS = r"of (the|a|an|which|what)\b|(that|those) (of|which|that)\b|what\b"


def faults(passage: Passage) -> Iterator[str]:
    """Yield what is wrong with the words of a passage."""
    for sentence in sentences(passage.text):
        for pattern, instead in WORDS.items() if ANY_WORD.search(sentence) else ():
            if word := re.search(pattern, sentence, re.IGNORECASE):
                yield f"'{word.group()}' ({instead})"
        if opening := re.match(OPENINGS, sentence):
            yield f"opens with '{opening.group(1)}'"
        if re.match(SUMMARIES, sentence):
            yield "summaries are imperative: Return, Sample"
        if (count := number_of_words(sentence)) > LONGEST:
            yield f"{count} words: '{sentence[:60]}'"
        if sentence.count("; ") > 1:
            yield f"two semicolons: '{sentence[:60]}'"
    if passage.argument and (start := re.match(ARGUMENTS, passage.text)):
        yield f"an argument's entry is a noun phrase, not '{start.group()}'"


def files() -> list[Path]:
    """Return the files whose prose is checked."""
    folders = ((folder, suffix) for folder, suffixes in FOLDERS.items() for suffix in suffixes)
    chosen = {path for folder, suffix in folders for path in (ROOT / folder).rglob(f"*{suffix}")}
    return sorted(chosen | {ROOT / "README.md"})


@pytest.mark.gate
@pytest.mark.parametrize("folder", ["README.md", *FOLDERS])
def test_words_are_plain_and_sentences_short(folder: str) -> None:
    wrong: list[str] = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] != folder or name == "tests/test_wording.py":
            continue
        literals = folder in ("lit_sparse", "scripts")
        for passage in passages(path, literals=literals):
            wrong += [f"{name}:{passage.line}: {fault}" for fault in faults(passage)]
    assert not wrong, "\n".join([f"{len(wrong)} faults", *wrong])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Whoever enters is the maximizer.", "Whoever"),
        ("This is no gzip file.", "is no"),
        ("Of the batch alone, it is biased.", "opens with 'Of'"),
        ("Tell whether it is sorted.", "imperative"),
        ("It " + "really " * LONGEST + "ends.", "37 words"),
        ("One; two; three.", "two semicolons"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    assert fault in " ".join(faults(Passage(1, text)))


def test_plain_sentences_have_no_fault() -> None:
    text = "There is no closed form, see ``nobody`` of Blondel et al. (2020). The gap is no larger than `eps`."
    assert not list(faults(Passage(1, text)))
