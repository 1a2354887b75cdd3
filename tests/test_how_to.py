"""The snippets of the documentation run, in the order of each page, and print what the page says."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from .conftest import ROOT

FOLDER = ROOT / "docs"
PAGES = ("how_to/own_data.md", "how_to/own_model.md", "explanation/how_a_mapping_runs.md")
LINKED = PAGES[:2]


@pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (FOLDER / page).read_text(encoding="utf-8"), re.DOTALL)
    assert snippets
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("how_to_page")  # classes of a checkpoint are found by their module
    monkeypatch.setitem(sys.modules, "how_to_page", module)
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{page}, snippet {number}", "exec"), module.__dict__)
        printed = capsys.readouterr().out
        for promised in re.findall(r"^print\(.*\)  # (.*)$", snippet, re.MULTILINE):
            assert promised in printed


@pytest.mark.parametrize("page", LINKED)
def test_the_readme_links_to_a_page(page: str) -> None:
    assert f"docs/{page}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_configs_of_a_page_are_read() -> None:
    import yaml

    blocks = [block for page in LINKED for block in re.findall(r"```yaml\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)]
    assert all(yaml.safe_load(block).keys() <= {"model", "data"} for block in blocks)
    assert len(blocks) == 2
