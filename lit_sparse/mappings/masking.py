"""Applies functions of rows along any dimension, with masked scores set to -inf."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lit_sparse.checks import FLOATS, check_dim, check_mask
from lit_sparse.errors import ConfigurationError, full_name

__all__ = ["align_parameter", "allowed_scores", "along_last", "mark_invalid"]


def along_last(
    scores: Tensor,
    mask: Tensor | None,
    dim: int,
    function: Callable[..., Tensor],
    *parameters: float | Tensor,
) -> Tensor:
    """Apply a function of rows along any dimension of the scores, with masked entries set to -inf.

    Args:
        scores: floating tensor of any shape.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
        dim: the dimension that is mapped.
        function: called with scores (..., d) and the parameters, whose ``dim`` is moved last as well; returns (..., d)
            or (...).
        parameters: numbers, or tensors that broadcast to the scores with size 1 along ``dim``.

    Raises:
        ConfigurationError: if the scores are not floating, or the mask or a parameter does not fit.
    """
    scores = allowed_scores(scores, mask, dim)
    last = dim == -1 or dim == scores.dim() - 1
    parameters = tuple([_beside(p, scores, dim) if isinstance(p, Tensor) else p for p in parameters])
    if last:
        return function(scores, *parameters)
    rows = scores.movedim(dim, -1)
    result = function(rows, *[p.movedim(dim, -1) if isinstance(p, Tensor) else p for p in parameters])
    return result.movedim(-1, dim) if result.dim() == rows.dim() else result


def allowed_scores(scores: Tensor, mask: Tensor | None, dim: int = -1) -> Tensor:
    """Return the scores (..., d, ...) with -inf wherever the mask is False.

    Raises:
        ConfigurationError: if the scores are not floating or do not have dimension ``dim``, or the mask is not boolean or does
            not fit.
    """
    if not isinstance(scores, Tensor):
        raise ConfigurationError(f"Expected scores in a torch tensor but got {full_name(scores)}.")
    if scores.layout != torch.strided or scores.is_nested:
        kind = "a nested tensor" if scores.is_nested else f"a tensor of layout {scores.layout}"
        raise ConfigurationError(f"Expected dense scores but got {kind}. Pad it, or call its to_dense().")
    if scores.dtype not in FLOATS:
        raise ConfigurationError(f"Expected scores of a floating dtype, one of {FLOATS}, but got {scores.dtype}.")
    if mask is not None:
        scores = _masked(scores, mask)
    if scores.dim() == 0:
        raise ConfigurationError("Expected scores with at least one dimension but got a tensor without any.")
    if type(dim) is not int or dim != -1:
        check_dim(dim, scores, "scores")
    return scores


def _beside(parameter: Tensor, scores: Tensor, dim: int) -> Tensor:
    if parameter.device.type != scores.device.type != "meta" and parameter.dim():
        raise ConfigurationError(
            f"Expected parameters on the device {scores.device} of the scores but got some on {parameter.device}. Move them."
        )
    return align_parameter(parameter, tuple(scores.shape), dim)


def align_parameter(parameter: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    """Return a parameter with as many dimensions as scores of the given shape.

    Raises:
        ConfigurationError: if it cannot be broadcast to the scores, or its size along ``dim`` is not 1.
    """
    missing, given = len(shape) - parameter.dim(), tuple(parameter.shape)
    if missing > 0:
        parameter = parameter.reshape((1,) * missing + parameter.shape)
    fits = missing >= 0 and all(
        p == 1 or (p == s and i != dim % len(shape)) for i, (p, s) in enumerate(zip(parameter.shape, shape, strict=True))
    )
    if not fits:
        raise ConfigurationError(
            f"Expected a tensor of parameters that can be broadcast to the scores' shape {shape}, with size 1"
            f" along dimension {dim}, but got shape {given}. For one value per head of scores (B, H, L, L), give it the shape"
            " (H, 1, 1)."
        )
    return parameter


def mark_invalid(x: Tensor, y: Tensor) -> Tensor:
    """Return y (..., d) with NaN, also as gradients, at the allowed entries of rows whose scores x contain NaN or +inf."""
    invalid = (x != -torch.inf) & ~(x < torch.inf).all(-1, keepdim=True)
    return torch.where(invalid, torch.where(invalid, x, 0.0) * torch.nan, y)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    mask = check_mask(mask, "an entry is allowed")
    if mask.device.type != scores.device.type and mask.dim():
        raise ConfigurationError(
            f"Expected a mask on the device {scores.device} of the scores but got one on {mask.device}. Move it."
        )
    try:
        shape = torch.broadcast_shapes(scores.shape, mask.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        shape = None
    if shape != scores.shape:
        raise ConfigurationError(
            f"Expected a mask that can be broadcast to the scores' shape {tuple(scores.shape)}"
            f" but got shape {tuple(mask.shape)}.{_padding_hint(mask, scores)}"
        )
    return torch.where(mask, scores, -torch.inf)


def _padding_hint(mask: Tensor, scores: Tensor) -> str:
    """Return the next step for a mask (N, d) of padded scores (N, ..., d): unsqueeze its middle dimensions."""
    if mask.dim() == 2 < scores.dim() and mask.shape == (scores.shape[0], scores.shape[-1]):
        return f" Give it the dimensions between: mask[:, {'None, ' * (scores.dim() - 2)}:]."
    return ""
