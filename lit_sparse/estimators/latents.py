"""Distributions of a latent variable for samplers: over K categories, or over independent bits."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as nnf
from typing_extensions import override

from lit_sparse.kernels.kbest import best_bits
from lit_sparse.kernels.row_kernel import HALVES

__all__ = ["Bits", "Categories", "LatentDistribution", "widened"]


class LatentDistribution(ABC):
    """Base class of the distributions of a latent variable that samplers use, one distribution per row.

    Values are floating, one-hot (B, n, K) or bits (B, n, D).

    They have the dtype of the scores; everything else is computed in float32, as half precision is too coarse.

    Attributes:
        broken: (B,) rows with NaN, which have no distribution.
        empty: (B,) rows in which nothing is allowed.
        support_size: (B,) number of values with probability above zero; None if the support is not enumerated.
    """

    broken: Tensor
    empty: Tensor
    support_size: Tensor | None

    @abstractmethod
    def log_prob(self, values: Tensor) -> Tensor:
        """Return the log-probabilities (B, n) of values of the support, differentiable in the scores."""

    @abstractmethod
    def sample(self, count: int) -> Tensor:
        """Return independent samples, (B, count, K) one-hot or (B, count, D) bits."""

    @abstractmethod
    def relaxed(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return a relaxed sample, (B, 1, K) or (B, 1, D), differentiable in the scores, and the nearest discrete value."""

    @abstractmethod
    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the most probable values of each row, best first.

        Args:
            count: number of values.

        Returns:
            Values, (B, n, K) one-hot or (B, n, D) bits, n <= count, and a mask (B, n), False where a row has fewer values.
        """

    @abstractmethod
    def outside(self, values: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sample outside a given set of values for each row, and the probability (B,) of being outside.

        Args:
            values: the values of the set, without repetition, (B, n, K) one-hot or (B, n, D) bits.
            there: (B, n), whether each value belongs to the set.

        Returns:
            Samples, (B, 1, K) or (B, 1, D), and probabilities (B,).
        """

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy (B,) in nats, differentiable in the scores."""

    @abstractmethod
    def reported(self, values: Tensor, there: Tensor) -> Tensor:
        """Return the ``probs`` of an :class:`Expectation` of values (B, n, K) or (B, n, D), which exist by a mask (B, n)."""


class Categories(LatentDistribution):
    """Distribution over K categories, one per row.

    Args:
        probs: (B, K), on the simplex, with a gradient; rows of zeros if nothing is allowed.
    """

    def __init__(self, probs: Tensor) -> None:
        self.dtype = probs.dtype
        self.probs = widened(probs)
        plain = self.probs.detach()
        self.broken = plain.isnan().any(-1)
        self._plain = torch.where(self.broken.unsqueeze(-1), 0.0, plain)
        self._plain[..., :1] += self.broken.unsqueeze(-1).to(plain.dtype)  # samples of broken rows are not used
        self.empty = (self._plain == 0).all(-1)
        self.support_size = (plain != 0).sum(-1)

    @override
    def log_prob(self, values: Tensor) -> Tensor:
        chosen = (values * torch.where(values > 0, self.probs.unsqueeze(1), 0.0)).sum(-1)
        return torch.where(chosen != 0, chosen, 1.0).log()

    @override
    def sample(self, count: int) -> Tensor:
        return self._one_hot(_drawn(self._plain, count))

    @override
    def relaxed(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        inside = self._plain > 0
        logits = torch.where(inside, torch.where(inside, self.probs, 1.0).log(), -torch.inf)
        noisy = (logits + _gumbel(logits)).masked_fill(self.empty.unsqueeze(-1), 0.0)
        point = (noisy / temperature).softmax(-1).unsqueeze(1)
        return point.to(self.dtype), self._one_hot(noisy.argmax(-1, keepdim=True))

    @override
    def best(self, count: int) -> tuple[Tensor, Tensor]:
        count = min(count, self._plain.shape[-1])
        top, order = self._plain.sort(dim=-1, descending=True, stable=True)
        return self._one_hot(order[:, :count]), top[:, :count] > 0

    @override
    def outside(self, values: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        taken = (values * there.unsqueeze(-1)).sum(1) > 0
        rest = self._plain.masked_fill(taken, 0.0)
        return self._one_hot(_drawn(rest, 1)), torch.where(rest > 0, self.probs, 0.0).sum(-1)

    @override
    def entropy(self) -> Tensor:
        inside = torch.where(self.probs > 0, self.probs, 1.0)
        return -(inside * inside.log()).sum(-1)

    def reported(self, values: Tensor, there: Tensor) -> Tensor:
        """Return the probabilities (B, K) of all categories."""
        return self.probs

    def _one_hot(self, index: Tensor) -> Tensor:
        return nnf.one_hot(index, self.probs.shape[-1]).to(self.dtype)


class Bits(LatentDistribution):
    """Distribution over D independent bits, one per row.

    Args:
        scores: (B, D) their logits; -inf forbids a bit.
    """

    def __init__(self, scores: Tensor) -> None:
        self.dtype = scores.dtype
        self.scores = widened(scores)
        plain = self.scores.detach()
        self.broken = (plain.isnan() | (plain == torch.inf)).any(-1)
        self._plain = torch.where(self.broken.unsqueeze(-1), 0.0, plain)
        self.empty = torch.zeros_like(self.broken)  # the zero vector is always allowed
        self.support_size = None

    @override
    def log_prob(self, values: Tensor) -> Tensor:
        on, off = nnf.logsigmoid(self.scores), nnf.logsigmoid(-self.scores)
        return torch.where(values > 0, on.unsqueeze(1), off.unsqueeze(1)).sum(-1)

    @override
    def sample(self, count: int) -> Tensor:
        uniform = torch.rand(len(self._plain), count, self._plain.shape[-1], dtype=self._plain.dtype, device=self._plain.device)
        return (uniform < self._plain.sigmoid().unsqueeze(1)).to(self.dtype)

    @override
    def relaxed(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        noisy = torch.where(self.broken.unsqueeze(-1), 0.0, self.scores) + _gumbel(self._plain) - _gumbel(self._plain)
        point = (noisy / temperature).sigmoid().unsqueeze(1)
        return point.to(self.dtype), (noisy > 0).to(self.dtype).unsqueeze(1)

    @override
    def best(self, count: int) -> tuple[Tensor, Tensor]:
        values, counts = best_bits(self._plain, count)
        return values.to(self.dtype), torch.arange(values.shape[1], device=values.device) < counts.unsqueeze(-1)

    @override
    def outside(self, values: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        exact = Bits(self.scores.double())
        share = 1.0 - torch.where(there, exact.log_prob(values), -torch.inf).exp().sum(-1)
        all_of_them = there.sum(-1) >= 2.0 ** (self._plain > -torch.inf).sum(-1)
        share = torch.where(all_of_them, 0.0, share.clamp_min(0.0)).to(self.scores.dtype)
        scores = self._plain.double()
        on = scores.sigmoid()
        chance = torch.where(values > 0, on.unsqueeze(1), 1.0 - on.unsqueeze(1))  # (B, n, D) for each bit of each given vector
        # Probability of each given vector's bits from each position on; subtracted for the vectors with the sampled prefix.
        tails = chance.flip(-1).cumprod(-1).flip(-1)
        tails = torch.cat([tails, torch.ones_like(tails[..., :1])], -1)
        agrees = there.clone()
        drawn = torch.zeros_like(scores)
        uniform = torch.rand_like(scores)
        for i in range(scores.shape[-1]):
            bit = values[..., i] > 0
            taken_on = (tails[..., i + 1] * (agrees & bit)).sum(-1)
            taken_off = (tails[..., i + 1] * (agrees & ~bit)).sum(-1)
            weight_on = on[:, i] * (1.0 - taken_on).clamp_min(0.0)
            weight_off = (1.0 - on[:, i]) * (1.0 - taken_off).clamp_min(0.0)
            chosen = uniform[:, i] * (weight_on + weight_off) < weight_on
            drawn[:, i] = chosen.double()
            agrees = agrees & (bit == chosen.unsqueeze(-1))
        return drawn.to(self.dtype).unsqueeze(1), share

    @override
    def entropy(self) -> Tensor:
        finite = torch.where(self.scores == -torch.inf, 0.0, self.scores)
        each = nnf.softplus(finite) - finite * finite.sigmoid()
        return torch.where(self.scores == -torch.inf, 0.0, each).sum(-1)

    def reported(self, values: Tensor, there: Tensor) -> Tensor:
        """Return the probabilities of the decoded values, (R,)."""
        return self.log_prob(values)[there].exp()


def widened(values: Tensor) -> Tensor:
    """Return half-precision values in float32, and others unchanged."""
    return values.float() if values.dtype in HALVES else values


def _drawn(weights: Tensor, count: int) -> Tensor:
    """Sample indices (B, count) in proportion to weights (B, K) >= 0, never one of weight 0; index 0 if all are 0.

    Each index gets an exponential waiting time with its weight as the rate; the first one is taken.
    """
    shares = (weights / weights.amax(-1, keepdim=True)).double().unsqueeze(1)
    waiting = -torch.log1p(-torch.rand(len(weights), count, weights.shape[-1], dtype=torch.float64, device=weights.device))
    return torch.where(shares > 0, waiting / shares, torch.inf).argmin(-1)


def _gumbel(like: Tensor) -> Tensor:
    """Sample standard Gumbel noise."""
    tiny = torch.finfo(like.dtype).tiny
    return -torch.rand_like(like.detach()).clamp_min(tiny).log().neg().clamp_min(tiny).log()
