"""Estimators by samples: with a baseline or the other samples, beside a sum over the most probable values, or relaxed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, INPUTS, MOST_FEATURES, POSITIVE, WIDTHS, Count, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators.base import Expectation, Latent, LossFunction
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.sampler import Sampler, with_gradient_of
from lit_sparse.ground.distributed import reduce
from lit_sparse.ground.kept_dtype import KeepsDtype

__all__ = ["GumbelSoftmax", "LeaveOneOut", "RunningMean", "ScoreFunction", "SumAndSample"]


class RunningMean(KeepsDtype):
    """Running mean of all numbers so far that is the same on all processes and part of checkpoints.

    Its state is parameters without a gradient, not buffers. DistributedDataParallel broadcasts buffers in every call, which
    hangs if processes make different numbers of calls, as in validation.

    Example:
        >>> mean = RunningMean()
        >>> mean.update(torch.tensor([1.0, 2.0])), mean.update(torch.tensor([6.0]))
        (None, None)
        >>> float(mean.value)
        3.0
    """

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)
        self.count = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)

    @torch.no_grad()
    def update(self, numbers: Tensor, used: Tensor | None = None) -> None:
        """Add numbers to the mean, ignoring those that are not finite; in a distributed run, all processes must call it.

        Args:
            numbers: tensor of any shape.
            used: mask of the numbers that count, of the same shape; by default all. Infinite numbers and NaN never count.
        """
        some = numbers.isfinite() if used is None else used & numbers.isfinite()
        total, count = reduce(torch.stack([torch.where(some, numbers, 0.0).double().sum(), some.double().sum()])).unbind()
        self.count.add_(count)
        self.value.add_(torch.where(count > 0, (total - count * self.value) / self.count.clamp_min(1.0), 0.0))


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
        options: options of :class:`~lit_sparse.estimators.Sampler`.

    Raises:
        ConfigurationError: if an argument is not allowed, or a learned baseline gets no context.

    Source: Williams (1992), Simple Statistical Gradient-Following Algorithms, doi:10.1007/BF00992696. Rennie et al. (2017),
    Self-critical Sequence Training, arXiv:1612.00563, for the two samples. Mnih & Gregor (2014), Neural Variational
    Inference and Learning in Belief Networks, arXiv:1402.0030.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Softmax
        >>> scores = torch.zeros(1000, 2, requires_grad=True)
        >>> out = ScoreFunction("self_critic", mapping=Softmax())(
        ...     scores, lambda latent: latent.values[:, 0]
        ... )
        >>> out.loss.sum().backward()
        >>> bool((scores.grad.mean(0) - torch.tensor([0.25, -0.25])).abs().max() < 0.1)
        True
    """

    unbiased: ClassVar[bool] = True
    _shown = ("baseline", "latent")

    def __init__(
        self,
        baseline: Literal["mean", "self_critic", "learnt"] = "mean",
        latent: Latent = "categorical",
        *,
        context_features: int | None = None,
        hidden: Sequence[int] = (128, 128),
        **options: Any,
    ) -> None:
        super().__init__(latent, **options)
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
        >>> out = LeaveOneOut(4, mapping=Softmax())(
        ...     torch.zeros(3, 5), lambda latent: latent.values.argmax(-1).float()
        ... )
        >>> out.decoder_calls.tolist()
        [4, 4, 4]
    """

    unbiased: ClassVar[bool] = True
    _shown = ("k", "latent")

    def __init__(self, k: int, latent: Latent = "categorical", **options: Any) -> None:
        super().__init__(latent, **options)
        self.k = k

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, for both kinds of variables."""
        return [cls(2), cls(4), cls(3, "bits")]

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
        >>> SumAndSample(1, mapping=Sparsemax())(
        ...     scores, lambda latent: latent.values[:, 0]
        ... ).decoder_calls.tolist()
        [1, 2]
    """

    unbiased: ClassVar[bool] = True
    _shown = ("k", "latent")

    def __init__(self, k: int, latent: Latent = "categorical", **options: Any) -> None:
        super().__init__(latent, **options)
        self.k = k

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, for both kinds of variables, some of which leave nothing to sample."""
        return [cls(1), cls(3), cls(100), cls(2, "bits"), cls(100, "bits")]

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
        options: options of :class:`~lit_sparse.estimators.Sampler`.

    Raises:
        ConfigurationError: if the temperature is not a positive number, or another argument is not allowed.

    Source: Jang, Gu & Poole (2017), Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144. Maddison, Mnih &
    Teh (2017), The Concrete Distribution, arXiv:1611.00712.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Softmax
        >>> seen = []
        >>> estimator = GumbelSoftmax(0.5, straight_through=True, mapping=Softmax())
        >>> estimator(
        ...     torch.zeros(2, 3),
        ...     lambda latent: seen.append(latent.values) or latent.values[:, 0],
        ... ).loss.shape
        torch.Size([2])
        >>> sorted(seen[0].unique().tolist())
        [0.0, 1.0]
    """

    def __init__(
        self, temperature: float = 1.0, straight_through: bool = False, latent: Latent = "categorical", **options: Any
    ) -> None:
        super().__init__(latent, **options)
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
        return ((self.probabilities(scores).log() + noise) / self.temperature.to(scores.dtype)).softmax(-1)
