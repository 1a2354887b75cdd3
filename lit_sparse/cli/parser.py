"""The parser of the command line, with full option names, short help, and errors in one message."""

from __future__ import annotations

import re
import textwrap
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from lit_sparse.cli.configs import MODE, read_config, with_full_name
from lit_sparse.cli.help import grouped
from lit_sparse.cli.messages import plain_message, started_in
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning import LightningArgumentParser

__all__ = ["Parser"]

#: Indentation of an option's help in argparse's layout.
INDENT = 24


class Parser(LightningArgumentParser):
    """Parser without abbreviated options; an error is one message with the next step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._class: Any = None
        super().__init__(*args, **{"allow_abbrev": False, "parser_mode": MODE, **kwargs})

    def add_class_arguments(self, theclass: Any, nested_key: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Add the arguments of a class, and note the class if this parser is of its arguments alone."""
        if nested_key is None:
            self._class = theclass
        added = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in self._actions:
            if hasattr(action, "_typehint"):
                action._typehint = _integers_first(action._typehint)
        return added

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Parse a config file after its text is checked."""
        if Path(str(path)).is_file():  # a pipe can be read only once; its text is checked when it is loaded
            read_config(str(path))
        with started_in():
            return super().parse_path(path, *args, **kwargs)

    def parse_args(self, args: Any = None, *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; a config inside another may not be text."""
        if isinstance(args, list | tuple):
            args = [with_full_name(arg) for arg in args]
        try:
            return super().parse_args(args, *others, **kwargs)
        except UnicodeDecodeError as error:
            return self.error(str(error), error)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Raise a ConfigurationError with the shortened message."""
        options = [action.dest for action in self._actions if "help" not in action.dest.split(".")]
        owner = "this command" if self._class is None else self._class.__name__
        raise ConfigurationError(plain_message(message, ex, options, owner)) from ex

    def format_help(self, *args: Any) -> str:
        """Return the help with groups, only this package's classes, and one line about the help of classes."""
        if self.usage:  # of a command, not of a class
            self._action_groups = grouped(self._action_groups, self._actions)
        text = re.sub(
            rf"^  --\S+\.help [^\n]*\n(?: {{{INDENT - 4}}}[^\n]*\n)*", "", super().format_help(*args), flags=re.MULTILINE
        )
        text = re.sub(r",\s+known\s+subclasses:\s+([^()]*)\)", _own_classes, text)
        text = re.sub(r"\Ausage: .*?\n\n(?=Help for )", "", text, flags=re.DOTALL)  # it repeats the list that follows
        return f"{text}\n--NAME.help CLASS lists the options of a class for an option, as in --model.help SignalingGame.\n"


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
    if is_union and {int, float} <= {*inner} and inner.index(float) < inner.index(int):
        inner.remove(int)
        inner.insert(inner.index(float), int)
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    return reduce(or_, inner) if is_union else origin[tuple(inner)]


def _own_classes(listed: re.Match[str]) -> str:
    """Return the short names of the classes of this package in a list."""
    names = [name.strip() for name in listed[1].split(",")]
    if any(name.startswith("torch.nn.") for name in names):
        kept = ["any module by its full path, as in lit_sparse.nn.MLP"]
    else:
        kept = [name.rsplit(".", 1)[-1] for name in names if name.startswith("lit_sparse.")]
    if not kept:
        return ")"
    margin = " " * INDENT
    lines = textwrap.wrap(f"known: {', '.join(kept)})", 96, initial_indent=margin, subsequent_indent=margin)
    return ",\n" + "\n".join(lines)
