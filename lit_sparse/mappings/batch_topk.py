"""BatchTopK (Bussmann et al. 2024): the largest positive scores of a whole batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import Count, check_count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import gather, gather_unequal, rank, world_size
from lit_sparse.ground.kept_dtype import KeepsDtype
from lit_sparse.ground.torch_internals import is_jit_tracing
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.hard_threshold.layer import hard_threshold
from lit_sparse.mappings.jump_relu import jump_relu
from lit_sparse.mappings.masking import along_last, mark_invalid

__all__ = ["BatchTopK", "batch_topk"]


def batch_topk(scores: Tensor, k: int, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    r"""Return the largest positive scores of all rows together, k per row on average, and zero elsewhere.

    .. math:: y_{ni} = x_{ni} \text{ if } x_{ni} > 0 \text{ and } x_{ni} \ge t, \text{ else } 0

    where x_n is row n of N rows and the threshold t is the N k-th largest score of all rows.

    Args:
        scores: floating tensor; length d along ``dim``.
        k: how many entries stay per row, >= 1. Ties go to the lowest index.
        dim: dimension of the rows.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed. Rows without any, such as padding, do not
            count.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1, the scores are not floating, or the mask does not fit.

    Source: Bussmann, Leask & Nanda (2024), BatchTopK Sparse Autoencoders.
    """
    k = check_count("k", k)

    def of_rows(x: Tensor) -> Tensor:
        return mark_invalid(x, _largest(x, k * _count(x, mask)))

    return along_last(scores, mask, dim, of_rows)


def _count(x: Tensor, mask: Tensor | None) -> int:
    """Return the number of rows with an entry that is allowed."""
    if is_jit_tracing():
        raise ConfigurationError(
            "Expected a call outside of torch.jit.trace, which would record the batch size. Use torch.compile."
        )
    return x.shape[:-1].numel() if mask is None else int((x != -torch.inf).any(-1).sum())


def _valid(x: Tensor) -> Tensor:
    """Return scores (..., d) as one row; scores of invalid rows are -inf."""
    return torch.where((x < torch.inf).all(-1, keepdim=True), x, -torch.inf).flatten()


def _largest(x: Tensor, number: int) -> Tensor:
    """Return the largest positive scores of valid rows, and zero elsewhere."""
    if not number or not x.numel():
        return torch.where(torch.zeros_like(x, dtype=torch.bool), x, 0.0)
    return hard_threshold(_valid(x), number, nonneg=True).view(x.shape)


@ranges(k=Count())
class BatchTopK(KeepsDtype, SparseMapping):
    r"""Layer that keeps the largest positive scores of a batch, k per row on average.

    In training the rows of a batch depend on one another, see :func:`batch_topk`; the batches of all processes count as one.
    In evaluation each row is mapped by itself: scores above ``cutoff`` are kept, k per row on average. Since rows share a
    budget, the mapping has no :meth:`value` and no loss.

    The cutoff c solves :math:`E\, n(c) = k`, where n(c) is the number of scores of a row above c. Training finds it by
    stochastic approximation. The t-th batch, of B rows with :math:`\bar n(c)` scores above c on average, moves it by

    .. math:: \gamma_t \, s \, (\bar n(c) / k - 1), \qquad \gamma_t = (B / 8 t^2)^{1/3} \le 1

    but not beyond the least score that the batch keeps. As the steps add up to how far c moves, the excesses over k average
    out, also in small batches, whose least kept scores have another mean. The spread s is a running mean of how far kept scores
    lie above c, so a step of s changes n by about a factor of e, whatever the unit and the offset of the scores, and c follows
    the last :math:`1 / \gamma_t` batches. This number balances the noise of too few rows, :math:`\propto (\gamma_t / B)^{1/2}`,
    and the lag behind scores that change ever more slowly in a training, :math:`\propto 1 / (\gamma_t t)`.

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
        self.k = k
        self.cutoff, self.spread, self.batches = (nn.Parameter(torch.zeros(()), requires_grad=False) for _ in range(3))

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances in eval mode for the shared tests, whose promises about single rows do not hold in training."""
        return [cls(2).eval()]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``, by batch in training and by the cutoff in eval mode."""
        if not self.training:
            return jump_relu(scores, self.cutoff, dim=dim, mask=mask)

        def of_rows(x: Tensor) -> Tensor:
            rows = _count(x, mask)
            y = _largest(x, self._share(x.detach(), rows))
            self._follow(x.detach(), y.detach(), rows)
            return mark_invalid(x, y)

        return along_last(scores, mask, dim, of_rows)

    def _share(self, x: Tensor, rows: int) -> int:
        """Return how many of the largest scores over all processes belong to this one."""
        if world_size() == 1:
            return self.k * rows
        number = self.k * int(torch.stack(gather(torch.tensor(rows, device=x.device))).sum())
        valid = _valid(x)
        parts = gather_unequal(valid.topk(min(number, len(valid))).values)
        kept = torch.split(_largest(torch.cat(parts), number), [len(part) for part in parts])
        return int(kept[rank()].count_nonzero())

    @torch.no_grad()
    def _follow(self, x: Tensor, y: Tensor, rows: int) -> None:
        """Move the cutoff after a batch of scores x (..., d) of which y are kept."""
        kept = y > 0
        sums = [(_valid(x) > self.cutoff).sum(), kept.sum(), y.sum(dtype=torch.double), torch.tensor(rows, device=x.device)]
        least = nn.functional.pad(torch.where(kept, y, torch.inf).flatten(), (0, 1), value=torch.inf).amin()
        parts = torch.stack(gather(torch.stack([*(value.double() for value in sums), least.double()])))
        above, number, total, size = parts[:, :4].sum(0)
        least = parts[:, 4].amin()
        state = (self.cutoff, self.spread, self.batches)
        cutoff, spread, batches = (value.double() for value in state)
        gain = (size / (8 * (batches + 1) ** 2)).pow(1 / 3).clamp(max=1)
        room = least - cutoff
        step = (gain * spread * (above / (self.k * size) - 1)).clamp(room.clamp(max=0), room.clamp(min=0))
        cutoff = torch.where(batches == 0, least, cutoff + step)
        found = total / number - torch.minimum(least, cutoff)
        spread = torch.where(batches == 0, found, spread + gain * (found - spread))
        for old, new in zip(state, (cutoff, spread, batches + 1), strict=True):
            old.copy_(torch.where(least.isfinite(), new, old))
