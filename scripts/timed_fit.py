"""Times a training step under Lightning with all that the command line brings; used by the benchmarks."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from lit_sparse.callbacks import CountLogger, SecondsLogger

#: Steps that are not timed.
WARM_UP = 30


class Stopwatch(pl.Callback):
    """The time from one step to another, validation and start left out."""

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM_UP:
            self.began = time.perf_counter()
        self.now = time.perf_counter()


def timed_fit(
    model: pl.LightningModule,
    data: pl.LightningDataModule,
    steps: int,
    pictures: Callable[[str], list[pl.Callback]],
    **options: Any,
) -> tuple[float, pl.Trainer]:
    """Train for an epoch of ``WARM_UP + steps + 1`` steps on the CPU; return seconds a step and the trainer.

    Args:
        model: model to train.
        data: data module with at least as many batches.
        steps: how many are timed.
        pictures: further callbacks, for the folder that they write to.
        options: options of the trainer.
    """
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = pl.Trainer(
            max_epochs=1,
            limit_train_batches=WARM_UP + steps + 1,
            limit_val_batches=0,
            accelerator="cpu",
            logger=[CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="board")],
            callbacks=[
                *(watch, CountLogger(4096), SecondsLogger(), RichProgressBar(refresh_rate=10)),
                *(*pictures(folder), ModelCheckpoint(folder)),
            ],
            enable_model_summary=False,
            **options,
        )
        trainer.fit(model, data)
    return (watch.now - watch.began) / steps, trainer
