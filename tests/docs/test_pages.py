"""The sidebar lists few how-to guides a group, and code fits the width of a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, PAGES, blocks, label

GUIDES = DOCS / "how_to"
TREES = [tree.split() for tree in re.findall(r"```\{toctree\}.*?\n\n(.*?)```", (GUIDES / "index.md").read_text(), re.DOTALL)]


def test_how_to_guides_stand_in_five_groups_of_at_most_eight() -> None:
    assert len(TREES) == 5
    assert max(map(len, TREES)) <= 8
    assert sorted(name for tree in TREES for name in tree) == sorted(
        page.stem for page in GUIDES.glob("*.md") if page.stem != "index"
    )


#: Pages that have some wider lines.
WIDE = {"own_images", "own_tables", "own_text", "studies", "sweeps", "compare_and_report"}
CODE = [pytest.param(page, id=label(page)) for page in PAGES if page.stem not in WIDE and blocks(page)]


@pytest.mark.parametrize("page", CODE)
def test_code_is_at_most_80_columns_wide(page: Path) -> None:
    code = [block.text for block in blocks(page) if block.language in {"python", "bash", "yaml"}]
    # What a line prints stands behind it: a reader may scroll to that.
    lines = [re.sub(r"^(print\(.*\))  # .*", r"\1", line) for text in code for line in text.splitlines()]
    assert not [line for line in lines if len(line) > 80]
