"""The time of training is counted without validation, and goes on in a resumed run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.callbacks import SecondsLogger


class Slow(pl.LightningModule):
    """Ten steps of 5 milliseconds an epoch, and a validation of 200."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        time.sleep(0.005)
        return self.layer(batch).mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        time.sleep(0.02)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, epochs: int, logger: SecondsLogger, **options: object) -> pl.Trainer:
    batches = torch.utils.data.DataLoader(torch.zeros(10, 1))
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "accelerator": "cpu",
        "enable_checkpointing": False,
    }
    trainer = pl.Trainer(default_root_dir=folder, max_epochs=epochs, callbacks=[logger], **quiet)  # type: ignore[arg-type]
    trainer.fit(Slow(), batches, batches, **options)  # type: ignore[arg-type]
    return trainer


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*isinstance")
def test_seconds_of_training(tmp_path: Path) -> None:
    logger = SecondsLogger()
    began = time.perf_counter()
    trainer = fit(tmp_path, 2, logger)
    whole = time.perf_counter() - began
    first = float(trainer.callback_metrics["train/seconds"])
    assert 0.1 <= first <= whole - 0.4, "two validations of 0.2 s are no part of it"
    assert logger.seconds == pytest.approx(first, rel=1e-6), "it stands still when training does"
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = SecondsLogger()
    trainer = fit(tmp_path, 3, resumed, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    second = float(trainer.callback_metrics["train/seconds"])
    assert first + 0.05 <= second == pytest.approx(resumed.seconds, rel=1e-6)
