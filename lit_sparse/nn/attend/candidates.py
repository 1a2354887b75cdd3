"""Lists of the keys that may have weight for each query: scores are computed for a block of queries at a time and discarded.

On a GPU with Triton, no scores are in memory at all.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.threads import over_blocks
from lit_sparse.kernels.gpu.triton_lists import Scores, bound_scores, list_marked, ranges_of
from lit_sparse.mappings.base import Threshold
from lit_sparse.nn.attend.candidates_kernel import list_candidates_of, list_rows
from lit_sparse.nn.attend.operands import Operands, Pairs, any_along

__all__ = ["list_candidates", "list_on_gpu", "seem_many"]

#: Scores that a thread computes at a time: the caches hold about as many.
BLOCK = 1 << 19
#: Number of queries for which more are computed, up to ``MOST``, because products of few rows are slow.
ROWS, MOST = 64, 1 << 21
#: Candidates of a query above which dense attention is faster: a share of the keys, less a number. With fewer keys the fixed
#: work of a query counts for more. Measured by ``scripts/benchmark_attention.py sparse``, method ``auto``.
DENSE, LESS = 0.25, 85
#: Number of queries that show first whether the candidates are many.
PROBE = 32
#: Candidates of a causal query that sees some of the keys, against a query that sees all, on average.
EARLIER = 0.75
#: Candidates that the first lists hold.
FEW = 64
#: Cost of a key of a query that attends to all keys, against a place in all lists.
LONG = 4
#: Cost per query of attending from a few queries to all keys, in the same unit.
COPIES = 16


def seem_many(operands: Operands, threshold: Threshold) -> bool:
    """Return whether a sample of queries has so many candidate keys that dense attention is faster.

    The sample is the last queries of the last head, which see the most keys.

    It uses queries and keys before they are expanded and converted, which would take longer than this check. Gradients and
    autocast must be off.
    """
    query, key, _, pairs, *_ = operands
    rows, keys = (x[(-1,) * (x.dim() - 2)] for x in (query, key))
    rows = rows[-PROBE:]
    dtype = torch.promote_types(rows.dtype, torch.float32)
    scores = (rows.to(dtype) * operands.factor()) @ keys.to(dtype).mT
    mask, bias = (None if x is None else x[(-1,) * (x.dim() - 2)][-PROBE:] for x in (pairs.mask, pairs.bias))
    scores = pairs._replace(bias=bias).applied_to(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    alpha = threshold.alpha
    last = float(alpha.flatten()[-1]) if isinstance(alpha, Tensor) else alpha
    lists = torch.empty(len(rows), 0, dtype=torch.int32, device=query.device)
    ahead = query.shape[-2] - len(rows) if pairs.is_causal else None
    counts = list_candidates_of(scores, last, threshold.gamma, lists, ahead=ahead)
    candidates, length, size = float(counts.sum()), query.shape[-2], len(keys)
    if are_many(candidates, len(rows), size) and pairs.simplified(length, size).is_causal:
        candidates *= 1 - (1 - EARLIER) * max(0, min(length, size) - len(rows)) / length
    return are_many(candidates, len(rows), size)


def list_candidates(
    query: Tensor, keys: Tensor, threshold: Threshold, pairs: Pairs, only_few: bool
) -> tuple[Tensor, Tensor] | None:
    """Return lists (R, C) of each query's candidates, the keys that may have weight, and which queries (R,) have too many.

    Keys are in increasing order, followed by -1. C is chosen so that lists and queries with too many candidates together
    cost the least.

    Args:
        query: (..., L, E) float32 or float64, scaled.
        keys: (B, S, E); the leading dimensions of the queries share them evenly, in order.
        threshold: threshold of the mapping; a tensor alpha broadcasts to the scores with size 1 along queries and keys.
        pairs: masks, bias and soft cap of the scores.
        only_few: whether to return None as soon as the candidates are many.
    """
    search = _Search(query, keys, threshold, pairs, only_few)
    if query.is_cpu:
        over_blocks(search.run, len(search.blocks))
    else:
        for number in range(len(search.blocks)):
            search.run(number)
    return search.result()


def list_on_gpu(operands: Operands, threshold: Threshold, only_few: bool) -> tuple[Tensor, Tensor] | None:
    """Return each query's candidates, found on a GPU; see :func:`list_candidates`. No scores are in memory.

    Args:
        operands: operands in the dtype of the scores, with all leading dimensions.
        threshold: threshold of the mapping.
        only_few: whether to return None if the candidates are many.
    """
    query, key, _, pairs, *_ = operands
    factor, leading, (length, size) = operands.factor(), query.shape[:-2], (query.shape[-2], key.shape[-2])
    query, key = (x.detach().reshape(-1, *x.shape[-2:]).contiguous() for x in (query, key))
    if factor <= 0:
        query, factor = (-query, -factor) if factor else (query * 0, 1.0)
    pairs = pairs.simplified(length, size)
    ranges, mask, bias = None, pairs.mask, None if pairs.bias is None else pairs.bias.detach().expand(*leading, length, size)
    if mask is not None:
        ranges, whole = ranges_of(mask.expand(*mask.shape[:-1], size), length, pairs.is_causal)
        ranges, mask = ranges.expand(*leading, length, 2), None if whole else mask.expand(*leading, length, size)
    scores = Scores(query, key, mask, bias, pairs.softcap or 0.0, factor, pairs.is_causal and ranges is None, ranges)
    alpha = threshold.alpha
    alphas = alpha.detach().expand(*leading, 1, 1).flatten() if isinstance(alpha, Tensor) else alpha
    bounds = bound_scores(scores, alphas, threshold.gamma)
    places, counts = list_marked(scores, bounds, min(size, FEW))
    if only_few and are_many(float(counts.sum()), len(counts), size):
        return None
    width = best_width(counts, min(size, max(FEW, size // 4)), size)
    if width > places.shape[1]:
        places, counts = list_marked(scores, bounds, width)
    long = counts > width
    return places[:, :width].masked_fill(long.unsqueeze(1), -1), long


class _Search:
    """The search of one call of :func:`list_candidates`, block by block. The order of the blocks does not change the result."""

    def __init__(self, query: Tensor, keys: Tensor, threshold: Threshold, pairs: Pairs, only_few: bool) -> None:
        self.leading, self.length, self.size = query.shape[:-2], query.shape[-2], keys.shape[1]
        self.heads = query.detach().flatten(0, -3) if self.leading else query.detach().unsqueeze(0)
        self.keys = keys.detach().mT
        self.head_of, self.keys_of = self.heads.unbind(), self.keys.unbind()
        self.group = len(self.heads) // max(1, len(self.keys))  # heads that share keys
        self.alphas = torch.as_tensor(threshold.alpha).detach().expand(*self.leading, 1, 1).flatten().tolist()
        self.gamma, self.only_few = threshold.gamma, only_few
        shape = (*self.leading, self.length, self.size)
        self.pairs = pairs._replace(
            mask=None if pairs.mask is None else pairs.mask.expand(*pairs.mask.shape[:-2], *shape[-2:]),
            bias=None if pairs.bias is None else pairs.bias.detach().expand(*pairs.bias.shape[:-2], *shape[-2:]),
        )
        plain = self.pairs.mask is None and self.pairs.bias is None
        alike = plain and len(keys) == len(self.heads) and len(set(self.alphas)) == 1
        self.blocks = list(_blocks(len(self.heads), self.length, self.size, pairs.is_causal, alike))
        self.most = min(self.size, max(FEW, self.size // 4))
        self.counts = query.new_zeros(len(self.heads), self.length, dtype=torch.int32)
        #: The same for the blocks, on a CPU as an array: indexing it costs a fraction of indexing a tensor.
        self.block_counts: Any = self.counts.numpy() if query.is_cpu else self.counts
        #: Lists of each block that sees any keys.
        self.lists: list[Tensor | None] = [None] * len(self.blocks)
        self.needed = self.short = min(self.most, FEW)  # length of the longest lists so far, and of the shortest ones
        self.spaces: list[_Space] = []  # for the scores of a block, one for each thread
        #: Numbers of candidates and of queries of each block that is done.
        self.done: list[tuple[int, int] | None] = [None] * len(self.blocks)
        self.first = 0  # number of the first block that is not done
        self.totals = [0, 0]  # of the blocks before it, which decide whether the candidates are many
        self.many = False
        self.counting = threading.Lock()

    def run(self, number: int) -> None:
        """List the candidates of a block, unless other blocks have many."""
        if self.many:
            return
        self.done[number] = self._list(number)  # in any mode: nothing here has a gradient
        with self.counting:
            while self.first < len(self.done) and (block := self.done[self.first]) is not None:
                total, queries = self.totals = [a + b for a, b in zip(self.totals, block, strict=True)]
                self.many |= self.only_few and are_many(total, queries, self.size)
                self.first += 1

    def _list(self, number: int) -> tuple[int, int]:
        """Write the lists of a block; return the numbers of candidates and of queries."""
        head, others, first, last = self.blocks[number]
        low, high, allowed = _range(self.pairs, head, first, last, self.leading, self.size)
        if low == high:
            return 0, 0
        try:
            space = self.spaces.pop()
        except IndexError:
            space = _Space(self.heads)
        scores = space.of_shape((others - head, last - first, high - low))
        if len(scores) == 1:  # in several threads this is faster than a batch of one
            keys = self.keys_of[head // self.group]
            keys = keys if high - low == self.size else keys[:, low:high]
            torch.mm(self.head_of[head][first:last], keys, out=space.first)
        else:
            torch.bmm(self.heads[head:others, first:last], self.keys[head:others, :, low:high], out=scores)
        if self.pairs.softcap is not None:
            scores.div_(self.pairs.softcap).tanh_().mul_(self.pairs.softcap)
        if self.pairs.bias is not None:
            scores += _of_head(self.pairs.bias, head, self.leading)[first:last, low:high]
        if allowed is not None:
            scores.masked_fill_(~allowed, -torch.inf)
        counts = self._list_scores(number, space, low)
        self.spaces.append(space)
        return int(counts.sum()), (others - head) * (last - first)

    def _list_scores(self, number: int, space: _Space, low: int) -> Any:
        """Write the lists of a block of scores, as long as its rows need; return the number of candidates of each row."""
        lists, counts = self._write(number, space, low, self.needed)
        width = self.short
        if width < self.most and int(counts.max()) > width:
            wanted = best_width(torch.as_tensor(counts).flatten(), self.most, self.size)
            width = width if wanted <= width else min(self.most, wanted + wanted // 4)
        if width > lists.shape[-1]:
            lists, _ = self._write(number, space, low, width)
        self.needed = max(self.needed, width)
        kept = torch.as_tensor(lists)[..., :width]
        self.lists[number] = kept if kept.is_contiguous() else kept.clone()  # not the memory of longer ones
        return counts

    def _write(self, number: int, space: _Space, low: int, width: int) -> tuple[Any, Any]:
        """Return lists of a given length, and the number of candidates of each row."""
        head, others, first, last = self.blocks[number]
        shape = (others - head, last - first, width)
        lists: Any = np.empty(shape, np.int32) if self.counts.is_cpu else self.counts.new_empty(shape)
        alpha, ahead = self.alphas[head], first - low if self.pairs.is_causal else None
        if space.rows is None:
            counts: Any = list_candidates_of(space.scores, alpha, self.gamma, lists, low=low, ahead=ahead)
        else:
            counts = np.empty(shape[:-1], np.int32)
            list_rows(space.rows, alpha, self.gamma, lists, counts, space.rows[:, :0], low=low, ahead=ahead)
        self.block_counts[head:others, first:last] = counts
        return lists, counts

    def result(self) -> tuple[Tensor, Tensor] | None:
        """Return the result of :func:`list_candidates`."""
        if self.many:
            return None
        width = min(best_width(self.counts.flatten(), self.most, self.size), self.needed)
        places = self.counts.new_full((*self.counts.shape, width), -1)
        lengths = torch.zeros_like(self.counts)  # of the list of each row, of which the candidates may be more
        for (head, others, first, last), lists in zip(self.blocks, self.lists, strict=True):
            if lists is not None:
                length = min(width, lists.shape[-1])
                places[head:others, first:last, :length] = lists[..., :length]
                lengths[head:others, first:last] = length
        long = (self.counts > lengths).flatten()
        return places.flatten(0, 1).masked_fill_(long.unsqueeze(1), -1), long


class _Space:
    """Memory for the scores of one block after another.

    Attributes:
        scores: (heads, queries, keys) of the block.
        first: (queries, keys) of its first head.
        rows: (heads * queries, keys), an array; None outside the CPU.
    """

    def __init__(self, like: Tensor) -> None:
        self.memory = self.scores = like.new_empty(0, 0, 0)

    def of_shape(self, shape: tuple[int, int, int]) -> Tensor:
        """Return the scores of a block with this shape; they are not initialized."""
        if self.scores.shape != shape:
            number = math.prod(shape)
            if self.memory.numel() < number:
                with torch.inference_mode(False):  # threads share it, and the mode belongs to one of them
                    self.memory = self.memory.new_empty(number)
            self.scores = self.memory.flatten()[:number].view(shape)
            self.first = self.scores[0]
            self.rows = self.scores.flatten(0, 1).numpy() if self.scores.is_cpu else None
        return self.scores


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
        rows = max(16, min(ROWS, MOST // max(1, size)), BLOCK // max(1, size))
        if is_causal:  # rows of few keys are as many as of many keys
            rows = min(max(rows, BLOCK // (first + rows)), max(16, length // 8))
        last = min(length, first + rows)
        step = max(1, BLOCK // max(1, (last - first) * (last if is_causal else size))) if alike else 1
        for head in range(0, heads, step):
            yield head, min(heads, head + step), first, last
        first = last


def are_many(candidates: float, queries: int, size: int) -> bool:
    """Return whether dense attention is faster, given the total number of candidates of some queries of ``size`` keys each."""
    return candidates > (DENSE * size - LESS) * queries


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


def best_width(counts: Tensor, most: int, size: int) -> int:
    """Return the length C of lists that costs the least, if rows with more candidates attend to all keys.

    Args:
        counts: (R,) number of candidates of each row.
        most: largest C.
        size: number of keys.
    """
    number = len(counts)
    if not number:
        return 1
    later = number - torch.bincount(counts.clamp_max(most), minlength=most + 1).cumsum(0)  # rows longer than each C
    later[most] = (counts > most).sum()
    cost = torch.arange(most + 1, device=counts.device) * number + later * (LONG * size) + (later > 0) * (COPIES * number)
    least = int(counts.min().clamp_max(most))  # not all rows are long
    return max(1, least + int(cost[least:].argmin()))
