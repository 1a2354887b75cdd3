"""Attention that computes with the support of its weights alone: time and memory beyond the scores grow with the support.

Scores are computed for a block of queries at a time and forgotten. Each query keeps a list of candidates: the keys
whose scores are above a bound of the threshold. The scores of the candidates are computed again, mapped, and multiplied with
their values, in operations whose derivatives of each order are such operations, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from lit_sparse.kernels.candidates import block_maxima, list_above
from lit_sparse.kernels.sparse_products import Lists, listed_products, listed_sums, sums_to_listed
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings import functional as mappings

__all__ = ["candidates", "lowest_threshold", "products", "sparse_attention"]

#: Scores that are computed at a time.
BLOCK = 1 << 20
#: Candidates per query, on average, above which dense attention is faster, as a fraction of the keys.
DENSE = 0.125


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
        return _sums(slope, matrix, ctx.lists), _scatter(slope, rows, ctx.lists), None


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
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, matrix = ctx.saved_tensors
        return products(slope, matrix, ctx.lists), _scatter(weights, slope, ctx.lists), None


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
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, rows = ctx.saved_tensors
        return products(rows, slope, ctx.lists), _sums(weights, slope, ctx.lists), None


#: Return the products (R, C) of rows (R, E) with the rows of a matrix (B, S, E) that they list; all derivatives exist.
products: Callable[[Tensor, Tensor, Lists], Tensor] = _Products.apply
_sums: Callable[[Tensor, Tensor, Lists], Tensor] = _Sums.apply
_scatter: Callable[[Tensor, Tensor, Lists], Tensor] = _Scatter.apply


def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, mapping: SparseMapping, mask: Tensor | None, bias: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Attend by the candidates of each query, if they are few.

    Args:
        query: (..., L, E), scaled.
        key: (..., S, E); in place of the last leading dimension H it may have a divisor of H.
        value: (..., S, Ev), with the key's leading dimensions.
        mapping: a mapping with an ``entmax_alpha``.
        mask: boolean, with as many dimensions as the scores, each of their size or 1; True at allowed positions.
        bias: floating, likewise; added to the scores.
        dropout: probability with which a weight is set to zero.

    Returns:
        The output (..., L, Ev), the places (..., L, C) of the candidates, -1 past their number, and their weights. None if
        the candidates are not few.
    """
    alpha = mapping.entmax_alpha
    assert alpha is not None
    leading, length = query.shape[:-2], query.shape[-2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    rows = query.to(dtype).reshape(-1, query.shape[-1])
    keys, values = (x.to(dtype).flatten(0, -3) if x.dim() > 2 else x.to(dtype).unsqueeze(0) for x in (key, value))
    with torch.no_grad():
        found = candidates(query.to(dtype), keys, alpha, mapping.gamma, mask, bias)
        if found is None:
            return None
        places = found[..., : max(1, int((found >= 0).sum(-1).max()) if found.numel() else 1)].contiguous()
    share = max(1, len(rows) // max(1, len(keys)))
    blocks = torch.arange(len(rows), device=rows.device) // share
    lists = Lists(places.flatten(0, -2), blocks, (keys.shape[0], keys.shape[1]))
    scores = products(rows, keys, lists).view(places.shape)
    if bias is not None:
        scores = scores + bias.expand(*leading, length, keys.shape[1]).gather(-1, places.clamp_min(0).long()).to(dtype)
    weights = F.dropout(mapping.map_block(scores, places >= 0), dropout)
    output = _sums(weights.flatten(0, -2), values, lists).view(*leading, length, -1)
    return output.to(query.dtype), places, weights.to(query.dtype)


def candidates(
    query: Tensor, keys: Tensor, alpha: float | Tensor, gamma: float, mask: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """Return the places (..., L, C) of each query's candidates in increasing order, then -1; None if there are too many.

    Args:
        query: (..., L, E) float32 or float64, scaled.
        keys: (B, S, E); the leading dimensions of the queries share them evenly, in order.
        alpha: number, or tensor that broadcasts to the scores with size 1 along queries and keys.
        gamma: strength of the mapping.
        mask: as in :func:`sparse_attention`.
        bias: as in :func:`sparse_attention`.
    """
    leading, length, size = query.shape[:-2], query.shape[-2], keys.shape[1]
    heads = query.reshape(-1, length, query.shape[-1])
    most = min(size, max(64, int(size * DENSE) * 2))
    places = torch.full((len(heads), length, most), -1, dtype=torch.int32, device=query.device)
    alphas = torch.as_tensor(alpha).detach().expand(*leading, 1, 1).flatten().tolist()
    shape = (*leading, length, size)
    masks, biases = (None if x is None else x.expand(*x.shape[:-2], *shape[-2:]) for x in (mask, bias))
    total = 0
    for head, first, last in _blocks(len(heads), length, size):
        block = keys[head // max(1, len(heads) // max(1, len(keys)))]
        allowed = None if masks is None else _of_head(masks, head, leading)[first:last]
        if allowed is not None:
            columns = allowed.any(0).nonzero()
            low, high = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 0)
        else:
            low, high = 0, size
        if high == low:
            continue
        scores = heads[head, first:last] @ block[low:high].mT
        if biases is not None:
            scores = scores + _of_head(biases, head, leading)[first:last, low:high]
        if allowed is not None and not bool(allowed[:, low:high].all()):
            scores.masked_fill_(~allowed[:, low:high], -torch.inf)
        maxima, invalid = block_maxima(scores)
        floor = lowest_threshold(maxima, alphas[head], gamma)
        lists = places[head, first:last]
        counts = list_above(scores, maxima, floor, invalid, lists)
        if low:
            lists += (lists >= 0).int() * low
        total += int(counts.sum())
        if int(counts.max()) > most or total > DENSE * size * (head * length + last):
            return None
    return places.view(*leading, length, most)


def _blocks(heads: int, length: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield a head and a range of its queries, again and again."""
    rows = max(16, BLOCK // max(1, size))
    for head in range(heads):
        for first in range(0, length, rows):
            yield head, first, min(length, first + rows)


def _of_head(x: Tensor, head: int, leading: torch.Size) -> Tensor:
    """Return the last two dimensions of a head, where the leading dimensions may have size 1."""
    index = []
    for size, whole in zip(reversed(x.shape[:-2]), reversed(leading), strict=True):
        index.append(head % whole if size > 1 else 0)
        head //= whole
    return x[tuple(reversed(index))] if index else x


def lowest_threshold(maxima: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return a bound (R,) below the threshold of each row that has the maxima among its entries."""
    weights = mappings.sparsemax(maxima, gamma=gamma) if alpha == 2 else mappings.entmax(maxima, alpha, gamma=gamma)
    top = maxima.amax(-1)
    depth = gamma * weights.amax(-1) ** (alpha - 1) / (alpha - 1)
    return top - depth - 16 * torch.finfo(top.dtype).eps * (top.abs() + gamma)
