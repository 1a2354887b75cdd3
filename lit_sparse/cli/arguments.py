"""What the command line does with words, configs and checkpoint files before anything is built."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import Namespace

from lit_sparse.errors import CheckpointError

__all__ = [
    "as_yaml_file",
    "chosen_options",
    "configs_first",
    "differences",
    "read_checkpoint",
    "split_model_options",
    "value_of",
    "without",
]


def value_of(args: list[str], option: str) -> str | None:
    """Return the first value of an option, given as ``--option value`` or ``--option=value``."""
    for i, arg in enumerate(args):
        if arg == option and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{option}="):
            return arg.split("=", 1)[1]
    return None


def without(args: list[str], option: str) -> list[str]:
    """Return the arguments less an option and its value."""
    kept, skip = [], False
    for arg in args:
        if skip:
            skip = False
        elif arg == option:
            skip = True
        elif not arg.startswith(f"{option}="):
            kept.append(arg)
    return kept


def configs_first(args: list[str]) -> list[str]:
    """Put configs before the options, which override them wherever they stand."""
    configs: list[str] = []
    others: list[str] = []
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        named = arg in ("-c", "--config")
        chosen = configs if named or arg.startswith(("-c=", "--config=")) else others
        chosen.append(arg)
        if named and waiting:
            chosen.append(waiting.pop(0))
    return configs + others


def split_model_options(args: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those that set something of the model and all others."""
    model: list[str] = []
    others: list[str] = []
    chosen = others
    for arg in args:
        if arg.startswith("-"):
            name = arg.split("=", 1)[0]
            chosen = model if name == "--model" or name.startswith("--model.") else others
        chosen.append(arg)
    return model, others


def chosen_options(args: list[str], names: Collection[str]) -> list[str]:
    """Return those of the model's options that set an argument of one of some names, or something within it."""
    kept: list[str] = []
    chosen = False
    for arg in args:
        if arg.startswith("--"):
            option = arg.split("=", 1)[0].removeprefix("--model.").removeprefix("init_args.").rstrip("+")
            chosen = option.split(".")[0] in names
        if chosen:
            kept.append(arg)
    return kept


def differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """List the keys in which two configs differ, with both values."""
    old, new = (dict(value) if isinstance(value, Namespace) else value for value in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in dict.fromkeys([*old, *new]):
            found += differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return found
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        old, new = list(old), list(new)
    return [] if old == new else [(prefix, old, new)]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a Lightning module, weights and numbers alone.

    Raises:
        CheckpointError: if it is not one.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be read as a checkpoint ({type(error).__name__}). It may be half-written or foreign:"
            " use another one."
        ) from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise CheckpointError(f"{str(path)!r} is no checkpoint of a Lightning module: it holds no state_dict.")
    return checkpoint


@contextmanager
def as_yaml_file(content: dict[str, Any]) -> Iterator[str]:
    """Give the path of a YAML file with this content, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.yaml"
        path.write_text(yaml.safe_dump(content))
        yield str(path)
