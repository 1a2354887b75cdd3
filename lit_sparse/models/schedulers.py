"""Learning rate schedulers that count optimizer steps, and a check that a run lets a scheduler reach its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from lit_sparse.checks import Count, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.lightning.choice import LRSchedulerCallable, pl, rank_zero_warn
from lit_sparse.models.optimizers import DUAL, estimated_updates
from lit_sparse.risks import Risk

__all__ = ["StepwiseLR", "check_end", "describe_scheduler"]

#: Attribute in which a scheduler stores the number of its steps until its end.
ENDS: dict[type[lr_scheduler.LRScheduler], str] = {
    lr_scheduler.OneCycleLR: "total_steps",
    lr_scheduler.CosineAnnealingLR: "T_max",
    lr_scheduler.LinearLR: "total_iters",
    lr_scheduler.PolynomialLR: "total_iters",
}


@ranges(warmup_steps=Count(0))
class StepwiseLR(lr_scheduler.LRScheduler):
    """Learning rate scheduler that counts optimizer steps: a linear warm-up, then another scheduler.

    Step ``t`` of the warm-up, counted from 1, has the rate ``t / warmup_steps`` times the first rate of the other
    scheduler.

    To use it in a config::

        lr_scheduler:
          class_path: StepwiseLR
          init_args:
            warmup_steps: 100
            scheduler:
              class_path: torch.optim.lr_scheduler.CosineAnnealingLR
              init_args: {T_max: 900}

    Args:
        optimizer: optimizer whose groups get the rates.
        scheduler: constructor of the scheduler after the warm-up, which counts steps from its end; None for a constant
            rate.
        warmup_steps: number of steps until the full rate.

    Raises:
        ConfigurationError: if an argument has a value that is not allowed.

    Example:
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> scheduler = StepwiseLR(
        ...     optimizer,
        ...     lambda it: torch.optim.lr_scheduler.ExponentialLR(it, 0.5),
        ...     warmup_steps=2,
        ... )
        >>> rates = []
        >>> for _ in range(5):
        ...     rates += scheduler.get_last_lr()
        ...     optimizer.step()
        ...     scheduler.step()
        >>> rates
        [0.5, 1.0, 1.0, 0.5, 0.25]
    """

    #: With this attribute, Lightning calls :meth:`step` after each optimizer step.
    interval: Literal["step"] = "step"

    def __init__(
        self, optimizer: torch.optim.Optimizer, scheduler: LRSchedulerCallable | None = None, warmup_steps: int = 0
    ) -> None:
        self.optimizer, self.warmup_steps = optimizer, warmup_steps
        self.scheduler = None if scheduler is None else built_scheduler(scheduler, optimizer)
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            raise ConfigurationError(
                "Expected a `scheduler` that counts steps but got ReduceLROnPlateau, which monitors a metric. Use it as the"
                " model's `lr_scheduler`."
            )
        self.full_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set_rates()

    def step(self, epoch: int | None = None) -> None:
        """Set the learning rates of the next optimizer step."""
        self.last_epoch += 1
        if self.last_epoch > self.warmup_steps and self.scheduler is not None:
            self.scheduler.step()
        else:
            self._set_rates()

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps so far, the learning rates after the warm-up, and the other scheduler's state."""
        inner = None if self.scheduler is None else self.scheduler.state_dict()
        return {"last_epoch": self.last_epoch, "full_rates": self.full_rates, "scheduler": inner}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; the current rates are in the optimizer's own state."""
        self.last_epoch, self.full_rates = state_dict["last_epoch"], list(state_dict["full_rates"])
        if self.scheduler is not None and state_dict["scheduler"] is not None:
            self.scheduler.load_state_dict(state_dict["scheduler"])

    def _set_rates(self) -> None:
        fraction = min(1.0, (self.last_epoch + 1) / max(1, self.warmup_steps))
        for group, rate in zip(self.optimizer.param_groups, self.full_rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(fraction * rate)
            else:
                group["lr"] = fraction * rate


def built_scheduler(build: Callable[[torch.optim.Optimizer], Any], optimizer: torch.optim.Optimizer) -> Any:
    """Return the scheduler that a constructor builds for an optimizer, after a check of its type.

    Raises:
        ConfigurationError: if the result is not a scheduler.
    """
    scheduler = build(optimizer)
    if not callable(getattr(scheduler, "step", None)):
        raise ConfigurationError(
            f"Expected the learning rate scheduler to have a method `step` but got {full_name(scheduler)}."
        )
    return scheduler


def describe_scheduler(
    build: LRSchedulerCallable, optimizer: torch.optim.Optimizer, risk: Risk, trainer: pl.Trainer | None
) -> dict[str, Any]:
    """Return a new scheduler's description in Lightning's format, with its interval and its monitored metric.

    Warn if its initial learning rate differs from the risk's ``dual_lr``.

    Args:
        build: constructor of the scheduler, which may have attributes ``interval`` and ``monitor``.
        optimizer: optimizer whose rates it sets.
        risk: risk of the model.
        trainer: trainer, whose validation epochs determine when a metric is new.

    Raises:
        ConfigurationError: for torch's ``ReduceLROnPlateau``, which does not name a metric.
    """
    scheduler = built_scheduler(build, optimizer)
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) and not hasattr(scheduler, "monitor"):
        raise ConfigurationError(
            "Expected a ReduceLROnPlateau with a `monitor` but got torch's, which has none. Use Lightning's, as in"
            " pytorch_lightning.cli.ReduceLROnPlateau(optimizer, monitor='val/loss')."
        )
    for group in optimizer.param_groups:
        begins = group.get("initial_lr", group["lr"])
        if group.get(DUAL) and risk.dual_lr is not None and begins != risk.dual_lr:
            rank_zero_warn(
                f"{type(scheduler).__name__} begins with the learning rate {begins:g} for the dual variable of the risk, not"
                f" with dual_lr={risk.dual_lr:g}. Give it a list of rates, the last one for the dual variable."
            )
    description = {"scheduler": scheduler, "interval": getattr(scheduler, "interval", "epoch")}
    if hasattr(scheduler, "monitor"):
        description["monitor"] = scheduler.monitor
        if trainer is not None and str(scheduler.monitor).startswith("val/"):
            description["frequency"] = trainer.check_val_every_n_epoch or 1
    return description


def check_end(scheduler: Any, interval: str, trainer: pl.Trainer) -> None:
    """Warn if a run of known length is too short for a scheduler to reach its end.

    Args:
        scheduler: scheduler of the run.
        interval: ``"step"`` or ``"epoch"``.
        trainer: trainer of a new run.

    Raises:
        ConfigurationError: if the run is longer than a ``OneCycleLR`` allows.
    """
    skipped = 0
    if isinstance(scheduler, StepwiseLR):
        scheduler, skipped = scheduler.scheduler, scheduler.warmup_steps
    name = ENDS.get(type(scheduler))
    if name is None:
        return
    steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
    if not 0 <= steps < float("inf"):  # -1 or infinity if the end of the run is not known
        return
    if interval == "step":
        steps = estimated_updates(trainer)
    elif batches == float("inf"):
        return
    else:
        steps = -(-int(steps) // max(1, -(-int(batches) // trainer.accumulate_grad_batches)))
    moves = int(steps) - skipped
    end = int(getattr(scheduler, name))
    kind = f"{type(scheduler).__name__}({name}={end})"
    after = f" after {skipped} of warm-up" if skipped else ""
    if isinstance(scheduler, lr_scheduler.OneCycleLR) and moves > end:
        raise ConfigurationError(
            f"Expected {kind} to last as long as the run but it is stepped {moves} times, once per {interval}{after}. Set"
            f" total_steps to {moves}."
        )
    if moves < end:
        hint = "" if interval == "step" else " To move it after each step, wrap it: class_path: StepwiseLR."
        rank_zero_warn(
            f"{kind} does not reach its end: in this run it is stepped {max(0, moves)} times, once per {interval}{after}. Set"
            f" {name} to {max(1, moves)}, or train longer.{hint}"
        )
