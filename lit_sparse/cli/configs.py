"""Reads the YAML of the command line, with unique keys, and errors with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning import NAME, chosen_path
from lit_sparse.stored import open_plain

__all__ = ["MODE", "read_config", "with_full_name"]

#: Name of the parser mode that loads values by :func:`_load`. The mode "yaml" stays unchanged for the user's own parsers.
MODE = "lit_sparse_yaml"
#: A name that is short for two classes, of which Lightning's has a ``monitor``; torch's class cannot be used without it.
FULL_NAMES = {"ReduceLROnPlateau": f"{NAME}.cli.ReduceLROnPlateau"}


def read_config(path: str | Path) -> str:
    """Return the text of a config file after its checks.

    Args:
        path: the file.

    Raises:
        ConfigurationError: if the file is unreadable, not UTF-8, not YAML, or has a key twice.
    """
    name = repr(str(path))
    try:
        with open_plain(path) as file:
            raw = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"Expected to read the config {name} but got: {error.strerror}. Check the path and its permissions."
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"Expected a config in UTF-8 but got byte {hex(raw[error.start])} at position {error.start} of {name}."
            " Save the file as UTF-8, or check the path."
        ) from error
    if not isinstance(_described(text, name), dict):
        raise ConfigurationError(f"Expected lines of `key: value` but got none in {name}. Check the path, or add the keys.")
    return text


def _described(text: str, name: str) -> Any:
    """Load YAML; raise each error as one message."""
    try:
        return _loaded(text, name)
    except ConfigurationError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1} of " if mark else ""
        raise ConfigurationError(f"Expected YAML but got, in {where}{name}: {error.problem}. Correct the line.") from error
    except (yaml.YAMLError, ValueError) as error:  # the latter of an impossible date, or of a number with thousands of digits
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"Expected YAML but got, in {name}: {reason}. Check the path.") from error


def _loaded(text: str, name: str) -> Any:
    """Load YAML, with full names of classes.

    Raises:
        ConfigurationError: if a mapping has a key twice, or a value contains itself.
    """
    try:
        _check_keys(yaml.compose(text, yaml.SafeLoader), name)
        return _with_full_names(get_loader("yaml")(text))
    except RecursionError as error:
        raise ConfigurationError(
            f"Expected values with an end but got one that contains itself by an alias, or is nested too deeply, in {name}."
            " Write the value instead of the alias."
        ) from error


def _check_keys(root: yaml.Node | None, name: str) -> None:
    """Refuse a key that a mapping has twice."""
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending += node.value
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    raise ConfigurationError(
                        f"Expected each key once but got {key.value!r} in line {lines[key.value]} and in line {line} of {name}."
                        " Remove one of the two."
                    )
                lines[key.value] = line
            pending.append(value)


def _load(text: str) -> Any:
    """Load a value of the command line or of a config."""
    return _loaded(text, "a value")


def _with_full_names(value: Any) -> Any:
    """Replace short class names that belong to two classes."""
    if isinstance(value, dict):
        return {key: _with_full_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_full_names(entry) for entry in value]
    return chosen_path(FULL_NAMES.get(value, value)) if isinstance(value, str) else value


def with_full_name(arg: str) -> str:
    """Return an argument of the command line with the full class name in place of an ambiguous short name.

    Example:
        >>> with_full_name("--model.init_args.lr_scheduler=ReduceLROnPlateau").removesuffix(".cli.ReduceLROnPlateau")
        '--model.init_args.lr_scheduler=pytorch_lightning'
    """
    option, sign, value = arg.rpartition("=")
    return option + sign + chosen_path(FULL_NAMES.get(value, value))


set_loader(MODE, _load, (yaml.YAMLError,))
