"""Callbacks that end a process the hard way; imported by command lines under test."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytorch_lightning as pl


class KillAtStep(pl.Callback):
    """SIGKILL right after a training batch."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class KillAtEpoch(pl.Callback):
    """SIGKILL between two epochs."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)
