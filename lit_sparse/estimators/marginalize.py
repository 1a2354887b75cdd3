"""Exact expectations over the support of a sparse distribution."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lit_sparse.estimators.base import Estimator, Expectation, LatentBatch, LossFunction

__all__ = ["Marginalize"]


class Marginalize(Estimator):
    """Sum the loss over the support: ``sum over z with pi(z) > 0 of pi(z) loss(z)``.

    Exact for any mapping onto the simplex, and as cheap as the support is small: the (example, value) pairs of the support
    are flattened and the decoder runs once, on exactly those rows. A dense mapping decodes all K values of each example.

    Args:
        mapping: from scores to probabilities; None when a model gives its own.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> scores = torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.5, -9.0]])
        >>> out = Marginalize(Sparsemax())(scores, lambda latent: latent.values.argmax(-1).float())
        >>> out.loss.tolist(), out.decoder_calls.tolist()
        ([0.0, 0.5], [1, 2])
    """

    exact: ClassVar[bool] = True

    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        """See :meth:`Estimator.forward`; ``context`` is not needed."""
        probs = self.probabilities(scores)
        support = probs != 0  # NaN counts: a broken row must show in the loss
        rows, values = support.nonzero(as_tuple=True)
        one_hot = torch.nn.functional.one_hot(values, scores.shape[-1]).to(probs.dtype)
        losses = self.losses(loss_fn, LatentBatch(one_hot, rows))
        loss = self.sum_by_example(probs[rows, values] * losses, rows, scores.shape[0])
        size = support.sum(-1)
        return Expectation(loss=loss, probs=probs, rows=rows, support_size=size, decoder_calls=size)
