"""One set of hooks for the stages of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import pl

__all__ = ["Stage", "StageCallback", "artifacts_of", "check_folder"]

Stage: TypeAlias = Literal["train", "val", "test"]


def _hooks(stage: Stage) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """Return Lightning's hooks of a stage: at the start of an epoch, after a batch, and at the end of an epoch."""

    def start(self: StageCallback, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_stage_start(trainer, pl_module, stage)

    def batch_end(
        self: StageCallback,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.on_stage_batch_end(trainer, pl_module, outputs, stage, dataloader_idx)

    def end(self: StageCallback, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_stage_end(trainer, pl_module, stage)

    return start, batch_end, end


class StageCallback(pl.Callback):
    """Callback whose hooks take the stage as an argument: ``"train"``, ``"val"`` or ``"test"``."""

    def on_stage_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Run when an epoch of a stage starts; a resumed run does not repeat it for an interrupted epoch."""

    def on_stage_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, stage: Stage, dataloader_idx: int = 0
    ) -> None:
        """Run after each batch of a stage.

        Args:
            trainer: trainer of the run.
            pl_module: model.
            outputs: output of the step.
            stage: ``"train"``, ``"val"`` or ``"test"``.
            dataloader_idx: index of the data loader.
        """

    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Run when an epoch of a stage ends."""

    def on_finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Run after training, after each validation and after a test; a validation in training ends before its epoch."""

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:  # Lightning calls `on_train_epoch_start` again when a run resumes within an epoch
            self.on_stage_start(trainer, pl_module, "train")

    on_train_batch_end, on_train_epoch_end = _hooks("train")[1:]
    on_validation_epoch_start, on_validation_batch_end, on_validation_epoch_end = _hooks("val")
    on_test_epoch_start, on_test_batch_end, on_test_epoch_end = _hooks("test")

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_finish(trainer, pl_module, "train")

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.on_finish(trainer, pl_module, "val")

    @override
    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_finish(trainer, pl_module, "test")


def artifacts_of(outputs: Any) -> dict[str, Any]:
    """Return the artifacts of a step's output; an empty dict for the step of another kind of model."""
    artifacts: dict[str, Any] = outputs.get("artifacts", {}) if isinstance(outputs, dict) else {}
    return artifacts


def check_folder(value: str | None) -> str | None:
    """Return the name of a folder, or None, after a check of its type.

    Raises:
        ConfigurationError: if it is not a path.
    """
    if value is not None and not isinstance(value, str | os.PathLike):
        raise ConfigurationError(f"Expected argument `folder` to be a path or None but got {value!r}.")
    return value
