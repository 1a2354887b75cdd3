"""The mean loss: training as usual."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lit_sparse.risks.base import Risk

__all__ = ["Mean", "mean_of"]


def mean_of(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the scalar mean of losses (B,) times weights (B,)."""
    return losses.mean() if weights is None else (weights * losses).mean()


class Mean(Risk):
    r"""Mean over the batch of weight times loss, the usual objective of training.

    .. math:: \frac{1}{B} \sum_{i=1}^{B} w_i \ell_i

    where l are the losses of the batch and w their weights, 1 by default.

    On an accelerator losses are not checked for NaN: the check would synchronize, and mixed precision skips such steps
    anyway.

    Example:
        >>> import torch
        >>> float(Mean()(torch.tensor([1.0, 2.0, 6.0])))
        3.0
    """

    unbiased: ClassVar[bool] = True
    finite: ClassVar[bool] = False
    synchronizes: ClassVar[bool] = False

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        return mean_of(losses, weights)
