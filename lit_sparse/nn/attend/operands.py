"""What attention computes with: queries, keys, values, and all that changes their scores; and its definition by all pairs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.tensors import is_dense, shown
from lit_sparse.ground.torch_internals import can_read_values
from lit_sparse.mappings import SparseMapping

__all__ = ["Operands", "Pairs", "any_along", "attend_to_all", "check_tensors"]


class Pairs(NamedTuple):
    """Mask, bias and soft cap of the scores of query-key pairs.

    Attributes:
        mask: boolean, with as many dimensions as the scores, each of their size or 1; True at allowed positions.
        bias: floating, of such a shape; added to the scores.
        softcap: bound of the scores before the bias is added.
        is_causal: whether a query sees no key after its own position.
    """

    mask: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    is_causal: bool = False

    def simplified(self, length: int, size: int) -> Pairs:
        """Return pairs with ``is_causal`` in place of a mask that is causal for ``length`` queries and ``size`` keys."""
        if self.mask is None or not _is_triangle(self.mask, length, size):
            return self
        return self._replace(mask=None, is_causal=True)

    def applied_to(self, scores: Tensor) -> Tensor:
        """Return scores after the soft cap and the bias, without the mask."""
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        return scores if self.bias is None else scores + self.bias.to(scores.dtype)


class Operands(NamedTuple):
    """Operands of attention: query, key, value, and all that changes the scores; :meth:`of` checks them.

    Attributes:
        query: (..., L, E).
        key: (..., S, E); its number of heads, the last leading dimension, may be a divisor of the query's.
        value: (..., S, Ev), with the key's leading dimensions.
        pairs: masks, bias and cap of the scores.
        scale: factor of the scores; None for ``1 / sqrt(E)``.
        dropout: probability with which a weight is set to zero.
        finite: whether queries without keys, and keys and values that no query sees, are known to be finite.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pairs: Pairs = Pairs()
    scale: float | None = None
    dropout: float = 0.0
    finite: bool = False

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, pairs: Pairs, scale: float | None, dropout: float) -> Operands:
        """Return operands after a check of shapes and dtypes, see :func:`lit_sparse.nn.attention`."""
        check_tensors(query, key, value)
        leading = _check_shapes(query, key, value)
        heads = math.prod(leading)
        if query.shape[:-2].numel() < heads and key.shape[:-2].numel() < heads:
            query = query.expand(*leading, *query.shape[-2:])  # the values alone have all heads: so do the weights
        block = (*leading, query.shape[-2], key.shape[-2])
        mask, bias = pairs.mask, pairs.bias
        if mask is not None:
            mask = _fitted(mask, "mask", block, query.device)
        if bias is not None:
            _check_floating("bias", bias, " A boolean tensor is the `mask`.")
            bias = _fitted(bias, "bias", block, query.device)
            mask = bias != -torch.inf if mask is None else mask & (bias != -torch.inf)
        return cls(query, key, value, pairs._replace(mask=mask, bias=bias), scale, dropout)

    def groups(self) -> int:
        """Return how many query heads share a key head; 1 where keys have one head or none."""
        heads, shared = [x.shape[-3] if x.dim() > 2 else 1 for x in (self.query, self.key)]
        return heads // shared if 1 < shared < heads else 1

    def leading(self) -> torch.Size:
        """Return the leading dimensions of the scores (..., L, S)."""
        shapes = [x.shape[:-2] for x in (self.query, self.key, self.value)]
        if self.groups() > 1:
            batch = torch.broadcast_shapes(*(shape[:-1] for shape in shapes))  # type: ignore[no-untyped-call]
            return torch.Size((*batch, self.query.shape[-3]))
        return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]

    def number_of_scores(self) -> int:
        """Return a lower bound on the number of scores, from the larger leading dimensions of queries and keys."""
        heads = max(self.query.shape[:-2].numel(), self.key.shape[:-2].numel())
        return heads * self.query.shape[-2] * self.key.shape[-2]

    def dtype(self) -> torch.dtype:
        """Return the dtype of the scores, also under autocast."""
        return (self.query.new_empty(0, 0) @ self.key.new_empty(0, 0)).dtype

    def factor(self) -> float:
        """Return the factor of the query-key products."""
        return 1.0 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    def allowed(self) -> Tensor | None:
        """Return the mask combined with the causal mask; None if everything is allowed."""
        mask, is_causal = self.pairs.mask, self.pairs.is_causal
        if not is_causal:
            return mask
        dims = max(self.query.dim(), self.key.dim()) - 2
        shape = (self.query.shape[-2], self.key.shape[-2])
        causal = torch.ones(shape, dtype=torch.bool, device=self.query.device).tril()[(None,) * dims]
        return causal if mask is None else mask & causal

    def fitted(self, dtype: torch.dtype) -> Operands:
        """Return the operands in another dtype, with all leading dimensions expanded.

        Keys and values keep their own number of heads.
        """
        leading = self.leading()
        shared = () if self.key.dim() == self.value.dim() == 2 else leading
        if self.groups() > 1:
            shared = torch.Size((*leading[:-1], self.key.shape[-3]))
        query = self.query.expand(*leading, *self.query.shape[-2:])
        key, value = (x.expand(*shared, *x.shape[-2:]) for x in (self.key, self.value))
        return self._replace(query=query.to(dtype), key=key.to(dtype), value=value.to(dtype))


def any_along(mask: Tensor, dim: int) -> Tensor:
    """Return ``mask.any(dim)``, computed outside of graphs as a maximum of bytes, which is many times faster."""
    if mask.shape[dim] and can_read_values():
        return mask.view(torch.uint8).amax(dim).bool()
    return mask.any(dim)


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
    weights = F.dropout(mapping.map_block(pairs.applied_to(scores), mask), dropout)
    output = weights @ value if groups == 1 else _apart(_together(weights, groups) @ value, groups)
    return output, weights


def _together(x: Tensor, groups: int) -> Tensor:
    """Turn (..., H, L, E) into (..., H / groups, groups * L, E): the queries that share keys are one longer sequence."""
    return x.unflatten(-3, (-1, groups)).flatten(-3, -2)  # type: ignore[no-any-return, no-untyped-call]


def _apart(x: Tensor, groups: int) -> Tensor:
    """Return what :func:`_together` joined with its original shape."""
    return x.unflatten(-2, (groups, -1)).flatten(-4, -3)  # type: ignore[no-any-return, no-untyped-call]


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise an error unless queries, keys and values are floating tensors of one dtype; autocast makes it one."""
    for name, given in (("query", query), ("key", key), ("value", value)):
        _check_floating(name, given)
    if not query.dtype == key.dtype == value.dtype:
        try:
            _ = query.new_empty(0, 0) @ key.new_empty(0, 0) @ value.new_empty(0, 0)
        except RuntimeError:
            raise ConfigurationError(
                f"Expected query, key and value of the same dtype but got {query.dtype}, {key.dtype}, {value.dtype}."
            ) from None


def _check_floating(name: str, given: object, advice: str = "") -> None:
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.layout != torch.strided or given.is_nested:
        got = str(given.dtype) if isinstance(given, Tensor) and is_dense(given) else shown(given)
        raise ConfigurationError(f"Expected `{name}` to be a floating tensor but got {got}.{advice}")


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> torch.Size:
    """Return the leading dimensions of the scores; check that heads of queries can share the keys."""
    shapes = f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2 or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ConfigurationError(f"Expected query (..., L, E), key (..., S, E) and value (..., S, Ev) but got shapes {shapes}.")
    if query.shape[-1] == 0:
        raise ConfigurationError(f"Expected queries and keys with at least one entry each but got shapes {shapes}.")
    heads, shared, values = (x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value))
    if shared > 1 and heads not in (1, shared) and (heads % shared or shared != values):
        raise ConfigurationError(
            f"Expected equally many key and value heads, whose number divides the number of query heads, but got"
            f" shapes {shapes}."
        )
    try:
        return Operands(query, key, value).leading()
    except RuntimeError:
        raise ConfigurationError(
            f"Expected query, key and value with leading dimensions that can be broadcast together but got shapes {shapes}."
        ) from None


def _fitted(given: Tensor, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a mask or bias with as many dimensions as ``shape``, to which it must be broadcastable."""
    if given.device.type != device.type != "meta" and given.dim():
        raise ConfigurationError(
            f"Expected a {name} on the device {device} of the query but got one on {given.device}. Move it."
        )
    if given.dim() > len(shape) or any(m not in (1, s) for m, s in zip(given.shape[::-1], shape[::-1], strict=False)):
        raise ConfigurationError(f"Expected a {name} that can be broadcast to {shape} but got shape {tuple(given.shape)}.")
    return given[(None,) * (len(shape) - given.dim())]


def _is_triangle(mask: Tensor, length: int, size: int) -> bool:
    """Return whether a mask is the causal one, for which no block above the diagonal is computed."""
    if mask.numel() != length * size or length != size or size < 2 or bool(mask[..., 0, 1].any()):
        return False
    return not bool((mask ^ torch.ones(size, size, dtype=torch.bool, device=mask.device).tril_()).view(torch.uint8).amax())
