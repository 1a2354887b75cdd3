"""Exports: programs of plain torch operations, and ONNX models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.kernels.row_kernel import ROW_KERNELS
from lit_sparse.mappings import SparseMapping

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

__all__ = ["OPSET", "decompose", "export_onnx"]

#: Version of the ONNX operators.
OPSET = 20


def decompose(program: ExportedProgram) -> ExportedProgram:
    """Return an exported program in which plain torch operations replace the package's operators."""
    table: dict[Any, Callable[..., Any]] = {_operator(name): kernel.decomposed for name, kernel in ROW_KERNELS.items()}
    return program.run_decompositions(table)


def _operator(name: str) -> Any:
    return getattr(torch.ops.lit_sparse, name).default


def export_onnx(
    module: nn.Module,
    args: tuple[Any, ...],
    path: str | PathLike[str],
    *,
    dynamic_shapes: Any = None,
    opset: int = OPSET,
    **options: Any,
) -> ONNXProgram:
    with _evaluation(module), torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
    table = {_operator(name): kernel.decomposed for name, kernel in ROW_KERNELS.items()}
    table |= {torch.ops.aten.sort.stable: _sorted, torch.ops.aten.argsort.stable: _ranking}
    program = program.run_decompositions(table)
    onnx_program = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=opset, **options)
    onnx_program.save(path)
    return onnx_program


def _sorted(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sort by the operator TopK, for which ONNX specifies that ties go to the lowest index."""
    result: tuple[Tensor, Tensor] = torch.ops.aten.topk.default(x, x.shape[dim], dim, descending, True)
    return result


def _ranking(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return _sorted(x, dim=dim, descending=descending)[1]


@contextmanager
def _evaluation(module: nn.Module) -> Iterator[None]:
    """Evaluate a module; afterwards each part is in the mode that it was in."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
