"""Limits of a run, and why it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lit_sparse.lightning.choice import EarlyStopping, EarlyStoppingReason, Timer, pl
from lit_sparse.lightning.internals import end_epoch

__all__ = ["describe_end", "limits_of", "restore_end", "use_settings", "why_ended"]

#: Attributes of callbacks that stop a training, other than settings that decide when.
STATE = {"wait_count", "stopped_epoch", "stopping_reason_message", "verbose", "log_rank_zero_only", "_offset", "_verbose"}


def limits_of(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what may end a training run: limits of the trainer, and settings of its callbacks; call it in ``setup``."""
    limits: dict[str, Any] = {name: getattr(trainer, name) for name in ("max_epochs", "min_epochs", "max_steps", "min_steps")}
    limits["callbacks"] = [
        {"callback": type(callback).__name__}
        | {
            name.lstrip("_"): getattr(value, "value", value)  # of an enumeration, which no checkpoint may hold
            for name, value in vars(callback).items()
            if name not in STATE and isinstance(value, int | float | str | None)
        }
        for callback in _stoppers(trainer)
    ]
    return limits


def why_ended(trainer: pl.Trainer, limits: dict[str, Any]) -> str:
    """Return what ends a training run now, or an empty string if nothing does.

    Args:
        trainer: the trainer; stochastic weight averaging may have added an epoch to it.
        limits: result of :func:`limits_of`.
    """
    fit = trainer.fit_loop
    epochs: Any = fit.epoch_progress.current
    for name, done in (("max_steps", fit.epoch_loop.global_step), ("max_epochs", epochs.processed)):
        most = getattr(trainer, name)
        if most is not None and 0 <= most <= done:
            return f"{name} = {limits[name]} was reached"
    if not trainer.should_stop:
        return ""
    for callback in _stoppers(trainer):
        if isinstance(callback, Timer):
            if (left := callback.time_remaining()) is not None and left <= 0:
                return f"max_time = {timedelta(seconds=callback._duration or 0)} was reached"
        elif callback.stopping_reason is not EarlyStoppingReason.NOT_STOPPED:
            reason = (callback.stopping_reason_message or callback.stopping_reason.value).removeprefix("Monitored metric ")
            return f"{type(callback).__name__}: {reason.removesuffix(' Signaling Trainer to stop.').rstrip('.')}"
    return "a callback or the model set trainer.should_stop"


def describe_end(trainer: pl.Trainer, limits: dict[str, Any]) -> dict[str, Any]:
    """Return whether training was told to stop, under which limits, and whether only the end of an epoch remains.

    Args:
        trainer: the trainer that writes the checkpoint.
        limits: result of :func:`limits_of`.
    """
    epochs: Any = trainer.fit_loop.epoch_progress.current
    loop = trainer.fit_loop.epoch_loop
    ends = (trainer.should_stop and trainer.fit_loop._can_stop_early) or 0 <= loop.max_steps <= loop.global_step
    return {"stops": trainer.should_stop, "limits": limits, "pending": ends and epochs.processed < epochs.started}


def restore_end(trainer: pl.Trainer, end: dict[str, Any], limits: dict[str, Any]) -> None:
    """Restore that training was told to stop, unless a limit has changed; call it when the model is restored.

    Args:
        trainer: the trainer of the resumed run.
        end: result of :func:`describe_end`.
        limits: limits of this run.
    """
    if end["limits"] != limits:
        return
    trainer.should_stop = end["stops"]
    if end["pending"]:

        def run() -> None:
            del trainer.fit_loop.run
            end_epoch(trainer)

        trainer.fit_loop.run = run  # type: ignore[method-assign]


def use_settings(trainer: pl.Trainer, former: dict[str, Any], limits: dict[str, Any]) -> None:
    """Use the patience of this run in place of the restored one if the user has changed it, and forget why the run had ended.

    Args:
        trainer: the trainer of the resumed run.
        former: limits of the run that wrote the checkpoint.
        limits: limits of this run.
    """
    for callback, settings in zip(_stoppers(trainer), limits.get("callbacks", ()), strict=False):
        if isinstance(callback, EarlyStopping):
            if former.get("callbacks") != limits["callbacks"]:
                callback.patience = settings["patience"]
            if not trainer.should_stop:
                callback.stopping_reason, callback.stopping_reason_message = EarlyStoppingReason.NOT_STOPPED, None


def _stoppers(trainer: pl.Trainer) -> list[EarlyStopping | Timer]:
    return [callback for callback in trainer.callbacks if isinstance(callback, EarlyStopping | Timer)]  # type: ignore[attr-defined]
