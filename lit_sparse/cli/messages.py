"""Explains what the parser refuses, and the next step, from an option's type, its value and the causes of the error."""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
import yaml

from lit_sparse.cli.configs import ENDINGS, load_yaml, read_config, unreadable
from lit_sparse.coresets import CoresetSelector
from lit_sparse.data import LabelNoise
from lit_sparse.errors import ConfigurationError, LitSparseError, cause_of, did_you_mean, error_chain
from lit_sparse.estimators import Estimator
from lit_sparse.ground.stored import is_file
from lit_sparse.lightning.choice import pl
from lit_sparse.mappings import SparseMapping
from lit_sparse.metrics import TextMetric
from lit_sparse.nn import EncoderDecoder
from lit_sparse.risks import Risk
from lit_sparse.structures import Structure
from lit_sparse.transport import Measure, Potentials

__all__ = ["START", "explained", "misfit"]

#: Bases of the parts that an option may name by mistake.
KINDS = (
    *(SparseMapping, Estimator, Risk, EncoderDecoder, TextMetric, Structure, CoresetSelector, pl.LightningModule),
    *(pl.LightningDataModule, LabelNoise, Measure, Potentials, pl.Callback, torch.optim.Optimizer),
    torch.optim.lr_scheduler.LRScheduler,
)
#: Types in messages, those with subclasses among the others last.
WORDS: dict[Any, str] = {
    **{bool: "true or false", int: "an integer", float: "a number", str: "text", NoneType: "null"},
    **{Mapping: "a dict", Iterable: "a list"},
}
#: Examples of arguments of mappings by structures.
STRUCTURES = {
    "structure": "structure: {class_path: Budget, init_args: {budget: 2}}",
    "factors": "graph: {class_path: lit_sparse.structures.FactorGraph, init_args: {variables: 9, factors: [{structure: Xor}]}}",
}
#: jsonargparse's and argparse's errors that name an option alone.
UNKNOWN = re.compile(r"(?:[Oo]ption|Key) '([^']+)'|unrecognized arguments: (\S+)")
MISSING = re.compile(r"arguments are required: (.*)")

#: The current folder at the start of a command: the parser changes to the config's folder while it reads a config.
START: ContextVar[Path | None] = ContextVar("START", default=None)
#: What parsers of classes have said: the error of a union has the other members' errors as text alone.
SAID: deque[str] = deque(maxlen=100)


def explained(parser: Any, message: str, error: BaseException | None, owner: type | None, imports: bool) -> str:
    """Return an explanation of a parser's error, with the next step for the user.

    Args:
        parser: the parser.
        message: the parser's own message.
        error: cause of the message.
        owner: class whose arguments are parsed; None for a command.
        imports: whether modules that a value names may be imported to find the cause.
    """
    own = cause_of(error, LitSparseError)
    said = min((text for text in SAID if text and text in message), key=message.index, default=None)
    found = (own and str(own)) or said or _refusal(error, imports)
    if found is None and (unknown := UNKNOWN.search(message)):
        found = _unknown_option(parser, unknown[1] or unknown[2], owner)
    if found is None and (missing := MISSING.search(message)):
        found = _missing(missing[1])
    if found is None and (unread := cause_of(error, UnicodeDecodeError) or cause_of(error, yaml.YAMLError)):
        found = unreadable(unread, "a config")
    SAID.append(found or " ".join(message.split()))
    return SAID[-1]


def _refusal(error: BaseException | None, imports: bool) -> str | None:
    """Return what is wrong with the value that an option refused, or None if no option did, or nothing is found."""
    refused: tuple[argparse.Action, Any] | None = None
    for frame, _ in itertools.chain.from_iterable(traceback.walk_tb(cause.__traceback__) for cause in error_chain(error)):
        action, local = frame.f_locals.get("self"), frame.f_locals
        if isinstance(action, argparse.Action) and ("value" in local or "orig_val" in local):
            refused = action, local.get("orig_val", local.get("value"))
    if refused is None:
        return None
    action, value = refused
    name = action.dest.removesuffix(".help").rpartition(".")[2]
    try:
        return misfit(name, getattr(action, "_typehint", dict[str, Any]), value, imports)
    except ConfigurationError as unread:
        return str(unread)


def misfit(name: str, hint: Any, given: Any, imports: bool) -> str | None:
    """Return why a value does not match a type, or None if no reason is found.

    Raises:
        ConfigurationError: if the value names a file that cannot be read.
    """
    value, members = _plain(given), _members(hint)
    items: list[tuple[Any, Any]] = []
    for origin, inner in [(get_origin(member), get_args(member)) for member in members]:
        if isinstance(value, dict) and _is_of(origin, Mapping) and "class_path" not in value:
            items += ((inner[1], item) for item in value.values())
        elif isinstance(value, list) and _is_of(origin, Iterable) and not _is_of(origin, Mapping):
            fixed = origin is tuple and Ellipsis not in inner
            if fixed and len(inner) != len(value):
                return f"Expected `{name}` to be {len(inner)} values but got {str(value)!r}."
            items += zip(inner if fixed else inner[:1] * len(value), value, strict=True)
    if found := next((found for kind, item in items if (found := misfit(name, kind, item, imports))), None):
        return found
    if isinstance(value, dict) and "class_path" in value:
        if other := [key for key in value if key not in ("class_path", "init_args", "dict_kwargs")]:
            return f"Expected only `init_args` beside the class_path of `{name}` but got {other[0]!r}. Put it into `init_args`."
        if not isinstance(inner := value.get("init_args", {}), dict):
            return f"Expected `init_args` of `{name}` to be a dict but got {'null' if inner is None else str(inner)!r}."
    bases, path = _bases(members), value.get("class_path") if isinstance(value, dict) else value
    if bases and isinstance(path, str | int | float):
        takes_more = {int, float} & {*members} or any(get_origin(one) is Callable and not _bases([one]) for one in members)
        return _class_trouble(name, str(path).strip(), () if takes_more else bases, imports)
    if items or Any in members or type(value) in members or (type(value), float) == (int, members[0]):
        return None
    choices = [choice for one in members if get_origin(one) is Literal for choice in get_args(one)]
    words = ["one of " + ", ".join(map(repr, choices)), *map(_word, members)] if choices else map(_word, members)
    expected = " or ".join(word for word in dict.fromkeys(words) if word)
    shown = given if isinstance(given, str) else str(value)
    return f"Expected `{name}` to be {expected} but got {shown!r}.{did_you_mean(shown, map(str, choices))}"


def _plain(value: Any) -> Any:
    """Return a value of the command line or of a config as numbers, texts, lists and dicts; a YAML file is read."""
    if isinstance(value, str):
        named = value.endswith(ENDINGS) and is_file(value)
        try:
            found = load_yaml(read_config(value) if named else value)
        except (yaml.YAMLError, UnicodeEncodeError):
            return value
        return value if isinstance(found, str) or not value.strip() else found
    if hasattr(value, "key"):  # jsonargparse's option of an option
        return {value.key: value.val}
    return vars(value) if isinstance(value, argparse.Namespace) else value


def _members(hint: Any) -> list[Any]:
    """Return the members of a union, or the one type."""
    return [*get_args(hint)] if get_origin(hint) in (Union, UnionType) else [hint]


def _is_of(origin: Any, kind: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _bases(members: Iterable[Any]) -> tuple[type, ...]:
    """Return the classes that types name, directly or as the type that they return or contain."""
    found: tuple[type, ...] = ()
    for member in members:
        origin, inner = get_origin(member), get_args(member)
        if origin is Callable or (_is_of(origin, Iterable) and not _is_of(origin, Mapping)):
            found += _bases(_members(inner[-1 if origin is Callable else 0])) if inner else ()
        elif origin is None and isinstance(member, type) and member.__module__ not in ("builtins", "typing", "pathlib"):
            found += (member,)
    return found


def _word(member: Any) -> str:
    """Return a type in words; an empty text for a Literal, whose choices are listed."""
    origin = get_origin(member) or member
    if origin in (Callable, Literal):
        return "a function" if origin is Callable else ""
    kind = next((kind for kind in WORDS if _is_of(origin, kind)), None)
    return f"a {getattr(origin, '__name__', origin)}" if kind is None else WORDS[kind]


def _class_trouble(name: str, path: str, bases: tuple[type, ...], imports: bool) -> str | None:
    """Return why a class cannot be the value of an option, or None if it can; without bases, other values are allowed too."""
    module, _, short = path.rpartition(".")
    parts: list[Any] = [] if module else [kind for kind in {*_subclasses(bases)} if kind.__name__ == short]
    if module and (imports or module in sys.modules) and all(part.isidentifier() for part in path.split(".")):
        try:
            imported = importlib.import_module(module)
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else " "
            if not f"{module}.".startswith(f"{missing}."):
                return f"{path!r} for `{name}` cannot be imported: {type(error).__name__}: {error}"
            if bases:
                return _no_module(name, path, missing)
        else:
            if not hasattr(imported, short):
                names = [key for key, value in vars(imported).items() if _is_part(value, bases)]
                own = [key for key in names if str(vars(imported)[key].__module__).startswith(module)]
                listed = f" It defines: {', '.join(own[:12])}." if own else ""
                return f"There is no {short!r} in {module!r} for `{name}`.{did_you_mean(short, names)}{listed}"
            parts = [getattr(imported, short)]
            if bases and not _is_of(parts[0], bases):
                package = bases[0].__module__.partition(".")[0]
                return f"Expected `{name}` to be a subclass of {package}'s {bases[0].__name__} but got {path!r}."
    if len(built := [part for part in parts if not inspect.isabstract(part)]) > 1:
        places = " or ".join(sorted(f"{part.__module__}.{short}" for part in built))
        return f"Expected `{name}` to name one class but {short!r} may be {places}. Give the full path."
    if parts:
        methods = ", ".join(sorted(getattr(parts[0], "__abstractmethods__", ()))) if not built else ""
        return None if built else f"{path!r} for `{name}` cannot be built: it does not define {methods}."
    if not bases:
        return f"Expected `{name}` to be a number, or a class or function by its full path, but got {path!r}."
    if bases[0] is torch.nn.Module:
        return f"There is no {path!r} for `{name}`. Name a module by its full path, as in lit_sparse.nn.MLP or my_module.MyOwn."
    if other := next((kind for kind in KINDS if short in _named((kind,))), None):
        return f"Expected `{name}` to be of the kind {bases[0].__name__} but got the {other.__name__} {path!r}. {_known(bases)}"
    return f"There is no class {path!r} for `{name}`.{did_you_mean(short, _named(bases))} {_known(bases)}"


def _named(bases: Iterable[type]) -> dict[str, type]:
    """Return the subclasses that an option can name."""
    return {kind.__name__: kind for kind in _subclasses(bases) if not inspect.isabstract(kind) and kind.__name__[0] != "_"}


def _known(bases: tuple[type, ...]) -> str:
    """List this package's subclasses, or the first of other packages."""
    own = [name for name, kind in _named(bases).items() if kind.__module__.startswith("lit_sparse.") and {*bases} & {*KINDS}]
    return f"Known: {', '.join(sorted(own) or sorted(_named(bases))[:12])}."


def _no_module(name: str, path: str, missing: str) -> str:
    start = START.get() or Path.cwd()
    message = f"There is no module {missing!r} for `{name}` {path!r}, neither installed nor in the folder {str(start)!r}."
    if start != Path.cwd() and Path(f"{missing}.py").is_file():
        message += f" It is in the config's folder: start the command in {str(Path.cwd())!r}, or add this to PYTHONPATH."
    return message


def _is_part(value: Any, bases: tuple[type, ...]) -> bool:
    """Return whether a module's member is a class of these bases; without bases, any class or function."""
    if not inspect.isclass(value) or get_origin(value) is not None:  # Python 3.10 counts dict[str, int] as a class
        return not bases and inspect.isfunction(value)
    return not bases or issubclass(value, bases)


def _subclasses(bases: Iterable[type]) -> Iterator[type]:
    for base in bases:
        below: list[type] = base.__subclasses__()
        yield from (kind for kind in below if "<locals>" not in kind.__qualname__)
        yield from _subclasses(below)


def _unknown_option(parser: Any, name: str, owner: type | None) -> str:
    options = [action.dest for action in parser._actions if action.default is not argparse.SUPPRESS]
    plain = name.lstrip("-").partition("=")[0]
    if plain == "class_path":  # beside other keys than init_args, it is taken for an argument itself
        place = f" in {owner.__name__}" if owner is not None else ""
        return f"There is no option 'class_path'{place}. Beside a class_path, only `init_args` with all arguments can stand."
    if owner is not None and options:
        listed = ", ".join(options)
        learning_rate = plain in ("lr", "learning_rate") and "optimizer" in options
        meant = " Did you mean 'optimizer.lr'?" if learning_rate else did_you_mean(plain, options)
        return f"There is no option {plain!r} in {owner.__name__}.{meant} The options are: {listed}."
    if not name.startswith("-") and (name.endswith(ENDINGS) or is_file(name)):
        return f"Expected options but got {name!r}. Give a config with -c: lit-sparse COMMAND -c {name}"
    commands = next((action.choices.values() for action in parser._actions if isinstance(action.choices, dict)), [parser])
    tops = {action.dest.partition(".")[0] for command in commands for action in command._actions}
    top, short = plain.partition(".")[0], plain.rpartition(".")[2]
    if "." in plain and top not in tops and (meant := did_you_mean(top, tops)):
        return f"There is no option {top!r}.{meant} `lit-sparse COMMAND --help` lists the options."
    kinds = [kind for kind in _subclasses(KINDS) if kind.__module__.startswith("lit_sparse.")]
    names = tops.union(*(inspect.signature(kind).parameters for kind in [*kinds, pl.Trainer]))
    if short in names:
        which = f"The option {name!r} belongs to a class that is not given."
        return f"{which} Give the class first, as in -c CONFIG or --model CLASS."
    return f"There is no option {name!r}.{did_you_mean(short, sorted(names))} `lit-sparse COMMAND --help` lists the options."


def _missing(names: str) -> str:
    missing = [name.partition(".")[2] or name for name in names.split(", ")]
    if {"model", "data"} & {*missing}:
        return f"Missing: {', '.join(missing)}. Give a config, as in -c ssvae/digits, or the options one by one."
    example = STRUCTURES.get(missing[0])
    where = f", as in `{example}`. {_known((Structure,))}" if example else "."
    return f"Missing: {', '.join(missing)}, which has no default. Set it in the init_args of the class{where}"
