"""Every callback leaves what a run logs as it was, but for rows and keys of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger

import lit_sparse.callbacks
from lit_sparse.callbacks import (
    ActivityHistogram,
    AttentionPlot,
    BasesPlot,
    ClassSamplesPlot,
    CountLogger,
    DecoderCallsPlot,
    LanguageLogger,
    NegativeELBOPlot,
    OptimalBrainDamage,
    PredictionWriter,
    ReconstructionPlot,
    RelativeChangeStopping,
    SecondsLogger,
    SparseConnectivity,
    SuccessPlot,
    SupportSizePlot,
    TemperatureAnnealing,
    TextPredictionWriter,
    TopTokensPlot,
    TransportPlot,
)
from lit_sparse.data import DigitsDataModule, ReferentialGameDataModule
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import LitSparseModule, SemiSupervisedVAE, SignalingGame

#: Callback -> the beginnings of the keys that it logs.
OWN: dict[type[pl.Callback], tuple[str, ...]] = {
    ActivityHistogram: (),
    AttentionPlot: (),
    BasesPlot: (),
    ClassSamplesPlot: (),
    CountLogger: (),  # which the model brings anyway
    DecoderCallsPlot: (),
    LanguageLogger: ("message_entropy", "used_vocabulary", "class_information", "topographic_similarity", "posdis", "bosdis"),
    NegativeELBOPlot: (),
    PredictionWriter: (),
    ReconstructionPlot: (),
    RelativeChangeStopping: (),
    SecondsLogger: ("seconds",),
    SuccessPlot: (),
    SupportSizePlot: (),
    TextPredictionWriter: (),
    TopTokensPlot: (),
    TransportPlot: (),
}
#: Those that change what is trained.
CHANGING = {OptimalBrainDamage, SparseConnectivity, TemperatureAnnealing}
Row = tuple[int | None, dict[str, float]]


class Rows(Logger):
    """Keeps the rows that a logger gets."""

    name, version = "rows", 0

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def log_hyperparams(self, *args: Any, **options: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


def images() -> tuple[LitSparseModule, pl.LightningDataModule]:
    widths: dict[str, Any] = {"classifier_hidden": (8,), "inference_hidden": (8,), "generator_hidden": (8,)}
    return SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, **widths), DigitsDataModule(batch_size=64)


def game() -> tuple[LitSparseModule, pl.LightningDataModule]:
    data = ReferentialGameDataModule(DigitsDataModule(), batch_size=64)
    return SignalingGame(Sparsemax(), Marginalize(), in_features=64, vocabulary=8), data


def rows_of(make: Callable[[], Any], folder: Path, *callbacks: pl.Callback) -> list[Row]:
    torch.manual_seed(0)
    model, data = make()
    logger, quiet = Rows(), {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    limits = {"max_epochs": 2, "limit_train_batches": 4, "limit_val_batches": 2, "log_every_n_steps": 2}
    options: dict[str, Any] = {**quiet, **limits, "accelerator": "cpu", "default_root_dir": folder}
    pl.seed_everything(3, verbose=False)
    pl.Trainer(logger=logger, callbacks=list(callbacks), **options).fit(model, data)
    return logger.rows


def without(own: tuple[str, ...], rows: list[Row]) -> list[Row]:
    """Return rows without some keys; a row that had no other keys is left out."""
    kept = [
        (step, {key: value for key, value in row.items() if not key.rpartition("/")[2].startswith(own)}) for step, row in rows
    ]
    return [(step, row) for step, row in kept if set(row) - {"epoch"}] if own else rows


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    return {make.__name__: rows_of(make, tmp_path_factory.mktemp("plain")) for make in (images, game)}


def test_no_callback_is_left_out() -> None:
    named = (getattr(lit_sparse.callbacks, name) for name in lit_sparse.callbacks.__all__)
    assert set(OWN) | CHANGING == {one for one in named if isinstance(one, type)}


@pytest.mark.parametrize("make", [images, game], ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_the_rows_of_the_run_stay(kind: type[pl.Callback], make: Any, plain: dict[str, list[Row]], tmp_path: Path) -> None:
    torch.manual_seed(5)  # any state: a run is seeded
    found = rows_of(make, tmp_path, kind())
    assert any("train/loss_step" in row for _, row in plain[make.__name__])
    assert without(OWN[kind], found) == plain[make.__name__]
