"""The class of all row kernels: compiled on the CPU, plain torch elsewhere, an opaque operator while tracing.

A kernel takes tensors of one shape (..., d) followed by numbers, and returns a new tensor of that shape. It
has no derivative; :mod:`lit_sparse.mappings.row_function` adds derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import (
    HAS_CUSTOM_OPS,
    call_operator,
    count_dispatch_modes,
    is_exporting,
    is_jit_tracing,
    is_legacy_batch,
    outside_graphs,
    transforms_active,
)
from lit_sparse.kernels.cpu.threads import over_rows

__all__ = ["HALVES", "ROW_KERNELS", "RowKernel", "batch_first", "row_kernel"]

HALVES = (torch.float16, torch.bfloat16)


#: All kernels by name. A module may be loaded again.
ROW_KERNELS: dict[str, RowKernel] = {}


class RowKernel:
    """A function of rows with an implementation for each device, registered as a torch operator.

    Its arguments are, in this order, tensors of one shape (..., d), row parameters, and other numbers. Row parameters are
    numbers, or tensors with as many dimensions that broadcast to (..., 1). It returns one or several tensors of the shape
    of the first argument, or one number per row, (..., 1).

    Args:
        name: name of the operator in torch's registry, ``lit_sparse::<name>``.
        schema: its arguments and results, as in torch's operator schemas.
        cpu: compiled function ``cpu(start, stop, *outs, *arrays, *numbers)`` that writes the results of rows
            ``start .. stop - 1``. The arrays are contiguous float32 or float64 (rows, d), or of their own type if it is an
            integer; row parameters are float64, one for all rows or one for each.
        reference: the same function in plain torch operations, for every other device; returns what the kernel returns.
        cuda: a faster implementation for CUDA tensors, half types included. Returns what the kernel returns, contiguous, or
            NotImplemented, in which case ``reference`` is used, as for None.
        parameters: number of tensors in the schema that are row parameters.
        seconds: about how many seconds one thread needs for an entry. None: ``cpu(*outs, *arrays, *numbers)`` writes all
            rows.
        auxiliary: dtypes of the results after the first; they have its shape.
        reduces: whether the result is one number per row; rows must not be empty.
        wide: whether ``reference`` needs float64 to equal ``cpu`` on float32 scores up to rounding.

    Raises:
        ConfigurationError: if another module has a kernel of that name.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        cpu: Callable[..., None],
        reference: Callable[..., Any],
        cuda: Callable[..., Any] | None = None,
        *,
        seconds: float | None = None,
        parameters: int = 0,
        auxiliary: tuple[torch.dtype, ...] = (),
        reduces: bool = False,
        wide: bool = True,
    ) -> None:
        self.name, self.__doc__ = name, reference.__doc__
        self.cpu = cpu
        self.seconds: Any = seconds
        self._write = cpu if seconds is None else self._write_rows
        self.reference = reference
        self.cuda = cuda
        self.auxiliary = auxiliary
        self.reduces = reduces
        self.wide = wide
        owner = ROW_KERNELS.setdefault(name, self).cpu.__module__
        if owner != cpu.__module__:
            raise ConfigurationError(
                f"Expected a new name for a row kernel but {owner} already has a `{name}`. Choose another."
            )
        ROW_KERNELS[name] = self
        self.inputs = schema.split("->")[0].count("Tensor")
        self.tensors = self.inputs - parameters
        self._operator = self._register(schema) if HAS_CUSTOM_OPS else None

    def __repr__(self) -> str:
        return f"RowKernel({self.name!r})"

    def __call__(self, *args: Any) -> Any:
        """Return the result, with the auxiliary results if there are any.

        Half-precision input is computed in float32 and rounded once, at the end. The result has the dtype and shape of
        the first tensor, and is contiguous.
        """
        watched = count_dispatch_modes() > 0 or is_jit_tracing() or transforms_active()
        for arg in args[: self.inputs]:
            kind = type(arg)
            if kind is float:
                continue
            if watched or (kind is not Tensor and kind is not Parameter) or is_legacy_batch(arg):
                # Fake, traced, vmapped and legacy-vmap tensors, and dispatch modes, only see registered operators.
                return self._reference_or_operator(args)
        return self._compute(args)

    def _compute(self, args: tuple[Any, ...]) -> Any:
        first = args[0]
        if first.is_cpu:
            return self._on_cpu(args)
        if first.is_meta:
            return self._like(first)
        if first.is_cuda and self.cuda is not None and first.numel():
            result = self.cuda(*args)
            if result is not NotImplemented:
                return result
        return self._on_tensors(self.reference, args)

    def traced(self, *args: Any) -> Any:
        """Return the kernel's result as one opaque operator, which compiled graphs keep whole."""
        if self._operator is None:
            return self._eagerly(*args)
        return call_operator(self._operator, *self._with_tensors(args))

    def decomposed(self, *args: Any) -> Any:
        """Return the kernel's result in plain torch operations, as a decomposition of the operator."""

        def implementation(*args: Any) -> Any:
            if self.wide:
                args = tuple([arg.double() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args])
            return self.reference(*args)

        return self._on_tensors(implementation, args)

    @outside_graphs
    def _eagerly(self, *args: Any) -> Any:
        return self(*args)

    def _reference_or_operator(self, args: tuple[Any, ...]) -> Any:
        if self._operator is None and not is_jit_tracing():
            return self._on_tensors(self.reference, args)
        return call_operator(self._operator, *self._with_tensors(args))

    def _with_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give numbers among the row parameters as tensors: a number that a graph computes must not be frozen in it."""
        first = args[0]

        def column(arg: float) -> Tensor:
            if is_exporting() and type(arg) is float:  # a constant that ONNX does not round to float32
                return torch.tensor(np.full((1,) * first.dim(), arg), dtype=torch.float64, device=first.device)
            numbers: Tensor = first.new_full((1,) * first.dim(), arg, dtype=torch.float64)
            return numbers

        return tuple([column(arg) if i < self.inputs and not isinstance(arg, Tensor) else arg for i, arg in enumerate(args)])

    def _on_cpu(self, args: tuple[Any, ...]) -> Any:
        first = args[0]
        dtype = first.dtype
        wide = dtype is torch.float32 or dtype is torch.float64
        if wide and not self.auxiliary and first.dim() == 2 and first.is_contiguous():
            out = self._empty(first, dtype)
            if first.numel():
                self._write(out.numpy(), *self._arrays(args, dtype))
            return out
        width = dtype if wide else torch.float32
        out = self._empty(first, width)
        auxiliary = [torch.empty(first.shape, dtype=kind) for kind in self.auxiliary]
        if first.numel():
            self._write(*[_as_rows(tensor, tensor.dtype) for tensor in (out, *auxiliary)], *self._arrays(args, width))
        result = out if width is dtype else out.to(dtype)
        return (result, *auxiliary) if auxiliary else result

    def _write_rows(self, *arrays: Any) -> None:
        over_rows(self.cpu, arrays[1 + len(self.auxiliary)].shape, self.seconds, *arrays)

    def _arrays(self, args: tuple[Any, ...], width: torch.dtype) -> list[Any]:
        """Return the arguments as the compiled kernel takes them."""
        arrays = list(args)
        for i in range(self.tensors):
            arrays[i] = _as_rows(args[i], width)
        for i in range(self.tensors, self.inputs):
            arrays[i] = _as_column(args[i], args[0].shape)
        return arrays

    def _on_tensors(self, implementation: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        first = args[0]
        if first.numel() == 0:
            return self._like(first)
        results = implementation(*[arg.float() if isinstance(arg, Tensor) and arg.dtype in HALVES else arg for arg in args])
        if not self.auxiliary:
            return results.to(first.dtype).contiguous()
        result, *auxiliary = results
        return (result.to(first.dtype).contiguous(), *[k.to(kind) for k, kind in zip(auxiliary, self.auxiliary, strict=True)])

    def _like(self, first: Tensor) -> Any:
        result = self._empty(first, first.dtype)
        if not self.auxiliary:
            return result
        return (result, *[torch.empty(first.shape, dtype=kind, device=first.device) for kind in self.auxiliary])

    def _empty(self, first: Tensor, dtype: torch.dtype) -> Tensor:
        if self.reduces:
            return first.new_empty((*first.shape[:-1], 1), dtype=dtype)
        return torch.empty_like(first, dtype=dtype, memory_format=torch.contiguous_format)

    def _register(self, schema: str) -> Any:
        def run(*args: Any) -> Any:
            return self._compute(args)

        def fake(*args: Any) -> Any:
            return self._like(args[0])

        def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
            moved = batch_first(info.batch_size, in_dims, args)
            return operator(*moved), (0,) * (1 + len(self.auxiliary)) if self.auxiliary else 0

        operator = torch.library.custom_op(f"lit_sparse::{self.name}", run, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        if hasattr(operator, "register_vmap"):
            operator.register_vmap(vmap)
        return operator


def row_kernel(
    cpu: Callable[..., None], cuda: Callable[..., Any] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], RowKernel]:
    """Return a decorator that makes a kernel of its definition in torch operations, which becomes its ``reference``.

    The operator has the name and the arguments of that function. Their annotations say what they are: ``Tensor``, ``float |
    Tensor`` for a row parameter, and ``float``, ``int`` or ``bool`` for other numbers.

    Args:
        cpu: the same, compiled; see :class:`RowKernel`.
        cuda: the same for CUDA tensors; see :class:`RowKernel`.
        options: ``seconds``, ``auxiliary``, ``reduces`` and ``wide``; see :class:`RowKernel`.
    """

    def decorate(reference: Callable[..., Any]) -> RowKernel:
        kinds = {name: kind for name, kind in reference.__annotations__.items() if name != "return"}
        inputs = ", ".join(f"{kind.removeprefix('float | ')} {name}" for name, kind in kinds.items())
        results = ", ".join(["Tensor"] * (1 + len(options.get("auxiliary", ()))))
        schema = f"({inputs}) -> ({results})"
        parameters = list(kinds.values()).count("float | Tensor")
        return RowKernel(reference.__name__, schema, cpu, reference, cuda, parameters=parameters, **options)

    return decorate


def batch_first(size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with the batch dimension of every tensor moved to the front, added where a tensor lacks it.

    Args:
        size: length of the batch dimension.
        in_dims: index of the batch dimension in each argument; None for arguments without it.
        args: tensors, numbers and None.
    """

    def place(value: Any, dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)

    return tuple(place(value, dim) for value, dim in zip(args, in_dims, strict=True))


def _as_rows(x: Tensor, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    """View a CPU tensor (..., d) as a contiguous array (rows, d), copying only when it must."""
    if x.requires_grad:
        x = x.detach()
    if x.dtype is not dtype and x.dtype.is_floating_point:
        x = x.to(dtype)
    if not x.is_contiguous():
        x = x.contiguous()
    array: np.ndarray[Any, Any] = x.numpy()
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])


@lru_cache(maxsize=256)
def _column_of(value: float) -> np.ndarray[Any, Any]:
    return np.full(1, value, np.float64)


def _as_column(value: float | Tensor, shape: torch.Size) -> np.ndarray[Any, Any]:
    """Return a row parameter as float64 (1,), or (rows,) if it is not one number for all."""
    if not isinstance(value, Tensor):
        return _column_of(value)
    value = value.detach().to(torch.float64)
    if value.numel() != 1:
        value = value.expand(*shape[:-1], 1)
    array: np.ndarray[Any, Any] = value.reshape(-1).contiguous().numpy()
    return array
