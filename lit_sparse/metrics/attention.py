"""What sparse attention looks at: how many words, how many phrases, how many different weights."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["group_counts", "support_sizes", "tied_groups"]


def support_sizes(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return how many entries of each row are not exactly zero, (...,) int64.

    Entries that are not finite count as zero, in all functions here: a row of NaN has a support of none.

    Args:
        weights: (..., S), such as the attention over S source positions.
        allowed: booleans that broadcast to (..., S); others are not looked at. None means all.

    Example:
        >>> support_sizes(torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]))
        tensor([2, 1])
    """
    return _present(weights, allowed).sum(-1)


def group_counts(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return how many groups of fused neighbours each row has, (...,) int64.

    A group is a run of neighbours with exactly the same nonzero weight, as long as can be; one entry alone is a group, too. A
    position that is not allowed ends a run, as fusedmax fuses only positions that were neighbours to begin with.

    Args:
        weights: (..., S).
        allowed: as in :func:`support_sizes`.

    Source: Niculae & Blondel (2017), A regularized framework for sparse and structured neural attention, section 3.2.

    Example:
        >>> int(group_counts(torch.tensor([0.25, 0.25, 0.0, 0.25, 0.1, 0.15])))
        4
    """
    present = _present(weights, allowed)
    goes_on = present[..., 1:] & present[..., :-1] & (weights[..., 1:] == weights[..., :-1])
    return present.sum(-1) - goes_on.sum(-1)


def tied_groups(weights: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return how many different nonzero weights each row has, (...,) int64: the clusters of oscarmax, wherever they stand.

    Args:
        weights: (..., S).
        allowed: as in :func:`support_sizes`.

    Source: Niculae & Blondel (2017), A regularized framework for sparse and structured neural attention, section 3.3.

    Example:
        >>> int(tied_groups(torch.tensor([0.25, 0.25, 0.0, 0.25, 0.1, 0.15])))
        3
    """
    ordered = torch.where(_present(weights, allowed), weights, 0).sort(-1).values
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != 0)
    return (ordered != 0).sum(-1) - repeated.sum(-1)


def _present(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """Return which entries (..., S) count."""
    present = weights.isfinite() & (weights != 0)
    return present if allowed is None else present & allowed
