"""Products and sums over listed keys, with their derivatives: each derivative is one of these operations, to any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.nn.lists.kernel import Lists, listed_products, listed_sums, sums_to_listed

__all__ = ["products", "sums"]

_Operation = Callable[[Tensor, Tensor, Lists], Tensor]


class _Listed(torch.autograd.Function):
    """One of the operations, which is linear in both of its tensors."""

    @staticmethod
    @override
    def forward(ctx: Any, operation: _Operation, first: Tensor, second: Tensor, lists: Lists) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.operation, ctx.lists = operation, lists
        return operation(first, second, lists)

    @staticmethod
    @override
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:3]
        grads = (
            derivative(first, second, slope, ctx.lists) if wanted else None
            for derivative, wanted in zip(_DERIVATIVES[ctx.operation], needed, strict=True)
        )
        return (None, *grads, None)


def products(rows: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
    """Return the products (R, C) of rows (R, E) with the rows of a matrix (B, S, E) that they list."""
    result: Tensor = _Listed.apply(listed_products, rows, matrix, lists)  # type: ignore[no-untyped-call]
    return result


def sums(weights: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
    """Return the sums (R, E) of the listed rows of a matrix (B, S, E), times weights (R, C)."""
    result: Tensor = _Listed.apply(listed_sums, weights, matrix, lists)  # type: ignore[no-untyped-call]
    return result


def _scatter(weights: Tensor, rows: Tensor, lists: Lists) -> Tensor:
    """Return the sums (B, S, E), at each place, of the rows (R, E) that list it, times their weights (R, C)."""
    result: Tensor = _Listed.apply(sums_to_listed, weights, rows, lists)  # type: ignore[no-untyped-call]
    return result


#: Operation -> its derivatives by the first and the second tensor, times the slope of the result.
_DERIVATIVES: dict[_Operation, tuple[Callable[[Tensor, Tensor, Tensor, Lists], Tensor], ...]] = {
    listed_products: (
        lambda rows, matrix, slope, lists: sums(slope, matrix, lists),
        lambda rows, matrix, slope, lists: _scatter(slope, rows, lists),
    ),
    listed_sums: (
        lambda weights, matrix, slope, lists: products(slope, matrix, lists),
        lambda weights, matrix, slope, lists: _scatter(weights, slope, lists),
    ),
    sums_to_listed: (
        lambda weights, rows, slope, lists: products(rows, slope, lists),
        lambda weights, rows, slope, lists: sums(weights, slope, lists),
    ),
}
