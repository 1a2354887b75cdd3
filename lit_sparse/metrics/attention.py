"""Statistics of sparse attention: numbers of positive weights, of groups of neighbours, and of different weights."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.checks import check_mask
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked

__all__ = ["group_counts", "support_sizes", "tied_groups"]


@checked
def support_sizes(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the support size of each row of weights, the number of nonzero entries, (...,) int64.

    Entries that are not finite count as zero: a row of NaN has an empty support.

    Args:
        weights: (..., S), such as the attention over S source positions.
        allowed: boolean, broadcastable to (..., S); other entries are ignored. None allows all.

    Example:
        >>> support_sizes(torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]))
        tensor([2, 1])
    """
    return _present(weights, allowed).sum(-1)


@checked
def group_counts(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the number of groups of neighbours with equal nonzero weights in each row, (...,) int64.

    A group is a maximal run of neighbours with exactly the same nonzero weight; a single entry is a group, too. A masked
    position ends a run, because fusedmax fuses only neighbours in the original sequence.

    Args:
        weights: (..., S).
        allowed: as in :func:`support_sizes`.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3.2,
    arXiv:1705.07704.

    Example:
        >>> int(group_counts(torch.tensor([0.25, 0.25, 0.0, 0.25, 0.1, 0.15])))
        4
    """
    present = _present(weights, allowed)
    goes_on = present[..., 1:] & present[..., :-1] & (weights[..., 1:] == weights[..., :-1])
    return present.sum(-1) - goes_on.sum(-1)


@checked
def tied_groups(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the number of different nonzero weights in each row, (...,) int64: the clusters of oscarmax.

    Args:
        weights: (..., S).
        allowed: as in :func:`support_sizes`.

    Source: Niculae & Blondel (2017), section 3.3, arXiv:1705.07704.

    Example:
        >>> int(tied_groups(torch.tensor([0.25, 0.25, 0.0, 0.25, 0.1, 0.15])))
        3
    """
    ordered = torch.where(_present(weights, allowed), weights, 0).sort(-1).values
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != 0)
    return (ordered != 0).sum(-1) - repeated.sum(-1)


def _present(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """Return which entries (..., S) are allowed and not zero."""
    if not weights.dim() or weights.is_complex():
        raise ConfigurationError(f"Expected real weights (..., S) but got {weights.dtype} {tuple(weights.shape)}.")
    present = weights.isfinite() & (weights != 0)
    if allowed is None:
        return present
    check_mask(allowed, "an entry counts")
    if (
        any(m not in (1, s) for m, s in zip(allowed.shape[::-1], weights.shape[::-1], strict=False))
        or allowed.dim() > weights.dim()
    ):
        raise ConfigurationError(f"Expected a mask for weights {tuple(weights.shape)} but got shape {tuple(allowed.shape)}.")
    return present & allowed
