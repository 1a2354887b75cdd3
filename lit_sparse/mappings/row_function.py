"""How a row algorithm becomes a differentiable function along any dimension of a tensor.

In eager mode it is a :class:`RowFunction`, an autograd function with one rule for its derivative, a Jacobian-vector product.
The rule serves reverse mode, forward mode, double backward and vmap. Under ``torch.compile`` and ``torch.export`` the kernel is
one opaque operator on detached scores, and plain torch operations carry the derivative around it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import derivatives, no_autograd, transforms_active, unbound_apply, unwrap_if_dead
from lit_sparse.kernels.row_kernel import HALVES, batch_first
from lit_sparse.mappings.masking import along_last

__all__ = ["RowFunction", "constant_in"]


class RowFunction:
    """Base class of differentiable functions of tensors (..., d) that treat every row alike.

    A subclass implements ``jvp`` and ``kernel``, which computes ``y`` from ``(x, *args)``, or ``(y, *auxiliary)`` with
    facts about ``y`` that its derivative needs, such as its runs. Call it by :meth:`along`.

    There is a derivative with respect to ``x``, and to ``args[0]`` if it is a tensor and the subclass implements
    :meth:`parameter_jvp`. All other arguments are numbers.
    """

    #: Function that computes the result from (x, *args): a RowKernel, or a static method.
    kernel: ClassVar[Any]
    #: The derivative needs ``x`` itself: it follows ``y`` among the arguments of :meth:`jvp`.
    saves_input: ClassVar[bool] = False
    #: The function is affine wherever it is differentiable.
    piecewise_linear: ClassVar[bool] = True
    #: The derivative with respect to ``args[0]`` is given.
    has_parameter_gradient: ClassVar[bool] = False
    #: Kernel of J v with a differentiable reference; it takes ``v``, ``y`` and :meth:`product_arguments`.
    product: ClassVar[Any] = None

    @staticmethod
    def product_arguments(*args: Any) -> tuple[Any, ...]:
        """Return the arguments of :meth:`jvp` after ``y`` that the kernel of the product J v needs."""
        return args

    @classmethod
    def jvp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        """Return the product J v (..., d) of the Jacobian at y in plain torch operations that can be differentiated.

        Differentiable in ``v``, ``y`` and tensors that are not auxiliary.

        A subclass without the attribute ``product`` implements it, as a static method or a class method.

        Args:
            v: (..., d) direction.
            y: (..., d) the result.
            args: ``x`` if ``saves_input``, the auxiliary results, and the arguments of the function after ``x``.
        """
        return cls.product.reference(v, y, *cls.product_arguments(*args))  # type: ignore[no-any-return]

    @classmethod
    def vjp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        """Return the product J^T v (..., d): by default J v, since gradients of convex functions have symmetric Jacobians."""
        return cls.jvp(v, y, *args)

    @classmethod
    def last_vjp(cls, v: Tensor, y: Tensor, *args: Any) -> Tensor:
        """Return the product J^T v (..., d) where no derivative of it is needed, by the compiled kernel if there is one."""
        if cls.product is None:
            return _wide_call(cls.vjp, v, y, *args)
        return cls.product(v, y, *cls.product_arguments(*args))  # type: ignore[no-any-return]

    @staticmethod
    def parameter_jvp(y: Tensor, *args: Any) -> Tensor:
        """Return the derivative (..., d) of ``y`` by ``args[0]``, a tensor (..., 1); arguments as for :meth:`jvp`."""
        raise NotImplementedError

    @classmethod
    def along(
        cls,
        scores: Tensor,
        mask: Tensor | None,
        dim: int,
        *parameters: float | Tensor,
        gamma: float | None = None,
        options: tuple[Any, ...] = (),
        shift: bool = True,
    ) -> Tensor:
        """Return the function of all rows along a dimension, in eager mode or in a compiled graph.

        Args:
            scores: floating tensor; length d along ``dim``.
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed. Forbidden ones are -inf to the
                kernel.
            dim: dimension along which to apply the function.
            parameters: of rows: numbers, or tensors that broadcast to the scores with size 1 along ``dim``.
            gamma: strength by which the scores are divided; None for a function without one.
            options: further arguments, the same for all rows. The kernel is called with
                ``(x, *parameters, gamma, *options)``, without gamma if it is None.
            shift: whether adding a constant to all scores of a row changes nothing.

        Raises:
            ConfigurationError: if the scores are not floating, or the mask or a parameter does not fit.
        """
        carried, strength = derivatives(), gamma
        function: Callable[..., Tensor] = partial(cls._eagerly, carried is None)
        if carried == "operator":
            function = cls.value_traced
        elif carried == "operations":
            function, strength = partial(cls.traced, gamma=gamma, shift=shift), 1.0
        last = options if gamma is None else (strength, *options)
        return along_last(scores, mask, dim, lambda x, *p: function(x, *p, *last), *parameters)

    @classmethod
    def _eagerly(cls, plain: bool, *args: Any) -> Tensor:
        result = cls._all(plain, *args)
        return result if isinstance(result, Tensor) else result[0]

    @classmethod
    def value_traced(cls, x: Tensor, *args: Any) -> Tensor:
        """Return the function's value as a single opaque operator, for an exported program without derivatives."""
        if x.shape[-1] == 0:
            return x
        result = cls.kernel.traced(x, *args)
        return result if isinstance(result, Tensor) else result[0]

    @classmethod
    def traced(cls, x: Tensor, *args: Any, gamma: float | None = None, shift: bool = True) -> Tensor:
        """Return the function's value for ``torch.compile`` and ``torch.export``: an opaque operator within plain operations.

        The operator gets detached tensors. Its result is differentiated as a Taylor polynomial around them, which is
        correct up to second order and has the operator's value.

        Args:
            x: (..., d) scores.
            args: the function's other arguments.
            gamma: strength to divide the scores by, the function being called with strength 1: a number that a graph
                computes would be frozen in the operator.
            shift: whether the largest score may be subtracted first, for a function that shifts do not change.
        """
        if x.shape[-1] == 0:
            return x
        dtype = x.dtype
        if dtype in HALVES:
            x = x.float()
        if gamma is not None:
            top = x.detach().amax(-1, keepdim=True)
            x = (x - torch.where(top.isfinite(), top, 0.0) if shift else x) / gamma
        parameters = [arg.detach() if isinstance(arg, Tensor) else arg for arg in args]
        result = cls.kernel.traced(x.detach(), *parameters)
        y, auxiliary = (result, ()) if isinstance(result, Tensor) else (result[0], result[1:])
        step = torch.where(x == -torch.inf, 0.0, x - x.detach())
        move = args[0] - args[0].detach() if cls.has_parameter_gradient and isinstance(args[0], Tensor) else None

        def moved(point: Tensor, share: float) -> Tensor:
            """Return what the whole step changes at the derivative after a share of it, where the result is ``point``."""
            rest = (*auxiliary, *parameters)
            if move is not None:
                rest = (*auxiliary, parameters[0] + share * move, *parameters[1:])
            if cls.saves_input:
                rest = (x.detach() + share * step, *rest)
            change = cls.jvp(step, point, *rest)
            return change if move is None else change + move * cls.parameter_jvp(point, *rest)

        answer = y + moved(y, 0.0)
        if not cls.piecewise_linear:
            answer = y + moved(0.5 * (y + answer), 0.5)
        return answer.to(dtype)

    @classmethod
    def _all(cls, plain: bool, *args: Any) -> Any:
        """Return the result with its auxiliary results, by the kernel alone if no derivative is needed (``plain``).

        ``Function.apply`` binds its arguments to a signature at every call, which costs more than a small row; without
        functorch's transforms there is nothing to bind.
        """
        if transforms_active():
            return cls._function.apply(*args)  # type: ignore[no-untyped-call]
        # A finished transform leaves wrappers around tensors.
        args = tuple([unwrap_if_dead(arg) if type(arg) is Tensor else arg for arg in args])
        return cls.kernel(*args) if plain else cls._apply(*args)

    #: The autograd function of this rule, and its ``apply`` without the binding of arguments to a signature.
    _function: ClassVar[type[_Derivative]]
    _apply: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._function = type(cls.__name__, (_Derivative,), {"rule": cls})
        cls._apply = unbound_apply(cls._function)


class _Derivative(torch.autograd.Function):
    """Any :class:`RowFunction` as torch's autograd and functorch see it."""

    rule: ClassVar[type[RowFunction]]

    @classmethod
    def forward(cls, *args: Any) -> Any:
        return cls.rule.kernel(*args)

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        rest, ctx.parameter = inputs[1:], False
        saved: tuple[Tensor, ...]
        if isinstance(output, Tensor):
            saved, ctx.num_auxiliary = (output,), 0
        else:
            saved, ctx.num_auxiliary = output, len(output) - 1
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        if cls.rule.saves_input:
            saved = (saved[0], inputs[0], *saved[1:])
        if cls.rule.has_parameter_gradient and isinstance(rest[0], Tensor):
            saved, rest, ctx.parameter = (*saved, rest[0]), rest[1:], True
        ctx.rest = rest
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @classmethod
    def backward(cls, ctx: Any, *grads: Any) -> Any:
        if grads[0] is None:
            return (None,) * len(ctx.needs_input_grad)
        saved, rest = _restored(ctx)
        product = cls.rule.last_vjp if no_autograd() else partial(_wide_call, cls.rule.vjp)
        grad = product(grads[0], *saved, *rest) if ctx.needs_input_grad[0] else None
        if grad is not None and cls.rule.piecewise_linear:
            grad = constant_in(saved[0], grad)
        if not cls.rule.has_parameter_gradient or not ctx.needs_input_grad[1]:
            return (grad, *(None,) * len(rest))
        # Incoming gradients at entries that stay zero, including masked ones, are ignored.
        slope = cls.rule.parameter_jvp(*_widened(saved), *rest)
        pull = torch.where(slope != 0, grads[0] * slope, 0.0).sum(-1, keepdim=True)
        return (grad, pull.sum_to_size(rest[0].shape).to(rest[0].dtype), *(None,) * (len(rest) - 1))

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        saved, rest = _restored(ctx)
        tangent = None if tangents[0] is None else _wide_call(cls.rule.jvp, tangents[0], *saved, *rest)
        if cls.rule.has_parameter_gradient and tangents[1] is not None:
            push = (tangents[1] * cls.rule.parameter_jvp(*_widened(saved), *rest)).to(saved[0].dtype)
            tangent = push if tangent is None else tangent + push
        return (tangent, *(None,) * ctx.num_auxiliary) if ctx.num_auxiliary else tangent

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        result = cls.rule._all(no_autograd(), *batch_first(info.batch_size, in_dims, args))
        return result, (0 if isinstance(result, Tensor) else (0,) * len(result))


def constant_in(y: Tensor, grad: Tensor) -> Tensor:
    """Return a gradient that has a zero derivative in ``y``, instead of none, where a graph of it is recorded.

    A penalty on the gradient of a piecewise linear function can then be differentiated, as with torch's ReLU.
    """
    if transforms_active() or not (torch.is_grad_enabled() and y.requires_grad):
        return grad
    zeros = torch.where(torch.ones_like(y, dtype=torch.bool), 0.0, y)  # where y is NaN, too
    return grad + zeros.to(grad.dtype)


def _restored(ctx: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Return the saved tensors that are not arguments, and the arguments after the first."""
    saved = ctx.saved_tensors
    if ctx.parameter:
        return saved[:-1], (saved[-1], *ctx.rest)
    return saved, ctx.rest


def _wide_call(function: Callable[..., Tensor], v: Tensor, *args: Any) -> Tensor:
    """Return the result of a function, computed in float32 at least."""
    if v.dtype in HALVES:
        return function(v.float(), *_widened(args)).to(v.dtype)
    return function(v, *args)


def _widened(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([v.float() if isinstance(v, Tensor) and v.dtype in HALVES else v for v in values])
