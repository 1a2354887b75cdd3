"""Optimizers of models whose risk has a dual variable with a separate learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.lightning.choice import GradClipAlgorithmType, MixedPrecision, Precision, rank_zero_warn
from lit_sparse.risks import Risk

__all__ = ["DUAL", "build_optimizer", "clip_fused", "renew_dual_rates", "warn_of_other_rates"]

#: Key that marks the parameter group of a risk's dual variable.
DUAL = "dual"


def build_optimizer(
    build: Callable[[Any], torch.optim.Optimizer], model: nn.Module, risk: Risk, rate: float | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer of a model; the dual variable of its risk is a group without weight decay.

    An optimizer without parameter groups, such as LBFGS, gets all parameters, unless the risk has a separate rate.

    Args:
        build: constructor of the optimizer.
        model: the model.
        risk: its risk.
        rate: learning rate in place of the optimizer's; a separate rate of the dual variable is kept.

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
            built: Any = build(grouped)
        except (TypeError, ValueError):
            if not duals or risk.dual_lr is not None:
                raise
            built = build(model.parameters())
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
    """Clip the gradients of a fused optimizer, and return whether it is one; Lightning refuses it in bf16-mixed.

    A fused optimizer divides gradients by the loss scale within its step, so scaled gradients cannot be clipped before.
    In bf16-mixed there is no scale.

    Args:
        precision: precision of the trainer.
        optimizer: optimizer of the gradients.
        value: largest norm or value; nothing is clipped without one.
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


def warn_of_other_rates(optimizer: torch.optim.Optimizer, scheduler: object, risk: Risk) -> None:
    """Warn if a scheduler begins with another rate than the risk's ``dual_lr``."""
    for group in optimizer.param_groups:
        begins = group.get("initial_lr", group["lr"])
        if group.get(DUAL) and risk.dual_lr is not None and begins != risk.dual_lr:
            rank_zero_warn(
                f"{type(scheduler).__name__} begins with the learning rate {begins:g} for the dual variable of the risk, not"
                f" with dual_lr={risk.dual_lr:g}. Give it a list of rates, the last one for the dual variable."
            )


def renew_dual_rates(optimizers: list[Any], risk: Risk) -> None:
    """Set the requested dual rate in a resumed run, in place of the restored rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group.get(DUAL):
                group["lr"] = optimizer.param_groups[0]["lr"] if risk.dual_lr is None else risk.dual_lr
