"""States of a training that Lightning's checkpoints lack, so that a run that is continued within an epoch is exact.

Callbacks build parts of a training in hooks, such as a scheduler in place of the model's. Gradients are added up over several
batches, and so are the values that are logged at the end of an epoch. Parameters are frozen and pruned. Lightning restores
none of this.
"""

from __future__ import annotations

import copy
import re
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.ground.distributed import gather_objects, rank, world_size
from lit_sparse.ground.files import STATUS
from lit_sparse.ground.state_checks import (
    ANY,
    NUMBER,
    RATE,
    SCALAR,
    DictOf,
    Kind,
    OneOf,
    at_most,
    check_apart,
    check_state,
    equal_to,
    example_of,
    one_of,
)
from lit_sparse.lightning.choice import (
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    _call_callback_hooks,
    _call_lightning_module_hook,
    pl,
)
from lit_sparse.lightning.internals import between_epochs
from lit_sparse.lightning.process_states import PAIRED, TENSOR, copied, example_of_process, restore_process, state_of_process

__all__ = [
    "begin_training",
    "check_continues",
    "check_schedulers",
    "describe_states",
    "is_tuning",
    "steps_in",
    "unmask",
]

#: Callbacks of Lightning with which no run continues, why, and what to do.
REFUSED = {
    "BatchSizeFinder": ("searches again whenever a run starts", "Give the size that it found: --data.init_args.batch_size N."),
    "LearningRateFinder": ("searches again whenever a run starts", "Give the rate that it found: --model.optimizer.lr RATE."),
    "SpikeDetection": ("cannot restore the mean that it compares losses with", "Start a new run to use it."),
}
#: Attribute of a batch normalization that freezing changes.
STATISTICS = "track_running_stats"
#: Attributes of a ModelCheckpoint that its own state lacks; the last is a path.
SAVER = ("_defer_save_until_validation", "_last_global_step_saved", "current_score")
LAST = "_last_checkpoint_saved"
#: Attributes of torch's schedulers that are not options.
PROGRESS = {
    *("last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial"),
    *("best", "cooldown_counter", "num_bad_epochs", "T_cur", "T_i"),
}
#: Counters of schedulers, and the options that they do not exceed; none exceeds the steps, batches and epochs of the run.
MOST = {"last_epoch": "total_steps", "_step_count": None, "cooldown_counter": "cooldown", "num_bad_epochs": "patience"}
#: Example of what is stored of a ModelCheckpoint; early checkpoints lack its name pattern.
STORED: dict[str, Any] = {SAVER[0]: True, SAVER[1]: 0, SAVER[2]: OneOf(SCALAR), LAST: ""}
#: Example of the states.
STATES = {
    "interrupted": False,
    "flags": DictOf(True),
    "masks": DictOf(TENSOR),
    "savers": DictOf(OneOf({**STORED, "filename": ""}, STORED)),
    "processes": Kind("a list of dicts, one per process", lambda found: isinstance(found, list) and len(found) > 0),
}


def check_continues(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Check that a run can be resumed from a checkpoint, with the callbacks of the trainer.

    Raises:
        CheckpointError: if the states are damaged, or were stored after an exception, perhaps in the middle of an update.
        ConfigurationError: if a callback of Lightning cannot be resumed.
    """
    check_state(repr(str(trainer.ckpt_path)), "states", checkpoint["states"], STATES)
    if checkpoint["states"]["interrupted"]:
        raise CheckpointError(
            f"Expected a checkpoint that was written after a batch but got {str(trainer.ckpt_path)!r}, written after an"
            " exception, perhaps in the middle of a batch. Continue from checkpoints/last.ckpt, or start a new run from the"
            " weights: --model.init_args.initial_weights CHECKPOINT"
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for name in {kind.__name__ for kind in type(callback).__mro__} & REFUSED.keys():
            reason, advice = REFUSED[name]
            raise ConfigurationError(
                f"Expected callbacks that can continue after a kill but got {type(callback).__name__}, which {reason}. Leave"
                f" it out. {advice}"
            )


def is_tuning(trainer: pl.Trainer) -> bool:
    """Return whether Lightning restores a checkpoint that one of its tuners wrote before its search."""
    return re.fullmatch(r"\.(?:lr_find|scale_batch_size)_[0-9a-f-]{36}\.ckpt", Path(str(trainer.ckpt_path)).name) is not None


def steps_in(checkpoint: dict[str, Any]) -> int:
    """Return an upper bound on all counters in a checkpoint: the sum of steps, batches and epochs."""
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
    return int(checkpoint["global_step"] + sum(one["total"]["ready"] for one in progress))


def describe_states(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the states of a training run that Lightning's checkpoints lack; call it on all processes.

    Args:
        trainer: the trainer that writes the checkpoint.
    """
    model: Any = trainer.lightning_module
    before = getattr(model, "_flags_at_start", {})
    return {
        "interrupted": trainer.state.status == "interrupted",
        "flags": {name: flag for name, flag in _flags(model).items() if before.get(name, flag) != flag},
        "masks": copied(_masks(model)),
        "savers": {saver.state_key: _state_of_saver(saver) for saver in _savers(trainer)},
        "processes": gather_objects(state_of_process(trainer)),
    }


def begin_training(trainer: pl.Trainer, checkpoint: dict[str, Any] | None) -> None:
    """Restore the states that Lightning does not restore; call it when training starts, after the callbacks' own hook.

    Args:
        trainer: the trainer, its loops restored.
        checkpoint: the checkpoint of a resumed run; its ``states`` are the result of :func:`describe_states`.
    """
    model: Any = trainer.lightning_module
    model._flags_at_start = _flags(model)
    for saver in _savers(trainer):
        _note_before_writing(saver)
    if checkpoint is None:
        return
    source = repr(str(trainer.ckpt_path))
    states, tensors = checkpoint["states"], [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    weights = dict(model.named_parameters())
    for path in states["masks"].keys() & weights.keys():
        check_state(source, f"states.masks.{path}", states["masks"][path], torch.ones_like(weights[path]))
    _prune(trainer, states["masks"])
    _repeat_epoch_start(trainer, checkpoint)
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value)
    for path in _flags(model).keys() & states["flags"].keys():
        owner, _, name = path.rpartition(".")
        part, flag = model.get_submodule(owner), bool(states["flags"][path])
        if name == STATISTICS:
            setattr(part, name, flag)
        else:
            getattr(part, name).requires_grad_(flag)
    if states["flags"] and not any(weight.requires_grad for weight in weights.values()):
        check_state(source, "states.flags", states["flags"], Kind("flags that leave a weight to train", lambda _: False))
    if len(states["processes"]) == world_size():
        kept = states["processes"][rank()]
        check_state(source, f"states.processes.{rank()}", kept, example_of_process(trainer))
        check_apart(source, f"states.processes.{rank()}", kept)
        for name, parts in kept["torchmetrics"].items():
            sizes = [[one.shape[:1] for one in parts[part]] for part in PAIRED if isinstance(parts.get(part), list)]
            paired = Kind("lists of as many predictions as targets", lambda found: all(size == found[0] for size in found))
            check_state(source, f"states.processes.{rank()}.torchmetrics.{name}", sizes, paired)
        restore_process(trainer, kept)
    for saver in _savers(trainer):
        kept = states["savers"].get(saver.state_key)
        if kept is not None:
            place = f"states.savers.{saver.state_key}.{SAVER[1]}"
            check_state(source, place, kept[SAVER[1]], at_most(checkpoint["global_step"]))
            vars(saver).update({name: kept[name] for name in SAVER})
            setattr(saver, LAST, kept[LAST] and str(Path(saver.dirpath, Path(kept[LAST]).name)))
        _replace_later_files(saver, trainer)


def unmask(checkpoint: dict[str, Any]) -> None:
    """Rename pruned weights in a checkpoint to the names that they have in a model without pruning."""
    weights = checkpoint.get("state_dict", {})
    for path in checkpoint.get("states", {}).get("masks", {}):
        if f"{path}_orig" in weights:
            weights[path] = weights.pop(f"{path}_orig")
            del weights[f"{path}_mask"]


def _prune(trainer: pl.Trainer, masks: dict[str, Tensor]) -> None:
    """Prune weights that are not pruned yet; a lottery ticket's share memory with the copies that it goes back to."""
    model = trainer.lightning_module
    for path in dict(model.named_parameters()).keys() & masks.keys():
        owner, _, name = path.rpartition(".")
        mask = masks[path].to(trainer.strategy.root_device)
        prune.custom_from_mask(model.get_submodule(owner), name, mask)  # type: ignore[no-untyped-call]
    for callback in trainer.callbacks if masks else ():  # type: ignore[attr-defined]
        if isinstance(callback, ModelPruning) and callback._use_lottery_ticket_hypothesis:
            callback.apply_lottery_ticket_hypothesis()


def _repeat_epoch_start(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Run the hooks of the start of the checkpoint's epoch, then put back what the checkpoint holds besides weights.

    Lightning does not run these hooks again when a run continues within an epoch. Callbacks build parts of a training in them,
    such as a scheduler in place of the model's, or another number of batches per step.
    """
    epochs: Any = trainer.fit_loop.epoch_progress.current
    if not epochs.started:
        check_schedulers(trainer, checkpoint)
        return
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, StochasticWeightAveraging) and callback._scheduler_state is not None:
            callback._scheduler_state = {}  # checked and restored below
    results = trainer.fit_loop.epoch_loop._results
    groups = [[(group, dict(group)) for group in optimizer.param_groups] for optimizer in trainer.optimizers]
    loggers, completed, logged = trainer.loggers, epochs.completed, set(results)
    trainer.loggers, epochs.completed = [], epochs.started - 1
    _call_callback_hooks(trainer, "on_train_epoch_start")
    _call_lightning_module_hook(trainer, "on_train_epoch_start")
    trainer.loggers, epochs.completed = loggers, completed
    for group, options in (pair for pairs in groups for pair in pairs):
        group.clear()
        group.update(options)
    check_schedulers(trainer, checkpoint)
    for config, state in zip(trainer.lr_scheduler_configs, checkpoint["lr_schedulers"], strict=True):
        config.scheduler.load_state_dict(copy.deepcopy(state))  # CyclicLR removes an entry
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        changed = type(callback).on_train_epoch_start is not pl.Callback.on_train_epoch_start
        if changed and callback.state_key in checkpoint["callbacks"]:
            callback.load_state_dict(copy.deepcopy(checkpoint["callbacks"][callback.state_key]))
    if between_epochs(trainer)[0]:
        for name in set(results) - logged:
            del results[name]


def check_schedulers(trainer: pl.Trainer, checkpoint: dict[str, Any]) -> None:
    """Check that a checkpoint's schedulers are the trainer's, with equal options.

    Raises:
        CheckpointError: if they differ; the message says how.
    """
    source, stored, most = repr(str(trainer.ckpt_path)), checkpoint["lr_schedulers"], steps_in(checkpoint)
    check_state(source, "lr_schedulers", stored, [ANY] * len(trainer.lr_scheduler_configs))
    for number, (config, state) in enumerate(zip(trainer.lr_scheduler_configs, stored, strict=True)):
        check_state(source, f"lr_schedulers.{number}", state, _example_of_scheduler(config.scheduler, state, most))


def _example_of_scheduler(scheduler: Any, state: Any, most: int) -> Any:
    """Return an example of a scheduler's state; for a class of the user's, its options are what its constructor takes.

    Args:
        scheduler: the new scheduler.
        state: the stored state.
        most: largest number of its steps.
    """
    fresh, kind = scheduler.state_dict(), type(scheduler)
    if kind.__module__.startswith(("torch.optim", "pytorch_lightning", "lightning.")):
        options = fresh.keys() - PROGRESS
    else:
        options = fresh.keys() & signature(kind).parameters.keys() - PROGRESS
    example = example_of(fresh)
    example |= {name: equal_to(fresh[name]) for name in options}
    if "_last_lr" in fresh:
        example["_last_lr"] = [RATE] * len(fresh["_last_lr"])
    for name in MOST.keys() & fresh.keys():
        limit = fresh.get(MOST[name])
        example[name] = at_most(fresh[name] + most if limit is None else limit, min(0, fresh[name]))
    kept = state if isinstance(state, dict) else {}
    if {"T_0", "T_i", "T_mult", "T_cur"} <= fresh.keys():  # each cycle is longer than the one before by a factor
        lengths = [fresh["T_0"]]
        while lengths[-1] < lengths[-1] * fresh["T_mult"] <= fresh["T_mult"] * most:
            lengths.append(lengths[-1] * fresh["T_mult"])
        example["T_i"] = one_of(f"the lengths {lengths} of the cycles so far", lengths)
        example["T_cur"] = Kind("a number of steps within the cycle", lambda it: NUMBER.holds(it) and 0 <= it < kept["T_i"])
    for name in {"scheduler", "_schedulers"} & fresh.keys():  # schedulers within this one
        inner, found = getattr(scheduler, name), kept.get(name)
        example[name] = inner
        if isinstance(inner, list):
            founds = found if isinstance(found, list) and len(found) == len(inner) else [None] * len(inner)
            example[name] = [_example_of_scheduler(*pair, most) for pair in zip(inner, founds, strict=True)]
        elif hasattr(inner, "state_dict"):
            example[name] = _example_of_scheduler(inner, found, most)
    return example


def _flags(model: nn.Module) -> dict[str, bool]:
    """Return which parameters are trained, and which batch normalizations keep statistics."""
    flags = {name: weight.requires_grad for name, weight in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            flags[f"{name}.{STATISTICS}"] = module.track_running_stats
    return flags


def _masks(model: nn.Module) -> dict[str, Tensor]:
    """Return the masks of pruned weights by the weights' names."""
    return {
        f"{name}.{hook._tensor_name}".lstrip("."): getattr(module, f"{hook._tensor_name}_mask")
        for name, module in model.named_modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    }


def _savers(trainer: pl.Trainer) -> list[Any]:
    return [saver for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]


def _state_of_saver(saver: Any) -> dict[str, Any]:
    names = {LAST: Path(getattr(saver, LAST)).name, "filename": saver.filename or ""}
    return {name: getattr(saver, name) for name in SAVER} | names


def _note_before_writing(saver: Any) -> None:
    """Make a checkpoint callback record a file before writing it, so that the file's own state lists it."""

    def noted(trainer: pl.Trainer, path: str) -> None:
        saver._last_global_step_saved = trainer.global_step
        setattr(saver, LAST, path)
        type(saver)._save_checkpoint(saver, trainer, path)

    saver._save_checkpoint = noted


def _replace_later_files(saver: Any, trainer: pl.Trainer) -> None:
    """Make a checkpoint callback overwrite files it wrote after the checkpoint, but not files of other runs."""
    resumed, folder = Path(str(trainer.ckpt_path)).resolve(), Path(str(saver.dirpath)).resolve()
    run = next((above for above in resumed.parents[:3] if (above / STATUS).is_file()), None)
    files = resumed.parent.glob("*.ckpt") if run is None or not folder.is_relative_to(run) else folder.rglob("*.ckpt")
    since, exists = _time_of(resumed), saver.file_exists
    later = {path: _time_of(path, follow=False) for path in files if _time_of(path) > since}

    def exists_before(path: Any, trainer: pl.Trainer) -> bool:
        found = Path(path).parent.resolve() / Path(path).name  # a link such as `save_last: link` makes is itself the file
        return exists(path, trainer) and not trainer.strategy.broadcast(later.get(found) == _time_of(found, follow=False))

    saver.file_exists = exists_before


def _time_of(path: Path, *, follow: bool = True) -> int:
    """Return the time of a checkpoint's last change, or of its latest file if it is sharded; 0 if it does not exist."""
    files = [path, *(path.rglob("*") if path.is_dir() else ())]
    return max(file.stat(follow_symlinks=follow).st_mtime_ns for file in files) if path.exists() else 0
