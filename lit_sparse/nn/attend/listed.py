"""Attention that computes with the support of its weights alone: time and memory beyond the scores grow with the support.

Each query keeps a list of candidates: the keys whose scores are above a bound of the threshold. The scores of the candidates
are computed again, mapped, and multiplied with their values, in operations whose derivatives of each order are such operations,
too. The few queries with too many candidates attend to all keys.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.kernels.gpu import triton_lists
from lit_sparse.kernels.gpu.triton_rows import runs_on
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import Threshold
from lit_sparse.nn.attend.blocks import serves
from lit_sparse.nn.attend.candidates import list_candidates, list_on_gpu, seem_many
from lit_sparse.nn.attend.operands import Operands, Pairs, attend_to_all
from lit_sparse.nn.lists import Lists, products, sums

__all__ = ["Listed", "Way", "attend_to_listed", "sparse_ways"]

Way = Literal["dense", "listed", "blocks", "traced"]


class Listed(NamedTuple):
    """Result of attention by candidates: the output, the weights, and the candidates.

    Attributes:
        output: (..., L, Ev).
        weights: (..., L, S), a sparse tensor, after dropout; None if they are not needed.
        places: (R, C) int32, indices of each query's candidates in increasing order, followed by -1.
        long: (R,) boolean, which queries have too many candidates to list.
    """

    output: Tensor
    weights: Tensor | None
    places: Tensor
    long: Tensor


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


def sparse_ways(
    operands: Operands, threshold: Threshold, auto: bool, need_weights: bool = False
) -> tuple[Way, Way | None, bool]:
    """Return the way a sparse method computes, the way to use if candidates are many, and whether programs list them."""
    query, key, programs, blocks = operands.query, operands.key, False, False
    if runs_on(query.device):  # else a graph would hold what the dtype is read from
        programs = 0 not in (*query.shape, *key.shape) and triton_lists.serves(query.device, operands.dtype(), key.shape[-1])
        blocks = not need_weights and serves(operands, threshold)
    if blocks and not programs:
        return "blocks", None, False
    return "listed", "blocks" if blocks else "dense" if auto else None, programs


def attend_to_listed(
    operands: Operands,
    mapping: SparseMapping,
    threshold: Threshold,
    *,
    only_few: bool = False,
    need_weights: bool = False,
    candidates: tuple[Tensor, Tensor] | None = None,
    programs: bool = False,
) -> Listed | None:
    """Return the attention output, computed with each query's candidates instead of all keys.

    Args:
        operands: checked arguments of :func:`lit_sparse.nn.attention`.
        mapping: mapping from scores to weights.
        threshold: threshold of the mapping.
        only_few: whether to return None if the candidates are many.
        need_weights: whether to return the weights.
        candidates: ``places`` and ``long`` of :class:`Listed`, if they are known.
        programs: whether GPU programs list the candidates.
    """
    low, device = operands.dtype(), operands.query.device.type
    with torch.autocast(device, enabled=False):
        if only_few and candidates is None:
            with torch.no_grad():
                if seem_many(operands, threshold):
                    return None
        given = operands if device == "cpu" and not programs else operands.fitted(low)
        dtype = torch.promote_types(low, torch.float32) if given.query.dtype == low else torch.float32
        operands = given.fitted(dtype)
        scaled, pairs = operands.query * operands.factor(), operands.pairs
        *leading, length, _ = scaled.shape
        size = operands.key.shape[-2]
        keys, values = operands.key[None].flatten(0, -3), operands.value[None].flatten(0, -3)
        if candidates is None:
            with torch.no_grad():
                if programs:
                    candidates = list_on_gpu(given, threshold, only_few)
                else:
                    candidates = list_candidates(scaled, keys, threshold, pairs.simplified(length, size), only_few)
            if candidates is None:
                return None
        places, long = candidates
        rows = scaled.flatten(0, -2)
        share = max(1, len(rows) // max(1, len(keys)))
        lists = Lists(places, torch.arange(len(rows), device=rows.device) // share, (len(keys), size))
        scores = products(rows, keys, lists).view(*leading, length, places.shape[-1])
        bias = None if pairs.bias is None else _listed_bias(pairs.bias, places, (*leading, length, size))
        scores = pairs._replace(bias=bias).applied_to(scores)
        scores = scores.masked_fill((places < 0).view(scores.shape), -torch.inf)
        weights = F.dropout(mapping.map(scores, None, -1), operands.dropout)
        output = sums(weights.flatten(0, -2), values, lists).view(*leading, length, values.shape[-1])
        rest = None
        if bool(long.any()):
            rest = _attend_long(operands, mapping, long.view(*leading, length))
            output = output.scatter_add(-2, rest.rows.unsqueeze(-1).expand(rest.output.shape), rest.output)
    if not need_weights:
        return Listed(output.to(low), None, places, long)
    return Listed(output.to(low), _sparse_weights(weights.to(low), places.view(weights.shape), rest, size), places, long)


def _listed_bias(bias: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the bias (..., L, C) at the listed places (R, C), of scores of a shape (..., L, S)."""
    listed = (*shape[:-1], places.shape[-1])
    first = torch.arange(bias.shape[:-1].numel(), device=places.device).view(*bias.shape[:-1], 1) * bias.shape[-1]
    index = first.expand(listed)
    if bias.shape[-1] > 1:
        index = index + places.clamp_min(0).long().view(listed)
    return bias.reshape(-1).index_select(0, index.flatten()).view(listed)


def _attend_long(operands: Operands, mapping: SparseMapping, long: Tensor) -> _LongRows:
    """Attend from the queries (..., L) that are long to all keys."""
    query, key, _, pairs, *_ = operands
    number = int(long.sum(-1).max())
    index = torch.sort(long, dim=-1, descending=True, stable=True).indices[..., :number]
    mask = long.gather(-1, index).unsqueeze(-1)
    if pairs.is_causal:
        mask = mask & (torch.arange(key.shape[-2], device=key.device) <= index.unsqueeze(-1))
    if pairs.mask is not None:
        mask = mask & _of_rows(pairs.mask, index)
    bias = None if pairs.bias is None else _of_rows(pairs.bias, index)
    chosen = query.gather(-2, index.unsqueeze(-1).expand(*index.shape, query.shape[-1]))
    some = operands._replace(query=chosen, pairs=Pairs(mask, bias, pairs.softcap), finite=False)
    return _LongRows(index, *attend_to_all(some, mapping))


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
