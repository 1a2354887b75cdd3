"""Reads and writes Lightning's internal state; tests fail when Lightning renames it.

Most of it records in checkpoints at which point of training they were written, so that a run resumes exactly there,
however often it is interrupted.

Lightning counts epochs and batches as ready, started, processed and completed, and writes a checkpoint between two of these.
On a restart Lightning guesses the remaining work from the differences. It mistakes the last batch of an epoch for the epoch's
end, skips its validation and its hooks, and does not count the next epoch as started. A second restart then repeats or skips
batches. This module gives each checkpoint counters of one of three forms, which Lightning restarts unambiguously:

- between two epochs: all epoch counters are equal, all batch counters zero;
- after a batch: all batch counters are equal, the epoch is started and not processed, and validation is still to come;
- after a batch and its validation: the same, with a completed validation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import CodeType, SimpleNamespace
from typing import Any

from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import _given_hyperparameters, _IndexBatchSamplerWrapper, pl

__all__ = [
    "after_restore",
    "averaging",
    "between_epochs",
    "check_hooks",
    "continue_training",
    "copy_averages",
    "count_update",
    "describe_progress",
    "end_epoch",
    "fit_position",
    "given_hyperparameters",
    "index_sampler",
    "leave_sigterm",
    "logged_step",
    "move_batches",
    "next_row",
    "number_of_loaders",
    "runs_fit",
    "sets_rates",
    "settle_counters",
    "skip_sanity_check",
]

KINDS = ("total", "current")

#: Classes of callbacks that average weights; not all versions of Lightning have both.
AVERAGING = {"StochasticWeightAveraging", "WeightAveraging"}


def check_hooks(cls: type, *starts: str) -> None:
    """Check that the hooks of a user's class call the hooks of the package's class that they override, which a run needs.

    Args:
        cls: the class; a hook of the package's classes, or one that another decorator has replaced, is not checked.
        starts: starts of the hooks' names.

    Raises:
        ConfigurationError: naming the hook.
    """
    package = [base for base in cls.__mro__ if base.__module__.startswith("lit_sparse.")]
    for name in dict.fromkeys(name for base in package for name in vars(base) if name.startswith(starts)):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        code = getattr(inspect.unwrap(vars(owner)[name]), "__code__", None)
        if owner not in package and code is not None and code.co_name == name and name not in _names_in(code):
            raise ConfigurationError(
                f"Expected `{name}` of {owner.__qualname__} to call `super().{name}` but it does not, so runs would lack what"
                " the base class does there. Add the call."
            )


def _names_in(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for one in inner for name in _names_in(one))}


def after_restore(trainer: pl.Trainer, initialize: Callable[[], None]) -> None:
    """Run an initialization, unless Lightning restores a checkpoint; call it in ``setup``.

    It runs when a checkpoint would have been restored, before the strategy wraps the model. With a strategy that restores
    after wrapping, it runs at once, and a restored checkpoint replaces the initial values.

    Args:
        trainer: trainer that sets up the model.
        initialize: initialization of a model at the start of its training.
    """
    connector: Any = trainer._checkpoint_connector
    restore = connector._restore_modules_and_callbacks
    if trainer.strategy.restore_checkpoint_after_setup:
        initialize()
        copy_averages(trainer)
        return

    def restore_or_initialize(checkpoint_path: Any = None, *args: Any) -> None:
        connector._restore_modules_and_callbacks = restore
        restore(checkpoint_path, *args)
        if checkpoint_path is None:
            initialize()
            copy_averages(trainer)

    connector._restore_modules_and_callbacks = restore_or_initialize


def averaging(trainer: pl.Trainer) -> list[Any]:
    """Return the trainer's callbacks that average weights."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return [it for it in callbacks if {kind.__name__ for kind in type(it).__mro__} & AVERAGING]


def copy_averages(trainer: pl.Trainer) -> None:
    """Make callbacks that average weights copy the model again, because their ``setup`` ran before its layers were made."""
    for callback in averaging(trainer):
        callback.setup(trainer, trainer.lightning_module, "fit")


def sets_rates(trainer: pl.Trainer) -> bool:
    """Return whether a scheduler sets the learning rates, now or when a resumed weight averaging installs its own."""
    waiting = any(getattr(callback, "_scheduler_state", None) is not None for callback in averaging(trainer))
    return waiting or bool(trainer.lr_scheduler_configs)


def skip_sanity_check(trainer: pl.Trainer) -> None:
    """Skip the sanity check of this fit, which would overwrite what callbacks store of the last validation."""
    trainer._run_sanity_check = lambda: delattr(trainer, "_run_sanity_check")  # type: ignore[method-assign]


def given_hyperparameters() -> dict[str, Any]:
    """Return the arguments with which Lightning's command line is building a model, or an empty dict outside of it."""
    return _given_hyperparameters.get() or {}


class _Lists(Sequence[Any]):
    """The rows of tensors as lists, made when they are read."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        return self.rows[place].tolist()


def index_sampler(batches: Sequence[Tensor]) -> Any:
    """Return the batch sampler of a loader, in which Lightning looks up the indices for a ``BasePredictionWriter``.

    Args:
        batches: indices (B,) of the examples of each batch.
    """
    sampler: Any = SimpleNamespace(seen_batch_indices=_Lists(batches))
    return _IndexBatchSamplerWrapper(sampler)  # takes over its attributes


def settle_counters(trainer: pl.Trainer, loops: dict[str, Any]) -> None:
    """Change the counters in a checkpoint that is being written to one of the three forms that Lightning resumes exactly.

    Args:
        trainer: the trainer that writes the checkpoint.
        loops: state of the fit loop in the checkpoint; changed in place.
    """
    epochs, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    validation, rest = loops["epoch_loop.val_loop.batch_progress"], loops["epoch_loop.state_dict"]
    done, batch = epochs["current"]["processed"], batches["current"]
    between, cut = between_epochs(trainer)
    _equal(validation["current"], 0)  # each validation counts its batches anew
    validation["is_last_batch"] = False
    if between and not cut:
        for progress in (epochs, batches, validation):
            _equal(progress["total"], progress["total"]["processed"])
        _equal(epochs["current"], done)
        _equal(batches["current"], 0)
        batches["is_last_batch"] = False
        return
    for kind in KINDS:
        _equal(epochs[kind], epochs[kind]["processed"] - cut)
        epochs[kind]["ready"] = epochs[kind]["started"] = epochs[kind]["processed"] + 1
    if batch["processed"] < batch["ready"]:  # within a batch, for example after an exception: Lightning restarts the batch
        return
    pending = batch["completed"] < batch["processed"]
    for kind in KINDS:
        _equal(batches[kind], batches[kind]["processed"])
        _equal(validation[kind], validation[kind]["completed"])
    if pending:  # Lightning treats it as interrupted, and runs it when it is due
        validation["total"]["ready"] = validation["total"]["started"] = validation["total"]["completed"] + 1
    rest["_batches_that_stepped"] -= cut


def number_of_loaders(trainer: pl.Trainer, stage: str) -> int:
    """Return the number of data loaders of a stage, ``"train"``, ``"val"`` or ``"test"``."""
    return 1 if stage == "train" else len(getattr(trainer, f"num_{stage}_batches"))


def runs_fit(trainer: pl.Trainer | None) -> bool:
    """Return whether the trainer is fitting, including its sanity check and its validations."""
    return trainer is not None and trainer.state.fn == "fit" and trainer.state.status == "running"


def fit_position(trainer: pl.Trainer) -> tuple[int, int]:
    """Return the epoch of the last fit, counted from 0, and the number of its batches so far."""
    between, cut = between_epochs(trainer)
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return epochs.processed - cut, 0 if between and not cut else batches.processed


def move_batches(trainer: pl.Trainer, number: int) -> None:
    """Add a number to the counters of this epoch's batches, when the rest of the epoch has another number of batches."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    for name in ("ready", "started", "processed", "completed"):
        setattr(batches, name, getattr(batches, name) + number)


def leave_sigterm(trainer: pl.Trainer) -> None:
    """Let the process's own handler stop it at SIGTERM.

    Lightning's handler comes first, and waits for the handlers of all processes, which another process does not reach while it
    waits for this one.
    """
    trainer._signal_connector._sigterm_notifier_fn = lambda *_: None  # type: ignore[method-assign]


def describe_progress(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what a checkpoint needs besides counters: metrics that callbacks read, and whether an epoch's end is pending.

    Args:
        trainer: the trainer that writes the checkpoint.
    """
    loop = trainer.fit_loop.epoch_loop
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return {
        "metrics": {name: value.detach().cpu().clone() for name, value in trainer.callback_metrics.items()},
        # Lightning steps schedulers that monitor a metric after the epoch-end hooks, where checkpoints are written.
        "plateau": epochs.completed < epochs.processed and loop._num_ready_batches_reached(),
    }


def continue_training(trainer: pl.Trainer, progress: dict[str, Any]) -> None:
    """Complete the work that was pending at a checkpoint; call it when training starts again.

    Args:
        trainer: the trainer of the resumed run, its loops restored.
        progress: result of :func:`describe_progress`.
    """
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    validations: Any = loop.val_loop.batch_progress.total
    validations.ready = validations.started = validations.completed  # Lightning has read that one is to come
    metrics: dict[str, Tensor] = {name: value.to(trainer.strategy.root_device) for name, value in progress["metrics"].items()}
    trainer.callback_metrics.update(metrics)
    fit._restarting = False  # otherwise Lightning skips the schedulers that monitor a metric at the end of this epoch
    if progress["plateau"]:
        for config in trainer.lr_scheduler_configs:
            due = config.reduce_on_plateau and config.interval == "epoch" and trainer.current_epoch % config.frequency == 0
            if due and config.monitor in metrics:
                loop.scheduler_progress.increment_ready()
                trainer.lightning_module.lr_scheduler_step(config.scheduler, metrics[config.monitor])
                loop.scheduler_progress.increment_completed()
    batch: Any = loop.batch_progress.current
    if trainer.num_training_batches < float("inf"):
        loop.batch_progress.is_last_batch &= batch.ready == trainer.num_training_batches
    if batch.ready == 0:  # with `max_steps`, Lightning assumes that every start is within an epoch
        loop.restarting = False
    elif loop.restarting and batch.completed == batch.processed and not _validates(trainer):
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
        loop._batches_that_stepped += not loop._should_accumulate()
        if loop._num_ready_batches_reached():  # only the epoch's end remains

            def stop(_: Any) -> None:
                del loop.advance
                raise StopIteration  # unlike a loop that is done at its start, one that stops is not restarting any more

            loop.advance = stop  # type: ignore[assignment, method-assign]


def count_update(trainer: pl.Trainer) -> None:
    """Count an optimizer update that the model made within a step, as Lightning counts its own, and step its schedulers."""
    loop = trainer.fit_loop.epoch_loop
    steps = loop.automatic_optimization.optim_progress.optimizer.step
    steps.increment_ready()
    steps.increment_completed()
    loop._batches_that_stepped += 1
    if trainer.lr_scheduler_configs:
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)


def logged_step(trainer: pl.Trainer) -> int:
    """Return the step at which Lightning logs what a validation measures, and the step of the training elsewhere."""
    validates = trainer.state.fn == "fit" and trainer.validating
    return trainer.fit_loop.epoch_loop._batches_that_stepped if validates else trainer.global_step


def next_row(trainer: pl.Trainer) -> tuple[dict[str, Any], int] | None:
    """Return the row of values that Lightning logs next, and its step; call it on all processes."""
    if not trainer.training:
        return None
    loop, connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = loop.batch_progress.current
    step: int = loop._batches_that_stepped
    if epochs.completed < epochs.processed:
        step -= 1
    elif (
        not batches.completed < batches.processed == batches.ready
        or loop._should_accumulate()
        or not connector.should_update_logs
    ):
        return None
    metrics = {name: value.item() if isinstance(value, Tensor) else value for name, value in connector.metrics["log"].items()}
    if not metrics:
        return None
    if "step" in metrics:  # the user's, for which Lightning adds no epoch
        return metrics, int(metrics.pop("step"))
    return {"epoch": trainer.current_epoch, **metrics}, step


def end_epoch(trainer: pl.Trainer) -> None:
    """Run the end of an epoch for a training that had stopped before it, for which Lightning's own loop would do nothing."""
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fit.setup_data()
    fetcher = fit._data_fetcher
    assert fetcher is not None
    fit.reset()
    fit.on_run_start()
    fit.on_advance_start()
    loop.reset()
    loop.on_run_start(fetcher)
    if _validates(trainer):
        loop.advance(fetcher)  # returns at once: validation is next
        loop.on_advance_end(fetcher)
    loop.__dict__.pop("advance", None)  # of `continue_training`
    loop.on_iteration_done()
    fit.on_advance_end()
    fit.on_iteration_done()
    fit.on_run_end()


def _validates(trainer: pl.Trainer) -> bool:
    """Return whether validation is due after the last batch."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def between_epochs(trainer: pl.Trainer) -> tuple[bool, bool]:
    """Return whether no epoch has begun since the last one ended, and whether ``max_steps`` had cut that one short."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    between = epochs.started == epochs.processed
    return between, between and 0 < batches.current.ready < trainer.num_training_batches and not batches.is_last_batch


def _equal(counters: dict[str, int], value: int) -> None:
    counters.update(dict.fromkeys(counters, value))
