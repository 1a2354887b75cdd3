"""Relaxed samples with pathwise gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import POSITIVE, ranges
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.sampler import Evaluation, Sampler
from lit_sparse.mappings import SparseMapping

__all__ = ["GumbelSoftmax"]


@ranges(temperature=POSITIVE)
class GumbelSoftmax(Sampler):
    r"""Estimator that decodes a relaxed sample, differentiable in the scores: the Gumbel-softmax or concrete relaxation.

    .. math:: z = \operatorname{softmax}((\ln \pi + g) / \tau)

    where pi are the probabilities of the categories, g is standard Gumbel noise and tau the temperature. Bits are relaxed
    by the sigmoid of logit plus logistic noise, over tau.

    The loss is differentiated along the path from the scores to the sample. A lower temperature has less bias and more
    variance. The entropy refers to the discrete distribution.

    Args:
        temperature: temperature of the relaxation, > 0; a callback may lower it during training, and checkpoints keep it.
        straight_through: whether to decode the discrete value, with the gradient of the relaxed sample.
        latent: ``"categorical"`` or ``"bits"``; see :class:`~lit_sparse.estimators.Sampler`.
        mapping: mapping from scores to probabilities of categories; None if a model gives its own.
        evaluation: ``"most_probable"`` or ``"sample"``.

    Raises:
        ConfigurationError: if the temperature is not a positive number, or another argument is not allowed.

    Source: Jang, Gu & Poole (2017), Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144. Maddison, Mnih &
    Teh (2017), The Concrete Distribution, arXiv:1611.00712.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Softmax
        >>> seen = []
        >>> estimator = GumbelSoftmax(0.5, straight_through=True, mapping=Softmax())
        >>> estimator(torch.zeros(2, 3), lambda latent: seen.append(latent.values) or latent.values[:, 0]).loss.shape
        torch.Size([2])
        >>> sorted(seen[0].unique().tolist())
        [0.0, 1.0]
    """

    def __init__(
        self,
        temperature: float = 1.0,
        straight_through: bool = False,
        latent: Latent = "categorical",
        *,
        mapping: SparseMapping | None = None,
        evaluation: Evaluation = "most_probable",
    ) -> None:
        super().__init__(latent, mapping, evaluation)
        # A checkpointed parameter, not a buffer: DDP broadcasts buffers in every call, also if calls are uneven.
        initial = torch.tensor(temperature, dtype=torch.float64)
        self.temperature = nn.Parameter(initial, requires_grad=False)
        self.straight_through = straight_through

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: both forms for both kinds of variables."""
        return [cls(), cls(0.5, True), cls(0.7, latent="bits"), cls(1.0, True, "bits")]

    @override
    def extra_repr(self) -> str:
        return f"temperature={float(self.temperature):g}, straight_through={self.straight_through}, latent={self.latent!r}"

    @override
    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        point, near = latent.relaxed(self.temperature)
        point = point.to(near.dtype)
        values: Tensor = near + (point - point.detach()) if self.straight_through else point
        decoded = self.decode(latent, values, loss_fn)
        return self.expectation(latent, decoded.losses[:, 0], decoded, near)

    @override
    def sent(self, scores: Tensor, noise: Tensor) -> Tensor:
        """Return the value (B, K) that training decodes for each example: relaxed, or one-hot with ``straight_through``."""
        if self.straight_through:
            return super().sent(scores, noise)
        return ((self._log_probs(scores) + noise) / self.temperature.to(scores.dtype)).softmax(-1)
