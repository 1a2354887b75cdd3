"""Checks of stored states against examples of them, before anything is restored.

An example of a dict, list or tuple has examples of its entries. One of a number, a text or a tensor stands for values of its
type, and for tensors of its shape. Integers are counts: at most ``MOST``, and not negative unless the example is.
Integers in tensors are never negative. Texts have printable characters, since some of them are printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import CheckpointError

__all__ = [
    "AMOUNT",
    "ANY",
    "COUNT",
    "NUMBER",
    "RATE",
    "SCALAR",
    "DictOf",
    "Kind",
    "ListOf",
    "OneOf",
    "Some",
    "at_most",
    "check_apart",
    "check_state",
    "entries",
    "equal_to",
    "example_of",
    "is_of_kind",
    "is_plain",
    "one_of",
    "same",
    "shown",
]

#: Largest integer in a state: beyond it, floats round.
MOST = 2**53
ADVICE = "Use another checkpoint, such as one of checkpoints/ in a run folder."


@dataclass(frozen=True)
class Kind:
    """Example of values that have a property, for checks of stored states.

    Args:
        words: description of the values.
        holds: whether a value is one of them.
    """

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class ListOf:
    """Example of lists of any length, for checks of stored states: each entry must match the example ``item``."""

    item: Any


@dataclass(frozen=True)
class DictOf:
    """Example of dicts, for checks of stored states: keys must have the type ``key``, values match the example ``item``."""

    item: Any
    key: type = str


@dataclass(frozen=True)
class Some:
    """Example of dicts, for checks of stored states: any keys of ``items`` may occur, with values that match its examples."""

    items: dict[str, Any]


@dataclass(frozen=True)
class OneOf:
    """Example of values, for checks of stored states, that match ``first`` or ``second``; None matches only None."""

    first: Any
    second: Any = None


ANY = Kind("a value", lambda _: True)
COUNT = Kind("an integer >= 0", lambda value: type(value) is int and 0 <= value <= MOST)
NUMBER = Kind(
    "a number", lambda value: COUNT.holds(abs(value)) if type(value) is int else type(value) is float and value == value
)
AMOUNT = Kind("a finite number >= 0", lambda value: type(value) in (int, float) and 0 <= value <= MOST)
SCALAR = Kind("a plain tensor of shape ()", lambda value: is_plain(value) and value.shape == ())

RATE = Kind(
    "a finite rate >= 0",
    lambda value: AMOUNT.holds(value.item() if isinstance(value, Tensor) and value.numel() == 1 else value),
)


def is_plain(value: Any) -> bool:
    """Return whether a tensor can be changed in place: strided, without overlapping entries, and without a gradient."""
    if type(value) is not Tensor or value.layout != torch.strided or value.requires_grad:
        return False
    last = 0  # place of the last entry in the dimensions so far
    for stride, size in sorted((stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1):
        if stride <= last:
            return False
        last += stride * (size - 1)
    return True


def check_apart(source: str, place: str, found: Any) -> None:
    """Check that no two tensors of a stored state share memory.

    Raises:
        CheckpointError: if two do; the message names one of them.
    """
    tensors = [(at, value) for at, value in entries(place, found) if isinstance(value, Tensor) and value.numel()]
    end = 0
    for at, value in sorted(tensors, key=lambda entry: entry[1].data_ptr()):
        check_state(
            source, at, value.data_ptr() >= end or value, Kind("a tensor with memory of its own", lambda it: it is True)
        )
        last = sum(stride * (size - 1) for stride, size in zip(value.stride(), value.shape, strict=True))
        end = value.data_ptr() + (last + 1) * value.element_size()


def entries(place: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Yield all values in nested dicts and lists with their paths."""
    if isinstance(found, dict | list | tuple):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from entries(f"{place}.{key}", value)
    else:
        yield place, found


def equal_to(value: Any) -> Kind:
    """Return an example that only one value matches: a given one, which the config determines."""
    return Kind(f"{shown(value)}, as in this run", lambda found: same(found, value))


def one_of(what: str, allowed: Container[Any]) -> Kind:
    """Return an example that the values in a container match; ``what`` describes them in messages."""
    return Kind(f"one of {what}", lambda found: found in allowed)


def at_most(most: int, least: int = 0) -> Kind:
    """Return an example that integers from ``least`` to ``most`` match."""
    return Kind(f"an integer in {least} .. {most}", lambda found: type(found) is int and least <= found <= most)


def same(found: Any, expected: Any) -> bool:
    """Return whether two states are equal, tensors included."""
    if isinstance(expected, Tensor) or isinstance(found, Tensor):
        both = isinstance(found, Tensor) and isinstance(expected, Tensor)
        return both and found.shape == expected.shape and torch.equal(found.cpu(), expected.cpu().to(found.dtype))
    if isinstance(expected, dict):
        alike = isinstance(found, dict) and found.keys() == expected.keys()
        return alike and all(same(found[key], value) for key, value in expected.items())
    if isinstance(expected, list | tuple):
        return isinstance(found, list | tuple) and len(found) == len(expected) and all(map(same, found, expected))
    return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


def example_of(state: Any) -> Any:
    """Return an example of states like a given one; where that is empty or None, any value matches."""
    if isinstance(state, dict):
        return {name: example_of(value) for name, value in state.items()} or DictOf(ANY, object)
    if isinstance(state, list | tuple):
        return type(state)(example_of(value) for value in state) or ListOf(ANY)
    return ANY if state is None else state


def check_state(source: str, place: str, found: Any, example: Any, advice: str = ADVICE) -> None:
    """Check a stored state against an example of such states.

    Args:
        source: name of the file in messages.
        place: name of the state in the file.
        found: stored state.
        example: example of the state.
        advice: what to do if it does not match.

    Raises:
        CheckpointError: if it does not match; the message names the entry.
    """
    if (wrong := _mismatch(place, found, example)) is not None:
        at, words, value = wrong
        raise CheckpointError(f"Expected `{at}` in {source} to be {words} but got {shown(value)}. {advice}")


def _mismatch(place: str, found: Any, example: Any) -> tuple[str, str, Any] | None:
    """Return place, expected words and value of the first entry that does not match, or None."""
    words = f"of type {type(example).__name__}"
    fits = type(found) is type(example)
    match example:
        case Kind():
            words, fits = example.words, example.holds(found)
        case OneOf():
            wrong = _mismatch(place, found, example.first)
            return wrong and (None if _mismatch(place, found, example.second) is None else wrong)
        case ListOf() | list() | tuple():
            if not isinstance(found, list | tuple):
                return place, "a list", found
            items = [example.item] * len(found) if isinstance(example, ListOf) else example
            if len(found) != len(items):
                return place, f"a list of length {len(items)}", found
            return _first(place, enumerate(found), items)
        case DictOf():
            if not isinstance(found, dict) or not all(isinstance(key, example.key) for key in found):
                return place, f"a dict with keys of type {example.key.__name__}", found
            return _first(place, found.items(), [example.item] * len(found))
        case Some() | dict():
            some, known = ("some of ", example.items) if isinstance(example, Some) else ("", example)
            words = f"a dict with {some}{_names(known)}"
            if not isinstance(found, dict):
                return place, words, found
            if found.keys() - known.keys() or not (some or found.keys() == known.keys()):
                return place, words, Kind(f"one with {_names(found)}", lambda _: True)
            return _first(place, found.items(), [known[key] for key in found])
        case Tensor():
            words, fits = shown(example), is_plain(found) and found.shape == example.shape and is_of_kind(found, example)
            if fits and not (found.is_floating_point() or found.is_complex() or bool((found >= 0).all())):
                return place, "a tensor of integers >= 0", found
        case str():
            words, fits = "a text of printable characters", type(found) is str and found.isprintable()
        case int() if not isinstance(example, bool):
            least = min(0, example)
            words, fits = f"an integer >= {least}", type(found) is int and least <= found <= MOST
        case float():
            infinite = not math.isfinite(example)  # a score before the first one, which only such a score is as bad as
            words, fits = "a finite number", type(found) in (int, float)
            fits = fits and (abs(found) <= MOST or (infinite and (found == example or abs(found) < math.inf)))
    return None if fits else (place, words, found)


def _first(place: str, entries: Any, examples: Any) -> tuple[str, str, Any] | None:
    found = (_mismatch(f"{place}.{key}".lstrip("."), value, one) for (key, value), one in zip(entries, examples, strict=True))
    return next((wrong for wrong in found if wrong is not None), None)


def is_of_kind(found: Tensor, example: Tensor) -> bool:
    """Return whether two tensors hold the same kind of numbers: real, complex, integer or boolean."""
    kinds = [(one.is_floating_point(), one.is_complex(), one.dtype == torch.bool) for one in (found, example)]
    return kinds[0] == kinds[1]


def _names(found: dict[Any, Any]) -> str:
    return _cut(", ".join(f"`{name}`" for name in found) or "no entries")


def shown(value: Any) -> str:
    """Return a value in a few words for a message."""
    if isinstance(value, Tensor):
        kind = "a tensor" if is_plain(value) else "an expanded, sparse or other special tensor"
        return f"{kind} of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    return _cut(value.words if isinstance(value, Kind) else repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."
