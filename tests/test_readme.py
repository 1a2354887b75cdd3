"""The README is one page, its links lead somewhere, and its numbers are in the benchmarks."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lit_sparse.testing import check_estimator

from .conftest import ROOT
from .docs.pages import PAGES, blocks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_one_page() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_two_lines_set_everything_up_and_the_gate_runs_them() -> None:
    shell = [re.sub(r"\\\n\s*", "", block.text) for block in blocks(ROOT / "README.md") if block.language == "bash"]
    lines = [line for text in shell for line in text.splitlines()]
    assert len(lines) == 2
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    train, tests = lines
    assert f"\n{train.partition('activate && ')[2]} " in gate  # and for how long
    install, _, run = tests.partition(" && ")
    assert f"\n{install}\n" in gate
    assert run.removesuffix(' and not gate"') in gate


def test_links_lead_to_files() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).is_file()]


@pytest.mark.parametrize("page", ["add_a_model", "add_a_data_module"])
def test_it_links_to_the_pages_on_own_parts(page: str) -> None:
    assert f"(docs/how_to/{page}.md)" in TEXT


def test_modules_that_are_named_exist() -> None:
    named = set(re.findall(r"`(lit_sparse\.\w+)`", TEXT))
    subpackages = {path.parent.name for path in (ROOT / "lit_sparse").glob("*/__init__.py")} - {
        "cli",
        "studies",
        "ground",
        "lightning",
        "runs",
    }
    assert named == {f"lit_sparse.{name}" for name in subpackages}
    for name in named:
        importlib.import_module(name)


def test_numbers_of_speed_are_in_the_benchmarks() -> None:
    table = (ROOT / "results" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(\| .+ \| [\d.]+\u00d7) \|", TEXT, re.MULTILINE)
    assert len(rows) >= 4
    assert not [row for row in rows if f"{row} |" not in table]


def test_speeds_on_all_pages_are_those_of_the_benchmarks() -> None:
    """Speeds are told on the start page and in the README alone; others stand beside their own table or command."""
    table = (ROOT / "results" / "benchmarks.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (.+) \| (.+) \| ([\d.]+)\u00d7 \|", table, re.MULTILINE)
    speeds = {(name, peer.strip("`")): float(speed) for name, peer, speed in found}
    attention = [
        speeds[f"{name} attention, 4,096 keys, training", "PyTorch's softmax attention"] for name in ("Sparsemax", "Entmax 1.5")
    ]
    row = "Sparsemax of (4096, 256)"
    expected = {
        f"{min(attention):g} to {max(attention):g} times faster than PyTorch's",
        f"{1 / speeds[row, 'torch.softmax']:.2g} times as long as `torch.softmax`",
        f"{speeds[row, 'package `entmax']:g} times faster than the `entmax` package",
    }
    others = {
        "docs/how_to/large_coresets.md": {"10 times as long"},
        "docs/how_to/factor_graphs.md": {"4.5 to 15 times as long"},
    }
    peers = "PyTorch's|`torch.softmax`|the `entmax` package"
    told = re.compile(rf"[\d.]+(?: to [\d.]+)? times (?:faster|slower|as long|as fast)(?: (?:than|as) (?:{peers}))?")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for path in pages:
        name, text = path.relative_to(ROOT).as_posix(), " ".join(path.read_text(encoding="utf-8").split())
        if name not in ("docs/results/benchmarks.md", "docs/results/costs.md"):
            first = expected if name in ("README.md", "docs/index.md") else others.get(name, set())
            assert {*told.findall(text)} == first, name


def test_recipes_of_estimators_keep_their_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = [block.text for page in PAGES for block in blocks(page) if block.language == "python"]
    recipes = [text for text in python if re.search(r"class \w+\((Estimator|Sampler)\)", text)]
    assert len(recipes) >= 3
    (tmp_path / "recipes.py").write_text("\n".join(recipes))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("recipes")
    found = [part for part in vars(module).values() if isinstance(part, type) and part.__module__ == "recipes"]
    for estimator in found:
        for example in estimator.examples():
            check_estimator(example)
