"""The most probable values exactly, and one draw for all others."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import MOST_FEATURES, check_count
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.sampler import Evaluation, Sampler, with_gradient_of
from lit_sparse.mappings import SparseMapping

__all__ = ["SumAndSample"]


class SumAndSample(Sampler):
    """Sum the loss over the k most probable values T, and draw one of the others, z, for the rest of the probability.

        sum over t in T of pi(t) loss(t) + pi(not T) loss(z)

    The sum has its exact gradient, the draw that of the score function, with the mean loss over T as its baseline. Unbiased,
    and the less random the more probability T has; exact where nothing is left.

    Args:
        k: number of values that are summed, >= 1; more than there are means all of them.
        latent: ``"categorical"`` or ``"bits"``; see :class:`~lit_sparse.estimators.Sampler`.
        mapping: from scores to probabilities of categories; None when a model gives its own.
        evaluation: ``"most_probable"`` or ``"sample"``.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1, or another argument none of its values.

    Source: Liu, Regier, Tripuraneni, Jordan & McAuliffe (2019), Rao-Blackwellized stochastic gradients for discrete
    distributions.

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
        *,
        mapping: SparseMapping | None = None,
        evaluation: Evaluation = "most_probable",
    ) -> None:
        super().__init__(latent, mapping, evaluation)
        self.k = check_count("k", k, most=MOST_FEATURES)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return some of both kinds of variables, and some that leave nothing to draw."""
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
        # What the baseline takes away on average, baseline * grad pi(not T), is given back.
        surrogate: Tensor = weight * (last.detach() - baseline) * log_probs[:, -1] + baseline * share
        loss = with_gradient_of(summed + weight * last, torch.where(rest, surrogate, 0.0))
        return self.expectation(latent, loss, decoded)
