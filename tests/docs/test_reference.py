"""The reference lists all options of the command line, all entries of batches, and all configs."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.cli import COMMANDS, main
from lit_sparse.coresets import Uniform
from lit_sparse.data import CoresetDataModule, ReferentialGameDataModule, SymmetricNoise
from tests.conftest import CONFIGS
from tests.data.encoder import tiny_activations
from tests.models.test_precision import digits, entailment, pairs, regression, transport

from .pages import DOCS

REFERENCE = DOCS / "reference"


def sections(page: str) -> dict[str, str]:
    """Return the second-level sections of a page by their titles."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in text.split("\n## ")[1:])  # type: ignore[misc]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_of_a_command_is_listed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert "``" not in shown, "help is plain text"
    options = set(re.findall(r"^ +(?:-\w(?: [A-Z]+)?, )?(--[a-z_]+)(?![\w.])", shown, re.MULTILINE))
    (text,) = (body for title, body in sections("command_line.md").items() if command in title.split(", "))
    listed = set(re.findall(r"`(--[a-z_]+)", text))
    assert options - {"--help", "--trainer"} <= listed
    assert f"\n| `{command}` |" in (REFERENCE / "command_line.md").read_text(encoding="utf-8")


def pixels(examples: object) -> torch.Tensor:
    return examples[torch.arange(len(examples))]["pixels"]  # type: ignore[index,arg-type,no-any-return]


DATA: dict[str, Callable[[Path], pl.LightningDataModule]] = {
    "Images": lambda _: digits(labelled=1.0, label_noise=SymmetricNoise(0.2)),
    "Activations": tiny_activations,
    "Tables": lambda _: regression(),
    "Pairs of texts": pairs,
    "Entailment": entailment,
    "Referential game": lambda _: ReferentialGameDataModule(digits(binarize=False), candidates=5),
    "Transport": lambda _: transport(),
    "Coresets": lambda _: CoresetDataModule(digits(labelled=1.0), Uniform(), 50, pixels),
}


def listed_entries(title: str, split: str) -> dict[str, tuple[str, int, bool]]:
    """Return the listed entries of a batch: type, number of dimensions, and whether they are always there."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|", sections("batch_keys.md")[title], re.MULTILINE)
    entries = {}
    for name, kind, shape, splits in rows:
        where, _, condition = splits.partition(", if ")
        if where == "all" or split in where.split(", "):
            dimensions = 0 if kind == "list" else shape.strip("()").rstrip(",").count(",") + 1
            entries[name] = (kind, dimensions, not condition)
    return entries


@pytest.mark.parametrize("title", DATA)
def test_each_entry_of_a_batch_is_listed(title: str, tmp_path: Path) -> None:
    data = DATA[title](tmp_path)
    data.prepare_data()
    data.setup(None)  # type: ignore[arg-type]
    for split in ("train", "val", "test", "predict"):
        batch = next(iter(getattr(data, f"{split}_dataloader")()))
        listed = listed_entries(title, split)
        if title == "Coresets":
            listed = listed_entries("Images", split) | listed
        assert {name for name, (_, _, always) in listed.items() if always} <= set(batch) <= set(listed), split
        for name, value in batch.items():
            kind, dimensions, _ = listed[name]
            if isinstance(value, torch.Tensor):
                assert (str(value.dtype).removeprefix("torch."), value.ndim) == (kind, dimensions), name
            else:
                assert kind == "list", name


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    pytest.importorskip("sphinx", reason="needs sphinx: pip install -e '.[docs]'")
    monkeypatch.syspath_prepend(str(DOCS))
    yield importlib.import_module("_ext.configs")
    sys.modules.pop("_ext.configs", None)


def test_the_page_of_configs_lists_each(configs: types.ModuleType) -> None:
    lines = configs.page(CONFIGS).splitlines()
    for path in CONFIGS.rglob("*.yaml"):
        assert f"   * - ``{path.relative_to(CONFIGS).with_suffix('').as_posix()}``" in lines
    assert set(configs.FOLDERS) == {folder.name for folder in CONFIGS.iterdir() if folder.is_dir()}


def test_a_folder_of_configs_needs_a_title(configs: types.ModuleType, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "base.yaml").write_text("# A base.\na: 1\n")
    with pytest.raises(LookupError, match="a title and a sentence for own in FOLDERS"):
        configs.page(tmp_path)


@pytest.mark.parametrize(
    ("text", "kind", "description", "command"),
    [
        ("# A base.\n# lit-sparse fit -c x.yaml\na: 1\n", "base", "A base.", "fit -c x.yaml"),
        ("# Overlay: other bits. For 128:\n# --x 1\n# lit-sparse fit -c y\nb: 1", "overlay", "Other bits.", "fit -c y"),
        ("# A study.\ncells: {}\n", "study", "A study.", ""),
    ],
)
def test_a_config_is_described_by_its_comments(
    text: str, kind: str, description: str, command: str, configs: types.ModuleType
) -> None:
    assert (configs.kind(text), configs.description(text), configs.command(text)) == (kind, description, command)
