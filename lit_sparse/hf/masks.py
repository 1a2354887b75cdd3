"""Converts the masks that transformers models pass to an attention function into this package's masks and biases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name

__all__ = ["added_mask", "boolean_mask", "split_mask"]


def added_mask(**options: Any) -> Tensor | None:
    """Return the floating mask of transformers' ``eager`` attention: 0 at allowed positions, else the lowest number.

    All models support it. Some, such as DeepSeek-V4, add further values to it.
    """
    from transformers.masking_utils import eager_mask

    mask: Tensor | None = eager_mask(**options)
    return mask


def boolean_mask(**options: Any) -> Tensor | None:
    """Return the boolean mask of transformers' ``sdpa`` attention, True at allowed positions; nothing is added to scores.

    It is None for bidirectional attention without padding. A causal mask is never left out: the attention
    function would not see that it is missing.
    """
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(**{**options, "allow_is_causal_skip": False})
    return mask


def split_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return which positions a transformers mask allows, and what it adds to the scores.

    Args:
        mask: boolean, True at allowed positions, or floating, added to the scores. Floating values at or below half the
            lowest number of their dtype mean "not allowed", because models use that number in place of -inf.

    Returns:
        A boolean mask, True at allowed positions, and a bias that is added to the scores, both of the mask's shape; None for
        one that has no effect.

    Raises:
        ConfigurationError: for a mask of another dtype.
    """
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = str(mask.dtype) if isinstance(mask, Tensor) else full_name(mask)
        raise ConfigurationError(
            "Expected an attention mask that is boolean, True at allowed positions, or floating, added to the scores, but got"
            f" {got}. Convert a mask of zeros and ones with `mask.bool()`."
        )
    if mask.dtype == torch.bool:
        return mask, None
    allowed = mask > torch.finfo(mask.dtype).min / 2
    return allowed, torch.where(allowed, mask, 0.0)
