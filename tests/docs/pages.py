"""Reads the fenced code of the documentation's pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT

DOCS = ROOT / "docs"
#: Pages with code, README first. Those that are made in the build have none of their own.
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]

_COMMENT = r"(?:% [^\n]*|<!-- [^\n]* -->)"
_FENCE = re.compile(rf"(?P<notes>(?:^{_COMMENT}\n)*)^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.(?:py|yaml|csv|jsonl|txt))\n")


@dataclass
class Block:
    """Fenced code, and the comments of the line before it.

    The comments describe its test. ``% data: NAME=path`` gives a placeholder, of the folder with real data.
    ``% options: ...`` adds options to each command. ``% not run: reason`` excludes it. ``% needs: package`` skips the
    rest of the page without that package. README has HTML comments instead.
    """

    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """Name of the file that the block shows: the comment in its first line."""
        named = _FILE.match(self.text)
        return named[1] if named else None

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of each command of a shell block."""
        for line in re.sub(r"\\\n\s*", " ", self.text).splitlines():
            for command in line.split("&&"):
                if words := shlex.split(command, comments=True):
                    yield words


def blocks(page: Path) -> list[Block]:
    """Return the fenced code of a page."""
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        comments = [line.removeprefix("<!-- ").removesuffix(" -->").removeprefix("% ") for line in match["notes"].splitlines()]
        notes = dict(comment.split(": ", 1) for comment in comments if ": " in comment)
        found.append(Block(match["language"], match["text"], notes))
    return found


def label(page: Path) -> str:
    """Return the name of a page in messages."""
    return page.relative_to(ROOT).as_posix()
