"""The only module that reads and writes Lightning's internal state; its tests fail when Lightning renames it.

Most of it records in checkpoints where in training they were written, so that a run resumes exactly there after any number of
kills.

Lightning counts epochs and batches as ready, started, processed and completed, and writes a checkpoint between two of these.
On a restart Lightning guesses the remaining work from the differences. It mistakes the last batch of an epoch for the epoch's
end, skips its validation and its hooks, and does not count the next epoch as started. A second restart then repeats or skips
batches. This module gives each checkpoint counters of one of three forms, which Lightning restarts unambiguously:

- between two epochs: all epoch counters are equal, all batch counters zero;
- after a batch: all batch counters are equal, the epoch is started and not processed, and validation is still to come;
- after a batch and its validation: the same, with a completed validation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from lit_sparse.distributed import gather_objects, rank, world_size
from lit_sparse.lightning import (
    ModelCheckpoint,
    _call_callback_hooks,
    _call_lightning_module_hook,
    _given_hyperparameters,
    move_data_to_device,
    pl,
)

__all__ = [
    "after_restore",
    "continue_training",
    "count_update",
    "describe_progress",
    "given_hyperparameters",
    "next_row",
    "settle_counters",
]

Counters = dict[str, int]
KINDS = ("total", "current")
#: Attributes of a ModelCheckpoint that its own state lacks.
SAVER = ("_last_global_step_saved", "_defer_save_until_validation", "current_score")
LAST = "_last_checkpoint_saved"
#: Attributes of a logged value: how it is logged, and what it is so far.
META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute")
VALUES = ("value", "cumulated_batch_size", "_forward_cache")
#: Functions that reduce logged values; checkpoints hold their places here.
REDUCTIONS = (torch.mean, torch.sum, torch.max, torch.min, sum, max, min)


def after_restore(trainer: pl.Trainer, initialize: Callable[[], None]) -> None:
    """Run an initialization unless Lightning restores a checkpoint; call it in ``setup``, before restoring is decided.

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
        return

    def restore_or_initialize(checkpoint_path: Any = None, *args: Any) -> None:
        connector._restore_modules_and_callbacks = restore
        restore(checkpoint_path, *args)
        if checkpoint_path is None:
            initialize()

    connector._restore_modules_and_callbacks = restore_or_initialize


def given_hyperparameters() -> dict[str, Any]:
    """Return the arguments with which Lightning's command line is building a model, or an empty dict outside of it."""
    return _given_hyperparameters.get() or {}


def settle_counters(trainer: pl.Trainer, loops: dict[str, Any]) -> None:
    """Change the counters of a checkpoint that is being written to one of the three forms.

    Args:
        trainer: the trainer that writes the checkpoint.
        loops: state of the fit loop in the checkpoint; changed in place.
    """
    epochs, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    validation, rest = loops["epoch_loop.val_loop.batch_progress"], loops["epoch_loop.state_dict"]
    done, batch = epochs["current"]["processed"], batches["current"]
    between = epochs["current"]["started"] == done
    cut = between and 0 < batch["ready"] < trainer.num_training_batches and not batches["is_last_batch"]  # by max_steps
    if between and not cut:
        for progress in (epochs, batches, validation):
            _equal(progress["total"], progress["total"]["processed"])
        _equal(epochs["current"], done)
        _equal(batches["current"], 0)
        _equal(validation["current"], 0)
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
        _equal(validation[kind], 0 if pending else validation[kind]["completed"])
    if pending:  # Lightning treats it as interrupted, and runs it when it is due
        validation["total"]["ready"] = validation["total"]["started"] = 1
    rest["_batches_that_stepped"] -= cut


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
        "savers": {saver.state_key: _state_of_saver(saver) for saver in _savers(trainer)},
        "processes": gather_objects(_state_of_process(trainer)),
    }


def continue_training(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Rebuild what the checkpoint cannot hold, and complete the work that was pending; call it when training starts again.

    Args:
        trainer: the trainer of the resumed run, its loops restored.
        checkpoint: the checkpoint; its ``progress`` is the result of :func:`describe_progress`.
    """
    fit, loop, progress = trainer.fit_loop, trainer.fit_loop.epoch_loop, checkpoint["progress"]
    _repeat_epoch_start(trainer, checkpoint)
    if len(progress["processes"]) == world_size():
        _restore_process(trainer, progress["processes"][rank()])
    for saver in _savers(trainer):
        kept = progress["savers"].get(saver.state_key, {LAST: ""})
        vars(saver).update(kept, **{LAST: kept[LAST] and str(Path(saver.dirpath, Path(kept[LAST]).name))})
        _replace_later_files(saver, trainer)
    metrics: dict[str, Tensor] = {name: value.to(trainer.strategy.root_device) for name, value in progress["metrics"].items()}
    trainer.callback_metrics.update(metrics)
    fit._restarting = False  # otherwise Lightning skips the schedulers that monitor a metric at the end of this epoch
    if progress["plateau"]:
        for config in trainer.lr_scheduler_configs:
            due = config.reduce_on_plateau and config.interval == "epoch" and trainer.current_epoch % config.frequency == 0
            if due and config.monitor in metrics:
                trainer.lightning_module.lr_scheduler_step(config.scheduler, metrics[config.monitor])
    batch: Any = loop.batch_progress.current
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


def _repeat_epoch_start(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Run the hooks of the start of the checkpoint's epoch, then put back all that the checkpoint holds.

    Callbacks build parts of a training in this hook that no checkpoint holds, such as a scheduler in place of the model's, or
    another number of batches per step. Lightning does not run the hook again when a run continues within an epoch.
    """
    epochs: Any = trainer.fit_loop.epoch_progress.current
    if not epochs.started:
        return
    model, results = trainer.lightning_module, trainer.fit_loop.epoch_loop._results
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    groups = [[(group, dict(group)) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
    loggers, completed, logged = trainer.loggers, epochs.completed, set(results)
    trainer.loggers, epochs.completed = [], epochs.started - 1
    _call_callback_hooks(trainer, "on_train_epoch_start")
    _call_lightning_module_hook(trainer, "on_train_epoch_start")
    trainer.loggers, epochs.completed = loggers, completed
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value)
    for group, options in (pair for pairs in groups for pair in pairs):
        group.clear()
        group.update(options)
    for config, state in zip(trainer.lr_scheduler_configs, checkpoint["lr_schedulers"], strict=False):
        config.scheduler.load_state_dict(state)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        changed = type(callback).on_train_epoch_start is not pl.Callback.on_train_epoch_start
        if changed and callback.state_key in checkpoint["callbacks"]:
            callback.load_state_dict(copy.deepcopy(checkpoint["callbacks"][callback.state_key]))
    if epochs.started == completed:  # between two epochs
        for name in set(results) - logged:
            del results[name]


def _state_of_process(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what a process holds of an epoch so far: gradients to which more are added, torchmetrics, and logged values."""
    model, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
    gradients = loop._should_accumulate() and not _between_epochs(trainer)
    logged = [result for result in loop._results.values() if not result.has_reset and result.meta.reduce_fx in REDUCTIONS]
    kept = {
        "gradients": {name: weight.grad for name, weight in model.named_parameters() if gradients and weight.grad is not None},
        "torchmetrics": {
            name: {part: getattr(metric, part) for part in (*metric._defaults, "_update_count")}
            for name, metric in _torchmetrics(model)
            if metric.update_called
        },
        "logged": [
            {
                "meta": {name: getattr(result.meta, name) for name in META},
                "sync": {"sync_dist": result.meta.sync.should, "rank_zero_only": result.meta.sync.rank_zero_only},
                "reduce_fx": REDUCTIONS.index(result.meta.reduce_fx),
                "values": {name: getattr(result, name) for name in VALUES if isinstance(getattr(result, name, 0), Tensor)},
            }
            for result in logged
        ],
    }
    copied: dict[str, Any] = apply_to_collection(kept, Tensor, lambda value: value.detach().cpu().clone())
    return copied


def _restore_process(trainer: pl.Trainer, kept: dict[str, Any]) -> None:
    """Restore the result of :func:`_state_of_process`, as far as it belongs to the present epoch."""
    model, results = trainer.lightning_module, trainer.fit_loop.epoch_loop._results
    kept = move_data_to_device(kept, trainer.strategy.root_device)
    for name, weight in model.named_parameters():
        if name in kept["gradients"]:
            weight.grad = kept["gradients"][name]
    if _between_epochs(trainer):
        return
    for name, metric in _torchmetrics(model):
        for part, value in kept["torchmetrics"].get(name, {}).items():
            setattr(metric, part, value)
    for entry in kept["logged"]:
        meta, values = entry["meta"], entry["values"]
        value = torch.zeros(()) if values else model.get_submodule(meta["metric_attribute"])
        options = {**meta, **entry["sync"], "reduce_fx": REDUCTIONS[entry["reduce_fx"]]}
        results.log(value=value, batch_size=1, sync_dist_fn=trainer.strategy.reduce, **options)
        vars(results[f"{meta['fx']}.{meta['name']}"]).update(values)
    trainer._logger_connector._first_loop_iter = True  # as after a batch: the first batch of an epoch resets what was logged


def _torchmetrics(model: pl.LightningModule) -> Iterator[tuple[str, Metric]]:
    """Yield the metrics of training in a model; validation and test begin anew."""
    for name, module in model.named_modules():
        if isinstance(module, Metric) and not name.startswith(("val_", "test_")):
            yield name, module


def _savers(trainer: pl.Trainer) -> list[Any]:
    return [saver for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]


def _state_of_saver(saver: Any) -> dict[str, Any]:
    return {name: getattr(saver, name) for name in SAVER} | {LAST: Path(getattr(saver, LAST)).name}


def _replace_later_files(saver: Any, trainer: pl.Trainer) -> None:
    """Let a callback write again the files that it wrote after the checkpoint, not other files beside them."""
    resumed = Path(str(trainer.ckpt_path))
    if not resumed.is_file():
        return
    exists, written = saver.file_exists, resumed.stat().st_mtime_ns

    def exists_before(path: Any, trainer: pl.Trainer) -> bool:
        beside = Path(path).parent.resolve() == resumed.parent.resolve()
        return exists(path, trainer) and not (beside and Path(path).stat().st_mtime_ns > written)

    saver.file_exists = exists_before


def _between_epochs(trainer: pl.Trainer) -> bool:
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return bool(epochs.started == epochs.processed)


def count_update(trainer: pl.Trainer) -> None:
    """Count an update that the model made within a step, as Lightning counts its own, and move schedulers that count steps."""
    loop = trainer.fit_loop.epoch_loop
    steps = loop.automatic_optimization.optim_progress.optimizer.step
    steps.increment_ready()
    steps.increment_completed()
    loop._batches_that_stepped += 1
    if trainer.lr_scheduler_configs:
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)


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
    step = int(metrics.pop("step", step))
    return {"epoch": trainer.current_epoch, **metrics}, step


def _validates(trainer: pl.Trainer) -> bool:
    """Return whether validation is due after the last batch."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def _equal(counters: Counters, value: int) -> None:
    counters.update(dict.fromkeys(counters, value))
