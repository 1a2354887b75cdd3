"""Batches of several updates train as batches of one: weights, logged values, callbacks, schedulers, checkpoints."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

from lit_sparse.callbacks import CountLogger, OptimalBrainDamage, RelativeChangeStopping, SparseConnectivity
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import HoyerProjection, Sparsemax
from lit_sparse.models import RobustClassifier, SemiSupervisedVAE, StepwiseLR, SupervisedOnlineAutoencoder
from lit_sparse.models.base import LitSparseModule
from lit_sparse.nn import ConvNet
from lit_sparse.risks import UnbalancedOTDRO
from lit_sparse.studies.problems.label_noise import LabelNoiseCurves

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:The dirpath has changed")

SGD = partial(torch.optim.SGD, lr=0.1)


def autoencoder(**options: Any) -> LitSparseModule:
    torch.manual_seed(0)
    return SupervisedOnlineAutoencoder(
        HoyerProjection(0.7), in_features=64, width=20, supervision_epochs=2, optimizer=SGD, **options
    )


def robust() -> LitSparseModule:
    """A network with random draws, momentum, and a risk with a dual variable."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        ConvNet(8, 8, outputs=16, channels=[2], hidden=8), torch.nn.Dropout(), torch.nn.Linear(16, 10)
    )
    return RobustClassifier(
        network=network,
        in_features=64,
        risk=UnbalancedOTDRO(1.0, 1.0, 0.1, inner_steps=2),
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        lr_scheduler=lambda it: StepwiseLR(it, partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.95), warmup_steps=7),
    )


class Killed(Exception):
    """Raised in place of a kill."""


class StopAt(pl.Callback):
    """End a run after a step without any of its usual work."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise Killed


def data_of(updates: int, epoch_size: int = 60) -> DigitsDataModule:
    return DigitsDataModule(
        labelled=1.0, binarize=False, epoch_size=epoch_size, batch_size=2, updates_per_batch=updates, val_size=40, test_size=40
    )


def fit(
    folder: Path,
    model: LitSparseModule,
    data: DigitsDataModule,
    *callbacks: pl.Callback,
    ckpt_path: Path | None = None,
    **options: Any,
) -> pl.Trainer:
    trainer = pl.Trainer(
        default_root_dir=folder,
        **{"max_epochs": 3, "log_every_n_steps": 10, "accelerator": "cpu", **options},
        callbacks=[
            CountLogger(64),
            *callbacks,
            ModelCheckpoint(folder, "last", every_n_train_steps=10, enable_version_counter=False),
        ],
        logger=CSVLogger(folder, name="", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data, ckpt_path=None if ckpt_path is None else str(ckpt_path), weights_only=True)
    return trainer


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def assert_same(one: Path, other: Path, since: int = 0) -> None:
    states = [torch.load(folder / "last.ckpt", weights_only=True) for folder in (one, other)]
    for name, value in states[0]["state_dict"].items():
        assert torch.equal(value, states[1]["state_dict"][name]), name
    for name in ("global_step", "epoch", "lr_schedulers"):
        assert states[0][name] == states[1][name], name
    for ours, theirs in zip(rows(one), [row for row in rows(other) if int(row["step"]) >= since], strict=True):
        assert ours.keys() == theirs.keys()
        assert {name: float(value) for name, value in ours.items()} == pytest.approx(
            {name: float(value) for name, value in theirs.items()}, rel=1e-12
        )


def callbacks_of(kind: str) -> list[pl.Callback]:
    if kind == "autoencoder":
        return [SparseConnectivity("encoder", 0.6, every=10, interval="step"), RelativeChangeStopping(threshold=1e-9)]
    return [LabelNoiseCurves(every=20, train_examples=8, val_examples=8)]


KINDS = {"autoencoder": autoencoder, "robust": robust}


@pytest.mark.gate
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_in_batches_of_several_updates(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"gradient_clip_val": 0.5} if kind == "autoencoder" else {"max_steps": 80}
    for updates in (1, 5):
        trainer = fit(tmp_path / str(updates), KINDS[kind](), data_of(updates), *callbacks_of(kind), **options)
        assert trainer.global_step == options.get("max_steps", 90)
    assert_same(tmp_path / "1", tmp_path / "5")
    steps = [int(row["step"]) for row in rows(tmp_path / "5") if "curves/loss" in row]
    assert steps == ([] if kind == "autoencoder" else [0, 20, 40, 60, 80])


@pytest.mark.gate
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_ends_at_any_batch_goes_on_as_if_it_had_not(kind: str, tmp_path: Path) -> None:
    fit(tmp_path / "whole", KINDS[kind](), data_of(5), *callbacks_of(kind))
    with pytest.raises(Killed):
        fit(tmp_path / "cut", KINDS[kind](), data_of(5), *callbacks_of(kind), StopAt(50))
    fit(tmp_path / "cut again", KINDS[kind](), data_of(5), *callbacks_of(kind), ckpt_path=tmp_path / "cut" / "last.ckpt")
    assert_same(tmp_path / "cut again", tmp_path / "whole", since=50)


def test_the_last_batch_of_an_epoch_may_have_fewer_updates_and_the_last_update_fewer_examples(tmp_path: Path) -> None:
    weights = []
    for updates in (1, 4):
        model = autoencoder()
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(model, data_of(updates, 37))
        assert trainer.global_step == 2 * 19
        weights.append(model.bases.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("wanted", "updates", "callbacks", "options"),
    [
        ("divide 10 steps, for ModelCheckpoint, but got 3", 3, [], {}),
        ("divide 25 steps, for max_steps, but got 10", 10, [], {"max_steps": 25}),
        ("divide 7 steps, for SparseConnectivity", 5, [SparseConnectivity("encoder", 0.6, every=7, interval="step")], {}),
        ("divide 1 steps, for OptimalBrainDamage", 5, [OptimalBrainDamage("encoder")], {}),
        ("`updates_per_batch: 1` with accumulated gradients but got 5", 5, [], {"accumulate_grad_batches": 2}),
        ("`updates_per_batch: 1` with mixed precision but got 5", 5, [], {"precision": "bf16-mixed"}),
    ],
)
def test_what_would_be_due_within_a_batch_is_refused(
    wanted: str, updates: int, callbacks: list[pl.Callback], options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=wanted):
        fit(tmp_path, autoencoder(), data_of(updates), *callbacks, **options)


def test_an_epoch_of_a_part_of_a_batch_is_refused_where_steps_count(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="divide the 33 steps of an epoch, for ModelCheckpoint, but got 5"):
        fit(tmp_path, autoencoder(), data_of(5, 66))
    with pytest.raises(ConfigurationError, match="`updates_per_batch` to be an integer of at least 1 but got 0"):
        data_of(0)


def test_labelled_and_unlabelled_examples_stay_together(tmp_path: Path) -> None:
    weights = []
    for updates in (1, 4):
        torch.manual_seed(0)
        model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, optimizer=partial(torch.optim.SGD, lr=1e-3))
        data = DigitsDataModule(labelled=200, epoch_size=70, batch_size=10, updates_per_batch=updates)
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.fit(model, data)
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]).detach())
    assert torch.equal(*weights)
