"""Row functions on NVIDIA GPUs, one thread per row, from the source that also serves the CPU.

A function that :func:`~lit_sparse.kernels.cpu.compile.compile_rows` compiled is translated by numba-cuda together with the
functions it calls. Such a function works on scalars and given arrays. It neither allocates nor reads bits of floats. The first
call imports numba-cuda. If it is missing or fails, the torch references are used.
"""

from __future__ import annotations

import importlib
import math
import types
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["ArraySpec", "launch", "launch_rows", "numba_cuda", "program_of", "translate"]

ArraySpec: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # shape and type

THREADS = 64  # of a block; few, for each needs a workspace of its own
WORK_BYTES = 1 << 29  # workspace of one launch; longer batches take several


@cache
def numba_cuda() -> Any:
    """Return the module ``numba.cuda``, or None if numba-cuda is not installed, finds no GPU, or cannot compile.

    It cannot compile with a numpy or CUDA release that is too new for it; there is a warning then.
    """
    try:
        module = importlib.import_module("numba.cuda")
    except ImportError:
        return None
    if not module.is_available():
        return None
    try:
        module.jit("void(float32[:])")(_nothing)
    except Exception as error:
        warnings.warn(
            f"numba-cuda cannot compile kernels: {type(error).__name__}: {error}. Fusedmax and oscarmax run in torch operations"
            " on the GPU, and SparseMAP on the CPU, which is slower. Another release of numba-cuda or numpy may help.",
            stacklevel=2,
        )
        return None
    return module


def _nothing(x: Any) -> None:
    pass


@cache
def translate(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return the GPU version of a row function that is compiled for the CPU."""
    source: Any = compiled
    translated: Callable[..., Any] = _compile(source.py_func, device=True)
    return translated


@cache
def program_of(function: types.FunctionType) -> Any:
    """Return a plain function as a GPU program that can be launched."""
    return _compile(function, device=False)


def _compile(function: types.FunctionType, device: bool) -> Any:
    names = {**function.__globals__, "cuda": numba_cuda()}
    for name in function.__code__.co_names:
        if hasattr(names.get(name), "py_func"):
            names[name] = translate(names[name])
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    return numba_cuda().jit(device=device)(copy)


def launch_rows(
    function: Any,
    x: Tensor,
    parameter: float | Tensor,
    numbers: tuple[Any, ...],
    workspaces: Sequence[ArraySpec],
) -> Any:
    """Run a GPU program on rows with a row parameter; return its result and labels, or NotImplemented without a GPU.

    NotImplemented where numba-cuda is not installed or finds no GPU.

    Half types are computed in float32. The arrays are stored column by column, so that neighbouring threads read
    neighbouring numbers.
    """
    if numba_cuda() is None:
        return NotImplemented
    wide = x.detach().reshape(-1, x.shape[-1]).to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    wide = wide.t().contiguous().t()
    out, labels = torch.empty_like(wide), torch.empty_like(wide, dtype=torch.int32)
    column = torch.as_tensor(parameter, dtype=torch.float64, device=x.device).detach()
    column = column.reshape(1) if column.numel() == 1 else column.expand(*x.shape[:-1], 1).reshape(-1).contiguous()
    launch(program_of(function), len(wide), (out, labels, wide, column), workspaces, numbers)
    return out.contiguous().reshape(x.shape).to(x.dtype), labels.contiguous().reshape(x.shape)


def launch(
    program: Any, rows: int, tensors: Sequence[Tensor], workspaces: Sequence[ArraySpec], numbers: tuple[Any, ...]
) -> None:
    """Run a GPU program with one thread per row, in batches whose workspaces fit into memory, on the current stream.

    Args:
        program: called with the tensors, a workspace for each thread, and the numbers.
        rows: number of rows.
        tensors: tensors with a leading dimension of that length, or of 1 if all rows share them.
        workspaces: shape and dtype of each workspace of a thread.
        numbers: further arguments.
    """
    device = tensors[0].device
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in workspaces)
    step = max(1, min(rows, max(THREADS, WORK_BYTES // size // THREADS * THREADS)))
    work = [torch.empty((step, *shape), dtype=dtype, device=device) for shape, dtype in workspaces]
    with torch.cuda.device_of(tensors[0]), warnings.catch_warnings():  # type: ignore[no-untyped-call]
        warnings.filterwarnings("ignore", r"(?s).*Grid size \d+ will likely result in GPU under-utilization")
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            mine = [tensor[part] if len(tensor) == rows else tensor for tensor in tensors]
            arguments = (*[_view(tensor) for tensor in (*mine, *work)], *numbers)
            blocks = (part.stop - part.start + THREADS - 1) // THREADS
            if tensors[0].is_cuda:
                stream = numba_cuda().external_stream(torch.cuda.current_stream().cuda_stream)
                program[blocks, THREADS, stream](*arguments)
            else:  # numba's simulator
                program[blocks, THREADS](*arguments)


def _view(tensor: Tensor) -> Any:
    return numba_cuda().as_cuda_array(tensor, sync=False) if tensor.is_cuda else tensor.numpy()
