"""The score-function estimator, also known as REINFORCE, with three baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import INPUTS, WIDTHS, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.running_mean import RunningMean
from lit_sparse.estimators.sampler import Evaluation, Sampler, with_gradient_of
from lit_sparse.mappings import SparseMapping

__all__ = ["ScoreFunction"]


@ranges(context_features=INPUTS, hidden=WIDTHS)
class ScoreFunction(Sampler):
    r"""Score-function estimator (REINFORCE): decodes one sample, with one of three baselines; unbiased.

    .. math:: \nabla_x \approx (\ell(z) - b)\, \nabla_x \ln \pi(z)

    where z is the sample, l(z) its loss and also the estimate, b the baseline, x are the scores and pi is the distribution.

    Unbiased for every baseline that does not depend on z. The closer the baseline is to the expected loss, the lower the
    variance of the gradient.

    Args:
        baseline: ``"mean"``, ``"self_critic"`` or ``"learnt"``. ``"mean"`` is the mean loss of all training batches so far
            (SFE). ``"self_critic"`` is the loss of a second, independent sample (SFE+), at the cost of another decoder
            call. ``"learnt"`` adds to the mean a network's output for the example's context, fitted to the loss by squared
            error (NVIL). That error's gradient reaches only the network, and its value is not part of the loss.
        latent: ``"categorical"`` or ``"bits"``; see :class:`~lit_sparse.estimators.Sampler`.
        context_features: size of the learned baseline's context; None if a model sets it.
        hidden: widths of the hidden layers of a learned baseline.
        mapping: mapping from scores to probabilities of categories; None if a model gives its own.
        evaluation: ``"most_probable"`` or ``"sample"``.

    Raises:
        ConfigurationError: if an argument is not allowed, or a learned baseline gets no context.

    Source: Williams (1992), Simple Statistical Gradient-Following Algorithms, doi:10.1007/BF00992696. Rennie et al. (2017),
    Self-critical Sequence Training, arXiv:1612.00563, for the two samples. Mnih & Gregor (2014), Neural Variational
    Inference and Learning in Belief Networks, arXiv:1402.0030.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Softmax
        >>> scores = torch.zeros(1000, 2, requires_grad=True)
        >>> out = ScoreFunction("self_critic", mapping=Softmax())(scores, lambda latent: latent.values[:, 0])
        >>> out.loss.sum().backward()
        >>> bool((scores.grad.mean(0) - torch.tensor([0.25, -0.25])).abs().max() < 0.1)
        True
    """

    unbiased: ClassVar[bool] = True

    def __init__(
        self,
        baseline: Literal["mean", "self_critic", "learnt"] = "mean",
        latent: Latent = "categorical",
        *,
        context_features: int | None = None,
        hidden: Sequence[int] = (128, 128),
        mapping: SparseMapping | None = None,
        evaluation: Evaluation = "most_probable",
    ) -> None:
        super().__init__(latent, mapping, evaluation)
        self.baseline, self.hidden = baseline, hidden
        self.context_features: int | None = None
        self.mean = RunningMean() if baseline != "self_critic" else None
        self.network: nn.Module | None = None
        if context_features is not None:
            self.set_context_features(context_features)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, one for each baseline and kind of variable."""
        kinds: tuple[Latent, ...] = ("categorical", "bits")
        plain = [cls(baseline, latent) for latent in kinds for baseline in ("mean", "self_critic")]
        return plain + [cls("learnt", latent, context_features=3) for latent in kinds]

    @override
    def extra_repr(self) -> str:
        return f"baseline={self.baseline!r}, latent={self.latent!r}"

    @override
    def set_context_features(self, features: int) -> Self:
        if self.baseline == "learnt" and self.context_features != features:
            if self.context_features is not None:
                raise ConfigurationError(
                    f"{type(self).__name__} was built for contexts of {self.context_features} features but its model gives"
                    f" {features}. Leave out `context_features`."
                )
            from lit_sparse.nn import MLP  # on use: a third of what an estimator imports

            self.network = MLP([features, *self.hidden, 1])
        self.context_features = features
        return self

    @override
    def estimate(self, latent: LatentDistribution, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        decoded = self.decode(latent, latent.sample(2 if self.baseline == "self_critic" else 1), loss_fn)
        losses = decoded.losses[:, 0]
        seen = losses.detach()
        used = ~latent.broken & ~latent.empty
        expected = decoded.losses[:, 1].detach() if self.mean is None else self.mean.value.to(seen.dtype).expand_as(seen)
        loss = losses
        if self.baseline == "learnt":
            guess = expected + self._network_of(context, len(seen)).to(seen.dtype)
            expected = guess.detach()
            loss = with_gradient_of(loss, torch.where(used, (guess - seen).square(), 0.0))
        if self.mean is not None and self.training:
            self.mean.update(seen, used)
        log_prob = latent.log_prob(decoded.values[:, :1])[:, 0]
        loss = with_gradient_of(loss, torch.where(used, (seen - expected) * log_prob, 0.0))
        return self.expectation(latent, loss, decoded)

    def _network_of(self, context: Tensor | None, size: int) -> Tensor:
        if self.network is None or context is None:
            raise ConfigurationError(
                "Expected a `context` (B, C) in each call for the learned baseline but got none. Give its size, as in"
                " ScoreFunction('learnt', context_features=C)."
            )
        shape = (size, self.context_features)
        found = check_tensor(context, f"a context of shape {shape} for the learned baseline", shape=shape)
        guess: Tensor = self.network(found.detach())
        return guess.squeeze(-1)
