"""Builds parts from the descriptions in stored files (:mod:`lit_sparse.runs.descriptions`).

Stored files come from third parties, so parts are built by :func:`build` and never by a general parser, which would also read a
text as YAML, as the name of a file, or as an address. Each value has to fit the annotation of its argument, and a class has to
be a subclass of the annotated one that is allowed there (:mod:`lit_sparse.runs.trust`). The whole description is checked before
the first constructor runs.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

import torch
from torch import Tensor, nn

from lit_sparse.errors import CheckpointError, did_you_mean
from lit_sparse.ground.arguments import constructor_parameters, hints_of
from lit_sparse.ground.stored import is_file
from lit_sparse.runs.descriptions import class_path
from lit_sparse.runs.trust import find_imported, is_allowed, trusted

__all__ = ["Plan", "build", "plan", "plan_arguments"]

_MISSING = object()
#: Largest number of values, and largest depth, of a description; a larger one may contain itself.
MOST_VALUES, MOST_LEVELS = 1_000_000, 60
#: Texts that a parser can only read as a name, a word or a number.
WORD = re.compile(r"[A-Za-z0-9_.+-]*")
#: Classes whose constructors may be described without the arguments that a caller gives later.
BUILT_LATER = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


class Plan(NamedTuple):
    """Checked description of an object to build, before any constructor runs.

    Attributes:
        made: class of the object, or function.
        arguments: name -> value of its arguments, which may be plans themselves.
        later: whether further arguments are given later, as the parameters are for an optimizer.
    """

    made: Callable[..., Any]
    arguments: dict[str, Any]
    later: bool = False

    def build(self, source: str) -> Any:
        """Return the object, newly built.

        Args:
            source: name of the description's file in messages.

        Raises:
            CheckpointError: if a class rejects its arguments.
        """
        arguments = {name: _built(source, value) for name, value in self.arguments.items()}
        if self.later:
            return functools.partial(self.made, **arguments)
        try:
            return self.made(**arguments)
        except CheckpointError:
            raise
        except (TypeError, ValueError, ArithmeticError, RuntimeError, LookupError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(
                f"Expected arguments of {class_path(self.made)} in {source} but: {reason}"  # type: ignore[arg-type]
            ) from error


def build(source: str, description: Any, base: type) -> Any:
    """Return an object built from its stored description, after a check of all class names and types.

    Args:
        source: name of the description's file in messages.
        description: result of :func:`~lit_sparse.runs.descriptions.describe`.
        base: class of which the object must be an instance.

    Raises:
        CheckpointError: if the description names a class that is not allowed at its place, has a value of another type than
            the annotation of its argument, or a class rejects its arguments.
    """
    return plan(source, description, base).build(source)


def plan(source: str, description: Any, base: type, longest: int = MOST_VALUES) -> Plan:
    """Return the checked plan of a stored description, without building anything; see :func:`build`.

    A list may hold at most ``longest`` integers.
    """
    return _Reader(source, longest).part(description, (base,), ())


def plan_arguments(source: str, arguments: Mapping[Any, Any], owner: type, longest: int = MOST_VALUES) -> Plan:
    """Return the checked plans of the arguments of a class that the caller names, without building anything."""
    return Plan(owner, _Reader(source, longest).arguments(owner, arguments, ()))


class _MismatchError(CheckpointError):
    """A value is not of the declared type; another member of a union may accept it."""


class _BudgetError(CheckpointError):
    """A description is too large, whatever is declared."""


class _Reader:
    """Compares a description with the annotations of the constructors that it names."""

    def __init__(self, source: str, longest: int) -> None:
        self.source = source
        self.longest = longest
        self.trusted = trusted()
        self.left = MOST_VALUES

    def part(self, value: Any, bases: tuple[type, ...], place: tuple[str, ...], later: bool = False) -> Plan:
        """Return the plan of an instance of one of these classes."""
        if isinstance(value, str):
            return Plan(self.named(value, bases, place), {})
        if not isinstance(value, Mapping) or "class_path" not in value:
            self.refuse(place, f"a {bases[0].__name__}", value)
        for key in value:
            if key not in ("class_path", "init_args"):
                self.refuse((*place, str(key)), "only `class_path` and `init_args`", value[key])
        found = self.named(value["class_path"], bases, (*place, "class_path"))
        return Plan(found, self.arguments(found, value.get("init_args") or {}, place), later)

    def arguments(self, owner: type, given: Any, place: tuple[str, ...]) -> dict[str, Any]:
        """Return the arguments of a class, each as its annotation declares it."""
        if not isinstance(given, Mapping):
            self.refuse((*place, "init_args"), f"`init_args` of {class_path(owner)} to be a dict", given)
        parameters, hints, open_ended = _signature(owner)
        found = {}
        for name, value in given.items():
            parameter = parameters.get(name)
            if parameter is None and not (open_ended and isinstance(name, str) and WORD.fullmatch(name)):
                raise CheckpointError(
                    f"Expected arguments of {class_path(owner)} in {self.source} but it has no argument {str(name)[:80]!r}."
                    f"{did_you_mean(str(name)[:80], parameters)} The file may come from another version."
                )
            default = _MISSING if parameter is None else parameter.default
            same = type(value) is type(default) and isinstance(value, bool | int | float | str | None) and value == default
            found[name] = value if same else self.value(value, hints.get(name, Any), (*place, name))
        return found

    def value(self, value: Any, hint: Any, place: tuple[str, ...]) -> Any:
        """Return a value as an annotation declares it, with plans in place of parts."""
        self.count(place)
        origin, members = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self.first(value, members, place)
        if origin is Literal:
            right = any(value == one and type(value) is type(one) for one in members)
            return value if right else self.refuse(place, f"one of {', '.join(map(repr, members))}", value)
        if origin in (Callable, typing.Callable) or hint in (Callable, typing.Callable):
            return self.callable(value, members, place)
        if origin is type:
            return self.named(value, tuple(one for one in members if isinstance(one, type)), place)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            if not isinstance(value, dict) or "class_path" in value:
                return self.plain(value, place) if isinstance(value, dict) else self.refuse(place, "a dict", value)
            kinds = members or (Any, Any)
            return {self.key(key, kinds[0], place): self.value(one, kinds[1], (*place, str(key))) for key, one in value.items()}
        if isinstance(origin, type) and issubclass(origin, Iterable):
            return self.items(value, origin, members, place)
        return self.plain_value(value, hint, place)

    def plain_value(self, value: Any, hint: Any, place: tuple[str, ...]) -> Any:
        """Return a value of an annotation that is a class, or of none."""
        if hint in (None, NoneType):
            return None if value is None else self.refuse(place, "nothing", value)
        if hint is float:
            right = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**1023
            return float(value) if right or isinstance(value, float) else self.refuse(place, "a number", value)
        if hint in (bool, int, str):
            right = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
            return value if right else self.refuse(place, {bool: "true or false", int: "an integer", str: "text"}[hint], value)
        if hint in (list, tuple, set):
            return self.items(value, hint, (), place)
        if hint in (Any, object, dict, torch.dtype, torch.device) or not isinstance(hint, type):
            return self.plain(value, place)
        if issubclass(hint, Path):
            return Path(value) if isinstance(value, str) else self.refuse(place, "a path", value)
        if issubclass(hint, Tensor) and not isinstance(value, str):
            return self.tensor(value, place)
        if is_dataclass(hint) and isinstance(value, Mapping) and "class_path" not in value:
            return Plan(hint, self.arguments(hint, value, place))
        return self.part(value, (hint,), place)

    def first(self, value: Any, members: Collection[Any], place: tuple[str, ...]) -> Any:
        """Return a value as the first member of a union that accepts it; tensors come last, since they take any numbers."""
        if isinstance(value, str) and str in members and any(map(_is_part, members)):
            self.word(value, place)
        refused: list[CheckpointError] = []
        for member in sorted(members, key=lambda one: one is Tensor):
            try:
                return self.value(value, member, place)
            except _BudgetError:
                raise
            except CheckpointError as error:
                refused.append(error)
        raise next((error for error in refused if not isinstance(error, _MismatchError)), refused[0])

    def items(self, value: Any, origin: type, members: tuple[Any, ...], place: tuple[str, ...]) -> Any:
        """Return a list, a tuple or a set."""
        if not isinstance(value, list | tuple):
            self.refuse(place, "a list", value)
        if issubclass(origin, tuple) and members and members[-1] is not Ellipsis:
            if len(value) != len(members):
                self.refuse(place, f"{len(members)} values", value)
            return tuple(
                self.value(one, hint, (*place, str(i))) for i, (one, hint) in enumerate(zip(value, members, strict=True))
            )
        hint = members[0] if members else Any
        if hint is int and len(value) > self.longest:  # sizes of layers
            self.refuse(place, f"at most {self.longest:,} integers, a few for each of its weights,", value)
        found = [self.value(one, hint, (*place, str(i))) for i, one in enumerate(value)]
        return tuple(found) if issubclass(origin, tuple) else set(found) if issubclass(origin, Set) else found

    def key(self, key: Any, hint: Any, place: tuple[str, ...]) -> Any:
        """Return a key of a dict; descriptions have texts in place of integers."""
        if hint is int and isinstance(key, str) and re.fullmatch(r"-?\d{1,18}", key):
            return int(key)
        return self.value(key, hint, (*place, str(key)[:80]))

    def tensor(self, value: Any, place: tuple[str, ...]) -> Tensor:
        try:
            return torch.tensor(self.plain(value, place))
        except (TypeError, ValueError, RuntimeError):
            return self.refuse(place, "numbers", value)

    def callable(self, value: Any, members: tuple[Any, ...], place: tuple[str, ...]) -> Any:
        """Return a callable: a class with arguments to come, a module, or a function that the user trusts."""
        if isinstance(value, str) and value in self.trusted and callable(find_imported(value)):
            return find_imported(value)
        returned = members[-1] if members else Any
        kinds = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
        later = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BUILT_LATER))
        if isinstance(value, str):
            return self.named(value, later or (nn.Module,), place)
        return self.part(value, later or (nn.Module,), place, bool(later))

    def plain(self, value: Any, place: tuple[str, ...]) -> Any:
        """Return a value of an argument without annotation: numbers, words, and lists and dicts of them, never a part."""
        self.count(place)
        if isinstance(value, str):
            return self.word(value, place)
        if isinstance(value, list | tuple):
            self.left -= len(value)
            return [one if isinstance(one, int | float) else self.plain(one, (*place, str(i))) for i, one in enumerate(value)]
        if isinstance(value, dict):
            if "class_path" in value:
                raise CheckpointError(
                    f"{self.source} names {str(value['class_path'])[:80]!r} at `{'.'.join(place)}`, but the annotation of this"
                    " argument names no class. Annotate the argument, or give the part when you load."
                )
            return {self.word(key, place): self.plain(one, (*place, str(key))) for key, one in value.items()}
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.refuse(place, "numbers, text, lists and dicts", value)

    def word(self, text: Any, place: tuple[str, ...]) -> str:
        """Return a text that stands for itself, also where a parser reads it."""
        if isinstance(text, str) and text in self.trusted:
            return text
        if not isinstance(text, str) or not WORD.fullmatch(text) or "." in text.strip(".0123456789eE+-") or is_file(text):
            self.refuse(place, "a word or a number", text)
        return text

    def named(self, name: Any, bases: tuple[type, ...], place: tuple[str, ...]) -> type:
        """Return the class that a description names."""
        wanted = " or ".join(base.__name__ for base in bases) or "class"
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            self.refuse(place, f"the class path of a {wanted}", name)
        found = find_imported(name)
        if not isinstance(found, type):
            raise self.no_class(name, place, wanted, found)
        if name not in self.trusted and not is_allowed(found):
            raise self.not_allowed(name, place, wanted, f"the class {found.__name__} of {found.__module__}")
        if not issubclass(found, bases):
            raise _MismatchError(f"Expected a {wanted} in {self.source} at `{'.'.join(place)}` but it names {name!r}.")
        return found

    def no_class(self, name: str, place: tuple[str, ...], wanted: str, found: Any) -> CheckpointError:
        module, _, short = name.rpartition(".")
        if found is not None:
            return self.not_allowed(name, place, wanted, f"which is a {type(found).__name__} and not a class")
        if module not in sys.modules:
            return self.not_allowed(name, place, wanted, "which only the file names" if module else "without a module")
        known = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, type)]
        return CheckpointError(
            f"{self.source} names {name!r} at `{'.'.join(place)}` but {module!r} does not have this class."
            f"{did_you_mean(short, known)} The file may come from another version."
        )

    def not_allowed(self, name: str, place: tuple[str, ...], wanted: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source} names {name!r} at `{'.'.join(place)}`, {what}. Expected a {wanted} of lit_sparse, torch.nn or"
            " torch.optim, or one that your config, your command line or an imported module of yours names. If you trust it,"
            f" add --trust {name}, or trust=[{name!r}] in Python."
        )

    def refuse(self, place: tuple[str, ...], expected: str, got: Any) -> NoReturn:
        shown = f"{got!r:.80}" if isinstance(got, str | bool | int | float | None) else f"a {type(got).__name__}"
        shown += f" of {len(got):,}" if isinstance(got, list | tuple | dict) else ""
        raise _MismatchError(f"Expected {expected} in {self.source} at `{'.'.join(place)}` but got {shown}.")

    def count(self, place: tuple[str, ...]) -> None:
        self.left -= 1
        if self.left < 0 or len(place) > MOST_LEVELS:
            raise _BudgetError(
                f"The description in {self.source} has more than {MOST_LEVELS} levels of nesting, contains itself, or has more"
                f" than {MOST_VALUES:,} values. Use another file."
            )


def _built(source: str, value: Any) -> Any:
    """Return a checked value with its parts built."""
    if isinstance(value, Plan):
        return value.build(source)
    if isinstance(value, dict):
        return {key: _built(source, one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_built(source, one) for one in value)
    return value


@functools.cache
def _signature(owner: type) -> tuple[dict[str, inspect.Parameter], dict[str, Any], bool]:
    """Return the parameters of a constructor, their annotations, and whether it takes any further names."""
    constructor: Any = owner.__init__  # type: ignore[misc]
    if constructor in (nn.Module.__init__, object.__init__):
        return {}, {}, False
    parameters = constructor_parameters(owner)
    hints: dict[str, Any] = {}
    for kind in reversed(owner.__mro__):
        constructor = vars(kind).get("__init__")
        if inspect.isfunction(constructor):
            hints |= hints_of(constructor)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {name: one for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return named, hints, open_ended


def _is_part(hint: Any) -> bool:
    """Return whether a text could name an object where this annotation is declared."""
    return hint not in (None, NoneType, str, bool, int, float, Path) and get_origin(hint) not in (Literal, list, tuple)
