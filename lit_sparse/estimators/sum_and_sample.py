"""Exact sums over the most probable values, and one sample of the rest."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, ranges
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.sampler import Sampler, with_gradient_of

__all__ = ["SumAndSample"]


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
