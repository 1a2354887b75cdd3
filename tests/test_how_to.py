"""What the pages under docs/how_to show runs, in the order of each page."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from .conftest import ROOT

FOLDER = ROOT / "docs" / "how_to"
PAGES = ("own_data.md", "own_model.md")


@pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) >= 2
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("how_to_page")  # classes of a checkpoint are found by their module
    monkeypatch.setitem(sys.modules, "how_to_page", module)
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{page}, snippet {number}", "exec"), module.__dict__)


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_links_to_a_page(page: str) -> None:
    assert f"docs/how_to/{page}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_configs_of_a_page_are_read() -> None:
    import yaml

    blocks = [block for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)]
    assert all(yaml.safe_load(block).keys() <= {"model", "data"} for block in blocks)
    assert len(blocks) == 2
