"""Regression and classification by a risk: initialization, scores, and dual variables."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.cli.callbacks import OptimizerOptions
from lit_sparse.coresets import NormalLikelihood
from lit_sparse.data import CoresetDataModule, DigitsDataModule, SymmetricNoise, SyntheticRegressionDataModule
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import (
    BayesianRegression,
    RobustClassifier,
    RobustRegressor,
    SemiSupervisedVAE,
    SupervisedOnlineAutoencoder,
)
from lit_sparse.nn import MLP, ConvNet, NoiseBases
from lit_sparse.risks import KLDRO, ExponentialOTDRO, Risk, SafeKLDRO, UnbalancedOTDRO

SGD = functools.partial(torch.optim.SGD, lr=1e-3)
THETA = (1.0, -2.0, 0.5, 0.0, 3.0)


def rows(**options: Any) -> SyntheticRegressionDataModule:
    return SyntheticRegressionDataModule("normal", size=300, coefficients=THETA, batch_size=20, **options)


def regressor(risk: Risk | None = None, **options: Any) -> RobustRegressor:
    return RobustRegressor(in_features=5, risk=risk, **{"optimizer": SGD, **options})


def trainer(**options: Any) -> pl.Trainer:
    common = {
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    return pl.Trainer(**{**common, "enable_checkpointing": False, "num_sanity_val_steps": 0, **options})


def groups(run: pl.Trainer, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(group[name] for name in names) for group in run.optimizers[0].param_groups]


def test_it_begins_at_least_squares() -> None:
    data = rows()
    model = regressor(optimizer=functools.partial(torch.optim.SGD, lr=0.0))
    trainer().fit(model, datamodule=data)
    batch = data.fetch("train", 0, torch.arange(data.size("train")))
    expected = torch.linalg.lstsq(batch["features"].double(), batch["target"].double().unsqueeze(1)).solution
    torch.testing.assert_close(model.network.weight.double(), expected.mT, atol=1e-5, rtol=1e-5)
    weights = torch.zeros(len(batch["target"]))
    weights[:40] = 2.0
    model.start_from({**batch, "weight": weights})
    expected = torch.linalg.lstsq(batch["features"][:40].double(), batch["target"][:40].double().unsqueeze(1)).solution
    torch.testing.assert_close(model.network.weight.double(), expected.mT, atol=1e-5, rtol=1e-5)
    zeros = regressor(optimizer=functools.partial(torch.optim.SGD, lr=0.0), initialization="zeros")
    trainer().fit(zeros, datamodule=rows())
    assert not bool(zeros.network.weight.any())


def test_log_mean_exp_is_of_all_rows() -> None:
    data, model = rows(eval_batch_size=7), regressor(lam=2.0)
    run = trainer()
    run.fit(model, datamodule=data)
    batch = data.fetch("val", 0, torch.arange(data.size("val")))
    losses = (model(batch["features"]) - batch["target"]).square().detach().double()
    expected = 2 * (torch.logsumexp(losses / 2, 0) - torch.tensor(float(len(losses))).log())
    assert float(run.callback_metrics["val/log_mean_exp"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(run.callback_metrics["val/loss"]) == pytest.approx(float(losses.mean()), rel=1e-5)


@pytest.mark.gate
def test_a_robust_fit_is_better_where_it_says_so() -> None:
    """The solution of the mean is not optimal for the log mean exp of the training data."""
    torch.manual_seed(0)
    found = {}
    for name, risk in (("mean", None), ("safe", SafeKLDRO(1.0, 0.01, dual_lr=0.01))):
        data = rows(noise=4.0)
        model = regressor(risk, optimizer=functools.partial(torch.optim.SGD, lr=2e-3))
        trainer(max_epochs=30).fit(model, datamodule=data)
        batch = data.fetch("train", 0, torch.arange(data.size("train")))
        losses = (model(batch["features"]) - batch["target"]).square().detach()
        found[name] = float(KLDRO(1.0)(losses)), float(losses.mean())
    assert found["safe"][0] < found["mean"][0] - 0.5
    assert found["safe"][1] > found["mean"][1]


def test_a_network_of_ones_own_and_what_does_not_fit() -> None:
    model = RobustRegressor(in_features=5, network=MLP([5, 8, 1]))
    assert model(torch.randn(3, 5)).shape == (3,)
    with pytest.raises(ConfigurationError, match="linear"):
        model.start_from({"features": torch.zeros(3, 5), "target": torch.zeros(3)})
    with pytest.raises(ConfigurationError, match=r"to predictions \(3, 1\) but got predictions \(3, 2\)"):
        RobustRegressor(in_features=5, network=MLP([5, 2]))(torch.randn(3, 5))
    with pytest.raises(ConfigurationError, match="in_features=5"):
        model.run_step({"features": torch.zeros(3, 4), "target": torch.zeros(3)}, 0, "train")
    with pytest.raises(ConfigurationError, match="a different kind of model"):
        model.run_step({"pixels": torch.zeros(3, 4)}, 0, "train")
    with pytest.raises(ConfigurationError, match=r"pixels and label but got features, target, .* `fit: map`"):
        RobustClassifier().run_step({"features": torch.zeros(3, 5), "target": torch.zeros(3)}, 0, "train")
    with pytest.raises(ConfigurationError, match="least_squares"):
        RobustRegressor(in_features=5, initialization="ones")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="Risk"):
        RobustRegressor(in_features=5, risk="SafeKLDRO")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="fit: laplace"):
        BayesianRegression(NormalLikelihood(), in_features=3, risk=KLDRO(1.0))


@pytest.mark.gate
def test_wrong_labels_and_true_ones() -> None:
    """Both accuracies are logged where they differ, and one alone where they cannot."""
    network = ConvNet(8, 8, channels=[8], hidden=16)
    for noise in (SymmetricNoise(0.3), None):
        data = DigitsDataModule(labelled=1.0, binarize=False, label_noise=noise)
        model = RobustClassifier(network=network, in_features=64, optimizer=functools.partial(torch.optim.Adam, lr=3e-3))
        run = trainer(max_epochs=4)
        run.fit(model, datamodule=data)
        assert ("val/clean_accuracy" in run.callback_metrics) == (noise is not None)
        if noise is not None:
            assert run.callback_metrics["val/clean_accuracy"] > run.callback_metrics["val/accuracy"] + 0.1
            assert run.callback_metrics["train/clean_accuracy"] > run.callback_metrics["train/accuracy"]


class Elsewhere(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda")  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # results are plain tensors


def test_images_without_labels_do_not_count() -> None:
    model = RobustClassifier(network=ConvNet(8, 8, channels=[4]), in_features=64)
    batch = {"pixels": torch.rand(6, 64), "label": torch.tensor([-100, 3, 1, -100, -100, 2]), "index": torch.arange(6)}
    labelled = {name: value[[1, 2, 5]] for name, value in batch.items()}
    torch.testing.assert_close(model.run_step(batch, 0, "train")["loss"], model.run_step(labelled, 0, "train")["loss"])
    rows = model._labelled({**batch, "label": batch["label"].as_subclass(Elsewhere)})
    assert rows is not None and rows.tolist() == [1, 2, 5]
    with pytest.raises(ConfigurationError, match=r"labelled: 1\.0"):
        model.run_step({**batch, "label": torch.full((6,), -100)}, 0, "train")
    with pytest.raises(
        ConfigurationError, match=r"the network MLP to map images \(6, 64\) to scores \(6, 10\) but got scores \(6, 7\)"
    ):
        RobustClassifier(network=MLP([64, 7]), in_features=64)(batch["pixels"])
    with pytest.raises(ConfigurationError, match="8 x 8"):
        RobustClassifier(in_features=64)
    with pytest.raises(ConfigurationError, match="large enough"):
        ConvNet(8, 8)


def test_the_dual_variable_has_a_rate_of_its_own_and_does_not_decay() -> None:
    decaying = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.5)
    run = trainer(callbacks=[OptimizerOptions({"lr": 0.02, "weight_decay": 0.7})])
    run.fit(regressor(SafeKLDRO(1.0, 0.1, dual_lr=0.3), optimizer=decaying), datamodule=rows())
    assert groups(run, "lr", "weight_decay") == [(0.02, 0.7), (0.3, 0.0)]
    run = trainer()
    run.fit(regressor(SafeKLDRO(1.0, 0.1), optimizer=decaying), datamodule=rows())
    assert groups(run, "lr", "weight_decay") == [(0.01, 0.5), (0.01, 0.0)]


@pytest.mark.parametrize(("before", "after"), [(None, 0.1), (0.1, None), (0.1, 0.2)], ids=["given", "taken back", "changed"])
def test_a_run_that_goes_on_has_the_rate_that_it_is_given(before: float | None, after: float | None, tmp_path: Path) -> None:
    run = trainer()
    run.fit(regressor(SafeKLDRO(1.0, 0.1, dual_lr=before)), datamodule=rows())
    run.save_checkpoint(tmp_path / "one.ckpt")
    again = trainer(max_epochs=2)
    model = regressor(SafeKLDRO(1.0, 0.1, dual_lr=after))
    again.fit(model, datamodule=rows(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert groups(again, "lr") == [(1e-3,), (1e-3 if after is None else after,)]


def test_a_rate_found_by_the_tuner_leaves_the_rate_of_the_dual_variable() -> None:
    for dual_lr, expected in ((0.3, 0.3), (None, 0.05)):
        model = regressor(SafeKLDRO(1.0, 0.1, dual_lr=dual_lr))
        model.lr = 0.05
        groups = model.configure_optimizers().param_groups
        assert [(bool(group.get("dual")), group["lr"]) for group in groups] == [(False, 0.05), (True, expected)]


def test_optimizers_and_schedulers_that_know_no_groups() -> None:
    run = trainer(max_epochs=1)
    run.fit(regressor(SafeKLDRO(1.0, 0.1), optimizer=functools.partial(torch.optim.LBFGS, lr=0.01)), datamodule=rows())
    with pytest.raises(ConfigurationError, match="dual_lr"):
        trainer().fit(regressor(SafeKLDRO(1.0, 0.1, dual_lr=0.1), optimizer=torch.optim.LBFGS), datamodule=rows())
    counted = regressor(ExponentialOTDRO(100.0, 1.0), optimizer=functools.partial(torch.optim.LBFGS, lr=0.01))
    trainer().fit(counted, datamodule=rows())
    cycle = functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.01, total_steps=100)
    with pytest.warns(UserWarning, match="list of rates"):
        regressor(SafeKLDRO(1.0, 0.1, dual_lr=0.1), lr_scheduler=cycle).configure_optimizers()


def test_another_risk(tmp_path: Path) -> None:
    """A run goes on with its own; a model that is loaded may be given another, or none."""
    run = trainer()
    run.fit(regressor(SafeKLDRO(1.0, 0.1)), datamodule=rows())
    run.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(CheckpointError, match="trained with but got Mean"):
        trainer(max_epochs=2).fit(regressor(), datamodule=rows(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    plain = RobustRegressor.load_from_checkpoint(tmp_path / "one.ckpt", risk=None, weights_only=True)
    assert type(plain.risk).__name__ == "Mean"
    robust = RobustRegressor.load_from_checkpoint(tmp_path / "one.ckpt", weights_only=True)
    torch.testing.assert_close(robust.network.weight, plain.network.weight)
    assert isinstance(robust.risk, SafeKLDRO) and bool(robust.risk.dual.isfinite())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch._dynamo reads it
def test_a_compiled_step_learns_the_dual_variable() -> None:
    risk = SafeKLDRO(1.0, 0.1, dual_lr=0.01)
    model = regressor(risk)
    risk.compile(backend="eager")
    trainer(max_epochs=2).fit(model, datamodule=rows())
    assert bool(risk.dual.isfinite())
    torch.compiler.reset()


def test_a_dual_variable_that_is_given_for_a_call() -> None:
    risk, losses = SafeKLDRO(1.0, 0.1), torch.tensor([1.0, 3.0])
    given = torch.func.functional_call(risk, {"dual": torch.tensor(3.0)}, (losses,))
    torch.testing.assert_close(given, risk.objective(losses, torch.tensor(3.0)))
    risk(losses)
    assert bool(risk.dual.isfinite())
    restored = SafeKLDRO(1.0, 0.1)
    restored.load_state_dict({"dual": torch.tensor(2.0)}, strict=False)
    restored(losses)
    assert float(restored.dual.detach()) == 2.0


def test_a_broken_example_of_weight_zero_is_found_before_it_reaches_the_network() -> None:
    model = regressor(SafeKLDRO(1.0, 0.1))
    batch = {"features": torch.randn(4, 5), "target": torch.tensor([0.0, torch.nan, 1.0, 2.0]), "index": torch.arange(10, 14)}
    batch["weight"] = torch.tensor([1.0, 0.0, 1.0, 1.0])
    with pytest.raises(DataError, match=r"example 1 of the batch \(number 11 "):
        model.run_step(batch, 0, "train")
    assert bool(model.risk.dual.isnan()), "nothing was learnt"


def test_the_example_is_named_where_losses_are_of_several_kinds() -> None:
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64)
    label = torch.tensor([0, 1, 2, 3, *[-100] * 8])
    batch = {"pixels": torch.rand(12, 64), "label": label, "index": torch.arange(100, 112)}
    batch["pixels"][2] = torch.nan
    with pytest.raises(DataError, match=r"example 2 of the batch \(number 102 "):
        model.run_step(batch, 0, "train")


def test_an_adversary_that_runs_away_is_told() -> None:
    model = regressor(UnbalancedOTDRO(1e-3, 1.0, 0.1, inner_steps=50))
    with torch.no_grad():
        model.network.weight.fill_(5.0)  # the loss curves by far more than the cost
    batch = {"features": torch.randn(4, 5), "target": torch.zeros(4), "index": torch.arange(4)}
    with pytest.raises(DataError, match="raise transport_cost"):
        model.run_step(batch, 0, "train")


def test_a_coreset_and_a_risk() -> None:
    def vectors(examples: Any) -> Tensor:
        return examples[torch.arange(len(examples))]["features"]

    from lit_sparse.coresets import Uniform

    data = CoresetDataModule(rows(), Uniform(), 50, vectors)
    for risk in (SafeKLDRO(1.0, 0.1, dual_lr=0.01), KLDRO(1.0)):
        run = trainer()
        run.fit(regressor(risk), datamodule=data)
        assert bool(run.callback_metrics["train/risk"].isfinite())


def test_labels_and_networks_that_do_not_fit_are_told() -> None:
    batch = {"pixels": torch.rand(3, 4), "label": torch.tensor([0, 5, 1]), "index": torch.arange(3)}
    with pytest.raises(ConfigurationError, match="labels below classes=3 but got 5"):
        RobustClassifier(network=torch.nn.Linear(4, 3), in_features=4, classes=3).run_step(batch, 0, "val")
    with pytest.raises(ConfigurationError, match=r"Linear to map images \(3, 4\) to scores .* but got RuntimeError: mat1"):
        RobustClassifier(network=torch.nn.Linear(5, 3), in_features=4, classes=3)(batch["pixels"])
    with pytest.raises(
        ConfigurationError, match=r"Linear to map features \(3, 4\) to predictions .* but got RuntimeError: mat1"
    ):
        RobustRegressor(network=torch.nn.Linear(5, 1), in_features=4)(batch["pixels"])
    for network in (torch.nn.Upsample(2), torch.nn.ModuleList(), torch.nn.TransformerEncoderLayer(8, 1)):
        with pytest.raises(ConfigurationError, match=f"{type(network).__name__} to map features .* but got .*Error"):
            RobustRegressor(network=network, in_features=4)(batch["pixels"])
    with pytest.raises(ConfigurationError, match="1 x 16 x 8 values for this ConvNet"):
        ConvNet(16, 8, channels=[4])(torch.rand(2, 64))


@pytest.mark.parametrize(
    "wrong",
    [
        {"label": torch.tensor([0, 1])},  # the rows without one would be left out
        {"label": torch.full((3,), 0.5)},
        {"label": torch.zeros(3, 1, dtype=torch.int64)},
        {"weight": torch.ones(2)},
        {"weight": [1.0, 1.0, 1.0]},
        {"pixels": None},
        {"pixels": torch.ones(3, 4, dtype=torch.uint8)},
    ],
    ids=str,
)
def test_batches_whose_rows_do_not_fit_are_told(wrong: dict[str, Any]) -> None:
    batch = {"pixels": torch.rand(3, 4), "label": torch.tensor([0, 2, 1]), "index": torch.arange(3)} | wrong
    sizes: dict[str, Any] = {"classifier_hidden": [4], "inference_hidden": [4], "generator_hidden": [4]}
    for model in (
        RobustClassifier(network=torch.nn.Linear(4, 3), in_features=4, classes=3),
        SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=4, classes=3, **sizes),
    ):
        with pytest.raises(ConfigurationError):
            model.run_step(batch, 0, "train")
        with pytest.raises(ConfigurationError, match="dicts of tensors"):
            model.run_step((batch["pixels"], batch["label"]), 0, "train")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="stage"):
            model.run_step(batch, 0, "training")  # type: ignore[arg-type]


def test_data_of_another_kind_are_told_in_training_and_prediction() -> None:
    model = RobustClassifier(network=torch.nn.Linear(4, 3), in_features=4, classes=3)
    with pytest.raises(ConfigurationError, match="dicts of tensors but got tuple"):
        model.training_step((torch.rand(3, 4), torch.tensor([0, 2, 1])), 0)  # type: ignore[arg-type]
    batch = {"features": torch.rand(3, 4), "index": torch.arange(3)}
    with pytest.raises(ConfigurationError, match="the entry 'pixels' in a batch for RobustClassifier but got features, index"):
        model.predict_step(batch, 0)
    with pytest.raises(ConfigurationError, match="dicts of tensors but got list"):
        model.predict_step([batch["features"]], 0)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_model_is_told_by_a_trainer(tmp_path: Path) -> None:
    first = trainer()
    first.strategy.connect(regressor(initialization="zeros"))
    first.save_checkpoint(tmp_path / "other.ckpt")
    other = RobustRegressor(in_features=4, initialization="zeros")
    with pytest.raises(CheckpointError, match=r"does not fit the model.* size mismatch for network.weight"):
        trainer().test(other, rows(), ckpt_path=tmp_path / "other.ckpt", weights_only=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8])
def test_labels_are_integers_of_any_type(dtype: torch.dtype) -> None:
    pixels, label = torch.rand(3, 4), torch.tensor([0, -100, 1])
    sizes: dict[str, Any] = {"classifier_hidden": [4], "inference_hidden": [4], "generator_hidden": [4]}
    for model in (
        SupervisedOnlineAutoencoder(None, in_features=4, width=5, classes=3, initial_bases=NoiseBases()),
        SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=4, classes=3, **sizes),
    ):
        found = []
        for given in (label, label.clamp_min(-1).to(dtype)):  # any negative label marks an example without one
            torch.manual_seed(0)
            batch = {"pixels": pixels, "label": given, "index": torch.arange(3)}
            found.append(model.run_step(batch, 1, "train")["loss"])
        assert torch.equal(*found)
