"""Pictures of plans."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from matplotlib.image import imread
from pytorch_lightning.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lit_sparse.callbacks import TransportPlot
from lit_sparse.data import DigitsDataModule, Points, TransportDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import EntropicTransport, SemiSupervisedVAE
from lit_sparse.transport import GaussianMixture, KernelPotentials


def run(model: pl.LightningModule, data: pl.LightningDataModule, folder: Path) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=2,
        callbacks=[TransportPlot(points=20, folder=str(folder))],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    return trainer


def test_tensorboard_shows_a_plan_at_the_step_of_its_validation(tmp_path: Path) -> None:
    """A continued run replaces what was logged from the checkpoint's step on, and does not repeat this validation."""
    board = TensorBoardLogger(str(tmp_path), name="", version="")
    options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    options |= {"max_epochs": 2, "log_every_n_steps": 1, "accumulate_grad_batches": 2, "val_check_interval": 3}
    trainer = pl.Trainer(accelerator="cpu", callbacks=[TransportPlot(points=20)], logger=board, **options)
    data = measures(1)
    data.batch_size = 10
    trainer.fit(EntropicTransport(KernelPotentials(), dim=1), data)
    board.finalize("success")
    events = EventAccumulator(str(tmp_path)).Reload()
    pictures, losses = ([event.step for event in found] for found in (events.Images("transport"), events.Scalars("val/loss")))
    assert pictures == losses


def measures(dim: int) -> TransportDataModule:
    target = Points.of(torch.rand(30, dim))  # of no known density
    return TransportDataModule(GaussianMixture([[0.0] * dim], [1.0]), target, samples=60, val_size=40, test_size=40)


@pytest.mark.gate
@pytest.mark.parametrize("dim", [1, 2])
def test_plans_are_drawn(tmp_path: Path, dim: int) -> None:
    model = EntropicTransport(KernelPotentials(), dim=dim)
    trainer = run(model, measures(dim), tmp_path)
    path = tmp_path / "pictures" / "transport.png"
    first = imread(path)
    assert float(first[..., :3].std()) > 0.01, "the picture is not blank"
    path.unlink()
    trainer.test(model, measures(dim), verbose=False)
    assert imread(path).shape[1] > 300


def test_what_has_no_picture_is_left_alone(tmp_path: Path) -> None:
    run(EntropicTransport(KernelPotentials(), dim=3), measures(3), tmp_path)
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, classifier_hidden=[8])
    run(model, DigitsDataModule(labelled=1.0), tmp_path)
    assert not (tmp_path / "pictures").exists()
    with pytest.raises(ConfigurationError, match="`points` to be an integer of at least 1"):
        TransportPlot(points=0)
