"""Estimators by samples: several with the others as baselines, or one beside the sum over the most probable values."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, MOST_FEATURES, Count, ranges
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.sampler import Sampler, with_gradient_of

__all__ = ["LeaveOneOut", "SumAndSample"]


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


@ranges(k=FEATURES)
class SumAndSample(Sampler):
    r"""Estimator that sums the loss over the k most probable values, and samples one of the others; unbiased.

    .. math:: \sum_{t \in T} \pi(t) \, \mathrm{loss}(t) + \pi(\lnot T) \, \mathrm{loss}(z)

    where T holds the k most probable values, pi is the distribution, and z is sampled outside T. The sum has its exact
    gradient, the sample the score-function gradient with the mean loss over T as its baseline. The more probability T has,
    the lower the variance; exact if T holds all values.

    Args:
        k: number of summed values, >= 1; a larger k than the number of values sums all of them.
        latent: ``"categorical"`` or ``"bits"``; see :class:`~lit_sparse.estimators.Sampler`.
        options: options of :class:`~lit_sparse.estimators.Sampler`.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1, or another argument is not allowed.

    Source: Liu, Regier, Tripuraneni, Jordan & McAuliffe (2019), Rao-Blackwellized Stochastic Gradients for Discrete
    Distributions, arXiv:1810.04777.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> scores = torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.5, 0.5]])
        >>> SumAndSample(1, mapping=Sparsemax())(scores, lambda latent: latent.values[:, 0]).decoder_calls.tolist()
        [1, 2]
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
        """Return instances for the shared tests, for both kinds of variables, some of which leave nothing to sample."""
        return [cls(1), cls(3), cls(100), cls(2, "bits"), cls(100, "bits")]

    @override
    def extra_repr(self) -> str:
        return f"k={self.k}, latent={self.latent!r}"

    @override
    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        top, listed = latent.best(self.k)
        drawn, share = latent.outside(top, listed)
        rest = share > 0
        values, there = torch.cat([top, drawn], 1), torch.cat([listed, rest.unsqueeze(-1)], 1)
        decoded = self.decode(latent, values, loss_fn, there)
        log_probs = torch.where(decoded.there, latent.log_prob(values), 0.0)
        probs = torch.where(decoded.there[:, :-1], log_probs[:, :-1].exp(), 0.0)
        losses, last = decoded.losses[:, :-1], decoded.losses[:, -1]
        summed = (probs * losses).sum(-1)
        baseline = summed.detach() / probs.detach().sum(-1).clamp_min(torch.finfo(probs.dtype).tiny)
        weight = share.detach()
        # The baseline subtracts baseline * grad pi(not T) on average; it is added again.
        surrogate: Tensor = weight * (last.detach() - baseline) * log_probs[:, -1] + baseline * share
        loss = with_gradient_of(summed + weight * last, torch.where(rest, surrogate, 0.0))
        return self.expectation(latent, loss, decoded)
