"""The exact loader and the exact means with a user's own module, data module and plain Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lit_sparse.data import EpochLoader
from lit_sparse.metrics import MeanOverExamples

pytestmark = pytest.mark.filterwarnings("ignore:.*callbacks used to create")
QUIET: dict[str, Any] = {
    **{"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False},
    "max_epochs": 2,
}


class Own(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.mean = MeanOverExamples()
        self.mean.persistent(True)
        self.seen: list[list[int]] = []
        self.means: list[float] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        if batch_idx == 0:  # Lightning leaves out the end of an epoch after whose last batch a checkpoint was written
            self.mean.reset()
        losses = (batch["x"] - self.weight).square()
        self.mean.update(losses)
        self.seen.append(batch["index"].tolist())
        return losses.mean()

    def on_train_epoch_end(self) -> None:
        self.means.append(float(self.mean.compute()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class OwnData(LightningDataModule):
    def __init__(self, workers: int) -> None:
        super().__init__()
        self.x, self.workers = torch.arange(60.0), workers

    def batches(self, epoch: int) -> Any:
        return torch.randperm(60, generator=torch.Generator().manual_seed(epoch)).split(8)

    def fetch(self, epoch: int, indices: torch.Tensor) -> dict[str, Any]:
        return {"x": self.x[indices], "index": indices}

    def train_dataloader(self) -> EpochLoader:
        return EpochLoader(self.batches, self.fetch, num_workers=self.workers)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("steps", [3, 8, 11])
def test_a_stopped_epoch_goes_on_exactly(tmp_path: Path, steps: int, workers: int) -> None:
    whole, first, rest = Own(), Own(), Own()
    Trainer(**QUIET, enable_checkpointing=False).fit(whole, OwnData(0))
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=steps)
    Trainer(**QUIET, max_steps=steps, callbacks=[keep]).fit(first, OwnData(workers))
    Trainer(**QUIET, enable_checkpointing=False).fit(rest, OwnData(workers), ckpt_path=keep.best_model_path)
    assert first.seen + rest.seen == whole.seen
    assert rest.means == whole.means[-len(rest.means) :]
    assert torch.equal(rest.weight, whole.weight)
