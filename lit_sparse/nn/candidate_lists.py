"""Lists of the keys that may have weight for each query: scores are computed for a block of queries at a time and forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lit_sparse.kernels.candidates import list_candidates_of

__all__ = ["Pairs", "list_candidates"]

#: Scores that are computed at a time.
BLOCK = 1 << 18
#: Share of the keys in the lists above which dense attention is faster.
DENSE = 0.125
#: Listed keys per query that are always few.
FEW = 64
#: Cost of a key of a query that attends to all keys, against that of a place in all lists.
LONG = 4


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
    heads = query.flatten(0, -3) if leading else query.unsqueeze(0)
    alphas = torch.as_tensor(alpha).detach().expand(*leading, 1, 1).flatten().tolist()
    shape = (*leading, length, size)
    wide = pairs._replace(
        mask=None if pairs.mask is None else pairs.mask.expand(*pairs.mask.shape[:-2], *shape[-2:]),
        bias=None if pairs.bias is None else pairs.bias.expand(*pairs.bias.shape[:-2], *shape[-2:]),
    )
    most = min(size, max(FEW, size // 4))
    counts = torch.zeros(len(heads), length, dtype=torch.int32, device=query.device)
    slot = torch.arange(most, dtype=torch.int32, device=query.device)
    listed: list[Tensor] = []
    total = cells = rows = 0
    for head, first, last in _blocks(len(heads), length, size, pairs.is_causal):
        scores, low = _scores(heads[head, first:last], keys[head * len(keys) // len(heads)], wide, head, first, leading)
        if scores.shape[1] == 0:
            continue
        lists = counts.new_empty(len(scores), min(most, scores.shape[1]))
        number = list_candidates_of(scores, alphas[head], gamma, lists)
        counts[head, first:last] = number
        kept = torch.where(number > most, 0, number).unsqueeze(1)
        slots = slot[: int(kept.max())]
        listed.append(lists[:, : len(slots)].masked_select(slots < kept) + low)
        total, cells, rows = total + int(number.sum()), cells + scores.numel(), rows + len(scores)
        if only_few and total > DENSE * cells + FEW * rows:
            return None
    return _padded(torch.cat(listed) if listed else counts.new_empty(0), counts.flatten(), most, size)


def _blocks(heads: int, length: int, size: int, is_causal: bool) -> Iterator[tuple[int, int, int]]:
    """Yield a head and a range of its queries, again and again, whose scores are at most a block if the rows are several."""
    for head in range(heads):
        first = 0
        while first < length:
            seen = min(size, first + int(BLOCK**0.5)) if is_causal else size
            last = min(length, first + max(16, BLOCK // max(1, seen)))
            yield head, first, last
            first = last


def _scores(query: Tensor, key: Tensor, pairs: Pairs, head: int, first: int, leading: torch.Size) -> tuple[Tensor, int]:
    """Return scores of a block of queries from the first to the last key that one of them sees, and the first key."""
    last = first + len(query)
    low, high = 0, min(last, len(key)) if pairs.is_causal else len(key)
    allowed = None if pairs.mask is None else _of_head(pairs.mask, head, leading)[first:last, :high]
    if allowed is not None:
        columns = allowed.any(0).nonzero()
        low, high = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 0)
    scores = query @ key[low:high].mT
    if pairs.softcap is not None:
        scores = scores.div_(pairs.softcap).tanh_().mul_(pairs.softcap)
    if pairs.bias is not None:
        scores = scores.add_(_of_head(pairs.bias, head, leading)[first:last, low:high])
    if allowed is not None and not bool((allowed := allowed[:, low:high]).all()):
        scores.masked_fill_(~allowed, -torch.inf)
    if pairs.is_causal and high > first:
        start = max(low, first)
        later = torch.arange(start, high, device=scores.device) > torch.arange(first, last, device=scores.device).unsqueeze(1)
        scores[:, start - low :].masked_fill_(later, -torch.inf)
    return scores, low


def _of_head(x: Tensor, head: int, leading: torch.Size) -> Tensor:
    """Return the last two dimensions of a head, where the leading dimensions may have size 1."""
    index = []
    for size, whole in zip(reversed(x.shape[:-2]), reversed(leading), strict=True):
        index.append(head % whole if size > 1 else 0)
        head //= whole
    return x[tuple(reversed(index))] if index else x


def _padded(listed: Tensor, counts: Tensor, most: int, size: int) -> tuple[Tensor, Tensor]:
    """Return lists (R, C) of the places that are listed one row after the other, and which rows have more than C.

    Args:
        listed: places of all rows with at most ``most``.
        counts: (R,) number of candidates of each row.
        most: largest C.
        size: number of keys.
    """
    number = len(counts)
    ordered = counts.clamp_max(most).sort().values.long()
    later = torch.where(ordered < most, torch.arange(number - 1, -1, -1, device=counts.device), (counts > most).sum())
    width = max(1, int(ordered[(ordered * number + later * (LONG * size)).argmin()])) if number else 1
    long = counts > width
    if bool((long & (counts <= most)).any()):
        listed = listed[~long[counts <= most].repeat_interleave(counts[counts <= most])]
    filled = torch.arange(width, device=counts.device) < torch.where(long, 0, counts).unsqueeze(1)
    places = counts.new_full((number, width), -1).masked_scatter_(filled, listed)
    return places, long
