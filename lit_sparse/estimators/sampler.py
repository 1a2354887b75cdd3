"""Base of all samplers: their latent variable, ragged decoding of samples, and evaluation without sampling."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from lit_sparse.checks import check_tensor
from lit_sparse.estimators.base import Estimator, Expectation, Latent, LatentBatch, LossFunction
from lit_sparse.estimators.latents import Bits, Categories, LatentDistribution, widened
from lit_sparse.mappings import SparseMapping

__all__ = ["Decoded", "Evaluation", "Sampler"]

Evaluation: TypeAlias = Literal["most_probable", "sample"]


@dataclass(frozen=True)
class Decoded:
    """Losses of latent values, n for each of B examples, of which R in total were decoded.

    Attributes:
        values: the values, (B, n, K) one-hot or (B, n, D) bits.
        there: (B, n), whether each value was decoded.
        losses: (B, n) losses, zero for values that were not decoded.
        example_index: (R,) int64, the example of each decoded value.
    """

    values: Tensor
    there: Tensor
    losses: Tensor
    example_index: Tensor


class Sampler(Estimator):
    """Base class of estimators that use a few values of the latent variable, mostly samples.

    In eval mode, only the most probable value is decoded, so that results are deterministic; with ``evaluation="sample"``,
    values are sampled there too. Samples use torch's generator. A sampler warns once if its mapping is sparse, because
    values of probability zero are never sampled.

    Args:
        latent: ``"categorical"``, with a mapping from scores to probabilities, or ``"bits"``, independent bits with the
            scores as logits.
        mapping: mapping from scores to probabilities of categories; None if a model gives its own.
        evaluation: ``"most_probable"`` or ``"sample"``.

    Raises:
        ConfigurationError: if an argument is not allowed.
    """

    def __init__(
        self, latent: Latent = "categorical", mapping: SparseMapping | None = None, evaluation: Evaluation = "most_probable"
    ) -> None:
        torch.nn.Module.__init__(self)
        self.latent, self.evaluation = latent, evaluation
        super().__init__(mapping)
        self._warned = False

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        latent = self.distribution(scores)
        if self.training or self.evaluation == "sample":
            self._warn_of_zeros()
            return self.estimate(latent, loss_fn, context)
        decoded = self.decode(latent, latent.best(1)[0], loss_fn)
        return self.expectation(latent, decoded.losses[:, 0], decoded)

    @abstractmethod
    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        """Return an estimate of the expected loss by sampling; see :meth:`Estimator.forward`."""

    def distribution(self, scores: Tensor) -> LatentDistribution:
        """Return the latent distributions given by scores (B, K) of categories or (B, D) of bits."""
        return Bits(scores) if self.latent == "bits" else Categories(self.probabilities(scores))

    def sent(self, scores: Tensor, noise: Tensor) -> Tensor:
        """Return the value (B, K) that training decodes for each example: a sampled category, one-hot.

        Args:
            scores: (B, K) scores of the categories.
            noise: (B, K) independent draws from the standard Gumbel distribution.
        """
        return one_hot((self.probabilities(scores).log() + noise).argmax(-1), scores.shape[-1]).to(scores.dtype)

    def _warn_of_zeros(self) -> None:
        """Warn once of a mapping with zeros, which are never sampled."""
        if self._warned or self.latent == "bits" or self.mapping is None or not self.mapping.sparse:
            return
        self._warned = True
        warnings.warn(
            f"{type(self).__name__} samples from {type(self.mapping).__name__}, which gives some values probability zero."
            " They are never sampled, so training does not explore them. Use the mapping Softmax, or the estimator Marginalize,"
            " which sums over the support of a sparse mapping.",
            stacklevel=2,
        )

    def decode(self, latent: LatentDistribution, values: Tensor, loss_fn: LossFunction, there: Tensor | None = None) -> Decoded:
        """Return the losses of latent values, by a single call of ``loss_fn``.

        Args:
            latent: distribution of the values; in its empty rows nothing is decoded.
            values: (B, n, K) one-hot, or (B, n, D) bits.
            loss_fn: see :meth:`Estimator.forward`.
            there: (B, n), whether to decode each value; by default all.
        """
        allowed = ~latent.empty.unsqueeze(-1).expand(values.shape[:2])
        there = allowed if there is None else allowed & there
        rows, places = there.nonzero(as_tuple=True)
        found = widened(self.losses(loss_fn, LatentBatch(values[rows, places], rows)))
        losses = torch.zeros(there.shape, dtype=found.dtype, device=found.device).index_put((rows, places), found)
        return Decoded(values, there, losses, rows)

    def expectation(
        self, latent: LatentDistribution, loss: Tensor, decoded: Decoded, near: Tensor | None = None
    ) -> Expectation:
        """Return an :class:`Expectation` with the estimate (B,) and its statistics; NaN for broken rows.

        Args:
            latent: distribution of the values.
            loss: (B,) estimated expected loss.
            decoded: decoded values and their losses.
            near: discrete values of relaxed ones; by default the decoded values.
        """
        return Expectation(
            loss=torch.where(latent.broken, torch.nan, loss),
            probs=latent.reported(decoded.values if near is None else near, decoded.there),
            example_index=decoded.example_index,
            support_size=latent.support_size,
            decoder_calls=decoded.there.sum(-1),
            analytic_entropy=latent.entropy(),
        )


def with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """Return a value whose gradient is its own plus the gradient of a surrogate of the same shape.

    Raises:
        ConfigurationError: if the surrogate has another shape, or one of them does not hold real numbers.
    """
    check_tensor(value, "a value in a tensor of real numbers")
    check_tensor(surrogate, f"a surrogate of the value's shape {tuple(value.shape)}", shape=value.shape)
    return value + (surrogate - surrogate.detach())
