"""Rows scaled to length 1, however long or short they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["directions"]


def directions(rows: Tensor) -> Tensor:
    """Return rows (..., d) scaled to length 1, also those whose squares overflow or underflow; zeros stay.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [3e30, 4e30], [3e-30, 4e-30]])
        >>> directions(rows).mul(5).round().tolist()
        [[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]
    """
    lengths = rows.norm(dim=-1, keepdim=True)
    largest = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    return F.normalize(torch.where((lengths > 1e-12) & lengths.isfinite(), rows, rows / largest), dim=-1)
