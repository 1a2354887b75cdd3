"""The interface of all estimators of ``E_{z ~ pi(scores)} loss(z)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from typing_extensions import Self

from lit_sparse.checks import shown
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.tensors import is_dense
from lit_sparse.ground.torch_internals import refuse_vmap
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import check_mapping

__all__ = ["Estimator", "Expectation", "Latent", "LatentBatch", "LossFunction"]

Latent: TypeAlias = Literal["categorical", "bits"]


@dataclass(frozen=True)
class LatentBatch:
    """Latent values to decode, flattened over examples: one row for each value of each example.

    Attributes:
        values: (R, K) one-hot for a categorical variable, (R, D) bits for a bit vector; always floating.
        example_index: (R,) int64, sorted: the example of each value.
    """

    values: Tensor
    example_index: Tensor


LossFunction = Callable[[LatentBatch], Tensor]


@dataclass(frozen=True)
class Expectation:
    """Estimate of the expected loss of each example, with statistics of the latent distribution.

    Attributes:
        loss: (B,) the estimate; ``loss.sum().backward()`` gives the estimator's gradient for scores and decoder.
        probs: (B, K) probabilities; for bit vectors (R,), aligned with ``example_index``.
        example_index: (R,) int64: the example of each decoded row.
        support_size: (B,) int64, number of values with probability above zero; None if the support is not enumerated.
        decoder_calls: (B,) int64, number of decoded rows per example.
        analytic_entropy: (B,) entropy, if it is known without the support; see :meth:`entropy`.
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
            ConfigurationError: if the entropy is unknown and the support is not enumerated.
        """
        if self.analytic_entropy is not None:
            return self.analytic_entropy
        if self.support_size is None:
            raise ConfigurationError("Expected an estimator that enumerates its support: the entropy is a sum over it.")
        inside = torch.where(self.probs > 0, self.probs, 1.0)
        terms = -inside * inside.log()
        return terms.sum(-1) if terms.dim() == 2 else Estimator.sum_by_example(terms, self.example_index, len(self.loss))


class Estimator(nn.Module, ABC):
    r"""Base class of estimators of the expected loss under a discrete latent variable, and of its gradient.

    .. math:: E_{z \sim \pi(x)} \, \mathrm{loss}(z)

    where x are the scores of the latent variable z and pi(x) is its distribution.

    A subclass implements :meth:`expect` and keeps each constructor argument as an attribute of the same name.

    Args:
        mapping: mapping from scores to probabilities. A model with its own mapping passes it to :meth:`bind`. Estimators
            over bit vectors have no mapping, because the probabilities of 2^D bit vectors are not stored.
    """

    #: Whether loss and gradient are exact under the estimator's distribution, not sampled.
    exact: ClassVar[bool] = False
    #: Whether loss and gradient in training are unbiased estimates of the expected loss and its gradient.
    unbiased: ClassVar[bool] = False
    #: Kind of variable: a category out of K, or D bits; the scores are one per category or bit.
    latent: Latent = "categorical"

    #: Whether the number of decoded values depends on the scores, because values of probability zero are left out.
    ragged: bool = True

    mapping: SparseMapping | None
    #: Names of the attributes in the representation.
    _shown: ClassVar[tuple[str, ...]] = ()

    def __init__(self, mapping: SparseMapping | None = None) -> None:
        super().__init__()
        self.mapping = None
        if mapping is not None:
            self.bind(mapping)

    def extra_repr(self) -> str:
        """Return the attributes that the class shows, with their values."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, without a mapping; override it if arguments are needed."""
        return [cls()]

    def bind(self, mapping: SparseMapping) -> Self:
        """Set the mapping from scores to probabilities.

        Raises:
            ConfigurationError: if another mapping is set already, the results are not probabilities, or this estimator is
                over bit vectors.
        """
        if self.latent == "bits":
            raise ConfigurationError(
                f"{type(self).__name__} is an estimator over bit vectors and takes no mapping but got {mapping}. A model with a"
                " mapping needs an estimator over categories, such as Marginalize, or a sampler"
                ' with latent="categorical".'
            )
        if self.mapping is not None and repr(self.mapping) != repr(mapping):
            raise ConfigurationError(
                f"{type(self).__name__} has the mapping {self.mapping} but its model has {mapping}."
                " Give the mapping only to the model."
            )
        check_mapping(mapping)
        if not mapping.on_simplex:
            raise ConfigurationError(
                f"{type(self).__name__} needs a mapping onto the simplex, such as Sparsemax, but got {type(mapping).__name__}."
            )
        self.mapping = mapping
        return self

    def set_context_features(self, features: int) -> Self:
        """Set the number of features of contexts; a model calls it when it is built, for learned baselines."""
        return self

    def forward(self, scores: Tensor, loss_fn: LossFunction, *, context: Tensor | None = None) -> Expectation:
        """Return an estimate of the expected loss of each example, as an :class:`Expectation`.

        Args:
            scores: (B, K) scores of the K values of the latent variable, or (B, D) of its bits.
            loss_fn: function from a :class:`LatentBatch` of R values to their losses (R,).
            context: (B, C) input of a learned baseline.

        Raises:
            ConfigurationError: if a required mapping is missing, the scores are not (B, K) or (B, D), or the losses are
                not (R,).
        """
        dense = isinstance(scores, Tensor) and is_dense(scores)
        if not dense or scores.dim() != 2 or not scores.is_floating_point() or not scores.shape[1]:
            second = "values" if self.latent == "categorical" else "bits"
            raise ConfigurationError(f"Expected floating scores of shape (batch, {second}) but got {shown(scores)}.")
        if not callable(loss_fn):
            raise ConfigurationError(f"Expected a function `loss_fn` but got {full_name(loss_fn)}.")
        refuse_vmap(type(self).__name__)
        found = self.expect(scores, loss_fn, context)
        if not isinstance(found, Expectation) or found.loss.shape != scores.shape[:1]:
            got = f"a loss {tuple(found.loss.shape)}" if isinstance(found, Expectation) else repr(type(found).__name__)
            raise ConfigurationError(
                f"Expected `expect` or `estimate` of {full_name(self)} to return an Expectation with a loss of shape"
                f" ({len(scores)},), one per example, but got {got}."
            )
        per_example = (found.support_size, found.decoder_calls, found.analytic_entropy)
        listed = found.probs.shape[:1] in (scores.shape[:1], found.example_index.shape)
        if not listed or any(part is not None and part.shape != scores.shape[:1] for part in per_example):
            raise ConfigurationError(
                f"Expected an Expectation of {full_name(self)} whose `probs` have a row per example, or per `example_index`,"
                f" and other entries one for each of {len(scores)} examples."
            )
        return found

    @abstractmethod
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        """Return an estimate of the expected loss, given checked arguments; see :meth:`forward`."""

    def scores_from_logits(self, logits: Tensor) -> Tensor:
        """Return the scores for an encoder's logits, of which 0 means an undecided bit; by default the logits themselves.

        A model passes its encoder's output (B, D) through this method, so that one encoder serves every estimator.
        """
        return logits

    def probabilities(self, scores: Tensor) -> Tensor:
        """Map scores (B, K) to probabilities (B, K).

        Raises:
            ConfigurationError: if no mapping is set.
        """
        if self.mapping is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no mapping. Give it one, as in {type(self).__name__}(mapping=Softmax()), or a"
                " sparse one for an exact estimator; or call its `bind(mapping)` in the constructor of your model."
            )
        return self.mapping.map(scores, None, -1)

    @staticmethod
    def losses(loss_fn: LossFunction, batch: LatentBatch) -> Tensor:
        """Return ``loss_fn(batch)``, one loss per row; integers and booleans become floating.

        Raises:
            ConfigurationError: if it is complex or not of shape (R,).
        """
        losses, shape = loss_fn(batch), batch.example_index.shape
        if not isinstance(losses, Tensor) or losses.shape != shape or losses.is_complex():
            what = f"loss_fn to return one loss per row, real and of shape {tuple(shape)},"
            raise ConfigurationError(f"Expected {what} but got {shown(losses)}.")
        return losses if losses.is_floating_point() else losses.to(batch.values.dtype)

    def over_support(self, probs: Tensor, values: Tensor | None, loss_fn: LossFunction) -> Expectation:
        """Return the exact expected loss over the listed values of nonzero probability, in a single call of ``loss_fn``.

        Args:
            probs: (B, S) probabilities.
            values: (B, S, D) value of each probability; None for S categories.
            loss_fn: see :meth:`forward`.

        Raises:
            ConfigurationError: if there is not one value for each probability.
        """
        if values is not None and (values.dim() != 3 or values.shape[:2] != probs.shape):
            raise ConfigurationError(
                f"Expected a value (B, S, D) for each probability (B, S) but got values {tuple(values.shape)} and"
                f" probabilities {tuple(probs.shape)}."
            )
        support = probs != 0  # NaN is included, so that an invalid row shows in the loss
        rows, places = support.nonzero(as_tuple=True)
        listed = probs[rows, places]
        decoded = one_hot(places, probs.shape[1]).to(probs.dtype) if values is None else values[rows, places]
        losses = self.losses(loss_fn, LatentBatch(decoded, rows))
        loss = self.sum_by_example(listed * losses, rows, len(probs))
        size = support.sum(-1)
        reported = probs if values is None else listed
        return Expectation(loss=loss, probs=reported, example_index=rows, support_size=size, decoder_calls=size)

    @staticmethod
    def sum_by_example(values: Tensor, rows: Tensor, size: int) -> Tensor:
        """Return the sums (size,) of values (R,) over the rows of each example."""
        return torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, rows, values)
