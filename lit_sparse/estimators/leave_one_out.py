"""Several samples, each with the others as its baseline."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import MOST_FEATURES, Count, ranges
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.sampler import Sampler, with_gradient_of

__all__ = ["LeaveOneOut"]


@ranges(k=Count(2, MOST_FEATURES))  # the baseline needs at least one other sample
class LeaveOneOut(Sampler):
    r"""Score-function estimator with k samples, each with the mean loss of the others as its baseline; unbiased.

    .. math:: \nabla_x \approx \frac{1}{k} \sum_{i=1}^{k} \Bigl(\ell(z_i) - \frac{1}{k - 1} \sum_{j \ne i} \ell(z_j)\Bigr)
        \nabla_x \ln \pi(z_i)

    where z_i are the samples, l is the loss, x are the scores and pi is the distribution; the estimate is the mean loss.

    Args:
        k: number of samples, and of decoder calls, >= 2.
        latent: ``"categorical"`` or ``"bits"``; see :class:`~lit_sparse.estimators.Sampler`.
        options: options of :class:`~lit_sparse.estimators.Sampler`.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 2, or another argument is not allowed.

    Source: Mnih & Rezende (2016), Variational Inference for Monte Carlo Objectives, arXiv:1602.06725. Kool, van Hoof &
    Welling (2019), Buy 4 REINFORCE Samples, Get a Baseline for Free!

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Softmax
        >>> out = LeaveOneOut(4, mapping=Softmax())(torch.zeros(3, 5), lambda latent: latent.values.argmax(-1).float())
        >>> out.decoder_calls.tolist()
        [4, 4, 4]
    """

    unbiased: ClassVar[bool] = True

    def __init__(
        self,
        k: int,
        latent: Latent = "categorical",
        **options: Any,
    ) -> None:
        super().__init__(latent, **options)
        self.k = k

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, for both kinds of variables."""
        return [cls(2), cls(4), cls(3, "bits")]

    @override
    def extra_repr(self) -> str:
        return f"k={self.k}, latent={self.latent!r}"

    @override
    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        decoded = self.decode(latent, latent.sample(self.k), loss_fn)
        seen = decoded.losses.detach()
        others = (seen.sum(-1, keepdim=True) - seen) / (self.k - 1)
        surrogate = torch.where(decoded.there, (seen - others) * latent.log_prob(decoded.values), 0.0)
        loss: Tensor = with_gradient_of(decoded.losses.mean(-1), surrogate.mean(-1))
        return self.expectation(latent, loss, decoded)
