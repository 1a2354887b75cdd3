"""BatchTopK (Bussmann et al. 2024): the largest positive scores of a whole batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import check_count
from lit_sparse.ground.distributed import reduce, world_size
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.hard_threshold.layer import hard_threshold
from lit_sparse.mappings.jump_relu import jump_relu, mark_invalid
from lit_sparse.mappings.masking import allowed_scores, along_last

__all__ = ["BatchTopK", "batch_topk"]

#: How much the cutoff follows one batch.
RATE = 0.05


def batch_topk(scores: Tensor, k: int, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the largest positive scores of all rows together, k per row on average, and zero elsewhere.

    .. math:: y_{ni} = x_{ni} \text{ if } x_{ni} > 0 \text{ and } x_{ni} \ge t, \text{ else } 0

    where x_n is row n of N rows and the threshold t is the N k-th largest score of all rows.

    Args:
        scores: floating tensor; length d along ``dim``.
        k: how many entries stay per row, >= 1. Ties go to the lowest index.
        dim: dimension of the rows.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1, the scores are not floating, or the mask does not fit.

    Source: Bussmann, Leask & Nanda (2024), BatchTopK Sparse Autoencoders.
    """
    k = check_count("k", k)

    def of_rows(x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x
        valid = torch.where((x < torch.inf).all(-1, keepdim=True), x, -torch.inf)
        chosen = hard_threshold(valid.flatten(), k * (x.numel() // x.shape[-1]), nonneg=True)
        return mark_invalid(x, chosen.view(x.shape))

    return along_last(scores, mask, dim, of_rows)


class BatchTopK(SparseMapping):
    """Layer that keeps the largest positive scores of a batch, k per row on average.

    In training, the rows of a batch share a budget, see :func:`batch_topk`; with several processes, each keeps the
    largest of its own rows. In eval mode, every score above ``cutoff`` is kept, so that each row is mapped by itself
    and keeps about k entries: after each training batch, the cutoff moves by 5 % of the relative excess over k. Since
    rows share a budget, the mapping has no :meth:`value` and no loss.

    Args:
        k: how many entries stay per row, >= 1.
        dim: dimension of the rows.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1.

    Source: Bussmann, Leask & Nanda (2024), BatchTopK Sparse Autoencoders.

    Example:
        >>> import torch
        >>> BatchTopK(1)(torch.tensor([[1.0, 3.0], [0.5, -4.0]])).tolist()
        [[1.0, 3.0], [0.0, 0.0]]
    """

    on_simplex = False
    shift_invariant = False
    has_value = False
    keeps_scores = True

    def __init__(self, k: int, *, dim: int = -1) -> None:
        super().__init__(dim=dim)
        self.k = check_count("k", k)
        self.cutoff = nn.Parameter(torch.zeros(()), requires_grad=False)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances in eval mode for the shared tests, whose promises about single rows do not hold in training."""
        return [cls(2).eval()]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``, by batch in training and by the cutoff in eval mode."""
        if not self.training:
            return jump_relu(scores, self.cutoff, dim=dim, mask=mask)
        y = batch_topk(scores, self.k, dim=dim, mask=mask)
        self._follow(allowed_scores(scores, mask, dim).detach(), y.detach(), dim)
        return y

    @torch.no_grad()
    def _follow(self, x: Tensor, y: Tensor, dim: int) -> None:
        """Raise the cutoff if it keeps more scores than k per row, and lower it if it keeps fewer."""
        if x.numel() == 0:
            return
        found = torch.stack([(x > self.cutoff).sum(dim).double().mean(), torch.where(y > 0, y, torch.inf).amin().double()])
        if world_size() > 1:
            found = reduce(found) / world_size()
        number, least = found.to(self.cutoff)
        moved = torch.where(self.cutoff == 0, least, self.cutoff * (1 + RATE * (number / self.k - 1)))
        self.cutoff.copy_(torch.where(moved.isfinite(), moved, self.cutoff))
