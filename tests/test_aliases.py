"""Former names still work, with a warning: in programs, configs and checkpoints."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import lit_sparse
from lit_sparse.aliases import ALIASES, former_arguments, former_names, renamed, with_new_names
from lit_sparse.cli import build_cli
from lit_sparse.data import (
    CatalogueDataModule,
    DigitsDataModule,
    ReferentialGameDataModule,
    SyntheticRegressionDataModule,
    TransportDataModule,
)
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.models import EntropicTransport, RobustRegressor
from lit_sparse.risks import ExponentialOTDRO, UnbalancedOTDRO
from lit_sparse.transport import GaussianMixture, MLPPotentials
from lit_sparse.trust import find_imported

from .conftest import CONFIGS, Command

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
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
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
    with pytest.warns(DeprecationWarning, match=r"\w+ is now lit_sparse\.transport"):
        cli = build_cli(["fit", "-c", "old.yaml"])
    assert isinstance(cli.model.potentials, MLPPotentials)
    assert list(cli.model.potentials.hidden) == [4]
    with pytest.warns(DeprecationWarning, match=r"\w+ is now lit_sparse\.transport"):
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
    with pytest.warns(DeprecationWarning, match="MLPPotentials is now"):
        loaded = lit_sparse.load(tmp_path / "old.ckpt")
    assert isinstance(loaded, EntropicTransport)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    described["potentials"]["class_path"] = "lit_sparse.nn.NoPotentials"
    torch.save(kept, tmp_path / "wrong.ckpt")
    with pytest.raises(CheckpointError, match="NoPotentials"):
        lit_sparse.load(tmp_path / "wrong.ckpt")


class Base:
    @former_arguments(old="new")
    def __init__(self, *, new: int = 0) -> None:
        self.new = new


class Child(Base):
    def __init__(self, own: int = 1, **options: int) -> None:
        super().__init__(**options)
        self.own = own


class Other(Base):
    def __init__(self, old: int = 1) -> None:
        super().__init__()
        self.old = old


@pytest.mark.parametrize("cls", [Base, Child])
def test_a_former_argument_warns(cls: Any) -> None:
    with pytest.warns(DeprecationWarning, match=f"`old` of {cls.__name__} is now `new`"):
        assert cls(old=3).new == 3
    with pytest.raises(ConfigurationError, match=r"Expected `new` of .* once but got its former name `old` too"):
        cls(old=3, new=4)


def test_an_argument_of_a_subclass_keeps_its_name() -> None:
    assert former_names(Base) == former_names(Child) == {"old": "new"}
    assert former_names(Other) == former_names(None) == {}
    assert Other(old=2).old == renamed({"old": 2}, Other)["old"] == 2


def test_a_model_keeps_the_value_of_a_former_argument() -> None:
    with pytest.warns(DeprecationWarning, match="`start` of RobustRegressor is now `initialization`") as caught:
        model = RobustRegressor(in_features=3, start="zeros")  # type: ignore[call-arg]
    assert model.hparams["initialization"] == "zeros"
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("cls", "old", "new", "value"),
    [
        (DigitsDataModule, "jitter", "shift_augmentation", True),
        (SyntheticRegressionDataModule, "whole", "use_all", True),
        (TransportDataModule, "val_samples", "val_size", 7),
        (CatalogueDataModule, "test_share", "test_size", 0.2),
        (ReferentialGameDataModule, "val_share", "val_size", 0.2),
        (UnbalancedOTDRO, "lam", "transport_cost", 2.0),
        (ExponentialOTDRO, "lam", "transport_cost", 2.0),
    ],
)
def test_former_arguments_of_the_package(cls: Any, old: str, new: str, value: Any) -> None:
    point = GaussianMixture([0.0], [1.0])
    needed: dict[Any, dict[str, Any]] = {
        TransportDataModule: {"source": point, "target": point},
        CatalogueDataModule: {"folders": ["somewhere"]},
        ReferentialGameDataModule: {"path": "vectors.npy"},
        UnbalancedOTDRO: {"beta": 1.0, "rho": 0.1},
        ExponentialOTDRO: {"beta": 1.0},
    }
    with pytest.warns(DeprecationWarning, match=f"`{old}` of {cls.__name__} is now `{new}`"):
        assert getattr(cls(**needed.get(cls, {}), **{old: value}), new) == value


MODEL = "model: {class_path: RobustRegressor, init_args: {in_features: 3, risk: {class_path: CVaR, init_args: {level: 0.5}}}}\n"
DATA = "data: {class_path: SyntheticRegressionDataModule, init_args: {size: 30}}\n"


@pytest.mark.parametrize(
    "given",
    [
        ["-c", "overlay.yaml"],
        ["--model.init_args.start=zeros"],
        ["--model.init_args.start", "zeros"],
        ["--model.start=zeros"],
    ],
)
def test_a_config_and_an_option_may_have_a_former_argument(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(MODEL.replace("3,", "3, initialization: least_squares,") + DATA)
    Path("overlay.yaml").write_text("model: {init_args: {start: zeros}}\n")
    with pytest.warns(DeprecationWarning, match="`start` of RobustRegressor is now `initialization`"):
        cli = build_cli(["fit", "-c", "base.yaml", *given])
    assert cli.model.initialization == "zeros"


@pytest.mark.process
def test_the_command_line_shows_the_new_name(lit_sparse: Command, tmp_path: Path) -> None:
    (tmp_path / "former.yaml").write_text(MODEL.replace("3,", "3, start: zeros,") + DATA)
    done = lit_sparse("fit", "-c", "former.yaml", "--print_config")
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning: `start` of RobustRegressor is now `initialization`" in done.stderr


def test_a_config_or_a_checkpoint_with_both_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("both.yaml").write_text(MODEL.replace("3,", "3, initialization: zeros, start: zeros,") + DATA)
    with pytest.raises(ConfigurationError, match="Expected `initialization` of RobustRegressor once"):
        build_cli(["fit", "-c", "both.yaml"])
    model = RobustRegressor(in_features=3)
    described = {**model.hparams, "start": "zeros"}
    version = {"pytorch-lightning_version": "2.5.0", "epoch": 0, "global_step": 0}
    torch.save({"state_dict": model.state_dict(), "hyper_parameters": described, **version}, "both.ckpt")
    with pytest.raises(ConfigurationError, match="Expected `initialization` of RobustRegressor once"):
        lit_sparse.load("both.ckpt")
