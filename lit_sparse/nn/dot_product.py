"""The function of attention: scaled dot products, any mapping in place of softmax, grouped queries."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from lit_sparse.checks import check_choice, check_flag, check_mask, check_number, check_positive
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import check_mapping
from lit_sparse.mappings.masking import align_parameter
from lit_sparse.nn.block_attention import saves, serves
from lit_sparse.nn.dense_attention import dense_attention, number_of_scores
from lit_sparse.nn.sparse_attention import Pairs, leading_of, refusal, sparse_attention
from lit_sparse.nn.traced_attention import is_traceable, traced_attention
from lit_sparse.torch_internals import can_read_values

__all__ = ["Method", "attend_sparsely", "attention", "check_method", "check_operands", "warn_off_simplex"]

Method = Literal["auto", "sparse", "dense"]
#: Numbers of keys and of scores from which the sparse method is faster on CPUs; they were not measured on GPUs.
LEAST_KEYS, LEAST_SCORES = 512, 1 << 16


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool = False,
    need_weights: Literal[True] = True,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool = False,
    need_weights: bool,
    method: Method = "auto",
) -> tuple[Tensor, Tensor | None]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool = False,
    need_weights: bool = True,
    method: Method = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Attend to values by the similarity of queries and keys: ``mapping(scale * Q K^T + bias) V``.

    A query without allowed positions gets a zero output and zero gradients. Values at positions that are masked for all
    queries, including NaN, affect neither outputs nor gradients.

    Grouped queries: with H query heads (..., H, L, E) and a divisor of H as the number of key heads (..., H / g, S, E), each
    key head serves g query heads that follow each other.

    The sparse method computes with the candidates of each query's support instead of all pairs. Its memory grows with
    the support, and it is several times faster for long sequences. Its results are those of the dense method up to rounding. A
    value without weight does not affect the output, even if it is NaN, unless the query has too many candidates to list.
    Second derivatives exist, forward mode does not.

    Args:
        query: (..., L, E).
        key: (..., S, E).
        value: (..., S, Ev).
        mapping: mapping from scores to weights along S; its own ``dim`` is ignored.
        mask: boolean, broadcastable to (..., L, S); True at allowed positions.
        scale: factor of the scores; ``1 / sqrt(E)`` by default.
        dropout: probability with which a weight is set to zero, the others scaled up; 0 outside training.
        bias: floating, broadcastable to (..., L, S), added to the scores; -inf means not allowed.
        softcap: bound > 0 of the scaled scores x, which become ``softcap * tanh(x / softcap)`` before the bias is added.
        is_causal: whether the query at position i sees only the keys 0 .. i, in addition to the mask.
        need_weights: whether to return the weights.
        method: ``"dense"`` computes all weights. ``"sparse"`` computes the candidates, for sparsemax, top-k sparsemax and
            entmax with alpha above 1. ``"auto"`` is sparse where this is faster: on a CPU, without weights, for at least 512
            keys, if the candidates are few, and neither transforms, exports nor forward mode are involved. On a GPU with
            Triton, both compute sparsemax and entmax with one number alpha in 1.05 .. 2 in blocks, without a matrix of scores,
            unless there are weights to return, a bias, a soft cap, dropout, float64, or more than 128 entries of a key or
            value. ``"auto"`` is dense there otherwise, and for up to 2^27 scores in float32, where this is faster. Compiled
            graphs hold the sparse method as one operator, which returns no weights.

    Returns:
        The output (..., L, Ev), and the weights (..., L, S), after dropout. The weights are a sparse tensor with
        ``method="sparse"``, and None with ``need_weights=False``.

    Raises:
        ConfigurationError: if the shapes or dtypes do not fit, the mask is not boolean, the bias not floating, ``dropout`` not
            a probability, the scale not a number, the softcap not positive, ``mapping`` not a SparseMapping, or the sparse
            method is impossible.

    Warns:
        UserWarning: once for a mapping whose weights are not probabilities.

    Source: Vaswani et al. (2017), Attention Is All You Need, eq. (1).

    Example:
        >>> from lit_sparse.mappings import Sparsemax
        >>> query, key, value = torch.randn(3, 5, 8), torch.randn(3, 7, 8), torch.randn(3, 7, 4)
        >>> causal = torch.ones(5, 7, dtype=torch.bool).tril()
        >>> output, weights = attention(query, key, value, Sparsemax(), causal)
        >>> bool((weights[:, ~causal] == 0).all()), torch.equal(output, weights @ value)
        (True, True)
        >>> same, lists = attention(query, key, value, Sparsemax(), is_causal=True, method="sparse")
        >>> torch.allclose(same, output, atol=1e-6), lists.layout
        (True, torch.sparse_coo)
    """
    check_mapping(mapping)
    warn_off_simplex(mapping)
    check_method(method)
    for name, flag in (("is_causal", is_causal), ("need_weights", need_weights)):
        check_flag(name, flag)
    check_number("dropout", dropout, 0.0, 1.0)
    if scale is not None:
        check_number("scale", scale, -math.inf, math.inf, open_low=True, open_high=True)
    if softcap is not None:
        check_positive("softcap", softcap)
    check_operands(query, key, value)
    shapes = f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2 or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ConfigurationError(f"Expected query (..., L, E), key (..., S, E) and value (..., S, Ev) but got shapes {shapes}.")
    if query.shape[-1] == 0:
        raise ConfigurationError(f"Expected queries and keys with at least one entry each but got shapes {shapes}.")
    leading = _leading(query, key, value, shapes)
    if query.shape[:-2].numel() < math.prod(leading) and key.shape[:-2].numel() < math.prod(leading):
        query = query.expand(*leading, *query.shape[-2:])  # the values alone have all heads: so do the weights
    block = (*leading, query.shape[-2], key.shape[-2])
    if mask is not None:
        mask = _fitted(check_mask(mask, "a query may look"), "mask", block)
    if bias is not None:
        bias = _fitted(_check_bias(bias), "bias", block)
        mask = bias != -torch.inf if mask is None else mask & (bias != -torch.inf)
    options: dict[str, Any] = {"scale": scale, "dropout": dropout}
    pairs = Pairs(mask, bias, softcap, is_causal)
    attended = attend_sparsely(query, key, value, mapping, pairs, **options, need_weights=need_weights, method=method)
    if attended is not None:
        return attended
    output, weights = dense_attention(query, key, value, mapping, pairs.allowed(query, key), bias, softcap=softcap, **options)
    return output, weights if need_weights else None


def attend_sparsely(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    pairs: Pairs,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    need_weights: bool,
    method: Method,
) -> tuple[Tensor, Tensor | None] | None:
    """Attend as :func:`attention` does if its method is to be sparse; return None if it is to be dense.

    Raises:
        ConfigurationError: if ``method`` is ``"sparse"`` and this is impossible.
    """
    auto = method == "auto"
    dims = max(query.dim(), key.dim(), value.dim())
    pairs = pairs._replace(mask=_with_dims(pairs.mask, dims), bias=_with_dims(pairs.bias, dims))
    if method == "dense" or (auto and (need_weights or not _worthwhile(query, key))):
        return None
    if auto and not query.is_cpu and not (saves(query, key) and serves(query, key, value, mapping, pairs, dropout)):
        return None
    if isinstance(mapping.entmax_alpha, Tensor):
        align_parameter(mapping.entmax_alpha, (*leading_of(query, key, value), query.shape[-2], key.shape[-2]), -1)
    if not need_weights and is_traceable(query, key, value, mapping, pairs, dropout):
        output = traced_attention(query, key, value, mapping, pairs, scale=scale, dropout=dropout, only_few=auto)
        return output, None
    reason = refusal(query, key, mapping)
    if reason is not None:
        if auto:
            return None
        raise ConfigurationError(f"Expected method='sparse' to be possible but got a case where {reason}. Use method='auto'.")
    return sparse_attention(
        query, key, value, mapping, pairs, scale=scale, dropout=dropout, need_weights=need_weights, only_few=auto
    )


def check_method(method: str) -> None:
    """Refuse what is not a method of attention."""
    check_choice("method", method, get_args(Method))


def _worthwhile(query: Tensor, key: Tensor) -> bool:
    return key.numel() > 0 and key.shape[-2] >= LEAST_KEYS and number_of_scores(query, key) >= LEAST_SCORES


def _leading(query: Tensor, key: Tensor, value: Tensor, shapes: str) -> tuple[int, ...]:
    """Return the leading dimensions of the scores; check that heads of queries can share the keys."""
    heads = [x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value)]
    shared = heads[1] > 1 and heads[0] not in (1, heads[1])
    if shared and (heads[0] % heads[1] or heads[1] != heads[2]):
        raise ConfigurationError(
            f"Expected as many heads of keys as of values, and a number that divides that of the queries, but got shapes"
            f" {shapes}."
        )
    try:
        return tuple(leading_of(query, key, value))
    except RuntimeError:
        raise ConfigurationError(
            f"Expected query, key and value with leading dimensions that can be broadcast together but got shapes {shapes}."
        ) from None


def _check_bias(bias: object) -> Tensor:
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = str(bias.dtype) if isinstance(bias, Tensor) else full_name(bias)
        raise ConfigurationError(f"Expected `bias` to be a floating tensor but got {got}. A boolean tensor is the `mask`.")
    return bias


def check_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse queries, keys and values that are not floating tensors of one dtype; autocast makes it one."""
    given = {"query": query, "key": key, "value": value}
    for name, one in given.items():
        if not isinstance(one, Tensor) or not one.is_floating_point():
            got = str(one.dtype) if isinstance(one, Tensor) else full_name(one)
            raise ConfigurationError(f"Expected `{name}` to be a floating tensor but got {got}.")
    dtypes = [one.dtype for one in given.values()]
    if len(set(dtypes)) > 1:
        try:
            _ = query.new_empty(0, 0) @ key.new_empty(0, 0) @ value.new_empty(0, 0)
        except RuntimeError:
            raise ConfigurationError(
                f"Expected query, key and value of one dtype but got {', '.join(map(str, dtypes))}."
            ) from None


def warn_off_simplex(mapping: SparseMapping) -> None:
    """Warn, once for a mapping, if its weights are not probabilities."""
    if mapping.on_simplex or mapping.couples_queries or not can_read_values() or getattr(mapping, "_warned", False):
        return
    mapping._warned = True  # type: ignore[assignment]
    warnings.warn(
        f"{mapping!r} does not map onto the simplex: its attention weights do not sum to 1, and they may be negative. Use a"
        " mapping such as Sparsemax() unless this is intended.",
        stacklevel=3,
    )


def _with_dims(x: Tensor | None, dims: int) -> Tensor | None:
    """Return a mask or bias with as many dimensions as the output."""
    return x if x is None or x.dim() >= dims else x[(None,) * (dims - x.dim())]


def _fitted(given: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a mask or bias with as many dimensions as ``shape``, to which it must be broadcastable."""
    if given.dim() > len(shape) or any(m not in (1, s) for m, s in zip(given.shape[::-1], shape[::-1], strict=False)):
        raise ConfigurationError(f"Expected a {name} that can be broadcast to {shape} but got shape {tuple(given.shape)}.")
    return given[(None,) * (len(shape) - given.dim())]
