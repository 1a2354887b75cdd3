"""Checks of the states of optimizers, which come from a file, before Lightning restores them."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from lit_sparse.ground.state_checks import (
    ANY,
    COUNT,
    NUMBER,
    RATE,
    SCALAR,
    DictOf,
    Kind,
    OneOf,
    check_apart,
    check_state,
    entries,
    equal_to,
    is_plain,
    one_of,
    same,
    shown,
)
from lit_sparse.lightning.choice import pl, rank_zero_warn

__all__ = ["KEPT", "State", "check_optimizers"]

State = dict[str, Any]
KEPT = Kind(
    "values with plain tensors only",
    lambda value: all(is_plain(one) for _, one in entries("", value) if isinstance(one, Tensor)),
)
#: Options of a group of parameters that schedulers and callbacks change; without a scheduler, only the first five.
RATES = ("lr", "initial_lr", "swa_lr", "max_lr", "min_lr")
SCHEDULED = (*RATES, "momentum", "betas", "base_momentum", "max_momentum")


def check_optimizers(source: str, trainer: pl.Trainer, checkpoint: State) -> None:
    """Check optimizer states from a checkpoint, and replace options that no scheduler changes by the config's."""
    if type(trainer.strategy).load_optimizer_state_dict is not pl.strategies.Strategy.load_optimizer_state_dict:
        return  # states of sharded models have other names
    stored, scheduled, steps = checkpoint["optimizer_states"], bool(checkpoint["lr_schedulers"]), checkpoint["global_step"]
    count = Kind("a number of steps", lambda it: _is_step(it, steps))
    check_state(source, "optimizer_states", stored, [ANY] * len(trainer.optimizers))
    for number, (optimizer, state) in enumerate(zip(trainer.optimizers, stored, strict=True)):
        place = f"optimizer_states.{number}"
        own = optimizer.state_dict()
        if any(getattr(callback, "_internal_optimizer_metadata", None) for callback in trainer.callbacks):  # type: ignore[attr-defined]
            for at, group in enumerate(own["param_groups"]):  # a callback has restored them
                _check_restored_group(source, f"{place}.param_groups.{at}", group, optimizer.defaults, scheduled)
        check_state(source, place, state, {**dict.fromkeys(own, ANY), "param_groups": [DictOf(ANY)] * len(own["param_groups"])})
        for at, (group, fresh) in enumerate(zip(state["param_groups"], own["param_groups"], strict=True)):
            _check_group(source, f"{place}.param_groups.{at}", group, fresh, scheduled)
        check_state(source, f"{place}.state", state["state"], DictOf(DictOf(ANY), int))
        expected = _example_of_steps(optimizer, own["param_groups"], count, state["state"])
        for key, entry in state["state"].items():
            check_state(source, f"{place}.state.{key}", key, one_of("the parameters", expected))
            check_state(source, f"{place}.state.{key}", entry, expected[key])
        if type(optimizer).step.__module__.startswith("torch.optim"):
            check_apart(source, f"{place}.state", state["state"])
        weights = [value for group in optimizer.param_groups for value in group["params"]]
        trained = [key for key, value in zip(expected, weights, strict=False) if value.requires_grad and steps]
        known = [key for key in trained if isinstance(expected[key], dict) and expected[key]]
        absent = [key for key in known if key not in state["state"]]
        if absent and not state["state"]:
            check_state(source, f"{place}.state", None, DictOf(ANY))
        if absent:  # a weight without gradient has no entry either
            rank_zero_warn(f"`{place}.state` has no entry {absent[0]} in {source}. The optimizer starts again for that weight.")


def _check_group(source: str, place: str, group: State, fresh: State, scheduled: bool) -> None:
    added = [name for name in SCHEDULED if name in group and name not in fresh]  # by a scheduler that began later
    example: State = {**dict.fromkeys((*fresh, *added), ANY), "params": equal_to(fresh["params"])}
    for name in SCHEDULED if scheduled else RATES:
        if name in group:
            its = fresh.get(name, 0.0)
            example[name] = [RATE] * len(its) if isinstance(its, list | tuple) else RATE
    check_state(source, place, group, example)
    for name in fresh.keys() - {"params"}:
        if name not in (SCHEDULED if scheduled else RATES) and not same(group[name], fresh[name]):
            found, own = shown(group[name]), shown(fresh[name])
            rank_zero_warn(f"`{place}.{name}` is {found} in {source}. The run continues with its own value, {own}.")
            group[name] = fresh[name]


def _check_restored_group(source: str, place: str, group: State, defaults: State, scheduled: bool) -> None:
    """Check options that BaseFinetuning has taken from the checkpoint against the options of the optimizer's constructor."""
    changing = {*(SCHEDULED if scheduled else RATES), "weight_decay"}
    example = {
        name: ([RATE] * len(its) if isinstance(its, tuple) else RATE) if name in changing else equal_to(its)
        for name, its in defaults.items()
    }
    check_state(source, place, group, {**dict.fromkeys(group, ANY), **example})


def _is_step(value: Any, most: int) -> bool:
    number = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
    return type(number) in (int, float) and 0 <= number <= most and number == int(number)


def _example_of_steps(optimizer: torch.optim.Optimizer, groups: list[State], steps: Kind, stored: State) -> dict[int, Any]:
    """Return examples of what an optimizer keeps of each parameter: what one of torch's keeps after a step of its own.

    Args:
        optimizer: the new optimizer.
        groups: groups of the numbers of its parameters.
        steps: example of a number of steps.
        stored: what is stored of each parameter.
    """
    numbers = [number for group in groups for number in group["params"]]
    pairs = [(group, value) for group in optimizer.param_groups for value in group["params"]]
    if not type(optimizer).step.__module__.startswith("torch.optim"):  # a user's class may keep anything
        return dict.fromkeys(numbers, DictOf(KEPT))
    if isinstance(optimizer, torch.optim.LBFGS):  # which keeps what it knows of all under the first one
        return dict.fromkeys(numbers[:1], _example_of_lbfgs(optimizer, stored.get(numbers[0])))
    kept = [_kept_after_step(optimizer, group, value) for group, value in pairs]
    return {
        number: entries and {name: steps if name == "step" else value for name, value in entries.items()}
        for number, entries in zip(numbers, kept, strict=True)
    }


def _kept_after_step(optimizer: torch.optim.Optimizer, group: State, value: Tensor) -> State:
    """Return what an optimizer keeps of a parameter after a step without values, or on zeros if it reads them."""
    shadow = copy.copy(optimizer)
    shadow.state = type(optimizer.state)(dict)
    options: State = {name: False for name in ("foreach", "fused", "capturable") if name in group}
    for device, sparse in (("meta", False), ("cpu", False), ("cpu", True)):
        without = torch.zeros_like(value, device=device).requires_grad_()
        without.grad = torch.zeros_like(without).to_sparse() if sparse else torch.zeros_like(without)
        shadow.param_groups = [{**group, **options, "params": [without]}]
        with suppress(Exception):  # Adafactor and ASGD read values, SparseAdam needs sparse gradients
            type(optimizer).step(shadow)
            return dict(shadow.state.get(without, {}))
        shadow.state.clear()
    raise ValueError(f"{type(optimizer).__name__} makes no step on zeros")


def _example_of_lbfgs(optimizer: torch.optim.LBFGS, stored: Any) -> State:
    """Return an example of the state of LBFGS, with as many past directions as are stored."""
    (group,) = optimizer.param_groups
    example: State = {"func_evals": COUNT, "n_iter": COUNT}
    if not isinstance(stored, dict) or (stored.keys() == example.keys() and stored["n_iter"] == 0):
        return example
    first = group["params"][0]
    flat = first.new_empty(sum(value.numel() for value in group["params"]), device="meta")
    past = min(len(list(stored.get("ro") or ())), group["history_size"])
    example |= {"d": flat, "prev_flat_grad": flat, "t": RATE, "H_diag": RATE, "prev_loss": OneOf(NUMBER, SCALAR)}
    example |= {"old_dirs": [flat] * past, "old_stps": [flat] * past, "ro": [SCALAR] * past}
    return example | ({"al": [OneOf(SCALAR)] * group["history_size"]} if "al" in stored else {})
