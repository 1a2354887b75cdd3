"""What is below a folder is found without following links, and without a limit of Python's stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import DEEPEST, below, matching

PATTERNS = (
    "**/metrics.csv",
    "*",
    "*/*.csv",
    "a/**/metrics.csv",
    "metrics.csv",
    "**/seed_*/0",
    "**/b/**/[m]*.csv",
    "./*.csv",
    "x",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("metrics.csv", "a/metrics.csv", "a/b/c/metrics.csv", "a/b/other.csv", "seed_1/0/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_those_of_pathlib(pattern: str, folder: Path) -> None:
    assert sorted(matching(folder, pattern)) == sorted(folder.glob(pattern))


@pytest.mark.parametrize("pattern", ["", ".", "./", "**metrics.tsv", "a/***x", "["])
def test_patterns_that_pathlib_refuses_match_nothing(pattern: str, folder: Path) -> None:
    assert matching(folder, pattern) == []


def test_links_are_found_and_not_followed(folder: Path) -> None:
    (folder / "a" / "up").symlink_to(folder)
    assert folder / "a" / "up" in below(folder)
    assert folder / "a" / "up" / "metrics.csv" not in below(folder)
    assert len([*below(folder, ["a"])]) == 4


def test_folders_that_are_nested_too_deeply_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(110):  # more than DEEPEST
        Path("d").mkdir()
        monkeypatch.chdir("d")
    with pytest.raises(ConfigurationError, match=f"at most {DEEPEST} folders within each other"):
        matching(tmp_path, "**/metrics.csv")
