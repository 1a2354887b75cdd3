"""Attention in blocks on GPUs: neither scores nor weights are ever in memory as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.kernels.gpu import triton_attention
from lit_sparse.kernels.gpu.triton_attention import BlockOptions
from lit_sparse.mappings import Entmax
from lit_sparse.mappings.base import Threshold
from lit_sparse.nn.attend.operands import Operands, Pairs, attend_to_all

__all__ = ["attend_in_blocks", "saves", "serves"]

#: Largest number of float32 scores for which ``method="auto"`` is dense, which needs 12 bytes a score. It was faster for half
#: as many scores on an H100.
FEW = 1 << 27


def serves(operands: Operands, threshold: Threshold) -> bool:
    """Return whether :func:`attend_in_blocks` can compute this attention.

    It can without bias, soft cap, dropout and learned alpha.

    Queries, keys and values must be half precision or float32, with head dimensions of at most 128.
    """
    query, key, value, pairs, *_ = operands
    alpha = threshold.alpha
    if isinstance(alpha, Tensor) or threshold.k is not None:
        return False
    if pairs.bias is not None or pairs.softcap is not None or operands.dropout or 0 in (*query.shape, *key.shape, *value.shape):
        return False
    return triton_attention.serves(query.device, operands.dtype(), alpha, threshold.gamma, (key.shape[-1], value.shape[-1]))


def saves(operands: Operands) -> bool:
    """Return whether blocks are faster than dense attention, or needed because dense attention takes too much memory."""
    return operands.dtype() != torch.float32 or operands.number_of_scores() > FEW


def attend_in_blocks(operands: Operands, threshold: Threshold) -> Tensor:
    """Return the attention output (..., L, Ev), computed in blocks on a GPU, with derivatives.

    Second derivatives are computed by dense attention.

    Args:
        operands: operands for which :func:`serves` returns True.
        threshold: threshold of the mapping.
    """
    query, key, value, pairs, *_ = operands = operands.fitted(operands.dtype())
    assert isinstance(threshold.alpha, float)
    options = BlockOptions(threshold.alpha, threshold.gamma, operands.factor(), pairs.is_causal)
    leading = query.shape[:-2]
    mask = None if pairs.mask is None else pairs.mask.expand(*leading, query.shape[-2], key.shape[-2])
    heads = [x.reshape(-1, *x.shape[-2:]).contiguous() for x in (query, key, value)]
    output: Tensor = _Blocks.apply(*heads, mask, options)  # type: ignore[no-untyped-call]
    return output.view(*leading, *output.shape[1:])


class _Blocks(torch.autograd.Function):
    """Attention of heads (N, L, E) to keys (B, S, E)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: BlockOptions) -> Tensor:
        output, *rest = triton_attention.attend(query, key, value, mask, options)
        ctx.save_for_backward(query, key, value, mask, output, *rest)
        ctx.options = options
        return output

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, *attended = ctx.saved_tensors
        options: BlockOptions = ctx.options
        if not torch.is_grad_enabled():
            slope = slope.contiguous()
            return (*triton_attention.differentiate(slope, tuple(attended), query, key, value, mask, options), None, None)
        # A second derivative may follow: the graph of dense attention has all of them.
        pairs = Pairs(None if mask is None else mask.reshape(len(query), *mask.shape[-2:]), is_causal=options.is_causal)
        mapping = Entmax(options.alpha, gamma=options.gamma)
        output, _ = attend_to_all(Operands(query, key, value, pairs, options.scale), mapping)
        wanted = [x for x, need in zip((query, key, value), ctx.needs_input_grad, strict=False) if need]
        grads = iter(torch.autograd.grad(output, wanted, slope, create_graph=True))
        return (*(next(grads) if need else None for need in ctx.needs_input_grad[:3]), None, None)
