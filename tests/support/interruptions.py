"""Callbacks that end a process the hard way; imported by command lines under test."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import CSVLogger


class KillAtStep(pl.Callback):
    """SIGKILL right after a training batch."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class KillMachine(pl.Callback):
    """SIGKILL to all processes of a machine of :mod:`tests.support.hosts` right after a training batch."""

    def __init__(self, step: int, node: int) -> None:
        self.step = step
        self.node = node

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and trainer.node_rank == self.node:
            listed = subprocess.run(["ip", "netns", "pids", os.environ["NAMESPACE"]], capture_output=True, text=True)
            for pid in sorted(map(int, listed.stdout.split()), key=os.getpid().__eq__):  # this process last
                with suppress(ProcessLookupError):  # the list itself has ended
                    os.kill(pid, signal.SIGKILL)


class KillAtEpoch(pl.Callback):
    """SIGKILL between two epochs."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


class KillAtMoment(pl.Callback):
    """Send this process a signal at a moment of training, named as ``"<moment> <step>"``, or by its number among all moments.

    Moments of training are ``batch_start``, ``batch_end``, ``validation``, ``validation_end``, ``epoch_end``, ``epoch_start``
    and ``train_end``. Moments of a checkpoint are ``dump`` (its content is collected), ``save`` (before its file is written),
    ``rename`` (the file does not have its name yet) and ``saved``. ``row`` and ``flush`` are before a row of metrics is logged
    and written.

    Args:
        moment: name of the moment and number of optimizer steps that were done by then; empty for none.
        number: number of the moment among all, from 1; 0 for none.
        record: file to which the name of each moment is written; empty for none.
        send: number of the signal; SIGKILL by default.
    """

    def __init__(self, moment: str = "", number: int = 0, record: str = "", send: int = 9) -> None:
        self.moment = moment
        self.number = number
        self.record = record
        self.send = send
        self._passed = 0
        self._trainer: pl.Trainer | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._trainer = trainer
        strategy = trainer.strategy
        strategy.save_checkpoint = self._around(strategy.save_checkpoint, "save", "saved")  # type: ignore[method-assign]
        Path.replace = self._around(Path.replace, "rename", "")  # type: ignore[method-assign]
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                logger.log_metrics = self._around(logger.log_metrics, "row", "")  # type: ignore[method-assign]
                logger.save = self._around(logger.save, "flush", "")  # type: ignore[method-assign]

    def _around(self, call: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self._pass(before)
            result = call(*args, **kwargs)
            if after:
                self._pass(after)
            return result

        return called

    def _pass(self, moment: str) -> None:
        assert self._trainer is not None
        if self._trainer.sanity_checking or not self._trainer.global_step:
            return
        self._passed += 1
        name = f"{moment} {self._trainer.global_step}"
        if self.record:
            with Path(self.record).open("a") as file:
                file.write(f"{name}\n")
        if self._passed == self.number or name == self.moment:
            os.kill(os.getpid(), self.send)

    def on_train_epoch_start(self, *_: Any) -> None:
        self._pass("epoch_start")

    def on_train_batch_start(self, *_: Any) -> None:
        self._pass("batch_start")

    def on_train_batch_end(self, *_: Any) -> None:
        self._pass("batch_end")

    def on_validation_batch_end(self, *_: Any) -> None:
        self._pass("validation")

    def on_validation_end(self, *_: Any) -> None:
        self._pass("validation_end")

    def on_train_epoch_end(self, *_: Any) -> None:
        self._pass("epoch_end")

    def on_train_end(self, *_: Any) -> None:
        self._pass("train_end")

    def on_save_checkpoint(self, *_: Any) -> None:
        self._pass("dump")


class StopFirst(pl.Callback):
    """Send SIGTERM to the first process, when the others have come to where they wait for it."""

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.is_global_zero and trainer.global_step == 12:
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGTERM)


class StopAtStep(pl.Callback):
    """End training after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


class FullDisk(pl.Callback):
    """From the end of an epoch on, no file can grow beyond 20 kB."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
