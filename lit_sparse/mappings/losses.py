"""Fenchel-Young losses: the loss that belongs to each mapping, as a drop-in for ``torch.nn.CrossEntropyLoss``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.rowwise import is_eager

__all__ = ["FenchelYoungLoss"]


class FenchelYoungLoss(nn.Module):
    """``L(x; q) = max_Omega(x) + gamma * Omega(q) - <q, x>``, zero exactly when the mapping of x is q.

    Its gradient is ``mapping(x) - q``. For softmax it is ``gamma * CE(x / gamma, q)`` less gamma times the entropy of q,
    so cross-entropy for class labels at gamma = 1; for sparsemax it is the sparsemax loss. A soft target outside the
    domain of Omega (more than k entries for top-k sparsemax) has infinite loss.

    Args:
        mapping: a mapping onto the simplex.
        ignore_index: class label whose examples count for nothing; only for targets of class labels.
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
        >>> float(FenchelYoungLoss(Sparsemax())(scores, target))  # the margin of 1 is met: no loss at all
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
        if not isinstance(mapping, SparseMapping):
            raise ConfigurationError(f"Expected a mapping, such as Sparsemax(), but got {mapping!r}.")
        if not mapping.on_simplex:
            raise ConfigurationError(
                f"Expected a mapping onto the simplex, such as Sparsemax, but {type(mapping).__name__} has no probabilities."
            )
        if not mapping.has_value:
            raise ConfigurationError(f"Expected a mapping that maximizes something, but {mapping!r} does not: it has no loss.")
        if reduction not in ("mean", "sum", "none"):
            raise ConfigurationError(f"Expected `reduction` to be 'mean', 'sum' or 'none' but got {reduction!r}.")
        if not 0 <= label_smoothing <= 1:
            raise ConfigurationError(f"Expected `label_smoothing` in [0, 1] but got {label_smoothing!r}.")
        self.mapping = mapping
        self.ignore_index = ignore_index
        self.register_buffer("weight", weight)
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores against class labels or probabilities.

        Args:
            scores: (C,), (N, C) or (N, C, ...); the class dimension is 1 (0 for a single example), whatever ``dim`` the
                mapping has. -inf forbids a class.
            target: class labels (N, ...), int64, or probabilities of the scores' shape.

        Returns:
            A scalar, or (N, ...) for ``reduction="none"``.

        Raises:
            ConfigurationError: if the shapes do not fit or a label is not a class.
        """
        rows = scores if scores.dim() == 1 else scores.movedim(1, -1)
        classes = rows.shape[-1]
        if target.is_floating_point():
            if target.shape != scores.shape:
                raise ConfigurationError(
                    f"Expected probabilities of the scores' shape {tuple(scores.shape)} but got {tuple(target.shape)}."
                )
            q = target.to(rows.dtype) if scores.dim() == 1 else target.to(rows.dtype).movedim(1, -1)
            ignored = torch.zeros(rows.shape[:-1], dtype=torch.bool, device=rows.device)
            size = rows.new_ones(rows.shape[:-1])
        else:
            labels = self._labels(target, rows)
            ignored = target == self.ignore_index
            q = (labels.unsqueeze(-1) == torch.arange(classes, device=rows.device)).to(rows.dtype)
            size = rows.new_ones(labels.shape) if self.weight is None else self.weight.to(rows.dtype)[labels]
        losses = self._losses(rows.masked_fill(ignored.unsqueeze(-1), 0.0), q).masked_fill(ignored, 0.0)
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        return losses.sum() / size.masked_fill(ignored, 0.0).sum()

    def _losses(self, rows: Tensor, q: Tensor) -> Tensor:
        """Return one loss a row, for scores and targets (..., C)."""
        if self.label_smoothing > 0:
            q = (1 - self.label_smoothing) * q + self.label_smoothing / rows.shape[-1]
        mass: Tensor | None = None
        if self.weight is not None:  # a weighted target is a probability again, times its mass
            q = q * self.weight.to(q.dtype)
            mass = q.sum(-1)
            q = q / torch.where(mass > 0, mass, 1.0).unsqueeze(-1)
        if self.mapping.shift_invariant and rows.shape[-1] > 0:
            top = rows.detach().amax(-1, keepdim=True)
            rows = rows - torch.where(top.isinf(), 0.0, top)
        score = torch.where(q != 0, q * rows, 0.0).sum(-1)
        dim = min(1, rows.dim() - 1)  # a mapping's own parameters have the layout of the scores
        scores, target = rows.movedim(-1, dim), q.movedim(-1, dim)
        value = self.mapping.value_along(scores, None, dim)
        omega = self.mapping.regularizer_of_target(target, dim, scores.detach() != -torch.inf)
        losses = value + self.mapping.gamma * omega - score
        return losses if mass is None else mass * losses

    def _labels(self, target: Tensor, rows: Tensor) -> Tensor:
        if target.shape != rows.shape[:-1]:
            raise ConfigurationError(f"Expected class labels of shape {tuple(rows.shape[:-1])} but got {tuple(target.shape)}.")
        labels = torch.where(target == self.ignore_index, 0, target).long()
        if torch.compiler.is_compiling() or not is_eager():
            return labels  # their values cannot be looked at
        if labels.device.type == "cpu" and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < rows.shape[-1]:
            raise ConfigurationError(
                f"Expected class labels in 0 .. {rows.shape[-1] - 1}, or ignore_index={self.ignore_index},"
                f" but got labels from {int(labels.min())} to {int(labels.max())}."
            )
        return labels
