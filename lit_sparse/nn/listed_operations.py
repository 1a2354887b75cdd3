"""Products and sums over listed keys, with their derivatives: each derivative is one of these operations, to any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.kernels.sparse_products import Lists, listed_products, listed_sums, sums_to_listed

__all__ = ["products", "sums"]


class _Products(torch.autograd.Function):
    """Products of each query with the keys that it lists."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
        ctx.save_for_backward(rows, matrix)
        ctx.lists = lists
        return listed_products(rows, matrix, lists)

    @staticmethod
    @override
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrix = ctx.saved_tensors
        return (
            sums(slope, matrix, ctx.lists) if ctx.needs_input_grad[0] else None,
            _scatter(slope, rows, ctx.lists) if ctx.needs_input_grad[1] else None,
            None,
        )


class _Sums(torch.autograd.Function):
    """Weighted sums of the values that each query lists."""

    @staticmethod
    @override
    def forward(ctx: Any, weights: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
        ctx.save_for_backward(weights, matrix)
        ctx.lists = lists
        return listed_sums(weights, matrix, lists)

    @staticmethod
    @override
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, matrix = ctx.saved_tensors
        return (
            products(slope, matrix, ctx.lists) if ctx.needs_input_grad[0] else None,
            _scatter(weights, slope, ctx.lists) if ctx.needs_input_grad[1] else None,
            None,
        )


class _Scatter(torch.autograd.Function):
    """Sums, at each place, of the rows that list it."""

    @staticmethod
    @override
    def forward(ctx: Any, weights: Tensor, rows: Tensor, lists: Lists) -> Tensor:
        ctx.save_for_backward(weights, rows)
        ctx.lists = lists
        return sums_to_listed(weights, rows, lists)

    @staticmethod
    @override
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, rows = ctx.saved_tensors
        return (
            products(rows, slope, ctx.lists) if ctx.needs_input_grad[0] else None,
            sums(weights, slope, ctx.lists) if ctx.needs_input_grad[1] else None,
            None,
        )


#: Return the products (R, C) of rows (R, E) with the rows of a matrix (B, S, E) that they list.
products: Callable[[Tensor, Tensor, Lists], Tensor] = _Products.apply
#: Return the sums (R, E) of the listed rows of a matrix (B, S, E), times weights (R, C).
sums: Callable[[Tensor, Tensor, Lists], Tensor] = _Sums.apply
_scatter: Callable[[Tensor, Tensor, Lists], Tensor] = _Scatter.apply
