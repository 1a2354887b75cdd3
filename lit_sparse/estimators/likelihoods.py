"""The marginal likelihood of data under a model with a latent bit vector, over all 2^D vectors."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as nnf

from lit_sparse.checks import FLOATS, INTEGERS, check_count, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators.base import Estimator, LatentBatch, LossFunction
from lit_sparse.ground.arguments import checked
from lit_sparse.random import seeded_uniform

__all__ = ["MarginalLikelihood", "marginal_likelihood"]

#: First stream of random numbers for the samples; data augmentation uses lower ones.
FIRST_STREAM = 1 << 20


@dataclass(frozen=True)
class MarginalLikelihood:
    """Estimate of the log-likelihood ``log p(x)`` of each example, with its standard error.

    Attributes:
        log_likelihood: (B,) float64, nats.
        standard_error: (B,) float64, nats: standard error from sampling.
    """

    log_likelihood: Tensor
    standard_error: Tensor

    @property
    def corrected(self) -> Tensor:
        """The estimate plus half its squared standard error, (B,), which corrects its first-order bias.

        The logarithm of an average is biased downwards, by Jensen's inequality; this is the delta method's correction. The
        bias matters in means over many examples, where the errors of single examples cancel.
        """
        bias = 0.5 * self.standard_error.square()
        return self.log_likelihood + torch.where(bias.isfinite(), bias, 0.0)


@torch.no_grad()
@checked
def marginal_likelihood(
    loss_fn: LossFunction,
    support: LatentBatch,
    index: Tensor,
    *,
    posterior: Tensor | None = None,
    samples: int = 1024,
    seed: int = 0,
    rows_at_once: int = 4096,
) -> MarginalLikelihood:
    r"""Return an estimate of the log-likelihood of data under a uniform prior ``p(z) = 2^-D`` over bit vectors z.

    .. math:: \log p(x) = \log \sum_z p(z) p(x|z)

    The sum over a support Z, which may be empty, is exact. The rest is estimated by n samples per example from p(z), with
    rejection of values in Z:

    .. math:: p(x) \approx \sum_{z \in Z} p(z) p(x|z) + (1 - p(Z)) \frac{1}{n} \sum_i p(x|z_i)

    A dense posterior q(z|x) of independent bits is a better proposal. Then n values are sampled from it, and those in Z get
    weight zero:

    .. math:: p(x) \approx \sum_{z \in Z} p(z) p(x|z) + \frac{1}{n} \sum_i [z_i \notin Z] \, p(z_i) p(x|z_i) / q(z_i|x)

    If Z holds all values the result is exact without sampling. The delta method gives the error of log p(x) as
    ``(1 - p(Z)) s / (sqrt(n) p(x))``, with s the standard deviation of the p(x|z_i). It cannot account for values of high
    likelihood that are so improbable that none was sampled.

    Args:
        loss_fn: function from a :class:`LatentBatch` to ``-log p(x|z)`` (R,), in nats.
        support: values in Z, (R, D), without repetition per example.
        index: (B,) int64 index of each example, such as its position in the data set. Samples are a function of it, and so
            do not depend on batches or processes.
        posterior: (B, D) logits of the bits of q(z|x); None to sample from p(z).
        samples: number of samples n, >= 2.
        seed: seed of the samples.
        rows_at_once: largest number of sampled rows in a call of ``loss_fn``.

    Raises:
        ConfigurationError: if ``samples`` is below 2, or the support repeats a value.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, eq. (18), with rejection, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> support = LatentBatch(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        >>> same = marginal_likelihood(
        ...     lambda latent: torch.full(latent.example_index.shape, 3.0),
        ...     support,
        ...     torch.tensor([0]),
        ... )
        >>> round(float(same.log_likelihood), 6), float(same.standard_error)
        (-3.0, 0.0)
    """
    if samples < 2:
        raise ConfigurationError(f"Expected argument `samples` to be at least 2, for an error estimate, but got {samples}.")
    check_count("rows_at_once", rows_at_once)
    _check(support, index, posterior)
    examples, bits = len(index), support.values.shape[1]
    sizes = torch.bincount(support.example_index, minlength=examples)
    log_prior = -bits * math.log(2.0)
    places = torch.arange(len(support.example_index), device=index.device) - (sizes.cumsum(0) - sizes)[support.example_index]
    width = max(1, int(sizes.max())) if examples else 1
    terms = torch.full((examples, width), -torch.inf, dtype=torch.float64, device=index.device)
    signs = support.values.new_zeros(examples, width, bits)  # +1 and -1; zeros in unused rows match no vector
    if len(support.example_index):
        terms[support.example_index, places] = log_prior - Estimator.losses(loss_fn, support).double()
        signs[support.example_index, places] = 2 * support.values - 1
    log_likelihood, error = terms.logsumexp(-1), torch.zeros(examples, dtype=torch.float64, device=index.device)
    log_outside = torch.log1p(-sizes.double() * 2.0**-bits)  # -inf if the support holds all values
    open_ended = (log_outside > -torch.inf).nonzero().squeeze(-1)
    for some in torch.split(open_ended, max(1, rows_at_once // samples)) if len(open_ended) else ():
        if posterior is None:
            drawn = _drawn_outside(signs[some], index[some], samples, seed)
            log_weights = log_outside[some].unsqueeze(-1)
        else:
            drawn, log_weights = _drawn_from(posterior[some].double(), signs[some], index[some], samples, seed)
        rows = some.repeat_interleave(samples)
        parts = zip(torch.split(drawn.reshape(-1, bits), rows_at_once), torch.split(rows, rows_at_once), strict=True)
        losses = torch.cat([Estimator.losses(loss_fn, LatentBatch(values, of)).double() for values, of in parts])
        logs = log_weights - losses.view(-1, samples)
        top = logs.amax(-1)
        top = torch.where(top == -torch.inf, 0.0, top)
        weights = (logs - top.unsqueeze(-1)).exp()
        log_likelihood[some] = torch.logaddexp(log_likelihood[some], top + weights.mean(-1).log())
        spread = (top + weights.std(-1).log() - 0.5 * math.log(samples) - log_likelihood[some]).exp()
        error[some] = torch.where(log_likelihood[some] == -torch.inf, torch.inf, spread)  # without information, infinite
    return MarginalLikelihood(log_likelihood, error)


def _check(support: LatentBatch, index: Tensor, posterior: Tensor | None) -> None:
    """Check the values of a support, the indices of the examples, and a posterior.

    Raises:
        ConfigurationError: if their shapes do not fit, the values are not sorted by example, or one is repeated or no bits.
    """
    values, of = support.values, support.example_index
    check_tensor(index, "the index of each example (B,)", shape=(None,), dtypes=INTEGERS)
    check_tensor(values, "values (R, D)", shape=(None, None))
    check_tensor(of, "the example of each value (R,) int64", shape=values.shape[:1], dtypes=(torch.int64,))
    if len(of) and not bool((of.diff() >= 0).all() and of[0] >= 0 and of[-1] < len(index)):
        raise ConfigurationError(
            f"Expected values that are sorted by example, 0 .. {len(index) - 1}, but got {of.tolist()[:9]}."
        )
    rows = torch.cat([of.unsqueeze(-1), values.long()], -1)
    if not bool(((values == 0) | (values == 1)).all()) or len(rows.unique(dim=0)) < len(rows):  # type: ignore[no-untyped-call]
        raise ConfigurationError("Expected a support of vectors of 0 and 1, each once per example. Draws may repeat a vector.")
    if posterior is not None:
        what = f"logits {(len(index), values.shape[1])} without NaN as `posterior`"
        if bool(check_tensor(posterior, what, shape=(len(index), values.shape[1]), dtypes=FLOATS).isnan().any()):
            raise ConfigurationError(f"Expected {what} but got some with NaN.")


def _drawn_outside(signs: Tensor, index: Tensor, samples: int, seed: int) -> Tensor:
    """Sample bit vectors (G, n, D) uniformly outside a support.

    Args:
        signs: (G, S, D) the support, as +1 and -1; unused rows are zero.
        index: (G,).
        samples: n.
        seed: seed of the samples.
    """
    examples, _, bits = signs.shape
    drawn = signs.new_empty(examples, samples, bits)
    count = torch.zeros(examples, dtype=torch.int64, device=signs.device)
    for stream in itertools.count(FIRST_STREAM):
        proposed = (seeded_uniform(seed, index, (samples, bits), stream=stream) >= 0.5).to(signs.dtype)
        inside = _inside(proposed, signs)
        place = count.unsqueeze(-1) + (~inside).cumsum(-1) - 1
        taken = ~inside & (place < samples)
        which, _ = taken.nonzero(as_tuple=True)
        drawn[which, place[taken]] = proposed[taken]
        count += (~inside).sum(-1)
        if bool((count >= samples).all()):
            break
    return drawn


def _drawn_from(logits: Tensor, signs: Tensor, index: Tensor, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sample bit vectors (G, n, D) from independent bits; return log p(z) - log q(z) too, -inf for vectors of a support.

    Args:
        logits: (G, D).
        signs: (G, S, D) the support, as +1 and -1; unused rows are zero.
        index: (G,).
        samples: n.
        seed: seed of the samples.
    """
    bits = logits.shape[-1]
    uniform = seeded_uniform(seed, index, (samples, bits), stream=FIRST_STREAM).to(logits)
    drawn = (uniform < logits.sigmoid().unsqueeze(1)).to(signs.dtype)
    chances = torch.where(drawn > 0, nnf.logsigmoid(logits).unsqueeze(1), nnf.logsigmoid(-logits).unsqueeze(1))
    log_weights = -bits * math.log(2.0) - chances.sum(-1)
    return drawn, log_weights.masked_fill(_inside(drawn, signs), -torch.inf)


def _inside(drawn: Tensor, signs: Tensor) -> Tensor:
    """Return which of the bit vectors (G, n, D) are in a support; see :func:`_drawn_from`."""
    with torch.autocast(signs.device.type, enabled=False):  # half precision would round the bit counts
        return ((2 * drawn - 1) @ signs.transpose(1, 2) == signs.shape[-1]).any(-1)
