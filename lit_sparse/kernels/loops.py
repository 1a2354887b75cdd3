"""Loops over tensors that are one operator of a traced graph, which neither unrolls them nor reads values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import is_fake, while_loop

__all__ = ["bisect", "repeat", "repeat_while"]

Tensors = tuple[Tensor, ...]


def repeat(body: Callable[..., Tensors], carried: Tensors, constants: Tensors, passes: int) -> Tensors:
    """Repeat ``carried = body(*carried, *constants)`` a fixed number of times, and return the tensors ``carried``.

    Args:
        body: function of tensors that returns as many new tensors as are carried, of the same shapes and dtypes.
        carried: tensors that change.
        constants: all other tensors that the body uses.
        passes: number of repetitions.
    """
    if not is_fake(carried[0]):
        for _ in range(passes):
            carried = body(*carried, *constants)
        return carried
    first = torch.zeros((), dtype=torch.int64, device=carried[0].device)
    _, *results = while_loop(
        lambda count, *_: count < passes,
        lambda count, *tensors: (count + 1, *body(*tensors)),
        (first, *carried),
        constants,
    )
    return tuple(results)


def bisect(above: Callable[..., Tensor], lower: Tensor, upper: Tensor, constants: Tensors, passes: int) -> Tensor:
    """Return the lower ends (..., 1) of the brackets of thresholds, after a fixed number of halvings.

    Args:
        above: function of thresholds (..., 1) and the constants that returns whether the ones sought are at least as large.
        lower: lower ends of the brackets.
        upper: upper ends of the brackets.
        constants: all other tensors that the function uses.
        passes: number of halvings.
    """

    def halved(lower: Tensor, upper: Tensor, *constants: Tensor) -> Tensors:
        middle = 0.5 * (lower + upper)
        higher = above(middle, *constants)
        return torch.where(higher, middle, lower), torch.where(higher, upper, middle)

    return repeat(halved, (lower, upper), constants, passes)[0]


def repeat_while(
    condition: Callable[..., Tensor], body: Callable[..., Tensors], carried: Tensors, constants: Tensors
) -> Tensors:
    """Repeat ``carried = body(*carried, *constants)`` while a condition holds, and return the tensors ``carried``.

    Args:
        condition: function of the same tensors that returns booleans; the loop goes on while any is True.
        body: function of tensors that returns as many new tensors as are carried, of the same shapes and dtypes.
        carried: tensors that change. Tensors without values, on the device ``meta``, are returned unchanged.
        constants: all other tensors that the functions use.
    """
    if is_fake(carried[0]):  # a sum, because `any` of an empty tensor is true in onnxruntime
        return while_loop(lambda *tensors: condition(*tensors).sum() > 0, body, carried, constants)
    while not carried[0].is_meta and bool(condition(*carried, *constants).any()):
        carried = body(*carried, *constants)
    return carried
