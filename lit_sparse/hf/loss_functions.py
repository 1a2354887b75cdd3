"""Losses for ``Trainer(compute_loss_func=...)``: Fenchel-Young losses, and risks over the examples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.distributed import world_size
from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.risks import Risk

__all__ = ["fenchel_young_loss_func", "risk_loss_func"]

#: Label that transformers ignores.
IGNORED = -100

LossFunction = Callable[..., Tensor]


@checked
def fenchel_young_loss_func(mapping: SparseMapping, *, shift: bool | None = None, label_smoothing: float = 0.0) -> LossFunction:
    """Return a Trainer's ``compute_loss_func`` for the Fenchel-Young loss of a mapping, in place of cross-entropy.

    The loss is the sum over labels divided by the number of labels in all accumulated batches, so that gradient
    accumulation gives the gradient of the whole batch.

    Args:
        mapping: mapping onto the simplex that has a value, see :class:`lit_sparse.mappings.FenchelYoungLoss`.
        shift: whether position t predicts label t + 1; None to detect it from the output of a causal language model.
        label_smoothing: see :class:`lit_sparse.mappings.FenchelYoungLoss`.

    Raises:
        ConfigurationError: if the mapping has no such loss.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Entmax
        >>> loss = fenchel_young_loss_func(Entmax(1.5))
        >>> logits, labels = torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 1])
        >>> float(loss({"logits": logits}, labels))
        0.0
    """
    loss: Callable[[Tensor, Tensor], Tensor] = FenchelYoungLoss(
        mapping, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits, labels = aligned(outputs, labels, shift)
        total = loss(logits.flatten(0, -2), labels.flatten())
        return total / (count_labels(labels) if num_items_in_batch is None else num_items_in_batch)

    return compute


@checked
def risk_loss_func(
    risk: Risk, example_losses: Callable[[Tensor, Tensor], Tensor] | None = None, *, shift: bool | None = None
) -> LossFunction:
    """Return a Trainer's ``compute_loss_func`` for a risk over the examples' losses, such as CVaR.

    An example's loss is its cross-entropy, averaged over its labels. Examples without a label are left out.

    Gradient accumulation is exact for risks whose mean over batches is the objective (``risk.unbiased``), with one label
    per example. For other risks, such as CVaR and KL-DRO, the risk of parts is not the risk of the whole batch, so
    accumulation and several processes are refused when training starts.

    A risk with a dual variable, such as SafeKLDRO, is refused. The Trainer clears only the gradients of the model's
    parameters, and their learning rate is too small for a dual variable, which is in units of the loss.

    Args:
        risk: the risk, without parameters, adversary or groups.
        example_losses: function of logits and labels that returns losses (B,); None for cross-entropy.
        shift: as in :func:`fenchel_young_loss_func`.

    Raises:
        ConfigurationError: if the risk needs to be trained itself, perturbs inputs, or needs groups.

    Example:
        >>> import torch
        >>> from lit_sparse.risks import CVaR
        >>> loss = risk_loss_func(CVaR(0.5))
        >>> logits, labels = torch.tensor([[0.0, 0.0], [90.0, 0.0]]), torch.tensor([0, 0])
        >>> bool(loss({"logits": logits}, labels) == torch.tensor(2.0).log())  # the worse half
        True
    """
    if not isinstance(risk, Risk):
        raise ConfigurationError(f"Expected a risk, such as lit_sparse.risks.CVaR(0.1), but got {full_name(risk)}.")
    if risk.adversary is not None or risk.group_key is not None or list(risk.parameters()):
        raise ConfigurationError(
            f"Expected a risk without an adversary, groups and parameters but got {risk!r}. The Trainer gives it neither the"
            " inputs, nor other columns, nor an optimizer. Use Mean, CVaR or KLDRO, or your own training loop."
        )

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if world_size() > 1:
            raise ConfigurationError("Expected one process, because the Trainer rescales losses over processes, but got more.")
        logits, labels = aligned(outputs, labels, shift)
        losses = _cross_entropies(logits, labels) if example_losses is None else example_losses(logits, labels)
        if not isinstance(losses, Tensor) or losses.shape != (len(labels),):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else full_name(losses)
            raise ConfigurationError(f"Expected `example_losses` to return losses ({len(labels)},) but got {got}.")
        labelled = (labels != IGNORED).reshape(len(labels), -1).any(-1) if not labels.is_floating_point() else None
        share = _share(risk, labels, num_items_in_batch)
        losses = losses if labelled is None else losses[labelled]
        return risk(losses) * share if len(losses) else logits.sum() * 0.0

    return compute


def _share(risk: Risk, labels: Tensor, num_items_in_batch: Tensor | int | None) -> float:
    """Return the fraction of the accumulated batches' labels that are in this one."""
    if num_items_in_batch is None:
        return 1.0
    here, total = int(count_labels(labels)), int(num_items_in_batch)
    if here == total:
        return 1.0
    if not risk.unbiased or labels.dim() > 1:
        what = f"the {type(risk).__name__} of parts" if not risk.unbiased else "the mean over parts of token labels"
        raise ConfigurationError(
            f"Expected `gradient_accumulation_steps=1` but got a batch with {here} of {total} accumulated labels, and {what}"
            " differs from the value for the whole batch. Use a larger batch."
        )
    return here / total


def count_labels(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum()


def summed_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy (B,) of each example, summed over its labels."""
    losses = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(len(labels), -1).sum(-1)


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example (B,), averaged over its labels."""
    return summed_cross_entropies(logits, labels) / (labels != IGNORED).view(len(labels), -1).sum(-1).clamp_min(1)


def aligned(outputs: Any, labels: Tensor, shift: bool | None) -> tuple[Tensor, Tensor]:
    """Return logits (..., C) and the labels (...) that they predict, shifted for a causal language model.

    Raises:
        ConfigurationError: if the outputs have no logits, or the labels do not fit them.
    """
    if not isinstance(labels, Tensor):
        raise ConfigurationError(f"Expected labels in a tensor but got {full_name(labels)}. Use data with labels.")
    if isinstance(outputs, dict) and "logits" not in outputs:
        raise ConfigurationError(f"Expected outputs with `logits` but got {', '.join(map(str, outputs)) or 'none'}.")
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    if shift is None:
        shift = "CausalLM" in type(outputs).__name__
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    if logits.dim() < 2 or (not labels.is_floating_point() and logits.shape[:-1] != labels.shape):
        raise ConfigurationError(
            f"Expected one label for each row of logits but got logits {tuple(logits.shape)} and labels {tuple(labels.shape)}."
        )
    return logits, labels.to(logits.device)
