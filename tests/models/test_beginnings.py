"""What begins anew: the weights of a new model, and the means of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from lit_sparse.data import DigitsDataModule
from lit_sparse.models import EntropicTransport, LitSparseModule, RobustClassifier
from lit_sparse.nn import MLP


class Watched(RobustClassifier):
    """Notes with which data it is initialized."""

    def __init__(self, **options: Any) -> None:
        super().__init__(network=MLP([64, 10]), in_features=64, **options)
        self.seen: list[Any] = []

    def initialize(self, data: Any) -> None:
        self.seen.append(data)


def fit(model: LitSparseModule, data: pl.LightningDataModule, epochs: int = 1, checkpoint: Path | None = None) -> pl.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    run = pl.Trainer(
        max_epochs=epochs, limit_train_batches=1, limit_val_batches=0, accelerator="cpu", enable_checkpointing=False, **quiet
    )
    run.fit(model, datamodule=data, ckpt_path=None if checkpoint is None else str(checkpoint))
    return run


def test_only_a_new_model_is_initialized_from_the_data(tmp_path: Path) -> None:
    model, data, checkpoint = Watched(), DigitsDataModule(labelled=1.0), tmp_path / "last.ckpt"
    fit(model, data).save_checkpoint(checkpoint)
    assert model.seen == [data]
    fit(model, data, 2)
    assert model.seen == [data]
    resumed, warm = Watched(), Watched(initial_weights=str(checkpoint))
    fit(resumed, data, 2, checkpoint)
    fit(warm, data)
    assert resumed.seen == warm.seen == []


def test_what_an_interrupted_validation_measured_does_not_count() -> None:
    model, batch = Watched(), {"pixels": torch.rand(5, 64), "label": torch.arange(5), "index": torch.arange(5)}
    plan, points = EntropicTransport(dim=2), {"source": torch.rand(5, 2), "target": torch.rand(5, 2), "index": torch.arange(5)}
    for number in (0, 1, 0):
        model.validation_step(batch, number)
        plan.validation_step(points, number)
    assert int(model.stage_metrics("val")["loss"].count) == 5
    assert len(plan._held) == 1
