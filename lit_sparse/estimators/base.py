"""The interface of all estimators of ``E_{z ~ pi(scores)} loss(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SparseMapping

__all__ = ["Estimator", "Expectation", "Latent", "LatentBatch", "LossFunction"]

Latent: TypeAlias = Literal["categorical", "bits"]


@dataclass(frozen=True)
class LatentBatch:
    """The latent values to decode, flattened over examples: each example has as many rows as it has values.

    Attributes:
        values: (R, K) one-hot for a categorical variable, (R, D) bits for a bit vector; always floating.
        example_index: (R,) int64, sorted: which example of the batch each value belongs to.
    """

    values: Tensor
    example_index: Tensor


LossFunction = Callable[[LatentBatch], Tensor]


@dataclass(frozen=True)
class Expectation:
    """An estimate of the expected loss of each example.

    Attributes:
        loss: (B,) the estimate; ``loss.sum().backward()`` gives the estimator's gradient in scores and in the decoder.
        probs: (B, K) probabilities; for bit vectors (R,), aligned with ``example_index``.
        example_index: (R,) int64: the example of each decoded row.
        support_size: (B,) int64, number of values with probability above zero; None where it is not enumerated.
        decoder_calls: (B,) int64, number of rows really decoded for each example.
        analytic_entropy: (B,) the entropy where it is known without the support; see :meth:`entropy`.
    """

    loss: Tensor
    probs: Tensor
    example_index: Tensor
    support_size: Tensor | None
    decoder_calls: Tensor
    analytic_entropy: Tensor | None = None

    def entropy(self) -> Tensor:
        """Return the entropy (B,) of the distribution in nats, ``-sum p log p`` over its support, with a gradient.

        Raises:
            ConfigurationError: where it is not known, nor the support enumerated.
        """
        if self.analytic_entropy is not None:
            return self.analytic_entropy
        if self.support_size is None:
            raise ConfigurationError(
                "Expected an estimator that enumerates its support: without it there is no sum for the entropy."
            )
        inside = torch.where(self.probs > 0, self.probs, 1.0)
        terms = -inside * inside.log()
        return terms.sum(-1) if terms.dim() == 2 else Estimator.sum_by_example(terms, self.example_index, len(self.loss))


class Estimator(nn.Module, ABC):
    """Turns scores of a latent variable and a loss for each of its values into an expected loss.

    A subclass implements :meth:`expect` and keeps each constructor argument as an attribute of the same name.

    Args:
        mapping: from scores to probabilities. A model that has a mapping of its own hands it over by :meth:`bind`. Only
            estimators over categorical variables have one: probabilities of 2^D bit vectors are no row of a matrix.
    """

    #: The loss is the exact expectation under the estimator's distribution and its gradient exact, not a sample of them.
    exact: ClassVar[bool] = False
    #: In training, loss and gradients are those of the expected loss on average.
    unbiased: ClassVar[bool] = False
    #: What the variable is: one of K values, each with a score, or D bits, each with a score.
    latent: Latent = "categorical"

    #: How much is decoded depends on the scores: values of probability zero are left out.
    ragged: bool = True

    mapping: SparseMapping | None

    def __init__(self, mapping: SparseMapping | None = None) -> None:
        super().__init__()
        self.mapping = None
        if mapping is not None:
            self.bind(mapping)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances, without a mapping, that the shared tests run; override it when arguments are needed."""
        return [cls()]

    def bind(self, mapping: SparseMapping) -> Self:
        """Use this mapping from scores to probabilities.

        Raises:
            ConfigurationError: if there is another one already, its results are no probabilities, or this estimator is one
                over bit vectors.
        """
        if self.latent == "bits":
            raise ConfigurationError(
                f"{type(self).__name__} is an estimator over bit vectors, whose probabilities are its own: it takes no mapping"
                f" but was given {mapping}. A model with a mapping needs one over categories, such as Marginalize, or a sampler"
                ' with latent="categorical".'
            )
        if self.mapping is not None and repr(self.mapping) != repr(mapping):
            raise ConfigurationError(
                f"{type(self).__name__} has the mapping {self.mapping} but its model has {mapping}."
                " Give the mapping to the model alone."
            )
        if not mapping.on_simplex:
            raise ConfigurationError(
                f"{type(self).__name__} needs probabilities, from a mapping onto the simplex such as Sparsemax,"
                f" but {type(mapping).__name__} gives none."
            )
        self.mapping = mapping
        return self

    def set_context_features(self, features: int) -> Self:
        """Prepare for contexts of that many features, which a model tells when it is built. Only learnt baselines need it."""
        return self

    def forward(self, scores: Tensor, loss_fn: LossFunction, *, context: Tensor | None = None) -> Expectation:
        """Estimate the expected loss of each example.

        Args:
            scores: (B, K) scores of the K values of the latent variable, or (B, D) of its bits.
            loss_fn: takes a :class:`LatentBatch` of R values and returns their losses (R,).
            context: (B, C) what a learnt baseline may look at.

        Raises:
            ConfigurationError: if there is no mapping and one is needed, the scores are not (B, K) or (B, D), or the losses
                not (R,).
        """
        if scores.dim() != 2 or not scores.is_floating_point():
            second = "values" if self.latent == "categorical" else "bits"
            raise ConfigurationError(
                f"Expected floating scores of shape (batch, {second}) but got {tuple(scores.shape)} of {scores.dtype}."
            )
        return self.expect(scores, loss_fn, context)

    @abstractmethod
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        """Estimate the expected loss; see :meth:`forward`."""

    def scores_from_logits(self, logits: Tensor) -> Tensor:
        """Return the scores of what an encoder gives, in which 0 is an undecided bit: the same, unless a subclass says more.

        A model hands its encoder's output (B, D) through this, so that one encoder serves every estimator.
        """
        return logits

    def probabilities(self, scores: Tensor) -> Tensor:
        """Map scores (B, K) to probabilities (B, K).

        Raises:
            ConfigurationError: if no mapping was given.
        """
        if self.mapping is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no mapping. Standing alone it needs one, as in {type(self).__name__}(Sparsemax())."
            )
        return self.mapping.map(scores, None, -1)

    @staticmethod
    def losses(loss_fn: LossFunction, batch: LatentBatch) -> Tensor:
        """Return ``loss_fn(batch)``, which must be one loss a row; integers and booleans are made floating.

        Raises:
            ConfigurationError: if it is not of shape (R,).
        """
        losses = loss_fn(batch)
        if not isinstance(losses, Tensor) or losses.shape != batch.example_index.shape:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ConfigurationError(
                f"Expected loss_fn to return one loss for each of the {len(batch.example_index)} rows, a tensor of shape"
                f" ({len(batch.example_index)},), but got {shape}."
            )
        return losses if losses.is_floating_point() else losses.to(batch.values.dtype)

    def over_support(self, probs: Tensor, values: Tensor, loss_fn: LossFunction) -> Expectation:
        """Sum the loss over those of the listed values whose probability is not zero, in one call of ``loss_fn``.

        Args:
            probs: (B, S) probabilities.
            values: (B, S, D) the value that each belongs to.
            loss_fn: see :meth:`forward`.
        """
        support = probs != 0  # NaN counts: a broken row must show in the loss
        rows, places = support.nonzero(as_tuple=True)
        listed = probs[rows, places]
        losses = self.losses(loss_fn, LatentBatch(values[rows, places], rows))
        loss = self.sum_by_example(listed * losses, rows, len(probs))
        size = support.sum(-1)
        return Expectation(loss=loss, probs=listed, example_index=rows, support_size=size, decoder_calls=size)

    @staticmethod
    def sum_by_example(values: Tensor, rows: Tensor, size: int) -> Tensor:
        """Add up values (R,) by their example: (size,)."""
        return torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, rows, values)
