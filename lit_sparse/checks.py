"""Checks of arguments, with messages that say what was expected and what came."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError

__all__ = [
    "FLOATS",
    "check_choice",
    "check_count",
    "check_integer",
    "check_number",
    "check_parameter",
    "check_positive",
    "check_shape",
]

Choice = TypeVar("Choice", bound=str)
#: Dtypes of scores.
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Strengths that float32 can divide by and multiply with.
LEAST, MOST = 1e-30, 1e30


def check_positive(name: str, value: float) -> float:
    """Return a number that must be positive and finite.

    Raises:
        ConfigurationError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
        raise ConfigurationError(
            f"Expected argument `{name}` to be a positive, finite number but got {value!r}. Allowed: {LEAST} .. {MOST}."
        )
    return float(value)


def check_integer(name: str, value: int) -> int:
    """Return an integer.

    Raises:
        ConfigurationError: if it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"Expected argument `{name}` to be an integer but got {value!r}.")
    return value


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return an integer that must be at least 1, or another number.

    Raises:
        ConfigurationError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"Expected argument `{name}` to be an integer of at least {least} but got {value!r}.")
    return value


def check_choice(name: str, value: Choice, allowed: tuple[str, ...]) -> Choice:
    """Return a word that must be one of some.

    Raises:
        ConfigurationError: if it is none of them.
    """
    if value not in allowed:
        raise ConfigurationError(f"Expected argument `{name}` to be one of {allowed} but got {value!r}.")
    return value


def check_shape(name: str, value: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as a tuple.

    Raises:
        ConfigurationError: if it is not a sequence of integers >= 0.
    """
    if not isinstance(value, list | tuple) or not all(type(size) is int and size >= 0 for size in value):
        raise ConfigurationError(f"Expected argument `{name}` to be a sequence of sizes, such as (4, 1, 1), but got {value!r}.")
    return tuple(value)


def check_number(name: str, value: float, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> float:
    """Return a number that must lie between two others.

    Args:
        name: what the message calls it.
        value: the number.
        low: smallest value allowed; with ``open_low`` the largest that is not.
        high: largest value allowed; with ``open_high`` the smallest that is not.
        open_low: exclude ``low``.
        open_high: exclude ``high``.

    Raises:
        ConfigurationError: if it does not.
    """
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not low <= value <= high or (open_low and value == low) or (open_high and value == high):
        allowed = f"{low} {'<' if open_low else '<='} {name} {'<' if open_high else '<='} {high}"
        raise ConfigurationError(f"Expected argument `{name}` to be a number with {allowed} but got {value!r}.")
    return float(value)


def check_parameter(name: str, value: float | Tensor, low: float, high: float) -> float | Tensor:
    """Return a number between two others, or a floating tensor, whose values are not looked at.

    Raises:
        ConfigurationError: if it is neither.
    """
    if isinstance(value, Tensor):
        if value.dtype not in FLOATS:
            raise ConfigurationError(f"Expected argument `{name}` to be a floating tensor but got {value.dtype}.")
        return value
    return check_number(name, value, low, high)
