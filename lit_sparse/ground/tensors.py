"""Dtypes of numbers, and the check that a value is a tensor of some shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name

__all__ = ["FLOATS", "INTEGERS", "REALS", "check_tensor", "is_dense", "shown"]

#: Dtypes of scores.
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: Dtypes of whole numbers, and of all numbers that can be summed.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
REALS = (*FLOATS, *INTEGERS, torch.bool)


def shown(value: object) -> str:
    """Return the shape and dtype of a tensor, or the name of another object's class, for a message."""
    if not isinstance(value, Tensor):
        return full_name(value)
    return f"{tuple(value.shape) if is_dense(value) else 'a sparse or nested tensor'} of {value.dtype}"


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested."""
    return tensor.layout == torch.strided and not tensor.is_nested


def check_tensor(
    value: Any,
    what: str,
    *,
    shape: Sequence[int | None] | None = None,
    dtypes: Sequence[torch.dtype] = REALS,
    error: type[Exception] = ConfigurationError,
    advice: str = "",
) -> Tensor:
    """Return the value after checking that it is a dense tensor of a given shape and dtype.

    Args:
        value: value to check.
        what: what is expected, for the message.
        shape: lengths of the dimensions, None for one of any length; by default, any shape.
        dtypes: dtypes that are allowed.
        error: class of the error.
        advice: end of the message, after a space.

    Raises:
        ConfigurationError: for any other value, or an error of the given class.
    """
    if isinstance(value, Tensor) and value.dtype in dtypes and is_dense(value):
        own = value.shape
        if shape is None or own == shape or (len(own) == len(shape) and not any(map(_differ, shape, own))):
            return value
    raise error(f"Expected {what} but got {shown(value)}.{advice}")


def _differ(length: int | None, own: int) -> bool:
    return length is not None and length != own
