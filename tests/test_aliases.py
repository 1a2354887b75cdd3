"""Former names still work, with a warning: in programs, configs and checkpoints."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import lit_sparse
from lit_sparse.aliases import ALIASES, former_arguments, former_names, renamed
from lit_sparse.cli import build_cli
from lit_sparse.coresets import GaussianPosterior
from lit_sparse.data import (
    CatalogueDataModule,
    DigitsDataModule,
    ReferentialGameDataModule,
    SyntheticRegressionDataModule,
    TransportDataModule,
)
from lit_sparse.data.loader import EpochLoader
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.estimators import Expectation, LatentBatch, Marginalize
from lit_sparse.kernels import row_kernel
from lit_sparse.mappings.row_function import FORMER_PARTS, RowFunction
from lit_sparse.models import EntropicTransport, RobustRegressor
from lit_sparse.risks import ExponentialOTDRO, UnbalancedOTDRO
from lit_sparse.risks.input_adversary import InputAdversary
from lit_sparse.structures import Sequence, Structure
from lit_sparse.structures.base import FORMER_METHODS
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
        (InputAdversary, "lam", "transport_cost", 2.0),
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


@pytest.mark.gate
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


# Former names of methods and fields


@pytest.mark.parametrize(("old", "new"), FORMER_METHODS.items())
def test_former_methods_of_structures_can_be_called(old: str, new: str) -> None:
    structure, scores = Sequence(tags=2), torch.zeros(1, 4)
    arguments: dict[str, tuple[Any, ...]] = {
        "expand_scores": (scores,),
        "select_entries": (structure.maximize(structure.expand_scores(scores)),),
        "batch_potentials": (torch.zeros(2, 2), 4),
        "joint_over_queries": (2, 2),
    }
    with pytest.warns(DeprecationWarning, match=f"Sequence.{old} is now Sequence.{new}") as caught:
        found = getattr(structure, old)(*arguments[new])
    assert caught[0].filename == __file__
    expected = getattr(structure, new)(*arguments[new])
    assert found is expected is None or torch.equal(found, expected)


def test_former_methods_of_structures_can_be_overridden() -> None:
    with pytest.warns(DeprecationWarning, match=r"Plus\.widen is now Plus\.expand_scores") as caught:

        class Plus(Sequence):
            def widen(self, scores: torch.Tensor) -> torch.Tensor:
                return super().widen(scores) + 1

    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"Twice\.widen is now"):

        class Twice(Plus):
            def widen(self, scores: torch.Tensor) -> torch.Tensor:
                return super().widen(scores) * 2

    class Triple(Plus):
        def expand_scores(self, scores: torch.Tensor) -> torch.Tensor:
            return super().expand_scores(scores) * 3

    scores = torch.zeros(1, 4)
    for cls, factor in ((Plus, 1), (Twice, 2), (Triple, 3)):
        with pytest.warns(DeprecationWarning, match="widen is now"):
            assert cls(tags=2).expand_scores(scores).eq(factor).all()
    with pytest.warns(DeprecationWarning, match="widen is now"):
        assert Twice(tags=2).widen(scores).eq(2).all()
    with warnings.catch_warnings(action="error"):

        class Both(Structure):
            def maximize(self, scores: torch.Tensor, potentials: torch.Tensor | None = None) -> torch.Tensor:
                return scores

            def widen(self, scores: torch.Tensor) -> torch.Tensor:
                return scores

            def expand_scores(self, scores: torch.Tensor) -> torch.Tensor:
                return scores + 5

    assert Both().expand_scores(scores).eq(5).all()


def test_a_former_method_of_estimators_can_be_called_and_overridden() -> None:
    with pytest.warns(DeprecationWarning, match=r"expect_context is now \w+\.set_context_features"):
        assert Marginalize().expect_context(3).mapping is None
    with pytest.warns(DeprecationWarning, match=r"Own\.expect_context is now Own\.set_context_features"):

        class Own(Marginalize):
            def expect_context(self, features: int) -> Any:
                self.features = features
                return super().expect_context(features)

    own = Own()
    with pytest.warns(DeprecationWarning, match="expect_context is now"):
        assert own.set_context_features(3) is own
    assert own.features == 3


def test_former_fields_of_latent_values_and_estimates() -> None:
    values, rows = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.warns(DeprecationWarning, match="`rows` of LatentBatch is now `example_index`"):
        batch = LatentBatch(values=values, rows=rows)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"LatentBatch\.rows is now LatentBatch\.example_index") as caught:
        assert batch.rows is batch.example_index is rows  # type: ignore[attr-defined]
    assert caught[0].filename == __file__
    found = Expectation(values[:, 0], values, rows, None, rows, analytic_entropy=values[:, 1])
    with pytest.warns(DeprecationWarning, match=r"Expectation\.known_entropy is now Expectation\.analytic_entropy"):
        assert found.known_entropy is found.analytic_entropy  # type: ignore[attr-defined]


def test_the_former_argument_of_a_loader() -> None:
    with pytest.warns(DeprecationWarning, match="`plan` of EpochLoader is now `batch_indices`"):
        loader = EpochLoader(plan=lambda epoch: [torch.arange(2)], fetch=lambda epoch, indices: {"x": indices})  # type: ignore[call-arg]
    assert len(list(loader)) == len(loader) == 1


def test_former_names_of_the_parts_of_a_row_function() -> None:
    parts = {old: staticmethod(lambda *args, old=old: old) for old in ("jacobian", "transposed", "product", "sensitivity")}
    with pytest.warns(DeprecationWarning, match=r"Own\.\w+ is now Own\.\w+") as caught:
        own = type("Own", (RowFunction,), {"kernel": None, "sensitive": True, "keeps_scores": True, **parts})
    assert {f"Own.{old} is now Own.{new}." for old, new in FORMER_PARTS.items()} == {str(one.message) for one in caught}
    assert caught[0].filename == __file__
    assert own.has_parameter_gradient is own.saves_input is True
    assert [own.jvp(), own.vjp(), own.vjp_kernel(), own.parameter_jvp()] == list(parts)


def test_former_arguments_of_a_row_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_kernel, "HAS_CUSTOM_OPS", False)
    with pytest.warns(DeprecationWarning, match="`twin` of RowKernel is now `reference`"):
        kernel = row_kernel.RowKernel("former", "(Tensor x) -> Tensor", cpu=lambda out, x: None, twin=torch.clone)  # type: ignore[call-arg]
    assert kernel.reference is torch.clone


def test_a_former_argument_of_a_method() -> None:
    posterior = GaussianPosterior(torch.zeros(2), torch.eye(2))
    with pytest.warns(DeprecationWarning, match="`draws` of GaussianPosterior is now `num_samples`"):
        assert posterior.sample(draws=3).shape == (3, 2)  # type: ignore[call-arg]
