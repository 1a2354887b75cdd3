"""Attention that computes with the support of its weights alone: time and memory beyond the scores grow with the support.

Each query keeps a list of candidates: the keys whose scores are above a bound of the threshold. The scores of the candidates
are computed again, mapped, and multiplied with their values, in operations whose derivatives of each order are such operations,
too. The few queries with too many candidates attend to all keys. On GPUs, where :mod:`lit_sparse.nn.block_attention` serves, it
computes without lists.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.kernels.sparse_products import Lists
from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.block_attention import attend_in_blocks, serves
from lit_sparse.nn.candidate_lists import Pairs, list_candidates, seem_many
from lit_sparse.nn.dense_attention import dense_attention, group_size, product_dtype
from lit_sparse.nn.listed_operations import products, sums
from lit_sparse.torch_internals import can_read_values, forward_mode_active

__all__ = [
    "Pairs",
    "attend_to_blocks",
    "attend_to_candidates",
    "dense_seems_faster",
    "find_candidates",
    "leading_of",
    "mapping_refusal",
    "prepared",
    "refusal",
    "serves",
    "sparse_attention",
]

ONE_ALPHA = "each head needs one alpha of at least 1, in a tensor of shape (..., heads, 1, 1)"


class _LongRows(NamedTuple):
    """Queries that attend to all keys.

    Attributes:
        rows: (..., n) their positions.
        output: (..., n, Ev), zero past their number.
        weights: (..., n, S), likewise.
    """

    rows: Tensor
    output: Tensor
    weights: Tensor


def refusal(query: Tensor, key: Tensor, mapping: SparseMapping) -> str | None:
    """Return the reason why :func:`sparse_attention` cannot compute something, or None."""
    if not can_read_values():
        return "a graph is traced, a transform of torch.func is active, or a mode records operations"
    if forward_mode_active():
        return "derivatives in forward mode are computed"
    if query.is_meta or query.is_nested:
        return "it needs the values of dense tensors"
    reason = mapping_refusal(query, key, mapping)
    alpha = mapping.entmax_alpha
    return ONE_ALPHA if reason is None and isinstance(alpha, Tensor) and not bool((alpha >= 1).all()) else reason


def mapping_refusal(query: Tensor, key: Tensor, mapping: SparseMapping) -> str | None:
    """Return the reason why :func:`sparse_attention` cannot compute with a mapping for any values of tensors, or None."""
    alpha = mapping.entmax_alpha
    if alpha is None or (not isinstance(alpha, Tensor) and alpha <= 1):
        return f"{mapping!r} is not sparsemax, top-k sparsemax, or entmax with alpha above 1"
    if isinstance(alpha, Tensor) and (alpha.shape[-2:].numel() > 1 or alpha.dim() > max(query.dim(), key.dim())):
        return ONE_ALPHA
    return None


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    pairs: Pairs,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    only_few: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """Attend by the candidates of each query, or in blocks.

    Args:
        query: (..., L, E).
        key: (..., S, E); in place of the last leading dimension H it may have a divisor of H.
        value: (..., S, Ev), with the key's leading dimensions.
        mapping: a mapping without a :func:`refusal`.
        pairs: masks, bias and cap of the scores.
        scale: factor of the scores; ``1 / sqrt(E)`` by default.
        dropout: probability with which a weight is set to zero.
        need_weights: whether to return the weights.
        only_few: whether to return None if the candidates are many.

    Returns:
        The output (..., L, Ev), and the weights (..., L, S) as a sparse tensor, after dropout, or None.
    """
    if not need_weights and serves(query, key, value, mapping, pairs, dropout):
        return attend_to_blocks(query, key, value, mapping, pairs, scale=scale), None
    if only_few and dense_seems_faster(query, key, mapping, pairs, scale):
        return None
    given = prepared(query, key, value, scale)
    candidates = find_candidates(given, mapping, pairs, only_few=only_few)
    return None if candidates is None else attend_to_candidates(given, mapping, pairs, candidates, dropout, need_weights)


def dense_seems_faster(query: Tensor, key: Tensor, mapping: SparseMapping, pairs: Pairs, scale: float | None) -> bool:
    """Return whether a few queries have so many candidates that dense attention is faster, see :func:`sparse_attention`."""
    alpha = mapping.entmax_alpha
    assert alpha is not None
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        alpha = alpha.detach() if isinstance(alpha, Tensor) else alpha
        return seem_many(query, key, alpha, mapping.gamma, pairs, scale)


class Prepared(NamedTuple):
    """Operands of attention with dimensions that fit, in the dtype of the computation.

    Attributes:
        exact: query (..., L, E), key and value, of whose leading dimensions the last may be a divisor.
        scaled: (..., L, E) the query with the factor of the scores.
        keys: (B, S, E), which the queries share evenly, in order.
        values: (B, S, Ev).
        scale: factor of the scores; None for ``1 / sqrt(E)``.
        low: dtype of the result.
    """

    exact: tuple[Tensor, Tensor, Tensor]
    scaled: Tensor
    keys: Tensor
    values: Tensor
    scale: float | None
    low: torch.dtype


def prepared(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Prepared:
    """Return the operands of :func:`find_candidates` and :func:`attend_to_candidates`, see :func:`sparse_attention`."""
    low = product_dtype(query, key)
    dtype = torch.promote_types(low, torch.float32) if query.dtype == low else torch.float32
    query, key, value = _fitted(query, key, value, dtype)
    with torch.autocast(query.device.type, enabled=False):
        scaled = query * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
        keys, values = (x.flatten(0, -3) if x.dim() > 2 else x.unsqueeze(0) for x in (key, value))
    return Prepared((query, key, value), scaled, keys, values, scale, low)


def find_candidates(given: Prepared, mapping: SparseMapping, pairs: Pairs, *, only_few: bool) -> tuple[Tensor, Tensor] | None:
    """Return the candidates of each query and which queries have too many, see :func:`list_candidates`.

    None if ``only_few`` and the candidates are many.
    """
    alpha = mapping.entmax_alpha
    assert alpha is not None
    with torch.no_grad(), torch.autocast(given.scaled.device.type, enabled=False):
        return list_candidates(given.scaled, given.keys, alpha, mapping.gamma, pairs, only_few)


def attend_to_blocks(
    query: Tensor, key: Tensor, value: Tensor, mapping: SparseMapping, pairs: Pairs, *, scale: float | None
) -> Tensor:
    """Attend as :func:`sparse_attention` does, in blocks; a function :func:`serves` says where."""
    return attend_in_blocks(*_fitted(query, key, value, product_dtype(query, key)), mapping, pairs, scale)


def attend_to_candidates(
    given: Prepared,
    mapping: SparseMapping,
    pairs: Pairs,
    candidates: tuple[Tensor, Tensor],
    dropout: float,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attend as :func:`sparse_attention` does, to given candidates."""
    places, long = candidates
    *leading, length, _ = given.scaled.shape
    size = given.keys.shape[1]
    with torch.autocast(given.scaled.device.type, enabled=False):
        rows = given.scaled.flatten(0, -2)
        share = max(1, len(rows) // max(1, len(given.keys)))
        lists = Lists(places, torch.arange(len(rows), device=rows.device) // share, (len(given.keys), size))
        scores = products(rows, given.keys, lists).view(*leading, length, places.shape[-1])
        if pairs.softcap is not None:
            scores = torch.tanh(scores / pairs.softcap) * pairs.softcap
        if pairs.bias is not None:
            scores = scores + _listed_bias(pairs.bias, places, (*leading, length, size)).to(scores.dtype)
        weights = F.dropout(mapping.map_block(scores, (places >= 0).view(scores.shape)), dropout)
        output = sums(weights.flatten(0, -2), given.values, lists).view(*leading, length, given.values.shape[-1])
        rest = None
        if bool(long.any()):
            rest = _attend_long(*given.exact, mapping, pairs, long.view(*leading, length), given.scale, dropout)
            output = output.scatter_add(-2, rest.rows.unsqueeze(-1).expand(rest.output.shape), rest.output)
        output = output.to(given.low)
    if not need_weights:
        return output, None
    return output, _sparse_weights(weights.to(given.low), places.view(weights.shape), rest, size)


def _fitted(query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors in a dtype, with all leading dimensions; keys and values have those that the queries share evenly."""
    leading = leading_of(query, key, value)
    shared = () if key.dim() == value.dim() == 2 else leading
    if group_size(query, key) > 1:
        shared = (*leading[:-1], key.shape[-3])
    query = query.expand(*leading, *query.shape[-2:])
    key, value = (x.expand(*shared, *x.shape[-2:]) for x in (key, value))
    return query.to(dtype), key.to(dtype), value.to(dtype)


def leading_of(query: Tensor, key: Tensor, value: Tensor) -> torch.Size:
    """Return the leading dimensions of the queries (..., L, E), where heads of queries may share those of keys."""
    if group_size(query, key) > 1:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])  # type: ignore[no-untyped-call]
        return torch.Size((*batch, query.shape[-3]))
    return torch.Size(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2]))  # type: ignore[no-untyped-call]


def _listed_bias(bias: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the bias (..., L, C) at the listed places (R, C), of scores of a shape (..., L, S)."""
    index: Tensor | int = 0
    for dim, size in enumerate(shape[:-1]):
        view = [1] * len(shape)
        view[dim] = size
        if bias.shape[dim] > 1:
            step = bias.shape[dim + 1 :].numel()
            index = index + torch.arange(size, device=places.device).view(view) * step
    if bias.shape[-1] > 1:
        index = index + places.clamp_min(0).long().view(*shape[:-1], places.shape[-1])
    whole = torch.as_tensor(index, device=places.device).expand(*shape[:-1], places.shape[-1])
    return bias.reshape(-1).index_select(0, whole.flatten()).view(whole.shape)


def _attend_long(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    pairs: Pairs,
    long: Tensor,
    scale: float | None,
    dropout: float,
) -> _LongRows:
    """Attend from the queries (..., L) that are long to all keys."""
    number = int(long.sum(-1).max())
    index = torch.sort(long, dim=-1, descending=True, stable=True).indices[..., :number]
    mask = long.gather(-1, index).unsqueeze(-1)
    if pairs.is_causal:
        mask = mask & (torch.arange(key.shape[-2], device=key.device) <= index.unsqueeze(-1))
    if pairs.mask is not None:
        mask = mask & _of_rows(pairs.mask, index)
    bias = None if pairs.bias is None else _of_rows(pairs.bias, index)
    chosen = query.gather(-2, index.unsqueeze(-1).expand(*index.shape, query.shape[-1]))
    output, weights = dense_attention(
        chosen, key, value, mapping, mask, bias, scale=scale, softcap=pairs.softcap, dropout=dropout
    )
    return _LongRows(index, output, weights)


def _of_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return some rows (..., n, S) of a tensor that broadcasts to the scores."""
    if x.shape[-2] == 1:
        return x
    return x.expand(*index.shape[:-1], *x.shape[-2:]).gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))


def _sparse_weights(weights: Tensor, places: Tensor, rest: _LongRows | None, size: int) -> Tensor:
    """Return the weights (..., L, S) of candidates (..., L, C), and of long rows, as a coalesced sparse tensor."""
    at = (weights != 0).nonzero(as_tuple=True)
    indices, values = torch.stack([*at[:-1], places[at].long()]), weights[at]
    if rest is not None:
        at = (rest.weights != 0).nonzero(as_tuple=True)
        indices = torch.cat([indices, torch.stack([*at[:-2], rest.rows[at[:-1]], at[-1]])], 1)
        values = torch.cat([values, rest.weights[at].to(values.dtype)])
    return torch.sparse_coo_tensor(indices, values, (*weights.shape[:-1], size), check_invariants=False).coalesce()
