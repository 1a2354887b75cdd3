"""All uses of torch's internal interfaces, such as ``torch._C``, in the mathematics, and the conditions that depend on them.

The conditions describe the running code: whether a functorch transform (``torch.func``) is active, whether a dispatch mode
records operations, and whether forward-mode derivatives are computed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO, Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lit_sparse.errors import ConfigurationError

__all__ = [
    "HAS_CUSTOM_OPS",
    "archived",
    "autocast_enabled",
    "autograd_in_operator",
    "call_operator",
    "can_read_values",
    "constant_in_graphs",
    "count_dispatch_modes",
    "derivatives",
    "forward_mode_active",
    "is_exporting",
    "is_fake",
    "is_jit_tracing",
    "is_legacy_batch",
    "lacks_autocast_dtype",
    "must_decompose",
    "no_autograd",
    "on_batches",
    "on_values",
    "outside_graphs",
    "refuse_vmap",
    "scan",
    "softmax_backward",
    "traces_operators",
    "transforms_active",
    "unbound_apply",
    "unwrap_if_dead",
    "vmap_active",
    "while_loop",
]

Function = TypeVar("Function", bound=Callable[..., Any])

#: Whether torch has custom operators, since 2.4; without them, traced calls break the graph and run eagerly.
HAS_CUSTOM_OPS = hasattr(torch.library, "custom_op")
#: Return whether ``torch.jit.trace``, or an exporter that uses it, records operations.
is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
#: Return whether a functorch transform is active.
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
#: Return the number of active dispatch modes, which record or replace operations.
count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
#: Return the tensor inside a wrapper that a finished transform has left, and any other tensor unchanged.
unwrap_if_dead: Callable[[Tensor], Tensor] = torch._C._functorch.unwrap_if_dead
#: Return whether a tensor is a batch of the legacy vmap.
is_legacy_batch: Callable[[Tensor], bool] = getattr(
    torch._C._functorch,
    "is_legacy_batchedtensor",
    lambda tensor: torch._C._dispatch_keys(tensor).has(torch._C._dispatch_key_parse("Batched")),  # torch 2.3
)

#: Keys that torch's dispatcher excludes outside of operators, such as autocast that is not on.
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()


def archived(file: IO[bytes], name: str) -> bytes:
    """Return a member of a ``torch.save`` archive exactly as ``torch.load`` reads it, unlike other archive readers."""
    content: bytes = torch._C.PyTorchFileReader(file).get_record(name)
    return content


def is_fake(x: object) -> bool:
    """Return whether a tensor has no values, such as the placeholders with which graphs are traced."""
    module = sys.modules.get("torch._subclasses.fake_tensor")  # which a mode of such tensors imports; it imports SymPy
    return module is not None and bool(module.is_fake(x))


def outside_graphs(function: Function) -> Function:
    """Make ``torch.compile`` call a function between two graphs.

    Unlike ``torch.compiler.disable``, this does not import the compiler.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        if disabled is None:
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call, unused-ignore]
        return disabled(*args, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def constant_in_graphs(function: Function) -> Function:
    """Make ``torch.compile`` treat the result of a function as a constant.

    Unlike ``torch.compiler.assume_constant_result``, this does not import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def forward_mode_active() -> bool:
    """Return whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def autocast_enabled(device: torch.device) -> bool:
    """Return whether autocast is enabled for a device."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.is_autocast_enabled(device.type)
    return torch.is_autocast_cpu_enabled() if device.type == "cpu" else torch.is_autocast_enabled()  # torch 2.3


def lacks_autocast_dtype() -> bool:
    """Return whether CPU autocast is enabled with a dtype that oneDNN does not support on this processor."""
    if not autocast_enabled(torch.device("cpu")) or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    new = hasattr(torch, "get_autocast_dtype")  # since torch 2.4
    dtype = torch.get_autocast_dtype("cpu") if new else torch.get_autocast_cpu_dtype()
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    return not getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")()


def can_read_values() -> bool:
    """Return whether tensor values can be read: nothing is traced, and no transform or dispatch mode is active."""
    if torch.compiler.is_compiling():  # first, because torch.compile cannot trace torch._C
        return False
    return not (transforms_active() or count_dispatch_modes() > 0 or is_jit_tracing())


def no_autograd() -> bool:
    """Return whether no derivative and no transform is active, so that only the value of a kernel is needed."""
    return not (torch.is_grad_enabled() or forward_mode_active() or transforms_active())


def is_exporting() -> bool:
    """Return whether ``torch.export`` is tracing in its non-strict mode, in which Python itself runs the model."""
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def traces_operators() -> bool:
    """Return whether ``torch.compile`` or ``torch.jit.trace`` traces custom operators, and no exporter or transform does."""
    exporting = getattr(torch.compiler, "is_exporting", bool)()  # from torch 2.7
    traced = torch.compiler.is_dynamo_compiling() or is_jit_tracing()
    return HAS_CUSTOM_OPS and not exporting and traced and not transforms_active()


def while_loop(condition: Callable[..., Tensor], body: Callable[..., Any], carried: Any, constants: Any) -> tuple[Tensor, ...]:
    """Return the tensors ``carried`` after passes of ``body`` while a condition holds, as one operator of a graph.

    Args:
        condition: function of the carried tensors and the constants that returns a boolean tensor ().
        body: function of the same tensors that returns the new carried tensors.
        carried: tensors before the first pass.
        constants: other tensors that both functions use.
    """
    from torch._higher_order_ops.while_loop import while_loop_op

    loop: Any = while_loop_op  # whose annotations are too narrow
    return tuple(loop(condition, body, carried, constants))


def scan(step: Callable[..., list[Tensor]], carried: list[Tensor], series: list[Tensor], constants: tuple[Tensor, ...]) -> Any:
    """Return the result of a loop over the first dimension of some tensors, as one operator of a graph.

    Args:
        step: function of the carried tensors, one entry of each tensor in ``series``, and the constants, that returns the new
            carried tensors followed by results.
        carried: tensors before the first step.
        series: tensors (N, ...) with one entry for each step.
        constants: other tensors that the step uses.

    Returns:
        The carried tensors after the last step, and the results of all steps, stacked to (N, ...).
    """
    from torch._higher_order_ops.scan import scan_op

    return scan_op(step, carried, series, constants)


def autograd_in_operator() -> AbstractContextManager[Any]:
    """Enable autograd within a context inside a custom operator, where torch otherwise disables it."""
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), _EXCLUDED)


def derivatives() -> Literal["operator", "operations", "function"] | None:
    """Return which mechanism carries a kernel's derivatives in the running code; None if there are none.

    It is an autograd function, plain operations around an opaque operator, or, in an exported program without derivatives,
    the operator alone.
    """
    if is_exporting() and no_autograd():
        return "operator"
    if must_decompose():
        return "operations"
    return None if no_autograd() else "function"


def must_decompose() -> bool:
    """Return whether plain torch operations around a kernel must carry its derivatives, exact to second order.

    Compiled, exported and traced graphs cannot hold an autograd function with a jvp. Nested forward mode does not differentiate
    the jvp of such a function: torch treats its result as a constant.

    Raises:
        ConfigurationError: under nested forward mode in third derivatives, which would be wrong.
    """
    if torch.compiler.is_compiling() or is_jit_tracing():
        return True
    if not transforms_active():
        return False
    keys = _transforms()
    if keys.count(torch._C._functorch.TransformType.Jvp) < 2:
        return False
    if len(keys) - keys.count(torch._C._functorch.TransformType.Vmap) > 2:
        raise ConfigurationError(
            "Expected third derivatives to use forward mode once: torch treats the result of a nested jvp or jacfwd as a"
            " constant. Use vjp, grad or jacrev for all transforms but one."
        )
    return True


def unbound_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return an autograd function's ``apply`` without binding arguments to a signature, which only functorch needs."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def softmax_backward(grad: Tensor, y: Tensor) -> Tensor:
    """Return the product of the Jacobian of softmax along the last dimension, at its result y, with a tensor like y."""
    return torch._softmax_backward_data(grad, y, -1, y.dtype)


def call_operator(operator: Any, *args: Any) -> Any:
    """Call a custom operator, which graphs keep whole, and return its result.

    Args:
        operator: the operator; None before torch 2.4, which has no custom operators.
        args: arguments of the operator.

    Raises:
        ConfigurationError: in the TorchScript-based ONNX exporter, which cannot write such operators, or if the operator is
            None.
    """
    if operator is None:
        raise ConfigurationError("Expected torch 2.4 or newer under torch.jit.trace, which would record constants.")
    if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():  # type: ignore[attr-defined, no-untyped-call, unused-ignore]
        name = getattr(operator, "_qualname", operator)
        raise ConfigurationError(
            f"Expected the ONNX exporter of lit_sparse.export.export_onnx but got torch.onnx.export with dynamo=False, which"
            f" cannot write {name}. Call export_onnx."
        )
    return operator(*args)


def on_values(function: Function, *, differentiable: bool = False) -> Function:
    """Return a function that passes tensor values to compiled code, restricted to tensors that have values.

    ``torch.compile`` calls it eagerly, between two graphs. All other modes that record or batch operations raise an error,
    since compiled code would read arbitrary memory of their tensors.

    Args:
        function: the function.
        differentiable: whether transforms of ``torch.func`` other than vmap may be active.

    Raises:
        ConfigurationError: from the returned function, under ``torch.jit.trace``, ``torch.func`` and ``torch.export``.
    """

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        reason = ""
        if is_jit_tracing():
            reason = "torch.jit.trace, or an ONNX exporter that uses it, would record constants. Use torch.compile"
        elif vmap_active() if differentiable else transforms_active():
            reason = "torch.func hides them. Call it on whole batches, without vmap"
        elif torch.compiler.is_compiling() or any(isinstance(arg, Tensor) and is_fake(arg) for arg in args):
            reason = "torch.export, or a mode of fake tensors, has none. Use torch.compile"
        if reason:
            name = function.__qualname__.lstrip("_")
            raise ConfigurationError(f"Expected `{name}` to get the values of tensors but {reason}.")
        return function(*args, **options)

    return outside_graphs(checked)  # type: ignore[return-value]


#: The same for a function that only vmap hides values from: its derivatives are rules of their own.
on_batches = functools.partial(on_values, differentiable=True)


def refuse_vmap(what: str) -> None:
    """Raise an error under torch's vmap, for an operation whose work depends on the values of a batch.

    Raises:
        ConfigurationError: under vmap.
    """
    if not torch.compiler.is_compiling() and vmap_active():
        raise ConfigurationError(f"Expected {what} to get whole batches but got torch.func.vmap. Call it without vmap.")


def vmap_active() -> bool:
    """Return whether vmap is among the active functorch transforms."""
    return transforms_active() and torch._C._functorch.TransformType.Vmap in _transforms()


def _transforms() -> list[Any]:
    """Return the kinds of the active functorch transforms, the outermost first."""
    return [interpreter.key() for interpreter in torch._C._functorch.get_interpreter_stack() or ()]
