"""Optimizers of models whose risk minimizes over something beside the model, with a learning rate of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.utilities import rank_zero_warn
from torch import nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.risks import Risk

__all__ = ["build_optimizer", "clips_by_itself", "renew_dual_rates", "warn_of_other_rates"]

#: What marks the group of parameters that a risk minimizes over.
DUAL = "dual"


def build_optimizer(build: Callable[[Any], torch.optim.Optimizer], model: nn.Module, risk: Risk) -> torch.optim.Optimizer:
    """Return the optimizer of a model; what its risk minimizes over is a group that never decays.

    Without groups for an optimizer that takes none, such as LBFGS, unless the risk has a rate of its own.

    Raises:
        ConfigurationError: if it refuses its arguments.
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
            return build(grouped)
        except (TypeError, ValueError):
            if not duals or risk.dual_lr is not None:
                raise
            return build(model.parameters())
    except (TypeError, ValueError) as error:
        among = ", dual_lr of the risk among them" if risk.dual_lr is not None else ""
        raise ConfigurationError(f"The optimizer refuses its arguments{among}: {error}") from error


def clips_by_itself(optimizer: torch.optim.Optimizer, precision: Precision) -> bool:
    """Return whether gradients of a fused optimizer have to be clipped without Lightning's check, which is for 16-mixed.

    A fused optimizer divides gradients by the loss scale within its step, so that scaled gradients cannot be clipped before.
    Lightning refuses clipping in bf16-mixed too, where no scale exists.

    Args:
        optimizer: of the gradients that are clipped.
        precision: of the trainer.

    Raises:
        ConfigurationError: for a fused optimizer with a loss scale.
    """
    if not (isinstance(precision, MixedPrecision) and getattr(optimizer, "_step_supports_amp_scaling", False)):
        return False
    if precision.scaler is not None:
        raise ConfigurationError(
            f"Expected an optimizer that is not fused, as gradients are clipped in {precision.precision}, but got"
            f" {type(optimizer).__name__}(fused=True). Use --model.init_args.optimizer.init_args.fused false, or"
            " --trainer.precision bf16-mixed."
        )
    return True


def warn_of_other_rates(optimizer: torch.optim.Optimizer, scheduler: object, risk: Risk) -> None:
    """Warn where a scheduler begins with another rate than the risk's own."""
    for group in optimizer.param_groups:
        begins = group.get("initial_lr", group["lr"])
        if group.get(DUAL) and risk.dual_lr is not None and begins != risk.dual_lr:
            rank_zero_warn(
                f"{type(scheduler).__name__} begins with a learning rate of {begins:g} for the dual variable of the risk, not"
                f" its dual_lr={risk.dual_lr:g}. Give it a list of rates, the last of them for the dual variable."
            )


def renew_dual_rates(optimizers: list[Any], risk: Risk) -> None:
    """Give a resumed run the rate that it is asked for now, not the one that it had."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group.get(DUAL):
                group["lr"] = optimizer.param_groups[0]["lr"] if risk.dual_lr is None else risk.dual_lr
