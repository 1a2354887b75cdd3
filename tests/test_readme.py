"""The code of the README runs, and the names in it exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lit_sparse.testing import check_estimator

from .conftest import CONFIGS, ROOT

TEXT = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number}", "exec"), {"__name__": "readme"})


def test_recipes_of_estimators_keep_their_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [snippet for snippet in SNIPPETS if re.search(r"class \w+\((Estimator|Sampler)\)", snippet)]
    assert len(recipes) >= 3
    (tmp_path / "recipes.py").write_text("\n".join(recipes))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("recipes")
    found = [part for part in vars(module).values() if isinstance(part, type) and part.__module__ == "recipes"]
    for estimator in found:
        for example in estimator.examples():
            check_estimator(example)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 4


def test_configs_that_are_named_exist() -> None:
    named = set(re.findall(r"configs/[\w/]+\.yaml", TEXT))
    assert len(named) >= 4
    assert all((ROOT / name).is_file() for name in named)
    for folder in CONFIGS.iterdir():
        assert f"`configs/{folder.name}`" in TEXT, "the table of configs names each folder"


def test_modules_that_are_named_exist() -> None:
    for name in set(re.findall(r"`(lit_sparse\.\w+)`", TEXT)):
        importlib.import_module(name)
