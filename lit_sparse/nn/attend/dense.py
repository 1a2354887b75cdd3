"""Attention that computes the weights of all pairs of queries and keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.attend.operands import Operands, any_along

__all__ = ["attend_to_all"]


def attend_to_all(operands: Operands, mapping: SparseMapping) -> tuple[Tensor, Tensor]:
    """Return the attention output (..., L, Ev) and the weights (..., L, S), after dropout, computed for all pairs.

    Args:
        operands: checked arguments of :func:`lit_sparse.nn.attention`.
        mapping: mapping from scores to weights.
    """
    query, key, value, pairs, scale, dropout, finite = operands
    groups, mask, factor = operands.groups(), operands.allowed(), operands.factor()
    if groups > 1 and query.shape[-2] > 1:  # products of one shape per head round as they do with repeated heads
        key, value, groups = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3), 1
    if mask is not None and not finite:
        query = torch.where(any_along(mask, -1).unsqueeze(-1), query, 0.0)
        seen = any_along(mask, -2).unsqueeze(-1)
        if groups > 1 and seen.shape[-3] > 1:
            seen = seen.unflatten(-3, (-1, groups)).any(-3)  # type: ignore[no-untyped-call]
        key, value = torch.where(seen, key, 0.0), torch.where(seen, value, 0.0)  # 0 * NaN in a product would be NaN
    if groups > 1:
        query = _together(query, groups)
    # A given scale multiplies the products, as in the models that give it: results agree to the last bit.
    scores = query * factor @ key.mT if scale is None else query @ key.mT * scale
    if groups > 1:
        scores = _apart(scores, groups)
    if pairs.softcap is not None:
        scores = torch.tanh(scores / pairs.softcap) * pairs.softcap
    if pairs.bias is not None:
        scores = scores + pairs.bias.to(scores.dtype)
    weights = F.dropout(mapping.map_block(scores, mask), dropout)
    output = weights @ value if groups == 1 else _apart(_together(weights, groups) @ value, groups)
    return output, weights


def _together(x: Tensor, groups: int) -> Tensor:
    """Turn (..., H, L, E) into (..., H / groups, groups * L, E): the queries that share keys are one longer sequence."""
    return x.unflatten(-3, (-1, groups)).flatten(-3, -2)  # type: ignore[no-any-return, no-untyped-call]


def _apart(x: Tensor, groups: int) -> Tensor:
    """Return what :func:`_together` joined with its original shape."""
    return x.unflatten(-2, (groups, -1)).flatten(-4, -3)  # type: ignore[no-any-return, no-untyped-call]
