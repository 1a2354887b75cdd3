"""Losses for ``Trainer(compute_loss_func=...)``: Fenchel-Young losses, risks over the examples, and weights of chosen examples.

A coreset selector chooses them from their gradients as vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_sparse.checks import FLOATS, INTEGERS, check_count, check_tensor
from lit_sparse.coresets import Coreset
from lit_sparse.coresets.coreset import check_sum
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.distributed import world_size
from lit_sparse.ground.evaluation import evaluating
from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.risks import Risk

__all__ = [
    *("example_gradients", "fenchel_young_loss_func", "risk_loss_func", "weighted_dataset", "weighted_loss_func"),
]

#: Label that transformers ignores.
IGNORED = -100
#: Column of the weights.
WEIGHT = "weight"

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
    loss: Callable[[Tensor, Tensor], Tensor] = FenchelYoungLoss(mapping, IGNORED, None, "sum", label_smoothing)

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
        >>> worse_half = loss({"logits": logits}, labels)
        >>> bool(worse_half == torch.tensor(2.0).log())
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
        if example_losses is None:
            losses = summed_cross_entropies(logits, labels) / (labels != IGNORED).view(len(labels), -1).sum(-1).clamp_min(1)
        else:
            losses = example_losses(logits, labels)
        check_tensor(losses, f"`example_losses` to return losses ({len(labels)},)", shape=(len(labels),))
        labelled = (labels != IGNORED).reshape(len(labels), -1).any(-1) if not labels.is_floating_point() else None
        share = _share(risk, labels, num_items_in_batch)
        losses = losses if labelled is None else losses[labelled]
        with nullcontext() if torch.is_grad_enabled() else evaluating(risk):  # the Trainer does not set its mode
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
    """Return the cross-entropy (B,) of each example, in nats, summed over its labels.

    Args:
        logits: (B, ..., C).
        labels: (B, ...) integers; -100 where there is no label.
    """
    check_tensor(labels, "class labels of an integer type", dtypes=INTEGERS, advice=" Give `example_losses` for other labels.")
    losses = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten().long(), ignore_index=IGNORED, reduction="none")
    return losses.view(len(labels), -1).sum(-1)


def aligned(outputs: Any, labels: Tensor, shift: bool | None) -> tuple[Tensor, Tensor]:
    """Return logits (..., C) and the labels (...) that they predict, shifted for a causal language model.

    Raises:
        ConfigurationError: if the outputs have no logits, or the labels do not fit them.
    """
    if not isinstance(labels, Tensor):
        raise ConfigurationError(f"Expected labels in a tensor but got {full_name(labels)}. Use data with labels.")
    if isinstance(outputs, dict) and "logits" not in outputs:
        raise ConfigurationError(f"Expected outputs with `logits` but got {', '.join(map(str, outputs)) or 'none'}.")
    logits = check_tensor(outputs["logits"] if isinstance(outputs, dict) else outputs[0], "floating logits", dtypes=FLOATS)
    if shift is None:
        shift = "CausalLM" in type(outputs).__name__
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    if logits.dim() < 2 or (not labels.is_floating_point() and logits.shape[:-1] != labels.shape):
        raise ConfigurationError(
            f"Expected one label for each row of logits but got logits {tuple(logits.shape)} and labels {tuple(labels.shape)}."
        )
    return logits, labels.to(logits.device)


@checked
def example_gradients(
    model: nn.Module,
    examples: Iterable[Mapping[str, Any]],
    *,
    loss: Callable[[Any, Mapping[str, Any]], Tensor] | None = None,
    parameters: str | Sequence[str] | None = None,
    features: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Return the gradient of each example's loss as a vector, (N, S), for any coreset selector.

    Args:
        model: the model, used without dropout. With LoRA, only its weights require gradients.
        examples: the inputs of the model for one example after another, each a batch of one.
        loss: function of the model's output and the inputs; None for ``output.loss``.
        parameters: prefixes of parameter names, such as ``"classifier"``; None for all parameters that require gradients.
        features: dimension S of a random projection, which preserves inner products on average; None for no projection.
        seed: seed of the projection.

    Returns:
        Tensor (N, S) on the CPU.

    Raises:
        ConfigurationError: if no parameter is left, an example is no mapping, or a loss has no gradient.
        DataError: if there are no examples, or a gradient is not finite.

    Source: Xia et al. (2024), LESS: Selecting Influential Data for Targeted Instruction Tuning. Weinberger et al. (2009),
    Feature Hashing for Large Scale Multitask Learning, for the projection.

    Example:
        >>> import torch
        >>> def loss(output, example):
        ...     return output.sum()
        >>> model, examples = torch.nn.Linear(2, 1), [{"input": torch.ones(1, 2)}]
        >>> example_gradients(model, examples, loss=loss).tolist()
        [[1.0, 1.0, 1.0]]
    """
    starts = None if parameters is None else (parameters,) if isinstance(parameters, str) else tuple(parameters)
    chosen = {
        name: p for name, p in model.named_parameters() if p.requires_grad and (starts is None or name.startswith(starts))
    }
    if not chosen:
        names = ", ".join(dict.fromkeys(name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad))
        raise ConfigurationError(
            f"Expected `parameters` to be prefixes of the names of trained parameters but got {parameters!r}. There are:"
            f" {names}"
        )
    projected = _projection(sum(p.numel() for p in chosen.values()), features, seed)
    device, rows = next(iter(chosen.values())).device, []
    with evaluating(model):
        for number, example in enumerate(examples):
            if not isinstance(example, Mapping):
                raise ConfigurationError(
                    f"Expected examples that map names to inputs of the model but got {full_name(example)}."
                )
            inputs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in example.items()}
            output = model(**inputs)
            value = output.loss if loss is None else loss(output, inputs)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise ConfigurationError(f"Expected a loss of one example but got {full_name(value)}. Give labels, or `loss`.")
            if not value.requires_grad:
                raise ConfigurationError(
                    "Expected a loss with a gradient but got one without. Leave out detach() and no_grad()."
                )
            slopes = torch.autograd.grad(value.reshape(()), [*chosen.values()], allow_unused=True, materialize_grads=True)
            row = torch.cat([slope.flatten().float().cpu() for slope in slopes])
            if not bool(row.isfinite().all()):
                raise DataError(f"Expected finite gradients but got NaN or infinity for example {number}. Leave it out.")
            rows.append(projected(row))
    if not rows:
        raise DataError("Expected at least one example but got none.")
    return torch.stack(rows)


def _projection(size: int, features: int | None, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a function that adds each entry of a vector (size,), with a random sign, to a random one of the features."""
    if features is None or check_count("features", features) >= size:
        return lambda vector: vector
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(features, (size,), generator=generator, dtype=torch.int32)
    sign = torch.randint(2, (size,), generator=generator, dtype=torch.int8)
    return lambda vector: vector.new_zeros(features).index_add_(0, place, torch.where(sign == 1, vector, -vector))


@checked
def weighted_dataset(dataset: Any, coreset: Coreset) -> Any:
    """Return the selected examples of a ``datasets.Dataset`` with a column ``weight``, of mean 1.

    Args:
        dataset: the data set whose examples were selected from.
        coreset: the selector's result.

    Raises:
        ConfigurationError: for another kind of data set, one with such a column, or a coreset from a different number
            of examples.
        DataError: if all weights are zero.
    """
    if not hasattr(dataset, "add_column"):
        raise ConfigurationError(f"Expected a datasets.Dataset but got {full_name(dataset)}. Make one with Dataset.from_list.")
    if len(dataset) != coreset.size:
        raise ConfigurationError(f"Expected a coreset of {len(dataset)} examples but got one of {coreset.size}. Select again.")
    if WEIGHT in dataset.column_names:
        raise ConfigurationError(f"Expected a data set without a column {WEIGHT!r} but it has one. Rename or remove it.")
    check_sum(coreset.weights)
    weights = coreset.weights.double() / coreset.weights.double().mean()
    return dataset.select(coreset.indices.tolist()).add_column(WEIGHT, weights.tolist())


@checked
def weighted_loss_func(model: nn.Module, *, shift: bool | None = None) -> LossFunction:
    """Return a Trainer's ``compute_loss_func`` for cross-entropies or squared errors times the examples' weights.

    The column ``weight`` of a batch is removed before the model is called, and used by the loss. Batches without it, as in
    evaluation, have weights of one. The Trainer drops columns that a model does not take, unless
    ``remove_unused_columns=False`` is among its arguments.

    Args:
        model: the model that the Trainer trains.
        shift: as in :func:`fenchel_young_loss_func`.
    """
    weights: list[Tensor | None] = [None]

    def take(_: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        weights[0] = options.get(WEIGHT)
        return args, {name: value for name, value in options.items() if name != WEIGHT}

    model.register_forward_pre_hook(take, with_kwargs=True)

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits, labels = aligned(outputs, labels, shift)
        if labels.is_floating_point():
            losses = (logits.float().reshape(labels.shape) - labels).square().reshape(len(labels), -1).sum(1)
        else:
            losses = summed_cross_entropies(logits, labels)
        if weights[0] is not None:
            losses = losses * weights[0].to(losses)
        return losses.sum() / (count_labels(labels) if num_items_in_batch is None else num_items_in_batch)

    return compute
