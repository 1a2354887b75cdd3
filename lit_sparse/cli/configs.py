"""Reads the YAML of the command line, with limits on its size, unique keys, and errors with file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

from lit_sparse.aliases import new_path
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning import NAME, chosen_path

__all__ = ["MODE", "read_config", "with_full_name"]

#: Name of the parser mode that loads values by :func:`_load`. The mode "yaml" stays unchanged for the user's own parsers.
MODE = "lit_sparse_yaml"
#: A name that is short for two classes, of which Lightning's has a ``monitor``; torch's class cannot be used without it.
FULL_NAMES = {"ReduceLROnPlateau": f"{NAME}.cli.ReduceLROnPlateau"}
MAX_BYTES = 2**20
MAX_DEPTH = 50
MAX_VALUES = 100_000


def read_config(path: str | Path) -> str:
    """Return the text of a config file after its checks.

    Args:
        path: the file.

    Raises:
        ConfigurationError: if the file is unreadable, not UTF-8, not YAML, too large, or has a key twice.
    """
    name = repr(str(path))
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"Expected to read the config {name} but got: {error.strerror}. Check the path and its permissions."
        ) from error
    if len(raw) > MAX_BYTES:
        raise ConfigurationError(f"Expected a config of at most {MAX_BYTES:,} bytes but got more in {name}. Check the path.")
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


@dataclass
class _Node:
    """A sequence or mapping that is being parsed: its anchor, its values, and the lines of a mapping's keys."""

    anchor: str | None = None
    is_mapping: bool = False
    values: int = 1
    children: int = 0
    lines: dict[str, int] = field(default_factory=dict)


def _described(text: str, name: str) -> Any:
    """Load YAML; raise each error as one message."""
    try:
        _check(text, name)
        return get_loader("yaml")(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1} of " if mark else ""
        raise ConfigurationError(f"Expected YAML but got, in {where}{name}: {error.problem}. Correct the line.") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"Expected YAML but got, in {name}: {reason}. Check the path.") from error


def _check(text: str, name: str) -> None:
    """Check YAML before it is built: its depth, its number of values with aliases expanded, and that keys are unique."""
    root = _Node()
    open_nodes = [root]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        line = event.start_mark.line + 1 if event.start_mark else 0
        parent = open_nodes[-1]
        values = 0
        if isinstance(event, yaml.ScalarEvent):
            values = 1
            if parent.is_mapping and parent.children % 2 == 0:
                if event.value in parent.lines:
                    lines = f"line {parent.lines[event.value]} and in line {line}"
                    raise ConfigurationError(
                        f"Expected each key once but got {event.value!r} in {lines} of {name}. Remove one of the two."
                    )
                parent.lines[event.value] = line
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in {node.anchor for node in open_nodes}:
                raise ConfigurationError(
                    f"Expected an alias of a finished value but got *{event.anchor} within &{event.anchor} in line {line} of"
                    f" {name}. Write the value instead of the alias."
                )
            values = sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            open_nodes.append(_Node(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(open_nodes) > MAX_DEPTH:
                raise ConfigurationError(
                    f"Expected at most {MAX_DEPTH} levels of nesting but got more in line {line} of {name}. Check the path."
                )
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            closed = open_nodes.pop()
            parent = open_nodes[-1]
            values = closed.values
            if closed.anchor:
                sizes[closed.anchor] = values
        if values:
            parent.children += 1
            parent.values += values
            if parent.values > MAX_VALUES:
                raise ConfigurationError(
                    f"Expected at most {MAX_VALUES:,} values with aliases expanded but got more by line {line} of {name}."
                    " Keep data in separate files."
                )


def _load(text: str) -> Any:
    """Load a value of the command line or of a config."""
    _check(text, "a value")
    return _with_full_names(get_loader("yaml")(text))


def _with_full_names(value: Any) -> Any:
    """Replace short class names that belong to two classes."""
    if isinstance(value, dict):
        return {key: _with_full_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_full_names(entry) for entry in value]
    return chosen_path(new_path(FULL_NAMES.get(value, value))) if isinstance(value, str) else value


def with_full_name(arg: str) -> str:
    """Return an argument of the command line with the full class name in place of an ambiguous short name.

    Example:
        >>> with_full_name("--model.init_args.lr_scheduler=ReduceLROnPlateau").removesuffix(".cli.ReduceLROnPlateau")
        '--model.init_args.lr_scheduler=pytorch_lightning'
    """
    option, sign, value = arg.rpartition("=")
    return option + sign + chosen_path(new_path(FULL_NAMES.get(value, value)))


set_loader(MODE, _load, (yaml.YAMLError,))
