"""What the README shows runs, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import ROOT

TEXT = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {"__name__": "readme"})


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 4


def test_configs_that_are_named_exist() -> None:
    named = set(re.findall(r"configs/[\w/]+\.yaml", TEXT))
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)
    for folder in (ROOT / "configs").iterdir():
        assert f"`configs/{folder.name}`" in TEXT, "the table of configs names each folder"


def test_modules_that_are_named_exist() -> None:
    import importlib

    for name in set(re.findall(r"`(lit_sparse\.\w+)`", TEXT)):
        importlib.import_module(name)
