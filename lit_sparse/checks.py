"""Checks of arguments, with messages that state what was expected and what was given."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.tensors import FLOATS, INTEGERS, REALS, check_tensor, is_dense, shown
from lit_sparse.ground.torch_internals import can_read_values, is_fake

__all__ = [
    *("CLASSES", "DROPOUT", "EXAMPLES", "FEATURES", "FLAG", "INPUTS", "INTEGER", "ITERATIONS", "MOST_EXAMPLES"),
    *("MOST_FEATURES", "MOST_INPUTS", "MOST_ITERATIONS", "MOST_LAYERS", "MOST_SEED", "POSITIVE", "SEED", "SHAPE"),
    *("WIDTHS", "Count", "Learnable", "Number", "Range", "check_choice", "check_count", "check_dim", "check_flag"),
    *("check_indices", "check_integer", "check_learnable", "check_mask", "check_number", "check_parameter"),
    *("check_positive", "check_result", "check_shape", "check_widths", "has_values", "ranges"),
]
__all__ += ["FLOATS", "INTEGERS", "REALS", "check_tensor", "shown"]  # of :mod:`lit_sparse.ground.tensors`

Choice = TypeVar("Choice", bound=str)
Made = TypeVar("Made", bound=type)
#: Largest numbers of layers (Python objects), iterations, features or draws, numbers per example, and generated examples.
#: Larger numbers are mistakes that would end in a hang or run out of memory.
MOST_LAYERS, MOST_ITERATIONS, MOST_FEATURES, MOST_INPUTS, MOST_EXAMPLES = 1_000, 100_000, 1_000_000, 10_000_000, 100_000_000
#: Largest size of a seed from which others are made, of epochs for example, that are numbers of 64 bits.
MOST_SEED = 2**32
#: Largest integer of torch, numpy and compiled code, and most bits of an integer that a message shows.
MOST_INTEGER, LONGEST = 2**63 - 1, 1024
# Smallest and largest strengths that float32 can divide by and multiply with.
LEAST, MOST = 1e-30, 1e30


def _plain(value: Any) -> Any:
    """Return a numpy scalar or a tensor without dimensions as a Python number, and any other value unchanged.

    A tensor that requires a gradient is not converted, because the number would lose it; nor is a tensor without values.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad and has_values(value):
        return value.item()
    return value


def _shown(value: Any) -> str:
    """Return a value in a message; Python does not write integers of thousands of digits."""
    return f"one of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > LONGEST else repr(value)


def has_values(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be read, which transforms, tracing and the meta device prevent."""
    return can_read_values() and not (tensor.is_meta or is_fake(tensor))


def check_flag(name: str, value: bool) -> bool:
    """Return the value after checking that it is a boolean.

    Raises:
        ConfigurationError: for any other value.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"Expected argument `{name}` to be True or False but got {value!r}.")
    return value


def check_positive(name: str, value: float) -> float:
    """Return the value after checking that it is a positive, finite number.

    Raises:
        ConfigurationError: for any other value.
    """
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
        raise ConfigurationError(
            f"Expected argument `{name}` to be a positive, finite number but got {_shown(value)}. Allowed: {LEAST} .. {MOST}."
        )
    return float(value)


def check_integer(name: str, value: int) -> int:
    """Return the value after checking that it is an integer.

    Raises:
        ConfigurationError: for any other value.
    """
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_INTEGER:
        raise ConfigurationError(f"Expected argument `{name}` to be a 64-bit integer but got {_shown(value)}.")
    return value


def check_count(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """Return the value after checking that it is an integer of at least ``least`` and at most ``most``.

    Args:
        name: name of the argument in the message.
        value: value to check.
        least: smallest integer allowed.
        most: largest integer allowed, such as :data:`MOST_LAYERS` if Python's lists grow with it; None for 64 bits.

    Raises:
        ConfigurationError: for any other value.
    """
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"Expected argument `{name}` to be an integer of at least {least} but got {_shown(value)}.")
    most = MOST_INTEGER if most is None else most
    if value > most:
        raise ConfigurationError(
            f"Expected argument `{name}` to be an integer of at most {most} but got {_shown(value)}. Choose a smaller one."
        )
    return value


def check_widths(name: str, values: Sequence[int], most: int = MOST_FEATURES) -> tuple[int, ...]:
    """Return the widths of hidden layers after checking that they are a list of integers >= 1.

    Args:
        name: name of the argument in the message.
        values: widths to check.
        most: largest width allowed.

    Raises:
        ConfigurationError: for any other value.
    """
    given: Any = values
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"Expected argument `{name}` to be a list of widths, such as [64, 64], but got {values!r}.")
    return tuple([check_count(name, value, most=most) for value in values])


def check_choice(name: str, value: Choice, allowed: tuple[str, ...]) -> Choice:
    """Return the value after checking that it is one of the allowed words.

    Raises:
        ConfigurationError: for any other value.
    """
    if value not in allowed:
        raise ConfigurationError(f"Expected argument `{name}` to be one of {allowed} but got {value!r}.")
    return value


def check_shape(name: str, value: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as a tuple, after checking that it is a sequence of integers >= 0.

    Raises:
        ConfigurationError: if the value is not a sequence of integers >= 0, or of too many numbers.
    """
    value = tuple(_plain(size) for size in value) if isinstance(value, list | tuple) else value
    if not isinstance(value, tuple) or not all(type(size) is int and size >= 0 for size in value):
        raise ConfigurationError(f"Expected argument `{name}` to be a sequence of sizes, such as (4, 1, 1), but got {value!r}.")
    if math.prod(value) > MOST_EXAMPLES:
        raise ConfigurationError(f"Expected argument `{name}` to have at most {MOST_EXAMPLES:,} entries but got {value!r}.")
    return value


def check_number(name: str, value: float, low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> float:
    """Return the value after checking that it is a number within bounds.

    Args:
        name: name of the argument in the message.
        value: value to check.
        low: lower bound.
        high: upper bound.
        open_low: whether the lower bound is excluded.
        open_high: whether the upper bound is excluded.

    Raises:
        ConfigurationError: for any other value.
    """
    value = _plain(value)
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if isinstance(value, int) and abs(value) > sys.float_info.max:  # between its bounds, but no float
        number = False
    if not number or not low <= value <= high or (open_low and value == low) or (open_high and value == high):
        allowed = f"{low} {'<' if open_low else '<='} {name} {'<' if open_high else '<='} {high}"
        raise ConfigurationError(f"Expected argument `{name}` to be a number with {allowed} but got {_shown(value)}.")
    return float(value)


def check_parameter(name: str, value: float | Tensor, low: float, high: float, *, open_low: bool = False) -> float | Tensor:
    """Return the value after checking that it is a number within bounds, or a floating tensor.

    Tensor values that are NaN or below the range are refused if they can be read without synchronization: on the CPU, outside
    of ``torch.func`` and ``torch.compile``.

    Raises:
        ConfigurationError: for any other value.
    """
    if isinstance(value, Tensor):
        if value.dtype not in FLOATS:
            raise ConfigurationError(f"Expected argument `{name}` to be a floating tensor but got {value.dtype}.")
        if value.device.type == "cpu" and has_values(value):
            outside = ~(value.detach() > low if open_low else value.detach() >= low)
            if bool(outside.any()):
                bound = f"{'above' if open_low else 'at least'} {low}"
                raise ConfigurationError(
                    f"Expected every `{name}` to be {bound} but got {value.detach()[outside].flatten()[:5].tolist()}."
                    " Clamp it, or learn it in a range."
                )
        return value
    return check_number(name, value, low, high, open_low=open_low)


def check_learnable(name: str, value: float | Tensor, low: float, high: float, *, open_low: bool = False) -> float | Tensor:
    """Return a number within bounds, or a floating tensor of such numbers, both bounds of which are checked unless it is meta.

    Raises:
        ConfigurationError: for any other value.
    """
    value = check_parameter(name, value, low, high, open_low=open_low)
    if isinstance(value, Tensor) and not value.is_meta:
        values = value.detach()
        if not bool(((values >= low) & (values <= high)).all()):
            got = values.flatten()[:5].tolist()
            raise ConfigurationError(f"Expected every `{name}` in {low:g} .. {high:g} but got {got}.")
    return value


def check_dim(dim: int, tensor: Tensor, what: str) -> int:
    """Return the index of a dimension after checking that the tensor has it.

    Args:
        dim: index of the dimension, counted from the end if negative.
        tensor: tensor with at least one dimension.
        what: name of the tensor in the message.

    Raises:
        ConfigurationError: if it is not an integer, or the tensor lacks the dimension.
    """
    dim = check_integer("dim", dim)
    if not -tensor.dim() <= dim < tensor.dim():
        raise ConfigurationError(
            f"Expected argument `dim` to be one of the {tensor.dim()} dimensions of the {what} but got {dim}. Allowed:"
            f" {-tensor.dim()} .. {tensor.dim() - 1}."
        )
    return dim


def check_mask(mask: Tensor, meaning: str) -> Tensor:
    """Return the mask after checking that it is a boolean tensor.

    Args:
        mask: mask to check.
        meaning: meaning of True, for the message.

    Raises:
        ConfigurationError: if it is not a boolean tensor.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or not is_dense(mask):
        got = f"{mask.dtype} {mask.layout}" if isinstance(mask, Tensor) else full_name(mask)
        advice = " Convert it with `.bool()`." if isinstance(mask, Tensor) and not mask.is_floating_point() else ""
        raise ConfigurationError(f"Expected a boolean mask in a torch tensor, True where {meaning}, but got {got}.{advice}")
    return mask


def check_result(part: object, method: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the result of a user's method after checking that it is a floating tensor of the given shape.

    Raises:
        ConfigurationError: for any other result.
    """
    if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
        what = f"`{method}` of {full_name(part)} to return a floating tensor of shape {tuple(shape)}"
        raise ConfigurationError(f"Expected {what} but got {shown(value)}.")
    return value


def check_indices(indices: Tensor, size: int) -> Tensor:
    """Return indices (n,) after checking that each is in 0 .. size - 1, so that compiled code stays within memory.

    Raises:
        IndexError: if one is not; the message gives the smallest and largest index.
    """
    if not isinstance(indices, Tensor) or indices.ndim != 1 or indices.dtype != torch.int64:
        got = f"{tuple(indices.shape)} {indices.dtype}" if isinstance(indices, Tensor) else full_name(indices)
        raise IndexError(f"Expected indices (n,) int64 but got {got}.")
    if len(indices):
        least, most = (int(end) for end in indices.aminmax())
        if least < 0 or most >= size:
            raise IndexError(f"Expected indices in 0 .. {size - 1} but got {least} .. {most}.")
    return indices


def _interval(low: float, high: float, open_low: bool = False, open_high: bool = False) -> str:
    """Return a range in words, without limits so large that they only exclude mistakes.

    Example:
        >>> _interval(0, 1, open_low=True), _interval(1, 1e7), _interval(-1e30, 1e30)
        ('(0, 1]', '>= 1', '')
    """
    if high >= MOST_FEATURES:
        return "" if low <= -MOST_FEATURES else f"{'>' if open_low else '>='} {low:g}"
    return f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"


class Range:
    """The values that an argument of a constructor may have, declared by :func:`ranges`.

    Attributes:
        check: function of the argument's name and value that returns the value, converted, or raises a ConfigurationError.
        text: the range in the help of the command line; empty where the type says enough.
        bounds: the bounds by name, where there are any, which the given ``check`` takes.
    """

    def __init__(self, check: Callable[..., Any], text: str = "", **bounds: Any) -> None:
        def within(name: str, value: Any) -> Any:  # torch.compile knows no partial here
            return check(name, value, **bounds)

        self.check, self.text, self.bounds = within if bounds else check, text, bounds

    def __call__(self, name: str, value: Any) -> Any:
        """Return the value after the check."""
        return self.check(name, value)


class Count(Range):
    """Integers from ``least`` to ``most``; see :func:`check_count`."""

    def __init__(self, least: int = 1, most: int | None = None) -> None:
        super().__init__(check_count, _interval(least, math.inf if most is None else most), least=least, most=most)


class Number(Range):
    """Numbers from ``low`` to ``high``; see :func:`check_number`, also for ``open_low`` and ``open_high``."""

    def __init__(self, low: float, high: float, **ends: bool) -> None:
        super().__init__(check_number, _interval(low, high, **ends), low=low, high=high, **ends)


class Learnable(Range):
    """Numbers from ``low`` to ``high``, or tensors of them; see :func:`check_learnable`, also for ``open_low``."""

    def __init__(self, low: float, high: float, **ends: bool) -> None:
        super().__init__(check_learnable, _interval(low, high, **ends), low=low, high=high, **ends)


#: Ranges of strengths, of integers, and of booleans.
POSITIVE, INTEGER, FLAG = Range(check_positive, "> 0"), Range(check_integer), Range(check_flag)
#: Ranges of numbers of classes, of seeds, and of fractions that are dropped.
CLASSES, SEED, DROPOUT = Count(2, MOST_FEATURES), Count(-MOST_SEED, MOST_SEED), Number(0.0, 1.0, open_high=True)
#: Ranges of numbers of iterations, of features, of inputs, and of examples.
ITERATIONS, FEATURES = Count(most=MOST_ITERATIONS), Count(most=MOST_FEATURES)
INPUTS, EXAMPLES = Count(most=MOST_INPUTS), Count(most=MOST_EXAMPLES)
#: Ranges of shapes, and of widths of layers.
SHAPE, WIDTHS = Range(check_shape), Range(check_widths, f"{_interval(1, MOST_FEATURES)} each")


def ranges(**declared: Range) -> Callable[[Made], Made]:
    """Return a decorator that declares the ranges of arguments of a class's own constructor.

    The constructor gets each argument that is given after its check, converted to a number of Python for example. None passes
    where the annotation allows it. The class has the ranges as ``RANGES``, and the help of the command line shows them.

    Example:
        >>> @ranges(gamma=POSITIVE, k=Count(2))
        ... class Part:
        ...     def __init__(self, k: int, gamma: float = 1.0) -> None:
        ...         self.k, self.gamma = k, gamma
        >>> Part(1)
        Traceback (most recent call last):
        lit_sparse.errors.ConfigurationError: Expected argument `k` to be an integer of at least 2 but got 1.
    """

    def declare(kind: Made) -> Made:
        kind.RANGES = declared  # type: ignore[attr-defined]
        kind.__init__ = checked(_within(vars(kind)["__init__"], declared))  # type: ignore[misc]
        return kind

    return declare


def _within(function: Callable[..., Any], declared: dict[str, Range]) -> Callable[..., Any]:
    """Return a function whose arguments are checked by their ranges; see :func:`ranges`."""
    parameters = inspect.signature(function).parameters
    positional = [name for name, parameter in parameters.items() if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    optional = {name for name in declared if "None" in str(parameters[name].annotation)}
    checks = {name: each.check for name, each in declared.items()}

    def one(name: str, value: Any) -> Any:
        return value if name not in checks or (value is None and name in optional) else checks[name](name, value)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        given = [one(name, value) for name, value in zip(positional, args, strict=False)]
        return function(*given, *args[len(given) :], **{name: one(name, value) for name, value in options.items()})

    return called
