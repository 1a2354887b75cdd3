"""The support of a mapping of linear scores, found without the matrix of all scores.

Scores are computed for a range of classes at a time and discarded. Each row keeps a list of candidates, the classes whose
scores are above a bound of the threshold, which rises with each range. The mapping of the candidates then gives the support.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.gpu.triton_lists import Scores, bound_scores, list_marked, multiplies
from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.attend.candidates_kernel import list_candidates_of
from lit_sparse.nn.lists import Lists, listed_products
from lit_sparse.nn.output_layer.scores import ROWS, rows_at_a_time, score_ranges

__all__ = ["find_support", "list_support"]

#: Candidates per row that are listed: this share of the classes, and at least so many.
SHARE, LEAST = 1 / 32, 256
#: Candidates per row and range of classes that are listed.
MOST_NEW = 512
#: Share of rows with more candidates, from which on no row is listed: the scores are flat.
FLAT = 0.5


def find_support(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mapping: SparseMapping,
    alpha: float,
    narrow: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the support of a mapping of linear scores ``W h + b`` for rows with few candidates, without a gradient.

    Args:
        hidden: (N, F) float32 or float64.
        weight: (V, F) of the same type.
        bias: (V,), or None.
        mapping: mapping whose threshold has this alpha.
        alpha: number above 1.
        narrow: ``hidden`` and ``weight`` before their conversion, with which GPU programs choose candidates.

    Returns:
        Classes (N, C) int32 of the support in increasing order, followed by -1; their weights (N, C), followed by 0; and a
        mask (N,), True where the support is listed. An invalid row has a NaN weight at its first NaN or +inf.
    """
    if hidden.numel() and multiplies(hidden.device, hidden.dtype):
        given = narrow if narrow is not None and narrow[0].dtype == narrow[1].dtype else (hidden, weight)
        return _support_by_programs(hidden, weight, bias, mapping, alpha, given)
    parts = [_support_of(rows, weight, bias, mapping, alpha) for rows in torch.split(hidden, ROWS)]
    width = max(part[0].shape[1] for part in parts)
    places, weights = (
        torch.cat([torch.nn.functional.pad(part[i], (0, width - part[i].shape[1]), value=empty) for part in parts])
        for i, empty in ((0, -1), (1, 0))
    )
    return places, weights, torch.cat([part[2] for part in parts])


@on_values
def list_support(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, mapping: SparseMapping, alpha: float | None
) -> tuple[Tensor, Tensor]:
    """Return classes and weights of the support of linear scores for all rows, however large it is; see :func:`find_support`.

    Args:
        hidden: (N, F).
        weight: (V, F).
        bias: (V,), or None.
        mapping: any mapping along rows onto the simplex.
        alpha: the alpha of an entmax mapping; None for any other mapping.
    """
    listed = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    lists = []
    if alpha is not None and len(hidden):
        places, weights, listed = find_support(hidden, weight, bias, mapping, alpha)
        lists.append((listed.nonzero().squeeze(1), places[listed], weights[listed]))
    for rows in torch.split((~listed).nonzero().squeeze(1), rows_at_a_time(len(weight))):
        if len(rows):
            scores = torch.nn.functional.linear(hidden[rows], weight, bias)
            lists.append((rows, *_list_positive(mapping.map(scores, None, 1))))
    width = max([part[1].shape[1] for part in lists], default=1)
    places = torch.full((len(hidden), width), -1, dtype=torch.int32, device=hidden.device)
    weights = hidden.new_zeros(len(hidden), width)
    for rows, some, their_weights in lists:
        places[rows, : some.shape[1]], weights[rows, : some.shape[1]] = some, their_weights
    return places, weights


def _list_positive(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places (R, C) int32 of weights (R, S) above zero in increasing order, then -1, and these weights, then 0.

    A row with NaN lists the first one.
    """
    invalid = weights.isnan()
    above = (weights > 0) | (invalid & (invalid.cumsum(1) == 1))
    counts = above.sum(1)
    rows, columns = above.nonzero(as_tuple=True)
    slots = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (len(weights), max(1, int(counts.max())))
    places = torch.full(shape, -1, dtype=torch.int32, device=weights.device)
    places[rows, slots] = columns.int()
    found = weights.new_zeros(shape)
    found[rows, slots] = weights[rows, columns]
    return places, found


def _support_of(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, mapping: SparseMapping, alpha: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, size = len(hidden), len(weight)
    most = min(size, max(LEAST, int(size * SHARE)))
    # The last column takes what is not listed.
    places = torch.empty(rows, most + 1, dtype=torch.int32, device=hidden.device)
    values = hidden.new_empty(rows, most + 1)
    counts = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
    lists = torch.empty(rows, min(most, MOST_NEW), dtype=torch.int32, device=hidden.device)
    slots = torch.arange(most, device=hidden.device)
    known = hidden.new_empty(rows, 0)
    for _, classes, scores in score_ranges(hidden, weight, bias):
        new = list_candidates_of(scores, alpha, mapping.gamma, lists, known)
        wide = min(int(new.max()), lists.shape[1])
        at = counts.unsqueeze(1) + slots[:wide]
        at = torch.where((slots[:wide] < new.unsqueeze(1)) & (at < most), at, most)
        found = lists[:, :wide].clamp(0, scores.shape[1] - 1).long()
        places.scatter_(1, at, (found + classes.start).int())
        values.scatter_(1, at, scores.gather(1, found))
        counts = torch.where(new > lists.shape[1], most + 1, counts + new)
        listed = counts <= most
        if listed.sum() < (1 - FLAT) * rows:
            return places[:, :0], values[:, :0], torch.zeros_like(listed)
        width = max(1, int(counts[listed].max()))
        known = values[:, :width].masked_fill(~listed.unsqueeze(1) | (slots[:width] >= counts.unsqueeze(1)), -torch.inf)
    return *_weights_of(known, places, mapping), listed


def _support_by_programs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mapping: SparseMapping,
    alpha: float,
    given: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of :func:`find_support` by GPU programs of attention, to which a class is a key with a bias."""
    rows, size = len(hidden), len(weight)
    most = min(size, max(LEAST, int(size * SHARE)))
    each = None if bias is None else bias.expand(1, rows, size)
    query, key = (x.contiguous()[None] for x in given)
    scores = Scores(query, key, None, each, 0.0, 1.0, False)
    places, counts = list_marked(scores, bound_scores(scores, alpha, mapping.gamma), most)
    listed = counts <= most
    if listed.sum() < (1 - FLAT) * rows:
        return places[:, :0], hidden[:, :0], torch.zeros_like(listed)
    places = places[:, : max(1, int(counts[listed].max()))].masked_fill(~listed.unsqueeze(1), -1)
    lists = Lists(places, torch.zeros(rows, dtype=torch.int64, device=hidden.device), (1, size))
    known = listed_products(hidden, weight.unsqueeze(0), lists)
    if bias is not None:
        known = known + bias[places.clamp_min(0).long()]
    return *_weights_of(known.masked_fill(places < 0, -torch.inf), places, mapping), listed


def _weights_of(known: Tensor, places: Tensor, mapping: SparseMapping) -> tuple[Tensor, Tensor]:
    """Return the places of the support and its weights, of candidates (N, C) with scores and places."""
    broken = ~(known < torch.inf)  # NaN or +inf: what else the row lists has no weight
    known = known.masked_fill(broken.any(1, keepdim=True) & ~broken, -torch.inf)
    kept, weights = _list_positive(mapping.map(known, None, -1))
    return torch.where(kept < 0, -1, places.gather(1, kept.clamp_min(0).long())), weights
