"""Optimizers of models, whose risk may have a dual variable with a separate rate, and several updates in one Lightning step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.lightning.choice import GradClipAlgorithmType, MixedPrecision, Precision, pl
from lit_sparse.lightning.internals import count_update
from lit_sparse.risks import Risk

__all__ = [
    *("DUAL", "build_optimizer", "check_updates", "clip_fused", "estimated_updates", "joined", "make_update"),
    "renew_dual_rates",
]

#: Key that marks the parameter group of a risk's dual variable.
DUAL = "dual"


def build_optimizer(model: Any, risk: Risk, rate: float | None = None) -> torch.optim.Optimizer:
    """Return the optimizer of a model, in which the dual variable of its risk is a group without weight decay.

    An optimizer without parameter groups, such as LBFGS, gets all parameters, unless the risk has a separate rate.

    Args:
        model: the model, whose ``optimizer`` is the constructor.
        risk: risk of the model.
        rate: learning rate to use in place of the optimizer's; a separate rate of the dual variable is kept.

    Raises:
        ConfigurationError: if the optimizer does not accept its arguments.
    """
    duals = risk.dual_parameters()
    grouped: Any = model.parameters()
    if duals:
        apart = {id(parameter) for parameter in duals}
        group: dict[str, Any] = {"params": duals, "weight_decay": 0.0, DUAL: True}
        if risk.dual_lr is not None:
            group["lr"] = risk.dual_lr
        grouped = [{"params": [parameter for parameter in model.parameters() if id(parameter) not in apart]}, group]
    try:
        try:
            built: Any = model.optimizer(grouped)
        except (TypeError, ValueError):
            if not duals or risk.dual_lr is not None:
                raise
            built = model.optimizer(model.parameters())
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: fused=True on a CPU, before torch 2.4
        dual = ", including dual_lr of the risk" if risk.dual_lr is not None else ""
        raise ConfigurationError(f"The optimizer does not accept its arguments{dual}: {error}. Change them.") from error
    if not isinstance(built, torch.optim.Optimizer):  # without one, Lightning would train nothing
        raise ConfigurationError(
            f"Expected `optimizer` of {full_name(model)} to return an Optimizer but got {full_name(built)}."
        )
    for group in built.param_groups if rate is not None else ():
        group["lr"] = risk.dual_lr if group.get(DUAL) and risk.dual_lr is not None else rate
    return built


def clip_fused(precision: Precision, optimizer: torch.optim.Optimizer, value: float | None, algorithm: str | None) -> bool:
    """Clip the gradients of a fused optimizer in bf16-mixed, which Lightning refuses; return whether the optimizer is fused.

    A fused optimizer divides gradients by the loss scale within its step, so scaled gradients cannot be clipped before.
    In bf16-mixed there is no scale.

    Args:
        precision: precision of the trainer.
        optimizer: optimizer of the gradients.
        value: largest norm or value; None for no clipping.
        algorithm: ``"norm"`` or ``"value"``; None for the norm.

    Raises:
        ConfigurationError: for a fused optimizer with a loss scale.
    """
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    if not (value and fused and isinstance(precision, MixedPrecision)):
        return False
    if precision.scaler is not None:
        raise ConfigurationError(
            f"Expected an optimizer that is not fused for gradient clipping in {precision.precision} but got"
            f" {type(optimizer).__name__}(fused=True). Use --model.init_args.optimizer.init_args.fused false, or"
            " --trainer.precision bf16-mixed."
        )
    Precision.clip_gradients(precision, optimizer, value, GradClipAlgorithmType(algorithm or "norm"))
    return True


def renew_dual_rates(optimizers: list[Any], risk: Risk) -> None:
    """Set the requested learning rate of the dual variable in a resumed run, in place of the restored one."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group.get(DUAL):
                group["lr"] = optimizer.param_groups[0]["lr"] if risk.dual_lr is None else risk.dual_lr


def make_update(model: pl.LightningModule, output: dict[str, Any]) -> None:
    """Run one optimizer update within a Lightning step; Lightning itself runs the last one of a batch.

    The overhead of a step equals an update on one example.

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
