"""Exact expectations over the support of a sparse distribution."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.estimators.base import Estimator, Expectation, LatentBatch, LossFunction
from lit_sparse.mappings import SparseMapping

__all__ = ["Marginalize"]


class Marginalize(Estimator):
    r"""Exact expected loss: the sum of the loss over the support of a distribution on the simplex.

    .. math:: \sum_{z: \pi(z) > 0} \pi(z) \, \mathrm{loss}(z)

    where pi(z) is the probability of category z. Exact for any mapping onto the simplex, and cheap for a small support: the
    decoder runs once, on one row per (example, value) pair of the support. A dense mapping decodes all K values of each
    example, except those whose probability underflows, which happens to softmax if scores are far apart.

    Args:
        mapping: mapping from scores to probabilities; None if a model gives its own.
        decode: ``"support"``, or ``"all"`` for the K values of each example, with the same result. ``"all"`` decodes more
            rows, but their number does not depend on the scores, so a GPU is not synchronized, and ``torch.compile`` gets
            constant shapes. Losses and their gradients must then be finite for all values.

    Raises:
        ConfigurationError: if ``decode`` is not one of these.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> scores = torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.5, -9.0]])
        >>> out = Marginalize(Sparsemax())(scores, lambda latent: latent.values.argmax(-1).float())
        >>> out.loss.tolist(), out.decoder_calls.tolist()
        ([0.0, 0.5], [1, 2])
    """

    exact: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __init__(self, mapping: SparseMapping | None = None, *, decode: Literal["support", "all"] = "support") -> None:
        super().__init__(mapping)
        self.decode = decode
        self.ragged = decode == "support"

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, one for each value of ``decode``."""
        return [cls(), cls(decode="all")]

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        probs = self.probabilities(scores)
        if self.ragged:
            return self.over_support(probs, None, loss_fn)
        support, (examples, values) = probs != 0, probs.shape
        rows = torch.arange(examples, device=probs.device).repeat_interleave(values, output_size=examples * values)
        one_hot = torch.eye(values, dtype=probs.dtype, device=probs.device).repeat(examples, 1)
        losses = self.losses(loss_fn, LatentBatch(one_hot, rows)).view(examples, values)
        loss = (probs * torch.where(support, losses, 0.0)).sum(-1)
        calls = torch.full((examples,), values, dtype=torch.int64, device=probs.device)
        return Expectation(loss=loss, probs=probs, example_index=rows, support_size=support.sum(-1), decoder_calls=calls)
