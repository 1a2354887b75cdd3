"""Former names still work: in programs with a warning, in configs and checkpoints without one."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import lit_sparse
from lit_sparse.aliases import ALIASES, with_new_names
from lit_sparse.cli import build_cli
from lit_sparse.errors import CheckpointError
from lit_sparse.models import EntropicTransport
from lit_sparse.transport import MLPPotentials
from lit_sparse.trust import find_imported

from .conftest import CONFIGS

TRANSPORT = CONFIGS / "transport"


@pytest.mark.parametrize("old", ALIASES)
def test_a_former_name_gives_the_object_and_the_new_name(old: str) -> None:
    (module, name), (home, called) = old.rsplit(".", 1), ALIASES[old].rsplit(".", 1)
    with pytest.warns(DeprecationWarning, match=rf"{old} is now {ALIASES[old]}\. Import it from {home}\."):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(home), called)
    assert find_imported(old) is found


def test_other_names_are_not_there() -> None:
    for module in {old.rpartition(".")[0] for old in ALIASES}:
        with pytest.raises(AttributeError, match="no attribute 'Potentialss'"):
            importlib.import_module(module).Potentialss  # noqa: B018


def test_new_names_in_a_description() -> None:
    old, new = next(iter(ALIASES.items()))
    described = {"class_path": old, "init_args": {"parts": [old, 1, None, {"class_path": old}], "text": f"not {old}"}}
    made = {"class_path": new, "init_args": {"parts": [new, 1, None, {"class_path": new}], "text": f"not {old}"}}
    assert with_new_names(described) == made


def test_a_config_and_an_option_may_have_former_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text(
        "model:\n"
        "  class_path: EntropicTransport\n"
        "  init_args:\n"
        "    dim: 1\n"
        "    potentials: {class_path: lit_sparse.nn.MLPPotentials, init_args: {hidden: [4]}}\n"
        "data:\n"
        "  class_path: TransportDataModule\n"
        "  init_args:\n"
        "    source: {class_path: lit_sparse.data.GaussianMixture, init_args: {means: [0.0], variances: [1.0]}}\n"
        "    target: {class_path: lit_sparse.data.GaussianMixture, init_args: {means: [1.0], variances: [1.0]}}\n"
    )
    cli = build_cli(["fit", "-c", "old.yaml"])
    assert isinstance(cli.model.potentials, MLPPotentials)
    assert list(cli.model.potentials.hidden) == [4]
    cli = build_cli(["fit", "-c", "old.yaml", "--model.init_args.potentials=lit_sparse.nn.KernelPotentials"])
    assert type(cli.model.potentials).__name__ == "KernelPotentials"


def test_a_checkpoint_may_have_former_names(tmp_path: Path) -> None:
    model = EntropicTransport(MLPPotentials([4]), dim=1)
    described = {
        **model.hparams,
        "potentials": {"class_path": "lit_sparse.nn.MLPPotentials", "init_args": {"hidden": [4]}},
    }
    kept = {
        "state_dict": model.state_dict(),
        "hyper_parameters": described,
        "pytorch-lightning_version": "2.5.0",
        "epoch": 0,
        "global_step": 0,
    }
    torch.save(kept, tmp_path / "old.ckpt")
    loaded = lit_sparse.load(tmp_path / "old.ckpt")
    assert isinstance(loaded, EntropicTransport)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    described["potentials"]["class_path"] = "lit_sparse.nn.NoPotentials"
    torch.save(kept, tmp_path / "wrong.ckpt")
    with pytest.raises(CheckpointError, match="NoPotentials"):
        lit_sparse.load(tmp_path / "wrong.ckpt")
