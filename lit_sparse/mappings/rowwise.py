"""How a row algorithm becomes a differentiable function along any dimension of a tensor.

Eagerly it is a :class:`RowFunction`: an autograd function whose derivative is given once, as a Jacobian-vector product,
and serves reverse mode, forward mode, double backward and vmap. Under ``torch.compile`` and ``torch.export`` the kernel is
one opaque operator on detached scores, and plain torch operations carry the derivative around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.dispatch import batch_first

__all__ = ["RowFunction", "along_last", "check_count", "check_positive", "is_eager", "is_plain"]

# Strengths that float32 can divide by and multiply with.
LEAST, MOST = 1e-30, 1e30
NO_GRADIENTS = (None,) * 16
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class RowFunction(torch.autograd.Function):
    """Base of differentiable functions of tensors (..., d) that treat every row alike.

    A subclass gives ``forward``, the raw result, and ``jacobian``, its derivative. Tensor arguments come first, numbers
    after them; the derivative is taken in the last tensor, the others are constants. Call it by :meth:`of`.
    """

    #: Number of tensor arguments.
    tensors: ClassVar[int] = 1

    @staticmethod
    def jacobian(y: Tensor, v: Tensor, *args: Any) -> Tensor:
        """Return J v (..., d), itself differentiable in ``y`` and ``v``.

        Args:
            y: (..., d) the result.
            v: (..., d) direction.
            args: all arguments but the last tensor.
        """
        raise NotImplementedError

    @classmethod
    def transposed(cls, y: Tensor, v: Tensor, *args: Any) -> Tensor:
        """Return J^T v; the same as J v, for the gradient of a convex function has a symmetric Jacobian."""
        return cls.jacobian(y, v, *args)

    @classmethod
    def of(cls, *args: Any) -> Tensor:
        """Return the result for these arguments.

        ``Function.apply`` binds its arguments to a signature at every call, which costs more than a small row; without
        functorch's transforms there is nothing to bind.
        """
        if _transforms_active():
            return cls.apply(*args)  # type: ignore[no-any-return, no-untyped-call]
        if is_plain():
            return cls.forward(*_alive(args))  # type: ignore[no-any-return]
        return cls._apply(*_alive(args))

    #: ``Function.apply`` without its binding of arguments to a signature.
    _apply: ClassVar[Callable[..., Tensor]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._apply = super(torch.autograd.Function, cls).apply  # type: ignore[misc]

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: D102
        ctx.numbers = inputs[cls.tensors :]
        if cls.tensors == 1:
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)
        else:
            ctx.save_for_backward(output, *inputs[: cls.tensors - 1])
            ctx.save_for_forward(output, *inputs[: cls.tensors - 1])

    @classmethod
    def backward(cls, ctx: Any, *grads: Any) -> Any:  # noqa: D102
        y, *constants = ctx.saved_tensors
        numbers = ctx.numbers
        grad = cls.transposed(y, grads[0], *constants, *numbers)
        return (*NO_GRADIENTS[: cls.tensors - 1], grad, *NO_GRADIENTS[: len(numbers)])

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:  # noqa: D102
        y, *constants = ctx.saved_tensors
        return cls.jacobian(y, tangents[cls.tensors - 1], *constants, *ctx.numbers)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:  # noqa: D102
        return cls.of(*batch_first(info.batch_size, in_dims, args)), 0


_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
_unwrap_if_dead: Callable[[Tensor], Tensor] = torch._C._functorch.unwrap_if_dead


def is_eager() -> bool:
    """Tell whether values may be looked at: no transform is active and nobody watches the operations go by."""
    return not (_transforms_active() or torch._C._len_torch_dispatch_stack() > 0)


def is_plain() -> bool:
    """Tell whether nothing differentiates or transforms the operations to come: raw results are enough."""
    return not (torch.is_grad_enabled() or forward_ad._current_level >= 0 or _transforms_active())


def _alive(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Take the tensors out of wrappers that a finished transform left around them."""
    return tuple([_unwrap_if_dead(arg) if type(arg) is Tensor else arg for arg in args])


def along_last(scores: Tensor, mask: Tensor | None, dim: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of rows along ``dim``, forbidden entries set to -inf.

    Args:
        scores: floating tensor of any shape.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
        dim: the dimension that is mapped.
        function: takes (..., d) and returns (..., d) or (...).

    Raises:
        ConfigurationError: if the scores are not floating or the mask is not boolean or does not fit.
    """
    if not isinstance(scores, Tensor):
        raise ConfigurationError(f"Expected scores in a torch tensor but got {type(scores).__name__}.")
    if scores.dtype not in FLOATS:
        raise ConfigurationError(f"Expected scores of a floating dtype, one of {FLOATS}, but got {scores.dtype}.")
    if mask is not None:
        scores = _masked(scores, mask)
    if scores.dim() == 0:
        raise ConfigurationError("Expected scores with at least one dimension but got a tensor without any.")
    if dim == -1 or dim == scores.dim() - 1:
        return function(scores)
    rows = scores.movedim(dim, -1)
    result = function(rows)
    return result.movedim(-1, dim) if result.dim() == rows.dim() else result


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise ConfigurationError(f"Expected a boolean mask, True where an entry is allowed, but got {mask.dtype}.")
    try:
        shape = torch.broadcast_shapes(scores.shape, mask.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        shape = None
    if shape != scores.shape:
        raise ConfigurationError(
            f"Expected a mask that can be broadcast to the scores' shape {tuple(scores.shape)}"
            f" but got shape {tuple(mask.shape)}."
        )
    return torch.where(mask, scores, -torch.inf)


def check_positive(name: str, value: float) -> float:
    """Return a number that must be positive and finite.

    Raises:
        ConfigurationError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
        raise ConfigurationError(
            f"Expected argument `{name}` to be a positive, finite number but got {value!r}. Allowed: {LEAST} .. {MOST}."
        )
    return float(value)


def check_count(name: str, value: int) -> int:
    """Return an integer that must be at least 1.

    Raises:
        ConfigurationError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"Expected argument `{name}` to be an integer of at least 1 but got {value!r}.")
    return value
