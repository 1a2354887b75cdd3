"""Lists of the keys that may have weight on a GPU: no scores are in memory."""

from __future__ import annotations

from torch import Tensor

from lit_sparse.kernels.gpu.triton_lists import Scores, bound_scores, list_marked, ranges_of, serves
from lit_sparse.kernels.gpu.triton_rows import runs_on
from lit_sparse.mappings.base import Threshold
from lit_sparse.nn.attend.candidates import FEW, are_many, best_width
from lit_sparse.nn.attend.operands import Operands

__all__ = ["has_programs", "list_on_gpu"]


def has_programs(operands: Operands) -> bool:
    """Return whether :func:`list_on_gpu` can list the candidates of these operands."""
    query, key = operands.query, operands.key
    if not runs_on(query.device) or 0 in (*query.shape, *key.shape):  # first: a graph would hold what the dtype is read from
        return False
    return serves(query.device, operands.dtype(), key.shape[-1])


def list_on_gpu(operands: Operands, threshold: Threshold, only_few: bool) -> tuple[Tensor, Tensor] | None:
    """Return each query's candidates, found on a GPU; see :func:`lit_sparse.nn.attend.candidates.list_candidates`.

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
