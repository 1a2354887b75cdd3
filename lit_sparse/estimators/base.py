"""The interface of all estimators of ``E_{z ~ pi(scores)} loss(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SparseMapping

__all__ = ["Estimator", "Expectation", "LatentBatch", "LossFunction"]


@dataclass(frozen=True)
class LatentBatch:
    """The latent values to decode, flattened over examples: each example has as many rows as it has values.

    Attributes:
        values: (R, K) one-hot for a categorical variable, (R, D) bits for a bit vector; always floating.
        rows: (R,) int64, sorted: which example of the batch each value belongs to.
    """

    values: Tensor
    rows: Tensor


LossFunction = Callable[[LatentBatch], Tensor]


@dataclass(frozen=True)
class Expectation:
    """An estimate of the expected loss of each example.

    Attributes:
        loss: (B,) the estimate; ``loss.sum().backward()`` gives the estimator's gradient in scores and in the decoder.
        probs: (B, K) probabilities; for bit vectors (R,), aligned with ``rows``.
        rows: (R,) int64: the example of each decoded row.
        support_size: (B,) int64, number of values with probability above zero; None where it is not enumerated.
        decoder_calls: (B,) int64, number of rows really decoded for each example.
    """

    loss: Tensor
    probs: Tensor
    rows: Tensor
    support_size: Tensor | None
    decoder_calls: Tensor


class Estimator(nn.Module, ABC):
    """Turns scores of a latent variable and a loss for each of its values into an expected loss.

    A subclass implements :meth:`expect` and keeps each constructor argument as an attribute of the same name.

    Args:
        mapping: from scores to probabilities. A model that has a mapping of its own hands it over by :meth:`bind`.
    """

    #: The loss is the exact expectation and its gradient exact, not a sample of them.
    exact: ClassVar[bool] = False

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
            ConfigurationError: if there is another one already, or its results are no probabilities.
        """
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

    def forward(self, scores: Tensor, loss_fn: LossFunction, *, context: Tensor | None = None) -> Expectation:
        """Estimate the expected loss of each example.

        Args:
            scores: (B, K) scores of the K values of the latent variable.
            loss_fn: takes a :class:`LatentBatch` of R values and returns their losses (R,).
            context: (B, C) what a learnt baseline may look at.

        Raises:
            ConfigurationError: if there is no mapping, the scores are not (B, K), or the losses not (R,).
        """
        if scores.dim() != 2:
            raise ConfigurationError(f"Expected scores of shape (batch, values) but got {tuple(scores.shape)}.")
        return self.expect(scores, loss_fn, context)

    @abstractmethod
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        """Estimate the expected loss; see :meth:`forward`."""

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
        """Return ``loss_fn(batch)``, which must be one loss a row.

        Raises:
            ConfigurationError: if it is not of shape (R,).
        """
        losses = loss_fn(batch)
        if not isinstance(losses, Tensor) or losses.shape != batch.rows.shape:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ConfigurationError(
                f"Expected loss_fn to return one loss for each of the {len(batch.rows)} rows, a tensor of shape"
                f" ({len(batch.rows)},), but got {shape}."
            )
        return losses

    @staticmethod
    def sum_by_example(values: Tensor, rows: Tensor, size: int) -> Tensor:
        """Add up values (R,) by their example: (size,)."""
        return torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, rows, values)
