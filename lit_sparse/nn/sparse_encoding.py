"""A layer that is used forwards and backwards, whose weights get a sparse gradient where its units are sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.torch_internals import refuse_vmap

__all__ = ["sparse_decode", "sparse_encode"]


@checked
def sparse_encode(x: Tensor, weight: Tensor) -> Tensor:
    """Return the scores ``x @ weight.T`` (B, n) of inputs x (B, D), with a sparse gradient of ``weight`` (n, D).

    The gradient holds only the rows of units with a nonzero gradient. After a sparse mapping these are the active units.
    ``torch.optim.SGD`` updates only these rows. It has no second derivative.
    """
    refuse_vmap("sparse_encode")
    _check("x (B, D)", x, weight, 1)
    return _Encode.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


@checked
def sparse_decode(h: Tensor, weight: Tensor) -> Tensor:
    """Return the reconstruction ``h @ weight`` (B, D) of activities h (B, n), computed only from active rows of ``weight``.

    The gradient of ``weight`` (n, D) is a sparse tensor, zero for inactive rows. The gradient of h is exact if the
    derivative of the preceding mapping is zero where its output is zero, which holds for sparse mappings. The exception is
    a hard threshold at a score that is exactly zero and among the k largest.
    """
    refuse_vmap("sparse_decode")
    _check("h (B, n)", h, weight, 0)
    return _Decode.apply(h, weight)  # type: ignore[no-any-return, no-untyped-call]


def _check(name: str, rows: Tensor, weight: Tensor, side: int) -> None:
    """Refuse rows that do not fit a side of the weight (n, D); only some entries of wider ones may be used.

    Raises:
        ConfigurationError: if they do not fit, or are not floating and, outside of autocast, of one dtype.
    """
    one = rows.dtype == weight.dtype or (rows.is_floating_point() and torch.is_autocast_enabled(rows.device.type))
    if not one or not weight.is_floating_point():
        raise ConfigurationError(
            f"Expected {name} and a weight of the same floating dtype but got {rows.dtype} and {weight.dtype}."
        )
    if rows.dim() != 2 or weight.dim() != 2 or rows.shape[1] != weight.shape[side]:
        raise ConfigurationError(f"Expected {name} and a weight (n, D) but got {tuple(rows.shape)} and {tuple(weight.shape)}.")


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x.to(weight.dtype), weight)
        ctx.dtype = x.dtype
        return x @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        rows = _active(grad)
        chosen = grad[:, rows].to(x.dtype)  # autocast does not apply to the backward pass
        return (
            (chosen @ weight[rows]).to(ctx.dtype) if needs_x else None,
            _rows_of(weight, rows, chosen.T @ x) if needs_weight else None,
        )


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor) -> Tensor:
        rows = _active(h)
        chosen, active = h[:, rows], weight[rows]
        ctx.save_for_backward(chosen.to(weight.dtype), active, rows)
        ctx.shape, ctx.dtype = h.shape, h.dtype
        ctx.like = weight
        return chosen @ active

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        chosen, active, rows = ctx.saved_tensors
        needs_h, needs_weight = ctx.needs_input_grad
        grad = grad.to(active.dtype)  # autocast does not apply to the backward pass
        slope = None
        if needs_h:
            slope = grad.new_zeros(ctx.shape).index_copy_(1, rows, (grad @ active.T).to(grad.dtype)).to(ctx.dtype)
        return slope, _rows_of(ctx.like, rows, chosen.T @ grad) if needs_weight else None


def _active(x: Tensor) -> Tensor:
    """Return which columns of (B, n) hold something."""
    return x.ne(0).any(0).nonzero().squeeze(1)


def _rows_of(weight: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Return a sparse tensor of the weight's shape with values (R, D) in some rows."""
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, weight.shape, is_coalesced=True, check_invariants=False)
