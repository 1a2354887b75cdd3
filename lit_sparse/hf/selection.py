"""Examples for fine-tuning: their gradients as vectors for a selector, and the weights of the chosen ones in the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_sparse.checks import check_count
from lit_sparse.coresets import Coreset
from lit_sparse.coresets.coreset import check_sum
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.hf.loss_functions import LossFunction, aligned, count_labels, summed_cross_entropies

__all__ = ["example_gradients", "weighted_dataset", "weighted_loss_func"]

#: Column of the weights.
WEIGHT = "weight"


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
        >>> example_gradients(torch.nn.Linear(2, 1), [{"input": torch.ones(1, 2)}], loss=loss).tolist()
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
    training, device, rows = model.training, next(iter(chosen.values())).device, []
    model.eval()
    try:
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
            slopes = torch.autograd.grad(value.reshape(()), [*chosen.values()], allow_unused=True)
            found = [torch.zeros_like(p) if slope is None else slope for p, slope in zip(chosen.values(), slopes, strict=True)]
            row = torch.cat([slope.flatten().float().cpu() for slope in found])
            if not bool(row.isfinite().all()):
                raise DataError(f"Expected finite gradients but got NaN or infinity for example {number}. Leave it out.")
            rows.append(projected(row))
    finally:
        model.train(training)
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
