"""The function of attention: scaled dot products, any mapping in place of softmax, grouped queries."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.checks import check_mask, check_number, check_positive
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.mappings import SparseMapping

__all__ = ["attention", "check_mapping", "scores_of"]


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
) -> tuple[Tensor, Tensor]:
    """Attend to values by the similarity of queries and keys: ``mapping(scale * Q K^T + bias) V``.

    A query without allowed positions gets a zero output and zero gradients. Values at positions that are masked for all
    queries, including NaN, affect neither outputs nor gradients.

    Grouped queries: with H query heads (..., H, L, E) and a divisor of H as the number of key heads (..., H / g, S, E), each
    key head serves g query heads that follow each other.

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

    Returns:
        The output (..., L, Ev) and the weights (..., L, S), after dropout.

    Raises:
        ConfigurationError: if the shapes do not fit, the mask is not boolean, the bias not floating, ``dropout`` not a
            probability, the softcap not positive, or ``mapping`` not a SparseMapping.

    Source: Vaswani et al. (2017), Attention Is All You Need, eq. (1).

    Example:
        >>> from lit_sparse.mappings import Sparsemax
        >>> query, key, value = torch.randn(3, 5, 8), torch.randn(3, 7, 8), torch.randn(3, 7, 4)
        >>> causal = torch.ones(5, 7, dtype=torch.bool).tril()
        >>> output, weights = attention(query, key, value, Sparsemax(), causal)
        >>> bool((weights[:, ~causal] == 0).all()), torch.equal(output, weights @ value)
        (True, True)
    """
    check_mapping(mapping)
    check_number("dropout", dropout, 0.0, 1.0)
    if softcap is not None:
        check_positive("softcap", softcap)
    shapes = f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2 or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ConfigurationError(f"Expected query (..., L, E), key (..., S, E) and value (..., S, Ev) but got shapes {shapes}.")
    groups = _groups(query, key, value, shapes)
    if groups > 1 and query.shape[-2] > 1:  # products of one shape per head round as they do with repeated heads
        key, value, groups = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3), 1
    leading = query.shape[:-2] if groups > 1 else torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])  # type: ignore[no-untyped-call]
    block = (*leading, query.shape[-2], key.shape[-2])
    if mask is not None:
        mask = _fitted(check_mask(mask, "a query may look"), "mask", block)
    if bias is not None:
        bias = _fitted(_check_bias(bias), "bias", block)
        mask = bias != -torch.inf if mask is None else mask & (bias != -torch.inf)
    if mask is not None:
        query = torch.where(mask.any(-1, keepdim=True), query, 0.0)
        seen = mask.any(-2).unsqueeze(-1)
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


def _groups(query: Tensor, key: Tensor, value: Tensor, shapes: str) -> int:
    """Return the number of query heads per key head: 1 unless the heads differ and can be grouped."""
    heads = [x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value)]
    if heads[1] == 1 or heads[0] in (1, heads[1]):
        return 1
    if heads[0] % heads[1] or heads[1] != heads[2]:
        raise ConfigurationError(
            f"Expected as many heads of keys as of values, and a number that divides that of the queries, but got shapes"
            f" {shapes}."
        )
    return heads[0] // heads[1]


def _together(x: Tensor, groups: int) -> Tensor:
    """Turn (..., H, L, E) into (..., H / groups, groups * L, E): the queries that share keys are one longer sequence."""
    return x if groups == 1 else x.unflatten(-3, (-1, groups)).flatten(-3, -2)  # type: ignore[no-untyped-call]


def _apart(x: Tensor, groups: int) -> Tensor:
    """Undo :func:`_together`."""
    return x if groups == 1 else x.unflatten(-2, (groups, -1)).flatten(-4, -3)  # type: ignore[no-untyped-call]


def _check_bias(bias: object) -> Tensor:
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = str(bias.dtype) if isinstance(bias, Tensor) else full_name(bias)
        raise ConfigurationError(f"Expected `bias` to be a floating tensor but got {got}. A boolean tensor is the `mask`.")
    return bias


def scores_of(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Return (..., L, S), by default scaled so that their variance does not grow with the width.

    A given scale multiplies the products, not the queries, as the models do that give it: results agree to the last bit.
    """
    return query * (1.0 / math.sqrt(query.shape[-1])) @ key.mT if scale is None else query @ key.mT * scale


def check_mapping(mapping: object) -> None:
    """Refuse what is not a mapping."""
    if not isinstance(mapping, SparseMapping):
        got = f"the class {mapping.__name__}" if isinstance(mapping, type) else f"{full_name(mapping)}"
        raise ConfigurationError(
            f"Expected `mapping` to be a SparseMapping, such as `lit_sparse.mappings.Sparsemax()`, but got {got}."
        )


def _fitted(given: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a mask or bias with as many dimensions as ``shape``, to which it must be broadcastable."""
    if given.dim() > len(shape) or any(m not in (1, s) for m, s in zip(given.shape[::-1], shape[::-1], strict=False)):
        raise ConfigurationError(f"Expected a {name} that can be broadcast to {shape} but got shape {tuple(given.shape)}.")
    return given[(None,) * (len(shape) - given.dim())]
