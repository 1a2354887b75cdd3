"""Context managers and a callback for a run that Ctrl-C or SIGTERM stops, and the warnings that a run hides."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from lit_sparse.callbacks.pictures.base import Picture
from lit_sparse.errors import DISK_IS_FULL, INTERRUPTED, Terminated, printable, terminable
from lit_sparse.lightning.choice import NAME, SIGTERMException, SLURMEnvironment, pl, rank_zero_warn
from lit_sparse.lightning.internals import averaging
from lit_sparse.lightning.limits import limits_of, why_ended
from lit_sparse.runs.status import RunStatus

__all__ = ["DrawWhenStopped", "NoteEnd", "quiet", "say_less", "stop_status", "stoppable", "why_interrupted"]


def stoppable() -> AbstractContextManager[None]:
    """Raise :class:`~lit_sparse.errors.Terminated` at SIGTERM within a context, without waiting for a batch to end.

    Under SLURM, Lightning's own handler is kept, which lets a batch end and may requeue the job.
    """
    return nullcontext() if SLURMEnvironment.detect() else terminable()


def stop_status(error: BaseException) -> int | None:
    """Return the exit status of a run stopped by Ctrl-C or SIGTERM, or None for any other error.

    Args:
        error: error of the run. Lightning raises ``SystemExit`` for Ctrl-C, and a subclass for SIGTERM under SLURM.
    """
    interrupt = error if isinstance(error, KeyboardInterrupt | SIGTERMException) else error.__context__
    if isinstance(interrupt, KeyboardInterrupt):
        return int(getattr(interrupt, "status", INTERRUPTED))
    return Terminated.status if isinstance(interrupt, SIGTERMException) else None


def why_interrupted(error: BaseException) -> str:
    """Return, in one line, what ended a run early."""
    stopped = {INTERRUPTED: "Ctrl-C", Terminated.status: "SIGTERM"}.get(stop_status(error) or 0)
    return stopped or f"{type(error).__name__}: {error}".splitlines()[0][:500]


#: Seconds after which the epoch and the step are written again; a write takes as long as a short epoch.
SECONDS = 2.0


class NoteEnd(pl.Callback):
    """Callback that records the limits of a run, and what ended it, in the run folder's status.

    It reports if a resumed run had already ended.

    Args:
        status: the status; None on all processes but the first.
    """

    def __init__(self, status: RunStatus | None) -> None:
        self.status = status
        self._trains = False
        self._limits: dict[str, Any] = {}
        self._written = float("-inf")

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Record the limits of the run."""
        self._limits = limits_of(trainer)
        if self.status is not None and stage == "fit" and trainer.is_global_zero:
            self.status.update(limits=self._limits)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record that training starts."""
        self._trains = True
        self._write(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the epoch and the step from time to time."""
        if time.monotonic() - self._written > SECONDS:
            self._write(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Record the epoch and the step; the command records the reason."""
        with suppress(OSError):  # the disk may be full
            self._write(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record what ended the run."""
        why = why_ended(trainer, self._limits)
        epochs: Any = trainer.fit_loop.epoch_progress.current
        self._write(trainer, why=why, epoch=epochs.started)  # with an epoch that a limit of steps has cut
        if trainer.is_global_zero and not self._trains and trainer.global_step and why:
            limit = why.split()[0]
            raised = f"--trainer.{limit}" if limit.startswith("max_") else f"the limits of {limit.rstrip(':')}"
            print(printable(f"note: this run has ended: {why}. Raise {raised} to continue."), file=sys.stderr)

    def _write(self, trainer: pl.Trainer, **changes: Any) -> None:
        self._written = time.monotonic()
        if self.status is not None and trainer.is_global_zero:
            self.status.update(**{"epoch": trainer.current_epoch, "step": trainer.global_step, **changes})


class DrawWhenStopped(pl.Callback):
    """Callback that draws the pictures of a run that is stopped, or resumed after its last step.

    A stopped run on several processes draws nothing, because some pictures gather from all processes, which may have ended.
    """

    def __init__(self) -> None:
        self._trains = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record that training starts, so that its end draws the pictures."""
        self._trains = True

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the pictures if training had already ended in the checkpoint."""
        if not self._trains:
            for callback in averaging(trainer):
                if not getattr(callback, "_model_contains_batch_norm", False):  # then the weights are the averages
                    callback.on_train_end(trainer, pl_module)
            self._draw(trainer, pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Draw the pictures if Ctrl-C or SIGTERM ended the run."""
        if stop_status(exception) is not None and trainer.state.fn == "fit" and trainer.world_size == 1:
            self._draw(trainer, pl_module)

    def _draw(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.global_step:
            return
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Picture):
                try:
                    callback.on_train_end(trainer, module)
                except Exception as error:
                    rank_zero_warn(f"{type(callback).__name__} could not draw: {error}")


#: Names of Lightning's loggers.
LOGGERS = (NAME, "lightning_fabric" if NAME == "pytorch_lightning" else "lightning.fabric")
#: Lines of Lightning that are never printed: an advertisement, devices that are not there, what a config has chosen, and
#: the usual end of a training.
HINTS = (
    *("litlogger", "TPU available: False", "GPU available: False", "already configured with model summary callbacks"),
    *("Seed set to ", "stopped: `max_epochs=", "stopped: `max_steps="),
)


def _is_no_hint(record: logging.LogRecord) -> bool:
    return not any(hint in record.getMessage() for hint in HINTS)


def say_less() -> None:
    """Make Lightning print only warnings, until :func:`quiet` ends."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence, within a context, deprecation warnings and hints from dependencies.

    Errors in their threads on a full disk are silenced too, because the run itself reports them.
    """
    shown = threading.excepthook

    def hook(args: Any) -> None:
        if not isinstance(args.exc_value, OSError) or args.exc_value.errno not in DISK_IS_FULL:
            shown(args)

    threading.excepthook = hook
    for name in (f"{NAME}.utilities.rank_zero", f"{LOGGERS[1]}.utilities.seed"):
        logging.getLogger(name).addFilter(_is_no_hint)
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated", append=False)
        warnings.filterwarnings("ignore", message=r".*does not have many workers which may be a bottleneck.*")
        warnings.filterwarnings("ignore", message=r"The dirpath has changed from")  # a run continues in a new folder
        warnings.filterwarnings("ignore", message=r"Checkpoint directory .* exists and is not empty")
        warnings.filterwarnings("ignore", message=r"Total length of `list` across ranks is zero")  # no validation
        warnings.filterwarnings("ignore", message=r"It is recommended to use `self.log\('train/seconds'")  # of one process
        try:
            yield
        finally:
            threading.excepthook = shown
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
