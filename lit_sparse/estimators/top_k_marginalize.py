"""Exact expectations over at most k bit vectors, by top-k sparsemax."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, ranges
from lit_sparse.estimators.base import Estimator, Expectation, Latent, LossFunction
from lit_sparse.kernels.kbest import best_bits
from lit_sparse.mappings.functional import sparsemax

__all__ = ["TopKMarginalize"]


@ranges(k=FEATURES)
class TopKMarginalize(Estimator):
    r"""Exact expected loss over the support of top-k sparsemax on all 2^D bit vectors: at most k vectors.

    .. math:: \sum_{z \in T} \pi(z) \, \mathrm{loss}(z), \qquad
        \pi = \operatorname{sparsemax}\bigl((\langle x, z \rangle)_{z \in T}\bigr)

    where x are the scores of the bits and T holds the k vectors z of largest score ``<x, z>``, found without enumeration.
    The decoder runs once, on the vectors of positive probability. If the support is smaller than k, sparsemax over all
    vectors has the same support.

    Args:
        k: maximum support size, >= 1; a k above 2^D allows all vectors. Ties are broken as in
            :func:`lit_sparse.kernels.kbest.best_bits`.

    A score of -inf forbids its bit; with all bits forbidden the zero vector has probability 1. A row with NaN or +inf has a
    NaN loss, and does not change other rows.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.1, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[9.0, -9.0, 9.0], [0.0, 0.0, -9.0]])
        >>> out = TopKMarginalize(2)(scores, lambda latent: latent.values.sum(-1))
        >>> out.loss.tolist(), out.probs.tolist(), out.decoder_calls.tolist()
        ([2.0, 0.5], [1.0, 0.5, 0.5], [1, 2])
    """

    exact: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    latent: Latent = "bits"

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    @override
    def extra_repr(self) -> str:
        return f"k={self.k}"

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a small k, k = 1, and a k above the number of vectors."""
        return [cls(3), cls(1), cls(100)]

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        bits, counts = best_bits(scores, self.k)
        allowed = torch.where(scores == -torch.inf, 0.0, scores).double()  # not affected by autocast
        # Sparsemax depends only on differences; those to the best vector have one term per flipped bit.
        differences = torch.einsum("bkd,bd->bk", (bits - bits[:, :1]).double(), allowed)
        there = torch.arange(bits.shape[1], device=scores.device) < counts.unsqueeze(-1)
        return self.over_support(sparsemax(differences, mask=there).to(scores.dtype), bits, loss_fn)
