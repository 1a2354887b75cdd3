"""Logs how long training has taken."""

from __future__ import annotations

import time
from typing import Any

from typing_extensions import override

from lit_sparse.ground.state_checks import AMOUNT
from lit_sparse.lightning.choice import pl

__all__ = ["SecondsLogger"]


class SecondsLogger(pl.Callback):
    """Log the training time after each epoch as ``train/seconds``: wall-clock seconds so far, without validation.

    A resumed run continues from its checkpoint's time. With several processes, it is the first one's time.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [SecondsLogger]
    """

    def __init__(self) -> None:
        super().__init__()
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._go_on()

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._go_on()  # a run that is resumed within an epoch does not start it again

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pause()

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._go_on()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pause()
        pl_module.log("train/seconds", self._before, rank_zero_only=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds of training so far."""
        return {"seconds": self.seconds}

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        return {"seconds": AMOUNT}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the stored seconds."""
        self._before, self._since = float(state_dict["seconds"]), None

    def _go_on(self) -> None:
        if self._since is None:
            self._since = time.perf_counter()

    def _pause(self) -> None:
        self._before, self._since = self.seconds, None
