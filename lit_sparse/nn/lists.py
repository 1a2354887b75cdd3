"""Products of queries with some of their keys, and sums over some of their values, without a matrix of all pairs.

Each query has a list of keys. Three bilinear operations of such lists are closed under differentiation: the products of a row
with the listed rows, the weighted sum of the listed rows, and the sum of rows into the listed places. The results do not depend
on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.kernels.gpu import triton_lists
from lit_sparse.kernels.gpu.triton_rows import runs_on

__all__ = ["Lists", "listed_products", "listed_sums", "products", "sums", "sums_to_listed"]

#: Seconds a multiplication takes.
COST = 1.5e-10
#: Parts of all places, at least: threads add to different parts.
PARTS = 8


@compile_rows(frozenset({"reassoc", "contract"}))
def _products(start: Any, stop: Any, out: Any, rows: Any, matrix: Any, lists: Any, blocks: Any) -> None:
    width = rows.shape[1]
    for row in range(start, stop):
        block = blocks[row]
        for slot in range(lists.shape[1]):
            place = lists[row, slot]
            if place < 0:
                break
            product = rows.dtype.type(0)
            for i in range(width):
                product += rows[row, i] * matrix[block, place, i]
            out[row, slot] = product


@compile_rows(frozenset({"contract"}))
def _sums(start: Any, stop: Any, out: Any, weights: Any, matrix: Any, lists: Any, blocks: Any) -> None:
    width = matrix.shape[2]
    for row in range(start, stop):
        block = blocks[row]
        for slot in range(lists.shape[1]):
            place = lists[row, slot]
            if place < 0:
                break
            weight = weights[row, slot]
            if weight != 0:  # 0 * NaN would be NaN
                for i in range(width):
                    out[row, i] += weight * matrix[block, place, i]


@compile_rows(frozenset({"contract"}))
def _scatter(start: Any, stop: Any, out: Any, weights: Any, rows: Any, lists: Any, starts: Any, parts: Any) -> None:
    """Add to the places of parts ``start .. stop - 1``; each block has ``parts`` parts."""
    width, size = rows.shape[1], out.shape[1]
    for part in range(start, stop):
        block, number = part // parts, part % parts
        first, last = size * number // parts, size * (number + 1) // parts
        for row in range(starts[block], starts[block + 1]):
            for slot in range(lists.shape[1]):
                place = lists[row, slot]
                if place < 0:
                    break
                weight = weights[row, slot]
                if first <= place < last and weight != 0:
                    for i in range(width):
                        out[block, place, i] += weight * rows[row, i]


@dataclass(frozen=True)
class Lists:
    """Lists of row indices of a matrix, one list per row of another.

    Attributes:
        places: (R, C) int32, indices in 0 .. S - 1, followed by -1.
        blocks: (R,) int64, the block of the matrix that each row refers to, in increasing order.
        shape: number of blocks B, and number of rows S of each.
    """

    places: Tensor
    blocks: Tensor
    shape: tuple[int, int]

    @cached_property
    def programs(self) -> bool:
        """Whether GPU programs compute with the lists."""
        return runs_on(self.places.device)

    @property
    def flat(self) -> Tensor:
        """Listed indices (R, C) in the matrix viewed as one block (B S, E); 0 past a list's end."""
        return torch.where(self.places < 0, 0, self.places.long() + self.blocks.unsqueeze(1) * self.shape[1])

    @cached_property
    def by_place(self) -> tuple[Tensor, Tensor]:
        """Slots of all lists, 0 .. R C - 1, sorted by the index they hold, and (B S + 1,) where each index begins."""
        used = (self.places >= 0).flatten().nonzero().squeeze(1)
        places, order = self.flat.flatten()[used].sort(stable=True)
        return used[order], torch.searchsorted(places, torch.arange(self.shape[0] * self.shape[1] + 1, device=places.device))


def listed_products(rows: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
    """Return the products (R, C) of each row (R, E) with the matrix rows (B, S, E) it lists; 0 past a list's end."""
    if lists.programs:
        return triton_lists.multiply_listed(rows, matrix, lists.places, lists.blocks)
    if rows.is_cpu:
        out = rows.new_zeros(lists.places.shape)
        shape = (len(rows), out.shape[1] * rows.shape[1])
        over_rows(_products, shape, COST, *_arrays(out, rows, matrix, lists.places, lists.blocks))
        return out
    return torch.einsum("re,rce->rc", rows, matrix.flatten(0, 1)[lists.flat]).masked_fill(lists.places < 0, 0.0)


def listed_sums(weights: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
    """Return the sums (R, E) of the matrix rows (B, S, E) that each row lists, times its weights (R, C).

    A matrix row with weight zero does not take part, even if it is NaN.
    """
    if lists.programs:
        return triton_lists.sum_listed(weights, matrix, lists.places, lists.blocks)
    if weights.is_cpu:
        out = weights.new_zeros(len(weights), matrix.shape[2])
        shape = (len(weights), weights.shape[1] * matrix.shape[2])
        over_rows(_sums, shape, COST, *_arrays(out, weights, matrix, lists.places, lists.blocks))
        return out
    none = (lists.places < 0) | (weights == 0)
    listed = matrix.flatten(0, 1)[lists.flat].masked_fill_(none.unsqueeze(-1), 0.0)
    return torch.einsum("rc,rce->re", weights.masked_fill(none, 0.0), listed)


def sums_to_listed(weights: Tensor, rows: Tensor, lists: Lists) -> Tensor:
    """Return (B, S, E), for each matrix row the sum of the rows (R, E) that list it, times their weights (R, C)."""
    if lists.programs:
        return triton_lists.scatter_listed(weights, rows, *lists.by_place).view(*lists.shape, rows.shape[1])
    blocks = lists.shape[0]
    out = rows.new_zeros(*lists.shape, rows.shape[1])
    if rows.is_cpu:
        parts = max(1, PARTS // max(1, blocks))
        starts = torch.searchsorted(lists.blocks, torch.arange(blocks + 1))
        cells = len(rows) * weights.shape[1] * rows.shape[1] // max(1, blocks * parts)
        arrays = _arrays(out, weights, rows, lists.places, starts)
        over_rows(_scatter, (blocks * parts, max(1, cells)), COST, *arrays, parts)
        return out
    none = (lists.places < 0) | (weights == 0)
    terms = (weights.unsqueeze(-1) * rows.unsqueeze(1)).masked_fill_(none.unsqueeze(-1), 0.0)
    return out.flatten(0, 1).index_add(0, lists.flat.flatten(), terms.flatten(0, 1)).view(out.shape)


def _arrays(*tensors: Tensor) -> list[Any]:
    return [x.detach().contiguous().numpy() for x in tensors]


_Operation = Callable[[Tensor, Tensor, Lists], Tensor]


class _Listed(torch.autograd.Function):
    """One of the operations, which is linear in both of its tensors."""

    @staticmethod
    def forward(ctx: Any, operation: _Operation, first: Tensor, second: Tensor, lists: Lists) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.operation, ctx.lists = operation, lists
        return operation(first, second, lists)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:3]
        grads = (
            derivative(first, second, slope, ctx.lists) if wanted else None
            for derivative, wanted in zip(_DERIVATIVES[ctx.operation], needed, strict=True)
        )
        return (None, *grads, None)


def products(rows: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
    """Return the products (R, C) of rows (R, E) with the matrix rows (B, S, E) that they list, without derivatives."""
    return _Listed.apply(listed_products, rows, matrix, lists)  # type: ignore[no-any-return, no-untyped-call]


def sums(weights: Tensor, matrix: Tensor, lists: Lists) -> Tensor:
    """Return the sums (R, E) of the listed matrix rows (B, S, E), times weights (R, C), without derivatives."""
    return _Listed.apply(listed_sums, weights, matrix, lists)  # type: ignore[no-any-return, no-untyped-call]


def _sums_at(weights: Tensor, rows: Tensor, lists: Lists) -> Tensor:
    """Return the sums (B, S, E), at each place, of the rows (R, E) that list it, times their weights (R, C)."""
    return _Listed.apply(sums_to_listed, weights, rows, lists)  # type: ignore[no-any-return, no-untyped-call]


#: Operation -> its derivatives by the first and the second tensor, times the slope of the result.
_DERIVATIVES: dict[_Operation, tuple[Callable[[Tensor, Tensor, Tensor, Lists], Tensor], ...]] = {
    listed_products: (lambda a, b, slope, lists: sums(slope, b, lists), lambda a, b, slope, lists: _sums_at(slope, a, lists)),
    listed_sums: (lambda a, b, slope, lists: products(slope, b, lists), lambda a, b, slope, lists: _sums_at(a, slope, lists)),
    sums_to_listed: (lambda a, b, slope, lists: products(b, slope, lists), lambda a, b, slope, lists: sums(a, slope, lists)),
}
