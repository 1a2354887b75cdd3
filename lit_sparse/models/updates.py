"""Several updates in one Lightning step, because the overhead of a step equals an update on one example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import MixedPrecision, pl
from lit_sparse.lightning.internals import count_update

__all__ = ["check_updates", "estimated_updates", "joined", "make_update"]


def make_update(model: pl.LightningModule, output: dict[str, Any]) -> None:
    """Run one optimizer update within a Lightning step; Lightning itself runs the last one of a batch.

    Args:
        model: model that is trained.
        output: output of the step on the update's examples; its ``loss`` is detached.
    """
    trainer = model.trainer
    optimizer = trainer.optimizers[0]
    optimizer.zero_grad()
    output["loss"].backward()
    output["loss"] = output["loss"].detach()
    if trainer.gradient_clip_val:
        model.configure_gradient_clipping(optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm)
    optimizer.step()
    count_update(trainer)


def joined(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the output of a batch of several updates: the loss of the last update, and the measurements of all."""
    *_, last = outputs
    return {name: value if name == "loss" else _joined([output[name] for output in outputs]) for name, value in last.items()}


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: _joined([value[name] for value in values]) for name in values[0]}
    return torch.cat(values) if isinstance(values[0], Tensor) else values[0]


def updates_per_batch(trainer: pl.Trainer) -> int:
    """Return the number of optimizer updates of a full training batch."""
    return int(getattr(getattr(trainer, "datamodule", None), "updates_per_batch", 1))


def estimated_updates(trainer: pl.Trainer) -> float:
    """Return the number of optimizer updates of a run; -1 or infinity if it is not known."""
    count = updates_per_batch(trainer)
    if count == 1:
        return trainer.estimated_stepping_batches
    steps = trainer.estimated_stepping_batches * count
    return min(steps, trainer.max_steps) if trainer.max_steps >= 0 else max(steps, -1)


def check_updates(trainer: pl.Trainer) -> None:
    """Check that everything due after a number of steps is due at the end of a batch, if batches have several updates.

    Raises:
        ConfigurationError: if it is not, or for several processes, mixed precision or accumulated gradients.
    """
    count = updates_per_batch(trainer)
    if count == 1:
        return
    hindrances = {
        "several processes": trainer.world_size > 1,
        "mixed precision": isinstance(trainer.precision_plugin, MixedPrecision),
        "accumulated gradients": trainer.accumulate_grad_batches > 1,
    }
    for name in (name for name, there in hindrances.items() if there):
        raise ConfigurationError(f"Expected `updates_per_batch: 1` with {name} but got {count}. Leave out one of them.")
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    intervals = {type(callback).__name__: getattr(callback, "_every_n_train_steps", 0) for callback in callbacks}
    intervals["max_steps"] = max(0, trainer.max_steps)
    for config in trainer.lr_scheduler_configs:
        intervals[type(config.scheduler).__name__] = count * (config.interval == "step")
    epoch = len(trainer.datamodule.train_batches(0, 0, 1))  # type: ignore[attr-defined]
    for name, steps in intervals.items():
        for number, what in ((steps, f"{steps} steps"), (epoch, f"the {epoch} steps of an epoch")):
            if steps and number % count:
                raise ConfigurationError(
                    f"Expected `updates_per_batch` to divide {what}, for {name}, but got {count}. Choose a divisor."
                )
