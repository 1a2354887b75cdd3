"""Lists of the keys that may have weight for each query: scores are computed for a block of queries at a time and forgotten."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lit_sparse.kernels.candidates import list_candidates_of
from lit_sparse.nn.dense_attention import any_along

__all__ = ["Pairs", "list_candidates"]

#: Scores that are computed at a time.
BLOCK = 1 << 20
#: Share of the keys in the lists above which dense attention is faster.
DENSE = 0.125
#: Listed keys per query that are always few.
FEW = 64
#: Cost of a key of a query that attends to all keys, against that of a place in all lists.
LONG = 4
#: Cost per query of attending from a few of them to all keys, likewise.
COPIES = 16


class Pairs(NamedTuple):
    """Masks, bias and cap of scores.

    Attributes:
        mask: boolean, with as many dimensions as the scores, each of their size or 1; True at allowed positions.
        bias: floating, likewise; added to the scores.
        softcap: bound of the scores before the bias is added.
        is_causal: whether a query sees no key after its own position.
    """

    mask: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    is_causal: bool = False

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return the mask of queries (..., L, E) and keys (..., S, E), with the causal one."""
        if not self.is_causal:
            return self.mask
        dims = max(query.dim(), key.dim()) - 2
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()[(None,) * dims]
        return causal if self.mask is None else self.mask & causal


def list_candidates(
    query: Tensor, keys: Tensor, alpha: float | Tensor, gamma: float, pairs: Pairs, only_few: bool
) -> tuple[Tensor, Tensor] | None:
    """Return the places (R, C) of the candidates of all queries, and which queries (R,) have too many to list.

    Places are in increasing order, then -1. C is chosen so that lists and long rows together cost the least.

    Args:
        query: (..., L, E) float32 or float64, scaled.
        keys: (B, S, E); the leading dimensions of the queries share them evenly, in order.
        alpha: number, or tensor that broadcasts to the scores with size 1 along queries and keys.
        gamma: strength of the mapping.
        pairs: masks, bias and cap.
        only_few: whether to return None as soon as the candidates are many.
    """
    leading, length, size = query.shape[:-2], query.shape[-2], keys.shape[1]
    if pairs.mask is not None and _is_triangle(pairs.mask, length, size):
        pairs = pairs._replace(mask=None, is_causal=True)
    heads = query.flatten(0, -3) if leading else query.unsqueeze(0)
    alphas = torch.as_tensor(alpha).detach().expand(*leading, 1, 1).flatten().tolist()
    shape = (*leading, length, size)
    wide = pairs._replace(
        mask=None if pairs.mask is None else pairs.mask.expand(*pairs.mask.shape[:-2], *shape[-2:]),
        bias=None if pairs.bias is None else pairs.bias.expand(*pairs.bias.shape[:-2], *shape[-2:]),
    )
    most = min(size, max(FEW, size // 4))
    counts = torch.zeros(len(heads), length, dtype=torch.int32, device=query.device)
    places = counts.new_full((len(heads), length, min(most, FEW)), -1)
    space = query.new_empty(0)
    total = cells = rows = 0
    alike = wide.mask is None and wide.bias is None and len(keys) == len(heads) and len(set(alphas)) == 1
    for head, others, first, last in _blocks(len(heads), length, size, pairs.is_causal, alike):
        low, high, allowed = _range(wide, head, first, last, leading, size)
        if low == high:
            continue
        part = (others - head, last - first, high - low)
        if space.numel() < math.prod(part):
            space = query.new_empty(math.prod(part))
        shared = head * len(keys) // len(heads)
        scores = space[: math.prod(part)].view(part)
        if len(scores) == 1:  # in several threads this is faster than a batch of one
            torch.mm(heads[head, first:last], keys[shared, low:high].mT, out=scores[0])
        else:
            torch.bmm(heads[head:others, first:last], keys[head:others, low:high].mT, out=scores)
        if pairs.softcap is not None:
            scores.div_(pairs.softcap).tanh_().mul_(pairs.softcap)
        if wide.bias is not None:
            scores += _of_head(wide.bias, head, leading)[first:last, low:high]
        if allowed is not None:
            scores.masked_fill_(~allowed, -torch.inf)
        options: dict[str, Any] = {"low": low, "ahead": first - low if pairs.is_causal else None}
        number = list_candidates_of(scores, alphas[head], gamma, places[head:others, first:last], **options)
        if places.shape[2] < most and int(number.max()) > places.shape[2]:
            width = _width(number.flatten(), most, size)
            if width > places.shape[2]:
                places = F.pad(places, (0, min(most, width + width // 4) - places.shape[2]), value=-1)
                list_candidates_of(scores, alphas[head], gamma, places[head:others, first:last], **options)
        counts[head:others, first:last] = number
        total, cells, rows = total + int(number.sum()), cells + scores.numel(), rows + number.numel()
        if only_few and total > DENSE * cells + FEW * rows:
            return None
    number = counts.flatten()
    width = min(_width(number, most, size), places.shape[2])
    long = number > width
    return places[..., :width].flatten(0, 1).masked_fill(long.unsqueeze(1), -1), long


def _blocks(heads: int, length: int, size: int, is_causal: bool, alike: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield a range of heads and one of their queries, again and again, whose scores are at most a block if they are several.

    Args:
        heads: number of heads.
        length: number of queries of each.
        size: number of keys.
        is_causal: whether a query sees no key after its own position.
        alike: whether a range may have several heads.
    """
    first = 0
    while first < length:
        rows = max(16, BLOCK // max(1, size))
        if is_causal:  # rows of few keys are as many as of many keys
            rows = min(max(rows, BLOCK // (first + rows)), max(16, length // 8))
        last = min(length, first + rows)
        step = max(1, BLOCK // max(1, (last - first) * (last if is_causal else size))) if alike else 1
        for head in range(0, heads, step):
            yield head, min(heads, head + step), first, last
        first = last


def _is_triangle(mask: Tensor, length: int, size: int) -> bool:
    """Return whether a mask is that of causal attention, for which no block above the diagonal is computed."""
    if mask.numel() != length * size or length != size or size < 2 or bool(mask[..., 0, 1].any()):
        return False
    return not bool((mask ^ torch.ones(size, size, dtype=torch.bool, device=mask.device).tril_()).view(torch.uint8).amax())


def _range(pairs: Pairs, head: int, first: int, last: int, leading: torch.Size, size: int) -> tuple[int, int, Tensor | None]:
    """Return the keys ``low .. high - 1`` that a block of queries may see, and which pairs of them are allowed if not all."""
    low, high = 0, min(last, size) if pairs.is_causal else size
    if pairs.mask is None:
        return low, high, None
    allowed = _of_head(pairs.mask, head, leading)[first:last, :high]
    columns = any_along(allowed, 0).nonzero()
    if not len(columns):
        return 0, 0, None
    low, high = int(columns[0]), int(columns[-1]) + 1
    allowed = allowed[:, low:high]
    return low, high, None if bool(allowed.view(torch.uint8).amin()) else allowed


def _of_head(x: Tensor, head: int, leading: torch.Size) -> Tensor:
    """Return the last two dimensions of a head, where the leading dimensions may have size 1."""
    index = []
    for size, whole in zip(reversed(x.shape[:-2]), reversed(leading), strict=True):
        index.append(head % whole if size > 1 else 0)
        head //= whole
    return x[tuple(reversed(index))] if index else x


def _width(counts: Tensor, most: int, size: int) -> int:
    """Return the length C of lists that costs the least, if longer rows attend to all keys.

    Args:
        counts: (R,) number of candidates of each row.
        most: largest C.
        size: number of keys.
    """
    number = len(counts)
    ordered = counts.clamp_max(most).sort().values.long()
    later = torch.where(ordered < most, torch.arange(number - 1, -1, -1, device=counts.device), (counts > most).sum())
    cost = ordered * number + later * (LONG * size) + (later > 0) * (COPIES * number)
    return max(1, int(ordered[cost.argmin()])) if number else 1
