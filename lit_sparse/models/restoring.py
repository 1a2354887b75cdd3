"""Checks that a checkpoint fits a run, state by state, just before Lightning restores each of them.

A state is compared with the state of the new object in its place. Progress is restored; what the config determines is not:
options of a scheduler must be equal, and options of an optimizer that no scheduler changes are the config's. Any other
failure while a state is restored becomes one CheckpointError that names it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.state_checks import (
    AMOUNT,
    ANY,
    NUMBER,
    SCALAR,
    DictOf,
    Kind,
    ListOf,
    OneOf,
    Some,
    at_most,
    check_state,
    equal_to,
    example_of,
    one_of,
)
from lit_sparse.lightning.choice import EarlyStoppingReason, ModelCheckpoint, pl
from lit_sparse.lightning.internals import continue_training, describe_progress, settle_counters, skip_sanity_check
from lit_sparse.lightning.limits import describe_end, restore_end, use_settings
from lit_sparse.lightning.states import begin_training, check_continues, check_schedulers, describe_states, is_tuning, steps_in
from lit_sparse.models.restored_optimizers import State, check_optimizers
from lit_sparse.runs.checkpoint_files import (
    LOGGED_STEP,
    WRITTEN,
    check_finite,
    check_removable,
    check_resumable,
    restoring_error,
)

__all__ = ["guard_restoring", "prepare_to_continue", "start_training", "store_training"]

#: Order of the counters of a progress.
COUNTERS = ("ready", "started", "processed", "completed")
SCORE = Kind("a score", lambda value: SCALAR.holds(value) and not bool(value.isnan()))
MEAN = {"total": torch.zeros(()), "count": torch.zeros((), dtype=torch.int64)}
REASON = Kind(
    "a reason to stop", lambda value: type(value) is int and value in {reason.value for reason in EarlyStoppingReason}
)
SECONDS = Kind("a time >= 0 in seconds", lambda value: AMOUNT.holds(value) and value < timedelta.max.total_seconds() / 2)
WHOLE = Kind("an integer >= -1", lambda value: type(value) is int and -1 <= value <= 2**53)
#: Name pattern of a ModelCheckpoint without one.
DEFAULT = "{epoch}-{step}"
#: Entries of callbacks' states of which a new callback's own state is no example, by names of Lightning's classes.
CALLBACKS: dict[str, State] = {
    "EarlyStopping": {"best_score": SCORE, "stopping_reason": REASON, "stopping_reason_message": OneOf("")},
    "ModelCheckpoint": {
        "best_model_score": OneOf(SCORE),
        "current_score": OneOf(SCALAR),
        "dirpath": OneOf(""),
        "best_k_models": DictOf(SCORE),
        "kth_value": SCORE,
    },
    "Timer": {"time_elapsed": dict.fromkeys(("train", "sanity_check", "validate", "test", "predict"), SECONDS)},
    "StochasticWeightAveraging": {"scheduler_state": OneOf(DictOf(ANY))},
    "BaseFinetuning": {"internal_optimizer_metadata": DictOf(ListOf(DictOf(ANY)), int)},
    "BackboneFinetuning": {"previous_backbone_lr": OneOf(AMOUNT)},
}


@contextmanager
def restoring(trainer: pl.Trainer, what: str) -> Iterator[None]:
    """Provide a context that turns any error into a CheckpointError, which names ``what`` is being restored."""
    try:
        yield
    except Exception as error:
        found = restoring_error(repr(str(trainer.ckpt_path)), error, what)
        if found is error:
            raise
        raise found from error


def store_training(trainer: pl.Trainer, checkpoint: State, limits: State) -> None:
    """Add to a Lightning checkpoint what is needed to resume training at any step; call it on all processes.

    Args:
        trainer: the trainer that writes the checkpoint.
        checkpoint: the checkpoint; its counters change.
        limits: result of :func:`lit_sparse.lightning.limits.limits_of`.
    """
    checkpoint["end"] = describe_end(trainer, limits)
    settle_counters(trainer, checkpoint["loops"]["fit_loop"])
    checkpoint["progress"] = describe_progress(trainer)
    checkpoint["states"] = describe_states(trainer)


def prepare_to_continue(trainer: pl.Trainer, checkpoint: State, limits: State) -> None:
    """Prepare a trainer to resume from a checkpoint written by :func:`store_training`; call it when the model is restored.

    Raises:
        CheckpointError: if the run cannot be continued from it.
    """
    check_continues(trainer, checkpoint)
    skip_sanity_check(trainer)
    restore_end(trainer, checkpoint["end"], limits)


def start_training(trainer: pl.Trainer, checkpoint: State | None, limits: State) -> None:
    """Start training, new or from a checkpoint; call it when training starts, after the callbacks' own hook.

    Raises:
        CheckpointError: if the run cannot be continued from it.
    """
    with restoring(trainer, "states"):
        begin_training(trainer, checkpoint)
        if checkpoint is not None:
            use_settings(trainer, checkpoint["end"]["limits"], limits)
            continue_training(trainer, checkpoint["progress"])


def guard_restoring(trainer: pl.Trainer) -> None:
    """Name the state of a checkpoint that cannot be restored, and check each one of a training; call it in ``setup``."""
    connector: Any = trainer._checkpoint_connector
    for name, (what, check) in CHECKS.items():
        setattr(connector, name, _guarded(trainer, name, what, check))


def _guarded(trainer: pl.Trainer, name: str, what: str, check: Callable[[str, pl.Trainer, State], None]) -> Callable[[], None]:
    connector: Any = trainer._checkpoint_connector
    restore = getattr(type(connector), name)

    def guarded() -> None:
        checkpoint = connector._loaded_checkpoint
        if not checkpoint or is_tuning(trainer):
            restore(connector)
            return
        with restoring(trainer, what):
            if trainer.state.fn == "fit":
                check(repr(str(trainer.ckpt_path)), trainer, checkpoint)
            if name == "restore_lr_schedulers":  # CyclicLR removes an entry, and the states are restored again later
                connector._loaded_checkpoint = {**checkpoint, "lr_schedulers": copy.deepcopy(checkpoint["lr_schedulers"])}
            restore(connector)
            connector._loaded_checkpoint = checkpoint

    return guarded


def _check_model(source: str, trainer: pl.Trainer, checkpoint: State) -> None:
    """Check the entries that concern only the model."""
    check_resumable(source, checkpoint)
    if "state_dict" in checkpoint:  # else a strategy that shards models has restored it
        check_finite(source, checkpoint)
    model: Any = trainer.lightning_module
    check_state(source, "train_means", checkpoint.get("train_means"), DictOf(MEAN))
    limits, theirs = model._limits, checkpoint["end"]["limits"]
    setting = OneOf("", OneOf(True, OneOf(NUMBER)))
    check_state(source, "end.limits", theirs, {**dict.fromkeys(limits, OneOf(WHOLE)), "callbacks": ListOf(DictOf(setting))})


def _check_callbacks(source: str, trainer: pl.Trainer, checkpoint: State) -> None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    stored = checkpoint.get("callbacks")
    check_state(source, "callbacks", stored, DictOf(DictOf(ANY)))
    assert stored is not None
    for callback in callbacks:
        kinds = [kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith(("pytorch_l", "lightning."))]
        known = {key: value for name in reversed(kinds) for key, value in CALLBACKS.get(name, {}).items()}
        if hasattr(callback, "state_example"):
            known |= callback.state_example(trainer.lightning_module)
        own = type(callback).__module__.startswith(("lit_sparse.", "pytorch_lightning.", "lightning."))
        if callback.state_key not in stored:
            continue
        place, state = f"callbacks.{callback.state_key}", stored[callback.state_key]
        fresh = callback.state_dict()
        expected = {**example_of(fresh), **known} if fresh else {}
        if not own:  # a user's class may store anything
            expected = {name: known.get(name, ANY) for name in expected}
        check_state(source, place, state, expected)
        for name in kinds:
            if name in RELATIONS:
                RELATIONS[name](source, place, trainer, callback, state, checkpoint)


def _check_stopping(source: str, place: str, trainer: pl.Trainer, callback: Any, state: State, checkpoint: State) -> None:
    check_state(source, f"{place}.best_score", state["best_score"], _score_from(callback.best_score))
    check_state(source, f"{place}.wait_count", state["wait_count"], at_most(steps_in(checkpoint)))
    check_state(source, f"{place}.stopped_epoch", state["stopped_epoch"], at_most(checkpoint["epoch"]))


def _score_from(worst: Tensor) -> Kind:
    """Return the example of scores, of which only the worst one may be infinite: no score exceeds the best one."""
    return Kind(f"a score, finite or {float(worst)}", lambda it: SCORE.holds(it) and (bool(it.isfinite()) or it == worst))


def _check_saver(source: str, place: str, trainer: pl.Trainer, saver: Any, state: State, checkpoint: State) -> None:
    check_state(source, f"{place}.monitor", state["monitor"], equal_to(saver.monitor))
    templates = _templates(source, trainer, saver, checkpoint)
    if state["dirpath"] != saver.dirpath:
        _follow(source, state, saver)
    if state["dirpath"] != saver.dirpath:  # then Lightning restores one path alone, and removes no file elsewhere
        _check_files(source, {"best_model_path": state["best_model_path"]}, saver, templates)
        return
    _check_files(source, state, saver, templates)
    best, kth = state["best_k_models"], state["kth_best_model_path"]
    check_state(source, f"{place}.best_k_models", best, DictOf(_score_from(saver.kth_value)))
    check_state(source, f"{place}.kth_value", state["kth_value"], _score_from(saver.kth_value))
    full = bool(best) and 0 < saver.save_top_k <= len(best)
    if kth or full:
        check_state(source, f"{place}.kth_best_model_path", kth, one_of("`best_k_models`", best))
        check_state(source, f"{place}.kth_value", state["kth_value"], equal_to(best[kth]))
    if best:
        check_state(source, f"{place}.best_model_path", state["best_model_path"], one_of("`best_k_models`", best))
        check_state(source, f"{place}.best_model_score", state["best_model_score"], equal_to(best[state["best_model_path"]]))


def _follow(source: str, state: State, saver: Any) -> None:
    """Change the state of a saver of another folder: to the saver's, if that has the best checkpoint, else to one without.

    Lightning would keep the path of the other folder alone, forget the score, and replace a better checkpoint.
    """
    former = state["dirpath"]
    check_removable(source, state, former)
    here = {
        path: str(Path(saver.dirpath, Path(path).relative_to(former)))
        for path in (*state["best_k_models"], *map(state.__getitem__, WRITTEN))
        if path and former and Path(former) in Path(path).parents
    }
    best = state["best_model_path"]
    if "://" in best or "::" in best:
        return
    if best in here and Path(here[best]).exists():
        state |= {key: here.get(state[key], state[key]) for key in WRITTEN}
        state["best_k_models"] = {here.get(path, path): score for path, score in state["best_k_models"].items()}
        state["dirpath"] = saver.dirpath
    elif Path(saver.dirpath) not in Path(best).absolute().parents:  # else it is checked as the saver's own
        state["best_model_path"] = ""


def _templates(source: str, trainer: pl.Trainer, saver: Any, checkpoint: State) -> list[str]:
    """Return the name pattern of a saver, and its former one if the user has changed it, after comparing them with others'."""
    kept = checkpoint["states"]["savers"].get(saver.state_key, {})
    own = saver.filename or DEFAULT
    former = kept.get("filename", own) or DEFAULT
    if own == former:
        return [own]
    savers: list[Any] = [other for other in trainer.checkpoint_callbacks if other is not saver]
    beside = [other for other in savers if vars(other).get("dirpath") == saver.dirpath]
    others = {_form(vars(other).get("filename")): type(other).__name__ for other in beside}
    if _form(own) in others:
        raise ConfigurationError(
            f"Expected the `filename` of {type(saver).__name__} to be used by no other checkpoint callback but got {own!r}, as"
            f" in {others[_form(own)]}. Choose another name."
        )
    apart = Kind("the name of no other callback's files", lambda name: _form(name) not in others)
    check_state(source, f"states.savers.{saver.state_key}.filename", former, apart)
    return [own, former]


def _form(template: str | None) -> str:
    """Return a name pattern without the formats of its numbers."""
    return re.sub(r":[^{}]*(?=\})", "", template or DEFAULT)


def _check_files(source: str, state: State, saver: Any, templates: list[str]) -> None:
    """Check that a state names files as the saver itself does, since it removes them later: none of another saver."""
    check_removable(source, state, saver.dirpath)
    if type(saver).format_checkpoint_name is not ModelCheckpoint.format_checkpoint_name:
        return  # a class of the user, which may give any names
    for key in ("best_k_models", *WRITTEN):
        allowed = [saver.CHECKPOINT_NAME_LAST] if key == "last_model_path" else templates
        named = Kind(f"a file that is named like {' or '.join(map(repr, allowed))}", partial(_fits, allowed))
        paths = state.get(key) or ()
        for path in [paths] if isinstance(paths, str) else paths:
            check_state(source, f"callbacks.{saver.state_key}.{key}", path.removeprefix(saver.dirpath).lstrip("/\\"), named)


def _fits(templates: list[str], name: str) -> bool:
    for template in templates:
        start, number, _ = template.partition("{")
        if re.fullmatch(re.escape(start) + (r".*?(?:\d|nan|inf).*\.ckpt" if number else r"(?:-v\d+)?\.ckpt"), name):
            return True
    return False


def _check_averages(source: str, place: str, trainer: pl.Trainer, callback: Any, state: State, checkpoint: State) -> None:
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["started"]
    check_state(source, f"{place}.n_averaged", state["n_averaged"], at_most(epochs))
    check_state(source, f"{place}.latest_update_epoch", state["latest_update_epoch"], at_most(epochs - 1, -1))
    if state["scheduler_state"] is not None:
        check_state(source, f"{place}.scheduler_state", [state["scheduler_state"]], equal_to(checkpoint["lr_schedulers"]))


def _check_weight_averages(source: str, place: str, trainer: pl.Trainer, _: Any, state: State, checkpoint: State) -> None:
    for name in ("current_model_state", "averaging_state"):
        check_state(source, name, checkpoint.get(name), DictOf(ANY))
    most = checkpoint["global_step"]
    check_state(source, f"{place}.latest_update_step", state["latest_update_step"], at_most(most))


def _check_finetuning(source: str, place: str, trainer: pl.Trainer, _: Any, state: State, checkpoint: State) -> None:
    names = dict(trainer.lightning_module.named_parameters()).keys()
    parameter = Kind("the name of a parameter", lambda name: isinstance(name, str) and name in names)
    for number, groups in state["internal_optimizer_metadata"].items():
        for at, group in enumerate(groups):
            params = f"{place}.internal_optimizer_metadata.{number}.{at}.params"
            check_state(source, params, group.get("params"), ListOf(parameter))


RELATIONS: dict[str, Callable[..., None]] = {
    "EarlyStopping": _check_stopping,
    "ModelCheckpoint": _check_saver,
    "StochasticWeightAveraging": _check_averages,
    "WeightAveraging": _check_weight_averages,
    "BaseFinetuning": _check_finetuning,
}


def _check_precision(source: str, trainer: pl.Trainer, checkpoint: State) -> None:
    plugin = trainer.precision_plugin
    name, fresh = type(plugin).__qualname__, plugin.state_dict()
    if fresh and name in checkpoint:
        options = {key: equal_to(value) for key, value in fresh.items() if key.endswith(("_factor", "_interval"))}
        check_state(source, name, checkpoint[name], {**example_of(fresh), "scale": AMOUNT, **options})


def _check_loops(source: str, trainer: pl.Trainer, checkpoint: State) -> None:
    """Check the counters: each of a form that :mod:`lit_sparse.lightning.internals` writes."""
    loops: State = checkpoint["loops"]
    fresh = {f"{name}_loop": getattr(trainer, f"{name}_loop").state_dict() for name in ("fit", "validate", "test", "predict")}
    expected = example_of(fresh)
    expected["fit_loop"]["state_dict"] = Some({"combined_loader": ListOf(ANY)})
    check_state(source, "loops", loops, expected)
    loop = loops["fit_loop"]
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    between = epochs["current"]["started"] == epochs["current"]["processed"]
    for kind in ("total", "current"):
        ended, begun = epochs[kind]["processed"], epochs[kind]["processed"] + (not between)
        counters = equal_to(dict(zip(COUNTERS, (begun, begun, ended, ended), strict=True)))
        check_state(source, f"loops.fit_loop.epoch_progress.{kind}", epochs[kind], counters)
        count = 0 if between and kind == "current" else batches[kind]["processed"]
        place = "loops.fit_loop.epoch_loop.batch_progress"
        check_state(source, f"{place}.{kind}", batches[kind], equal_to(dict.fromkeys(COUNTERS, count)))
    if between:
        check_state(source, f"{place}.is_last_batch", batches["is_last_batch"], equal_to(False))
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    if hasattr(data, "position_example"):
        position = data.position_example(epochs["current"]["processed"], 0 if between else batches["current"]["processed"])
        example: Any = Some({"combined_loader": ListOf(position)})
        if not between and type(data).train_dataloader.__module__.startswith("lit_sparse."):
            example = {"combined_loader": [position]}
        check_state(source, "loops.fit_loop.state_dict", loop["state_dict"], example)
    steps = loop["epoch_loop.manual_optimization.optim_step_progress"]
    if trainer.lightning_module.automatic_optimization:
        steps = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    check_state(source, "global_step", checkpoint["global_step"], equal_to(steps["total"]["completed"]))
    logged, most = loop["epoch_loop.state_dict"][LOGGED_STEP], at_most(steps_in(checkpoint))
    check_state(source, f"loops.fit_loop.epoch_loop.state_dict.{LOGGED_STEP}", logged, most)
    ended = epochs["current"]["processed"]
    if trainer.max_epochs is not None and -1 != trainer.max_epochs < ended:
        raise ConfigurationError(
            f"Expected `max_epochs` to be at least {ended}, the number of epochs completed in {source}, but got"
            f" {trainer.max_epochs}. Increase it, or start a new run from the weights: --model.init_args.initial_weights"
            " CHECKPOINT"
        )
    if checkpoint["epoch"] not in (ended - 1, ended, ended + 1):  # Lightning counts an epoch between the hooks at its end
        check_state(source, "epoch", checkpoint["epoch"], equal_to(ended))


def _check_first_schedulers(source: str, trainer: pl.Trainer, checkpoint: State) -> None:
    check_state(source, "lr_schedulers", checkpoint["lr_schedulers"], ListOf(DictOf(ANY)))
    if trainer.lr_scheduler_configs:  # else a callback replaces them when an epoch starts
        check_schedulers(trainer, checkpoint)


#: Methods of Lightning's connector -> name and check of what each restores.
CHECKS: dict[str, tuple[str, Callable[[str, pl.Trainer, State], None]]] = {
    "restore_model": ("model", _check_model),
    "restore_datamodule": ("data module", lambda *_: None),
    "restore_callbacks": ("callbacks", _check_callbacks),
    "restore_precision_plugin_state": ("precision", _check_precision),
    "restore_loops": ("loops", _check_loops),
    "restore_optimizers": ("optimizer_states", check_optimizers),
    "restore_lr_schedulers": ("lr_schedulers", _check_first_schedulers),
}
