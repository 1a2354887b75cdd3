"""The sidebar lists few how-to guides a group, and code fits the width of a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, PAGES, blocks, label

GUIDES = DOCS / "how_to"


def tree(name: str) -> list[str]:
    """Return the pages below a page."""
    found = re.search(r"```\{toctree\}.*?\n\n?((?:\w+\n)+)```", (GUIDES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1].split()


def test_how_to_guides_stand_in_five_groups_of_at_most_eight() -> None:
    groups = tree("index")
    pages = [tree(group) for group in groups]
    assert len(groups) == 5
    assert max(map(len, pages)) <= 8
    listed = ["index", *groups, *(page for group in pages for page in group)]
    assert sorted(listed) == sorted(page.stem for page in GUIDES.glob("*.md"))


@pytest.mark.parametrize("page", [pytest.param(page, id=label(page)) for page in PAGES if blocks(page)])
def test_code_is_at_most_80_columns_wide(page: Path) -> None:
    code = [block.text for block in blocks(page) if block.language in {"python", "bash", "yaml"}]
    assert not [line for text in code for line in text.splitlines() if len(line) > 80]
