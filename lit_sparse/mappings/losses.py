"""Fenchel-Young losses: the loss that belongs to each mapping, as a drop-in for ``torch.nn.CrossEntropyLoss``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from lit_sparse.checks import INTEGER, INTEGERS, Number, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import autocast_enabled, can_read_values
from lit_sparse.kernels.row_kernel import HALVES
from lit_sparse.mappings.base import SparseMapping, check_mapping
from lit_sparse.mappings.masking import allowed_scores
from lit_sparse.mappings.softmax import Softmax

__all__ = ["FenchelYoungLoss"]


@ranges(ignore_index=INTEGER, label_smoothing=Number(0.0, 1.0))
class FenchelYoungLoss(nn.Module):
    r"""Fenchel-Young loss of a mapping: convex in the scores x, nonnegative, and zero where the mapping of x is the target.

    .. math:: L(x; q) = \max_{y} \left\{\langle y, x \rangle - \gamma\,\Omega(y)\right\}
        + \gamma\,\Omega(q) - \langle q, x \rangle

    where x are the scores, q is the target distribution, and Omega and gamma belong to the mapping.

    Its gradient is ``mapping(x) - q``. For softmax it is ``gamma * CE(x / gamma, q)`` minus gamma times the entropy of
    q, which is cross-entropy for class labels at gamma = 1. For sparsemax it is the sparsemax loss. A soft target
    outside the domain of Omega has infinite loss, such as, for top-k sparsemax, one with more than k nonzero entries
    (any smoothed label). A target above the bound of :class:`CappedSoftmax` is smoothed to the bound. Under autocast
    the loss is computed in float32.

    Args:
        mapping: mapping onto the simplex; its ``dim`` is ignored, because classes are dimension 1.
        ignore_index: class label whose examples are ignored; only for targets of class labels.
        weight: (C,) weight of each class.
        reduction: ``"mean"`` (over the weights of the targets that count), ``"sum"`` or ``"none"``.
        label_smoothing: share in [0, 1] of the target that is spread evenly over all classes.

    Raises:
        ConfigurationError: for a mapping outside the simplex, an unknown reduction or a smoothing outside [0, 1].

    Source: Blondel, Martins & Niculae (2020), Learning with Fenchel-Young Losses, definition 2.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> scores, target = torch.tensor([[5.0, 1.0, 0.0]]), torch.tensor([0])
        >>> # The margin of 1 is met, so there is no loss.
        >>> float(FenchelYoungLoss(Sparsemax())(scores, target))
        0.0
    """

    weight: Tensor | None

    def __init__(
        self,
        mapping: SparseMapping,
        ignore_index: int = -100,
        weight: Tensor | None = None,
        reduction: Literal["mean", "sum", "none"] = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        check_mapping(mapping)
        if not mapping.on_simplex:
            raise ConfigurationError(
                f"Expected a mapping onto the simplex, such as Sparsemax, but {type(mapping).__name__} does not return class"
                " probabilities. SparseMAP has its own loss, SparseMAP(...).loss(scores, structures)."
            )
        mapping.check_value()
        if reduction not in ("mean", "sum", "none"):
            raise ConfigurationError(f"Expected `reduction` to be 'mean', 'sum' or 'none' but got {reduction!r}.")
        if weight is not None and not (isinstance(weight, Tensor) and weight.dim() == 1 and weight.is_floating_point()):
            raise ConfigurationError(f"Expected `weight` to be a floating tensor with one weight per class but got {weight!r}.")
        if weight is not None and not weight.is_meta and not bool(((weight >= 0) & (weight < torch.inf)).all()):
            raise ConfigurationError(f"Expected `weight` to be finite and nonnegative but got {weight!r}.")
        self.mapping, self.ignore_index = mapping, ignore_index
        self.register_buffer("weight", weight)
        self.reduction, self.label_smoothing = reduction, label_smoothing

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores against class labels or probabilities.

        Args:
            scores: (C,), (N, C) or (N, C, ...); the class dimension is 1 (0 for a single example). -inf forbids a class.
            target: class labels (N, ...) of an integer type, or probabilities of the scores' shape. One that does not sum to
                one is taken as a probability times that sum, as cross-entropy does.

        Returns:
            A scalar, or (N, ...) for ``reduction="none"``.

        Raises:
            ConfigurationError: if the scores are not floating, the shapes do not fit, or a label is not a class. If labels
                cannot be read (on a GPU, in a graph, under a transform), the loss of such a label is NaN instead.
        """
        scores = _checked(scores)
        rows = scores if scores.dim() == 1 else scores.movedim(1, -1)
        classes = rows.shape[-1]
        if self.weight is not None and len(self.weight) != classes:
            raise ConfigurationError(
                f"Expected scores with {len(self.weight)} classes, as `weight` has, along dimension {min(1, scores.dim() - 1)}"
                f" but got shape {tuple(scores.shape)}."
            )
        check_tensor(target, "a dense tensor of real numbers as target")
        if target.is_floating_point():
            if target.shape != scores.shape:
                raise ConfigurationError(
                    f"Expected probabilities of the scores' shape {tuple(scores.shape)} but got {tuple(target.shape)}."
                )
            q = target.to(rows.dtype) if scores.dim() == 1 else target.to(rows.dtype).movedim(1, -1)
            losses = self._losses(rows, q, soft=True)
            return losses.mean() if self.reduction == "mean" else losses.sum() if self.reduction == "sum" else losses
        labels, ignored = self.labels(target, rows.shape[:-1], classes)
        return self.reduced(self.of_labels(rows.masked_fill(ignored.unsqueeze(-1), 0.0), labels), labels, ignored)

    def of_labels(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the losses (...) of scores (..., C) for class labels (...); NaN for a label outside ``0 .. C - 1``."""
        rows = _checked(rows)
        classes = torch.arange(rows.shape[-1], device=rows.device)
        known = (labels >= 0) & (labels < len(classes))
        plain = self.weight is None and self.label_smoothing == 0 and rows.numel() and rows.dtype not in HALVES
        if type(self.mapping) is Softmax and plain:
            return torch.where(known, self._cross_entropy(rows, torch.where(known, labels, 0)), torch.nan)
        losses = self._losses(rows, (torch.where(known, labels, 0).unsqueeze(-1) == classes).to(rows.dtype), soft=False)
        return torch.where(known, losses, torch.nan)

    def _cross_entropy(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the losses (...) for softmax in one operation, which takes a tenth of the time for a small batch."""
        gamma = self.mapping.gamma
        if gamma != 1.0:  # the other order could overflow
            top = rows.detach().amax(-1, keepdim=True)
            rows = (rows - torch.where(top.isinf(), 0.0, top)) / gamma
        losses = nnf.cross_entropy(rows.reshape(-1, rows.shape[-1]), labels.reshape(-1), reduction="none")
        return gamma * losses.view(labels.shape)

    def reduced(self, losses: Tensor, labels: Tensor, ignored: Tensor) -> Tensor:
        """Reduce losses (...) of class labels (...) to their mean or sum, or not at all, as :attr:`reduction` says.

        Args:
            losses: (...); their values do not matter where the label is ignored.
            labels: (...), 0 where they are ignored.
            ignored: (...) boolean.
        """
        losses = losses.masked_fill(ignored, 0.0)
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        sizes = torch.ones_like(losses)
        if self.weight is not None:
            sizes = self.weight.to(losses.dtype)[labels.clamp(0, len(self.weight) - 1)]
        return losses.sum() / sizes.masked_fill(ignored, 0.0).sum()

    def _losses(self, rows: Tensor, q: Tensor, soft: bool) -> Tensor:
        """Return one loss per row, for scores and targets (..., C)."""
        if self.label_smoothing > 0:
            q = (1 - self.label_smoothing) * q + self.label_smoothing / rows.shape[-1]
        if self.weight is not None:
            q = q * self.weight.to(q.dtype)
        mass: Tensor | None = None
        if soft or self.weight is not None:  # a target that does not sum to one is a probability times its mass
            mass = q.sum(-1)
            q = q / torch.where(mass != 0, mass, 1.0).unsqueeze(-1)
        if self.mapping.shift_invariant and rows.shape[-1] > 0:
            top = rows.detach().amax(-1, keepdim=True)
            rows = rows - torch.where(top.isinf(), 0.0, top)
        dim = min(1, rows.dim() - 1)  # a mapping's own parameters have the layout of the scores
        scores, target = rows.movedim(-1, dim), q.movedim(-1, dim)
        value = self.mapping.value_of(scores, dim)
        allowed = scores.detach() != -torch.inf
        target = self.mapping.admissible(target, dim, allowed)
        score = torch.where(allowed | (target != 0), target * scores, 0.0).sum(dim)
        losses = value + self.mapping.gamma * self.mapping.regularizer(target, dim, allowed) - score
        if soft:
            losses = torch.where((target < 0).any(dim), torch.inf, losses)  # outside of every Omega's domain
        return losses if mass is None else mass * losses

    def labels(self, target: Tensor, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
        """Return class labels as int64, 0 where they are ignored, and a boolean mask of the ignored ones.

        Args:
            target: class labels of any integer type.
            shape: shape that the labels must have, and that both results have.
            classes: number of classes C; labels are 0 .. C - 1, or ``ignore_index``.

        Raises:
            ConfigurationError: if the target has another shape or is not of an integer type, or a label that can be
                read is not a class.
        """
        check_tensor(target, "class labels of an integer type", dtypes=INTEGERS)
        if target.shape != shape:
            hint = " Classes are dimension 1 of the scores." if shape else ""
            raise ConfigurationError(f"Expected class labels of shape {tuple(shape)} but got {tuple(target.shape)}.{hint}")
        ignored = target.long() == self.ignore_index
        labels = torch.where(ignored, 0, target.long())
        if not can_read_values():
            return labels, ignored  # their values cannot be read
        if labels.device.type == "cpu" and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ConfigurationError(
                f"Expected class labels in 0 .. {classes - 1}, or ignore_index={self.ignore_index},"
                f" but got labels from {int(labels.min())} to {int(labels.max())}."
            )
        return labels, ignored


def _checked(scores: Tensor) -> Tensor:
    """Return floating scores, under autocast in float32."""
    scores = allowed_scores(scores, None)
    return scores.float() if scores.dtype in HALVES and autocast_enabled(scores.device) else scores
