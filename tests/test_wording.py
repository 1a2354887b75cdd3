"""Pages, docstrings, comments and messages have no more of some foreign constructions than ``tests/wording.yaml`` lists.

``python -m tests.test_wording`` lowers these numbers to the present ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .conftest import ROOT
from .support.prose import Passage, passages

CEILINGS = Path(__file__).with_name("wording.yaml")
FOLDERS = {"lit_sparse": (".py", ".yaml"), "scripts": (".py",), "tests": (".py",), "docs": (".md",)}

SPLIT = (
    r"errors?|accurac(?:y|ies)|loss(?:es)?|tests?|scores?|curves?|values?|ELBOs?|BLEU|rows?|examples?|images?|sentences?|pairs?"
    r"|labels?|groups?|colou?rs?|batch(?:es)?|games?|sets?|data"
)
ROWS = r"heads?|keys?|vectors?|features?|rows?|embeddings?"
COUNT = r"(?:\d[\d,]*|\{\}|[A-Za-z]|two|three|four|five|six|eight|ten)"
#: Construction -> its cure.
PATTERNS = {
    r"\b[Tt](?:hat|hose) of\b": "repeat the noun, or make a compound",
    rf"\b(?i:{SPLIT}) of (?:validation|training)\b(?! (?:{SPLIT})\b)": "make a compound: validation error, training rows",
    rf"\b(?:{ROWS}) of (?:at most )?{COUNT} numbers\b|(?<!least )(?<!>= )\b\d[\d,]* numbers\b": (
        "50-dimensional vectors, head dimension 64"
    ),
    r"\bThis page\b": "begin with what the reader gets",
    r"\b[Aa]n earlier version\b|\bis not kept\b|\bwas stopped\b": "state the present; history is in git",
    r"\b(?:[Rr]ooms?(?! for\b| and bedrooms\b)|[Pp]lugs?|[Cc]ontestants?)\b": "subpackage, extension point, method",
}


def hits(passage: Passage) -> Iterator[str]:
    """Yield each construction that is found in a passage, with its cure."""
    for pattern, cure in PATTERNS.items():
        for found in re.finditer(pattern, passage.text):
            yield f"'{found.group()}' ({cure})"


def hits_by_file() -> dict[str, list[str]]:
    """Return the hits of each file that has any, with their lines."""
    kinds = ((folder, suffix) for folder, suffixes in FOLDERS.items() for suffix in suffixes)
    paths = {path for folder, suffix in kinds for path in (ROOT / folder).rglob(f"*{suffix}")}
    by_file = {}
    for path in sorted(paths | {ROOT / "README.md"}):
        name = path.relative_to(ROOT).as_posix()
        read = passages(path, literals=name.startswith(("lit_sparse/", "scripts/")))
        if found := [f"{name}:{passage.line}: {hit}" for passage in read for hit in hits(passage)]:
            by_file[name] = found
    return by_file


def ceilings() -> dict[str, int]:
    """Return the greatest allowed number of hits of each file that may have any."""
    return yaml.safe_load(CEILINGS.read_text(encoding="utf-8")) or {}


def raised(counts: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """Return the files with more hits than their ceilings; it is 0 for a new file."""
    return [name for name, count in counts.items() if count > allowed.get(name, 0)]


@pytest.mark.gate
def test_no_file_has_more_hits_than_its_ceiling_nor_fewer() -> None:
    found, allowed = hits_by_file(), ceilings()
    counts = {name: len(lines) for name, lines in found.items()}
    more = [line for name in raised(counts, allowed) for line in found[name]]
    assert not more, "\n".join(["More than the files' ceilings; rewrite the sentences.", *more])
    assert counts == allowed, "Fewer hits than the ceilings: lower them by `python -m tests.test_wording`."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 12 times faster than that of the package.", "that of"),
        ("Its seconds are below\nthose of softmax.", "those of"),
        ("Error of validation over epochs", "Error of validation"),
        ("rows of training and their labels", "rows of training"),
        ("16 heads of 64 numbers each", "heads of 64 numbers"),
        ("vectors of D numbers", "vectors of D numbers"),
        ("an image with 3,072 numbers", "3,072 numbers"),
        ("This page shows how to train.", "This page"),
        ("An earlier version was slower.", "An earlier version"),
        ("The script is not kept.", "is not kept"),
        ("The second run was stopped.", "was stopped"),
        ("A line in the `__init__` of its room.", "room"),
        ("Four plugs of the package", "plugs"),
        ("All contestants take turns.", "contestants"),
    ],
)
def test_a_hit_of_each_pattern_is_found(text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"Code.\n\n{text}\n")
    lines = [hit for passage in passages(tmp_path / "page.md", literals=False) for hit in hits(passage)]
    assert [line.split("'")[1] for line in lines] == [found]


@pytest.mark.parametrize(
    "text",
    [
        "The validation error over the number of training examples, at the end of training.",
        "Note that `that of` is code, as is `rooms`, and so is {py:obj}`~module.plug`.",
        "It needs at least 3 numbers, and 50-dimensional vectors make room for more rooms and bedrooms.",
        "Whoever reads this page knows more; nobody else is told, whatever the batch beside it is, " + "really " * 40 + "so.",
        "See [the list](rooms.md) of those that were kept.",
    ],
)
def test_plain_sentences_are_no_hits(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"{text}\n\n```python\nrooms = 'that of'  # This page\n```\n")
    assert not [hit for passage in passages(tmp_path / "page.md", literals=False) for hit in hits(passage)]


def test_a_ceiling_is_not_raised() -> None:
    assert raised({"old": 2, "new": 1, "better": 0}, {"old": 1, "better": 3}) == ["old", "new"]


if __name__ == "__main__":
    counts = {name: len(lines) for name, lines in hits_by_file().items()}
    if refused := raised(counts, ceilings()):
        sys.exit(f"These files have more hits than before; rewrite their sentences: {', '.join(refused)}")
    CEILINGS.write_text(yaml.safe_dump(counts), encoding="utf-8")
