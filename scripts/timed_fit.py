"""The time of a training step under Lightning, beside the same step by hand."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from timing import clock

from lit_sparse.callbacks import CountLogger, SecondsLogger

#: Steps that are not timed.
WARM_UP = 30


class Stopwatch(pl.Callback):
    """The seconds of each batch, and of a step by hand that follows it, in turn: other programs slow both alike."""

    def __init__(self, by_hand: Callable[[], object]) -> None:
        self.by_hand = by_hand
        self.before: float | None = None
        self.batches: list[float] = []
        self.steps: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop the watch, make a step by hand, and start the watch."""
        now = clock()
        if self.before is not None:
            self.batches.append(now - self.before)
        began = clock()
        self.by_hand()
        self.before = clock()
        self.steps.append(self.before - began)


def timed_fit(
    model: pl.LightningModule,
    data: pl.LightningDataModule,
    batches: int,
    by_hand: Callable[[], object],
    pictures: Callable[[str], list[pl.Callback]],
    warm_up: int = WARM_UP,
    **options: Any,
) -> tuple[list[float], list[float], pl.Trainer]:
    """Train for an epoch of ``warm_up + batches + 1`` batches on the CPU.

    Args:
        model: model to train.
        data: data module with at least as many batches.
        batches: how many are timed.
        by_hand: the same work by hand, which is done after each batch.
        pictures: further callbacks, for the folder that they write to.
        warm_up: number of batches before those that are timed.
        options: options of the trainer.

    Returns:
        The seconds of each batch and of the work by hand after it, and the trainer.
    """
    watch = Stopwatch(by_hand)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = pl.Trainer(
            max_epochs=1,
            limit_train_batches=warm_up + batches + 1,
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
    return watch.batches[warm_up:], watch.steps[1 + warm_up :], trainer
