"""One door for every row kernel: compiled on the CPU, plain torch elsewhere, an opaque operator while tracing.

A kernel takes tensors of one shape (..., d) followed by numbers, and returns a new tensor of that shape. It knows nothing
of derivatives; :mod:`lit_sparse.mappings.rowwise` builds them around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

__all__ = ["RowKernel"]

# torch.library.custom_op came with torch 2.4; before it, traced calls break the graph and run eagerly.
HAS_CUSTOM_OPS = hasattr(torch.library, "custom_op")


class RowKernel:
    """A row algorithm with its implementations for each device.

    Args:
        name: name of the operator in torch's registry, ``lit_sparse::<name>``.
        schema: its arguments and result, in the words of torch's operator schemas.
        cpu: ``cpu(out, *arrays, *numbers)`` writes the result for contiguous float32 or float64 arrays (rows, d).
        twin: the same in plain torch operations on tensors (..., d), for every other device.
        cuda: the same as ``twin`` for CUDA tensors, where there is something faster; ``twin`` serves when it is None.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        cpu: Callable[..., None],
        twin: Callable[..., Tensor],
        cuda: Callable[..., Tensor] | None = None,
    ) -> None:
        self.name = name
        self.cpu = cpu
        self.twin = twin
        self.cuda = cuda
        self.tensors = schema.split("->")[0].count("Tensor")
        self._operator = self._register(schema) if HAS_CUSTOM_OPS else None

    def __repr__(self) -> str:
        return f"RowKernel({self.name!r})"

    def __call__(self, *args: Any) -> Tensor:
        """Return the result for tensors of one shape (..., d), followed by the kernel's numbers.

        Half-precision input is computed in float32 and rounded once, at the end. The result has the dtype and shape of
        the last tensor, and is contiguous.
        """
        tensors = args[: self.tensors]
        watched = _watchers() > 0
        for tensor in tensors:
            if watched or (type(tensor) is not Tensor and type(tensor) is not Parameter) or _is_legacy_batch(tensor):
                # A tensor that stands for others (fake, traced, a batch of the older vmap), or somebody who records each
                # operation: the operator is what they can see.
                return self._twin_or_operator(tensors, args)
        return self._compute(args)

    def _compute(self, args: tuple[Any, ...]) -> Tensor:
        tensors, last = args[: self.tensors], args[self.tensors - 1]
        if last.is_cpu:
            return self._on_cpu(last, tensors, args[self.tensors :])
        if last.is_cuda and self.cuda is not None:
            return self.cuda(*args)
        return self._on_twin(tensors, args[self.tensors :])

    def traced(self, *args: Any) -> Tensor:
        """Return the same as a call, as one opaque operator that ``torch.compile`` and ``torch.export`` keep whole."""
        if self._operator is None:
            return self._eagerly(*args)  # type: ignore[no-any-return]
        return self._operator(*args)  # type: ignore[no-any-return]

    @torch._dynamo.disable  # type: ignore[misc, untyped-decorator, unused-ignore]
    def _eagerly(self, *args: Any) -> Tensor:
        return self(*args)

    def _twin_or_operator(self, tensors: tuple[Tensor, ...], args: tuple[Any, ...]) -> Tensor:
        if self._operator is None:
            return self._on_twin(tensors, args[self.tensors :])
        return self._operator(*args)  # type: ignore[no-any-return]

    def _on_cpu(self, last: Tensor, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> Tensor:
        dtype = last.dtype
        width = dtype if dtype is torch.float32 or dtype is torch.float64 else torch.float32
        out = torch.empty_like(last) if width is dtype and last.is_contiguous() else torch.empty(last.shape, dtype=width)
        if last.numel():
            target = out.numpy()
            if target.ndim != 2:
                target = target.reshape(-1, target.shape[-1])
            self.cpu(target, *[_as_rows(tensor, width) for tensor in tensors], *numbers)
        return out if width is dtype else out.to(dtype)

    def _on_twin(self, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> Tensor:
        last = tensors[-1]
        if last.numel() == 0:
            return torch.empty_like(last, memory_format=torch.contiguous_format)
        wide = [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]
        return self.twin(*wide, *numbers).to(last.dtype).contiguous()

    def _register(self, schema: str) -> Any:
        def run(*args: Any) -> Tensor:
            return self._compute(args)

        def fake(*args: Any) -> Tensor:
            return torch.empty_like(args[self.tensors - 1], memory_format=torch.contiguous_format)

        def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
            moved = batch_first(info.batch_size, in_dims, args)
            return operator(*moved), 0

        operator = torch.library.custom_op(f"lit_sparse::{self.name}", run, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        if hasattr(operator, "register_vmap"):
            operator.register_vmap(vmap)
        return operator


def batch_first(size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Move the batch dimension of every tensor to the front and give one to tensors that lack it.

    Args:
        size: length of the batch dimension.
        in_dims: where it is in each argument; None for arguments without it.
        args: tensors, numbers and None.
    """

    def place(value: Any, dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)

    return tuple(place(value, dim) for value, dim in zip(args, in_dims, strict=True))


_watchers: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_legacy_batch: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


def _as_rows(x: Tensor, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    """View a CPU tensor (..., d) as a contiguous array (rows, d), copying only when it must."""
    if x.requires_grad:
        x = x.detach()
    if x.dtype is not dtype:
        x = x.to(dtype)
    if not x.is_contiguous():
        x = x.contiguous()
    array: np.ndarray[Any, Any] = x.numpy()
    return array if array.ndim == 2 else array.reshape(-1, array.shape[-1])
