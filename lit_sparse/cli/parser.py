"""The parser of the command line, with full option names, short help, and errors in one message."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from enum import Enum
from functools import partial, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
import yaml

from lit_sparse.cli.configs import MODE, in_model, load_yaml
from lit_sparse.cli.help import grouped, plain
from lit_sparse.cli.messages import explained
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import LightningArgumentParser

__all__ = ["Parser", "StoredParser"]


class Parser(LightningArgumentParser):
    """Argument parser with full option names only, short help, and each error as one message with the next step."""

    #: Whether a message may import what a value names.
    imports = True
    #: Class whose arguments alone this parser has.
    owner: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Option -> range of its values in the help.
        self._ranges: dict[str, str] = {}
        super().__init__(*args, **{"allow_abbrev": False, "parser_mode": MODE, "usage": argparse.SUPPRESS, **kwargs})

    def add_class_arguments(self, theclass: Any, nested_key: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Add the arguments of a class to this parser; the class is remembered if the parser is for its arguments alone."""
        if nested_key is None:
            self.owner = theclass
        added = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        declared = {name: each for kind in reversed(theclass.__mro__) for name, each in vars(kind).get("RANGES", {}).items()}
        self._ranges |= {f"{nested_key}.{name}" if nested_key else name: each.text for name, each in declared.items()}
        for action in self._actions:
            if hasattr(action, "_typehint"):
                action._typehint = _integers_first(action._typehint)
            if hasattr(action, "serialize"):
                action.serialize = partial(_as_read, action.serialize)
        return added

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Any:
        """Parse the content of a config, whose optimizer and scheduler may be at its top level, as in Lightning's configs."""
        found = load_yaml(content)
        moved = in_model(found)
        return super().parse_string(content if moved is found else json.dumps(moved, default=str), *args, **kwargs)

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse arguments; configs inside others must be files."""
        try:
            return super().parse_args(*args, **kwargs)
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            return self.error(str(error), error)

    def validate(self, namespace: Any, *args: Any, **kwargs: Any) -> None:
        """Check the values; jsonargparse lets a group of options, such as the fields of a dataclass, be any value but text."""
        for name in [str(group.dest) for group in self._action_groups if hasattr(group, "instantiate_class")]:
            if isinstance(value := namespace.get(name, {}), NoneType | bool | int | float | list):
                raise ConfigurationError(
                    f"Expected `{name.rpartition('.')[2]}` to be a dict but got {'null' if value is None else str(value)!r}."
                )
        super().validate(namespace, *args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Raise a ConfigurationError that explains an error of the parser."""
        raise ConfigurationError(explained(self, message, ex, self.owner, self.imports)) from ex

    def format_help(self, *args: Any) -> str:
        """Return the help with groups, ranges, only this package's classes, and one line about the help of classes."""
        if self.usage != argparse.SUPPRESS:  # of a command, not of a class
            self._action_groups = grouped(self._action_groups, self._actions)
        for action in self._actions:
            action.help = action.help and plain(action.help)
            if action.dest.endswith(".help"):
                action.help = argparse.SUPPRESS
            elif hasattr(action, "extra_help") and "extra_help" not in vars(action):
                action.extra_help = _extra_help(action.extra_help(), self._ranges.get(action.dest))
        text = super().format_help(*args)
        return f"{text}\n--NAME.help CLASS lists the options of a class for an option, as in --model.help SignalingGame.\n"


class StoredParser(Parser):
    """Parser for the arguments that a stored file describes; it reads no other files, and its messages import nothing."""

    imports = False

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> Any:
        """Add the arguments of a class; a value that is the path of a config file is not read as that config.

        It is Lightning's method with ``sub_configs=False``, because a stored file must not cause other files to be read.
        """
        return super().add_class_arguments(*args, **{**kwargs, "sub_configs": False})


def _integers_first(hint: Any) -> Any:
    """Return a type whose unions try an integer before a float.

    Python gives the order of a union to later unions of the same types, also in other packages. With float first, a
    limit of 1 batch would be 1.0, all batches.
    """
    origin, args = get_origin(hint), get_args(hint)
    if not args or origin is Literal or any(isinstance(arg, list) for arg in args):
        return hint
    inner = [_integers_first(arg) for arg in args]
    is_union = origin in (Union, UnionType)
    if is_union and {int, float} <= {*inner}:
        inner.sort(key=lambda kind: kind is not int)
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    return reduce(or_, inner) if is_union else origin[tuple(inner)]


def _as_read(serialize: Callable[..., Any], value: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the form of a value in a config from which the same value is read again.

    jsonargparse has no text for a device, and none for text where a function may stand, too; YAML has none for a text that is a
    member of an `Enum`.
    """
    found = str(value) if type(value) is str or isinstance(value, torch.device) else serialize(value, *args, **kwargs)
    return found.value if isinstance(found, str) and isinstance(found, Enum) else found


def _extra_help(listed: str, declared: str | None) -> Any:
    """Return a function that gives an option's range, and the short names of this package's classes in jsonargparse's list."""
    names = listed.partition(": ")[2].split(", ")
    own = [name.rpartition(".")[2] for name in names if name.startswith("lit_sparse.")]
    if any(name.startswith("torch.nn.") for name in names):
        own = ["any module by its full path, as in lit_sparse.nn.MLP"]
    return lambda: (f", range: {declared}" if declared else "") + (f", known: {', '.join(own)}" if own else "")
