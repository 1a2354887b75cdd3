"""Attention that computes the weights of all pairs of queries and keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.mappings import SparseMapping
from lit_sparse.torch_internals import can_read_values

__all__ = ["any_along", "dense_attention", "group_size", "number_of_scores", "product_dtype", "scores_of"]


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    mask: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend to all pairs, see :func:`lit_sparse.nn.attention`.

    Args:
        query: (..., H, L, E).
        key: (..., H / g, S, E), or with leading dimensions that broadcast with those of the queries.
        value: likewise (..., S, Ev).
        mapping: mapping from scores to weights.
        mask: boolean, with as many dimensions as the scores, each of their size or 1.
        bias: floating, likewise.
        scale: factor of the scores; ``1 / sqrt(E)`` by default.
        softcap: bound of the scores.
        dropout: probability with which a weight is set to zero.

    Returns:
        The output (..., L, Ev) and the weights (..., L, S), after dropout.
    """
    groups = group_size(query, key)
    if groups > 1 and query.shape[-2] > 1:  # products of one shape per head round as they do with repeated heads
        key, value, groups = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3), 1
    if mask is not None:
        query = torch.where(any_along(mask, -1).unsqueeze(-1), query, 0.0)
        seen = any_along(mask, -2).unsqueeze(-1)
        if groups > 1 and seen.shape[-3] > 1:
            seen = seen.unflatten(-3, (-1, groups)).any(-3)  # type: ignore[no-untyped-call]
        key, value = torch.where(seen, key, 0.0), torch.where(seen, value, 0.0)  # 0 * NaN in a product would be NaN
    scores = _apart(scores_of(_together(query, groups), key, scale), groups)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights = F.dropout(mapping.map_block(scores, mask), dropout)
    return _apart(_together(weights, groups) @ value, groups), weights


def any_along(mask: Tensor, dim: int) -> Tensor:
    """Return ``mask.any(dim)``, outside of graphs by a maximum of bytes, which is many times faster."""
    if mask.shape[dim] and can_read_values():
        return mask.view(torch.uint8).amax(dim).bool()
    return mask.any(dim)


def group_size(query: Tensor, key: Tensor) -> int:
    """Return how many heads of queries (..., H, L, E) share a head of keys; 1 where the keys have one head or none."""
    heads, shared = (x.shape[-3] if x.dim() > 2 else 1 for x in (query, key))
    return heads // shared if 1 < shared < heads else 1


def number_of_scores(query: Tensor, key: Tensor) -> int:
    """Return how many scores queries (..., L, E) and keys (..., S, E) have at least, by the larger of their leading parts."""
    heads = max(query.shape[:-2].numel(), key.shape[:-2].numel())
    return heads * query.shape[-2] * key.shape[-2]


def product_dtype(query: Tensor, key: Tensor) -> torch.dtype:
    """Return the dtype of products of queries and keys, under autocast too."""
    return (query.new_empty(0, 0) @ key.new_empty(0, 0)).dtype


def scores_of(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Return (..., L, S), by default scaled so that their variance does not grow with the width.

    A given scale multiplies the products, not the queries, as the models do that give it: results agree to the last bit.
    """
    return query * (1.0 / math.sqrt(query.shape[-1])) @ key.mT if scale is None else query @ key.mT * scale


def _together(x: Tensor, groups: int) -> Tensor:
    """Turn (..., H, L, E) into (..., H / groups, groups * L, E): the queries that share keys are one longer sequence."""
    return x if groups == 1 else x.unflatten(-3, (-1, groups)).flatten(-3, -2)  # type: ignore[no-untyped-call]


def _apart(x: Tensor, groups: int) -> Tensor:
    """Undo :func:`_together`."""
    return x if groups == 1 else x.unflatten(-2, (groups, -1)).flatten(-4, -3)  # type: ignore[no-untyped-call]
