"""Fenchel-Young losses of linear scores, without the matrix of all scores.

A row whose support is listed has its loss and gradients from the scores of the support and of its label. Softmax keeps one
number per row. The scores of other rows are computed for some rows at a time, discarded, and recomputed for gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils.checkpoint import checkpoint

from lit_sparse.ground.torch_internals import (
    autocast_enabled,
    can_read_values,
    forward_mode_active,
    is_legacy_batch,
    outside_graphs,
)
from lit_sparse.kernels.row_kernel import HALVES
from lit_sparse.mappings import FenchelYoungLoss, Softmax, SparseMapping
from lit_sparse.nn.lists import Lists, products
from lit_sparse.nn.output_layer.scores import log_partition, rows_at_a_time
from lit_sparse.nn.output_layer.support import find_support

__all__ = ["LabelLosses", "layer_losses", "linear_losses", "list_alpha", "needs_all_scores"]

#: Number of scores up to which all of them are computed at once.
FEW = 1 << 20
#: Smallest and largest alpha of entmax whose support is listed.
LOW, HIGH = 1.25, 2.0


class LabelLosses(NamedTuple):
    """Losses against class labels, and the labels' probabilities and ranks, without a gradient.

    Attributes:
        losses: (N,).
        probabilities: (N,) of the labels.
        highest: (N,) boolean, True where no class has a higher score than the label.
    """

    losses: Tensor
    probabilities: Tensor
    highest: Tensor


class _Problem(NamedTuple):
    """Linear scores ``W h + b`` of hidden vectors (N, F), their labels (N,), and the loss."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    criterion: FenchelYoungLoss


def list_alpha(mapping: SparseMapping) -> float | None:
    """Return the alpha in 1.25 .. 2 if a mapping is entmax with that alpha for all rows; None for other mappings."""
    threshold = mapping.threshold()
    if threshold is None or (isinstance(threshold.alpha, Tensor) and threshold.alpha.numel() != 1):
        return None
    alpha = threshold.alpha
    alpha = float(alpha.detach() if isinstance(alpha, Tensor) else alpha)
    return alpha if LOW <= alpha <= HIGH else None


@outside_graphs
def linear_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, criterion: FenchelYoungLoss
) -> LabelLosses:
    """Return the Fenchel-Young losses (N,) of linear scores ``W h + b`` against class labels.

    For softmax, and for entmax with one alpha in 1.25 .. 2, the matrix (N, V) of scores is never stored. For other mappings,
    and under transforms of ``torch.func``, forward mode, or where :func:`needs_all_scores`, plain operations store it.

    Args:
        hidden: (N, F).
        weight: (V, F), W.
        bias: (V,), b; or None.
        labels: (N,) int64 class labels; the loss of one that is not a class is NaN.
        criterion: loss of the scores; its ``ignore_index`` and ``reduction`` are not used.
    """
    known = (labels >= 0) & (labels < len(weight))
    results = _label_losses(_Problem(hidden, weight, bias, torch.where(known, labels, 0), criterion))
    return results._replace(losses=torch.where(known, results.losses, torch.nan))


def _label_losses(given: _Problem) -> LabelLosses:
    hidden, weight, bias, labels, criterion = given
    mapping, alpha = criterion.mapping, list_alpha(criterion.mapping)
    if needs_all_scores(hidden, weight, bias) or (mapping.threshold() is None and type(mapping) is not Softmax):
        return _of_rows(given)
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    narrow = hidden.detach(), weight.detach()
    with torch.autocast(hidden.device.type, enabled=False):
        hidden, weight, bias = hidden.to(wide), weight.to(wide), None if bias is None else bias.to(wide)
        given = _Problem(hidden, weight, bias, labels, criterion)
        if len(hidden) * len(weight) <= FEW:
            return _of_rows(given)
        if criterion.label_smoothing > 0 and criterion.weight is not None:
            return _in_parts(given)
        if type(mapping) is Softmax:
            return _of_softmax(given)
        if alpha is None:
            return _in_parts(given)
        with torch.no_grad():
            places, _, listed = find_support(hidden, weight, bias, mapping, alpha, narrow)
        if bool(listed.all()):
            return _of_support(given, places)
        if not bool(listed.any()):
            return _in_parts(given)
        few, many = listed.nonzero().squeeze(1), (~listed).nonzero().squeeze(1)
        some, rest = (given._replace(hidden=hidden[rows], labels=labels[rows]) for rows in (few, many))
        parts, order = (_of_support(some, places[few]), _in_parts(rest)), torch.cat([few, many]).argsort()
        return LabelLosses(*[torch.cat(field)[order] for field in zip(*parts, strict=True)])


def _of_support(given: _Problem, places: Tensor) -> LabelLosses:
    """Return the losses of rows whose support has these places (N, C)."""
    hidden, weight, bias, labels, criterion = given
    together = torch.cat([labels.unsqueeze(1).int(), places], 1)
    lists = Lists(together, torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device), (1, len(weight)))
    scores = products(hidden, weight.unsqueeze(0), lists)
    if bias is not None:
        scores = scores + bias[lists.flat]
    support = scores[:, 1:].masked_fill(places < 0, -torch.inf)
    top = support.detach().amax(-1)
    center = torch.where(top.isinf(), 0.0, top)
    support = support - center.unsqueeze(1)
    losses = _losses_of_values(given, criterion.mapping.value_of(support, 1), scores[:, 0] - center, center)
    with torch.no_grad():
        weights = criterion.mapping.map(support, None, 1)
        probabilities = torch.where(places == labels.unsqueeze(1), weights, weights * 0).sum(-1)
        return LabelLosses(losses, probabilities, scores[:, 0] >= top)


def _of_softmax(given: _Problem) -> LabelLosses:
    gamma = given.criterion.mapping.gamma
    value, score, top = log_partition(given.hidden, given.weight, given.bias, given.labels, gamma)
    probabilities = ((score - value) / gamma).exp().detach()
    return LabelLosses(_losses_of_values(given, value, score, top), probabilities, score.detach() >= 0)


def _losses_of_values(given: _Problem, value: Tensor, score: Tensor, center: Tensor) -> Tensor:
    """Return the losses (N,) from ``max_Omega(x)`` and the score of the label, both less a number for each row, the center."""
    hidden, weight, bias, labels, criterion = given
    mapping, smoothing = criterion.mapping, criterion.label_smoothing
    if smoothing:
        mean = hidden @ weight.mean(0) - center
        score = (1 - smoothing) * score + smoothing * (mean if bias is None else mean + bias.mean())
    q = hidden.new_full((1, len(weight)), smoothing / len(weight))
    q[0, 0] += 1 - smoothing  # Omega is the same for each label
    losses = value + mapping.gamma * mapping.regularizer(q, 1) - score
    return losses if criterion.weight is None else losses * criterion.weight.to(losses.dtype)[labels]


def _in_parts(given: _Problem) -> LabelLosses:
    """Return the losses by all scores of a few rows at a time, which are computed again for the gradients."""
    rows = rows_at_a_time(len(given.weight))
    parts = [
        checkpoint(_of_rows, given._replace(hidden=h, labels=its), use_reentrant=False, preserve_rng_state=False)
        for h, its in zip(torch.split(given.hidden, rows), torch.split(given.labels, rows), strict=True)
    ]
    return LabelLosses(*[torch.cat(field) for field in zip(*parts, strict=True)])


def _of_rows(given: _Problem) -> LabelLosses:
    return _of_scores(nnf.linear(given.hidden, given.weight, given.bias), given.labels, given.criterion)


def layer_losses(layer: nn.Module, hidden: Tensor, labels: Tensor, criterion: FenchelYoungLoss) -> LabelLosses:
    """Return the Fenchel-Young losses (N,) of the scores that a layer computes, as :func:`linear_losses` does if possible.

    All scores (N, V) are stored unless the layer is linear and has no hooks.

    Args:
        layer: layer from hidden vectors to scores. Pruning uses hooks, for example.
        hidden: (N, F).
        labels: (N,) int64 class labels.
        criterion: as in :func:`linear_losses`.
    """
    if type(layer) is nn.Linear and not layer._forward_pre_hooks and not layer._forward_hooks:
        losses: LabelLosses = linear_losses(hidden, layer.weight, layer.bias, labels, criterion)
        return losses
    return _of_scores(layer(hidden), labels, criterion)


def _of_scores(scores: Tensor, labels: Tensor, criterion: FenchelYoungLoss) -> LabelLosses:
    if scores.dtype in HALVES and autocast_enabled(scores.device):
        scores = scores.float()
    losses, labels = criterion.of_labels(scores, labels), labels.unsqueeze(1)
    with torch.no_grad():
        probabilities = criterion.mapping.map(scores, None, 1).gather(1, labels)
        highest = scores.gather(1, labels) >= scores.amax(1, keepdim=True)
        return LabelLosses(losses, probabilities.squeeze(1), highest.squeeze(1))


def needs_all_scores(*tensors: Tensor | None) -> bool:
    """Return whether only plain operations support these tensors or the present mode.

    That is so in transforms, graphs and forward mode, and for tensors that are fake, distributed, on the meta device or
    batches of the legacy vmap.
    """
    if not can_read_values() or forward_mode_active():
        return True
    given = [x for x in tensors if x is not None]
    return any(type(x) not in (Tensor, nn.Parameter) or x.is_meta or is_legacy_batch(x) for x in given)
