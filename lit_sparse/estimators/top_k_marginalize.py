"""Exact expectations over bit vectors, of which top-k sparsemax leaves at most k."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import MOST_FEATURES, check_count
from lit_sparse.estimators.base import Estimator, Expectation, Latent, LossFunction
from lit_sparse.kernels.kbest import best_bits
from lit_sparse.mappings.functional import sparsemax

__all__ = ["TopKMarginalize"]


class TopKMarginalize(Estimator):
    """Sum the loss over the support of top-k sparsemax on all 2^D bit vectors.

    A vector z has the score ``<x, z>``. The k best are found without looking at the others, sparsemax of their scores gives
    the probabilities, and the decoder runs once on the vectors with probability above zero. Where the support is smaller
    than k, it is that of sparsemax over all vectors: cutting at k lost nothing.

    Args:
        k: largest support, >= 1; more than 2^D means all vectors. Ties are broken as in
            :func:`lit_sparse.kernels.kbest.best_bits`.

    A score of -inf forbids its bit; with all bits forbidden the vector of zeros has probability 1. A row with NaN or +inf has a
    NaN loss, and leaves the others alone.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.1.

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
        self.k = check_count("k", k, most=MOST_FEATURES)

    @override
    def extra_repr(self) -> str:
        return f"k={self.k}"

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances with a k that often cuts, k = 1, and more vectors than there are."""
        return [cls(3), cls(1), cls(100)]

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        bits, counts = best_bits(scores, self.k)
        allowed = torch.where(scores == -torch.inf, 0.0, scores).double()  # which autocast leaves alone
        # Sparsemax sees differences alone: those to the best vector have as few terms as there are changed bits.
        differences = torch.einsum("bkd,bd->bk", (bits - bits[:, :1]).double(), allowed)
        there = torch.arange(bits.shape[1], device=scores.device) < counts.unsqueeze(-1)
        return self.over_support(sparsemax(differences, mask=there).to(scores.dtype), bits, loss_fn)
