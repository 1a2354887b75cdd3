"""Linear scores of many classes, a part of their matrix at a time; and the log-partition function of softmax over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

__all__ = ["log_partition", "rows_at_a_time", "score_ranges"]

#: For a range of classes: rows at a time, about the number of scores in memory, and the smallest number of classes.
ROWS, SCORES, RANGE = 2048, 1 << 22, 2048
#: For all scores of some rows: about the number of scores in memory, and the smallest number of rows.
ALL_SCORES, LEAST_ROWS = 1 << 23, 128


def score_ranges(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield parts of the scores ``W h + b``: all classes of some rows, in ranges, then the next rows; without a gradient.

    Args:
        hidden: (N, F) float32 or float64.
        weight: (V, F) of the same type.
        bias: (V,) of the same type, or None.

    Yields:
        Row slice, class slice, and scores (rows, classes), which may be written to and are valid until the next part.
    """
    hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    for start in range(0, len(hidden), ROWS):
        rows = slice(start, min(len(hidden), start + ROWS))
        number = rows.stop - start
        columns = min(len(weight), max(RANGE, SCORES // number))
        buffer = hidden.new_empty(number * columns)
        for first in range(0, len(weight), columns):
            classes = slice(first, min(len(weight), first + columns))
            scores = buffer[: number * (classes.stop - first)].view(number, -1)
            if bias is None:
                torch.mm(hidden[rows], weight[classes].t(), out=scores)
            else:
                torch.addmm(bias[classes], hidden[rows], weight[classes].t(), out=scores)
            yield rows, classes, scores


def rows_at_a_time(classes: int) -> int:
    """Return the number of rows whose scores of all classes may be in memory at a time."""
    return max(LEAST_ROWS, ALL_SCORES // max(1, classes))


def log_partition(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return softmax's log-partition function of linear scores, and the score of the label, both minus the largest score.

    .. math:: \gamma \ln \sum_v e^{x_v / \gamma}, \qquad x = W h + b

    where h is a hidden vector and gamma the temperature.

    A range of classes at a time, the forward pass sums exponentials, and the backward pass computes the scores again.
    Second derivatives store all scores.

    Args:
        hidden: (N, F) float32 or float64.
        weight: (V, F) of the same type.
        bias: (V,) of the same type, or None.
        labels: (N,) int64 in 0 .. V - 1.
        gamma: temperature.

    Returns:
        Values (N,), scores (N,) of the labels, and the largest scores (N,), which have no gradient.
    """
    return _LogPartition.apply(hidden, weight, bias, labels, gamma)  # type: ignore[no-any-return, no-untyped-call]


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gamma: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        top = hidden.new_full((len(hidden),), -torch.inf)
        total, score = torch.zeros_like(top), torch.zeros_like(top)
        for rows, classes, scores in score_ranges(hidden, weight, bias):
            place = labels[rows] - classes.start
            own = scores.gather(1, place.clamp(0, scores.shape[1] - 1).unsqueeze(1)).squeeze(1)
            score[rows] = torch.where((place >= 0) & (place < scores.shape[1]), own, score[rows])
            largest = torch.maximum(top[rows], scores.amax(1))
            center = _center(largest)
            shrunk = total[rows] * ((top[rows] - center) / gamma).exp()
            total[rows] = shrunk + scores.sub_(center.unsqueeze(1)).div_(gamma).exp_().sum(1)
            top[rows] = largest
        ctx.save_for_backward(hidden, weight, bias, labels, top, total)
        ctx.gamma = gamma
        ctx.mark_non_differentiable(top)
        return gamma * total.log(), score - _center(top), top

    @staticmethod
    def backward(ctx: Any, slope: Tensor, label_slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, top, total = ctx.saved_tensors
        center = _center(top).unsqueeze(1)
        if torch.is_grad_enabled():  # a second derivative may follow
            scores = nnf.linear(hidden, weight, bias) - center
            results = (ctx.gamma * (scores / ctx.gamma).logsumexp(1), scores.gather(1, labels.unsqueeze(1)).squeeze(1))
            needed = [x for x in (hidden, weight, bias) if x is not None and x.requires_grad]
            grads = iter(torch.autograd.grad(results, needed, (slope, label_slope), create_graph=True))
            return (*[None if x is None or not x.requires_grad else next(grads) for x in (hidden, weight, bias)], None, None)
        scale = (slope / total).unsqueeze(1)
        grad = label_slope.unsqueeze(1) * weight[labels]
        weight_grad = torch.zeros_like(weight).index_add_(0, labels, label_slope.unsqueeze(1) * hidden)
        bias_grad = None if bias is None else torch.zeros_like(bias).index_add_(0, labels, label_slope)
        for rows, classes, scores in score_ranges(hidden, weight, bias):
            probabilities = scores.sub_(center[rows]).div_(ctx.gamma).exp_().mul_(scale[rows])
            grad[rows].addmm_(probabilities, weight[classes])
            weight_grad[classes].addmm_(probabilities.t(), hidden[rows])
            if bias_grad is not None:
                bias_grad[classes] += probabilities.sum(0)
        return grad, weight_grad, bias_grad, None, None


def _center(top: Tensor) -> Tensor:
    return torch.where(top == -torch.inf, 0.0, top)
