"""Exports of modules with sparse mappings: programs of plain torch operations, and ONNX models.

An exported program holds each row kernel as one opaque operator, ``lit_sparse::<name>``. Its reference in plain torch
operations replaces it here. A loop of the reference stays one operator, so the length of the rows may be dynamic.
"""

from __future__ import annotations

import inspect
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError, MissingExtraError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.evaluation import evaluating
from lit_sparse.ground.files import not_plain, result_file
from lit_sparse.kernels.row_kernel import ROW_KERNELS
from lit_sparse.mappings import SparseMapping

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

__all__ = ["OPSET", "decompose", "export_onnx"]

#: Version of the ONNX operators, and the oldest one.
OPSET, OLDEST_OPSET = 20, 18
#: Options of ``torch.onnx.export`` that are fixed here, or given by an argument of another name.
SET_HERE = {"model", "args", "f", "kwargs", "dynamo", "verbose", "opset_version", "dynamic_shapes", "dynamic_axes"}
#: Bytes of weights above which torch may write them to a second file.
LARGEST = 2**30


def decompose(program: ExportedProgram) -> ExportedProgram:
    """Return an exported program in which plain torch operations replace this package's operators.

    Args:
        program: result of ``torch.export.export``. One exported under ``torch.no_grad()`` holds no derivatives, and is
            smaller.

    Raises:
        ConfigurationError: if the argument is not an exported program.

    Example:
        >>> from lit_sparse.mappings import Sparsemax
        >>> with torch.no_grad():
        ...     program = torch.export.export(Sparsemax(), (torch.randn(2, 5),))
        >>> (
        ...     "lit_sparse" in str(program.graph),
        ...     "lit_sparse" in str(decompose(program).graph),
        ... )
        (True, False)
    """
    if not hasattr(program, "run_decompositions"):
        raise ConfigurationError(f"Expected a program of torch.export.export but got {full_name(program)}.")
    plain: ExportedProgram = program.run_decompositions(_decompositions())
    return plain


@checked
def export_onnx(
    module: nn.Module,
    args: tuple[Any, ...],
    path: str | PathLike[str],
    *,
    dynamic_shapes: Any = None,
    opset: int = OPSET,
    **options: Any,
) -> ONNXProgram:
    """Write a module in eval mode as an ONNX model of standard operators.

    Args:
        module: a mapping or any module that holds mappings.
        args: example arguments of its ``forward``.
        path: file to write.
        dynamic_shapes: dimensions that may change, as for ``torch.export.export``; None for fixed shapes.
        opset: version of the ONNX operators, at least 18.
        options: options of ``torch.onnx.export``, for example ``input_names`` and ``output_names``.

    Returns:
        The written model.

    Raises:
        MissingExtraError: if the packages of the extra ``onnx`` are not installed.
        ConfigurationError: for an iterative mapping, which has no exact form in ONNX, an ``opset`` below 18, options or
            shapes that torch does not take, or a file that cannot be written.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("ONNX models", "onnx") from error
    if not isinstance(args, tuple | list):
        raise ConfigurationError(f"Expected argument `args` to be a tuple but got {full_name(args)}. Write (x,) for one.")
    check_count("opset", opset, OLDEST_OPSET)
    taken = sorted(inspect.signature(torch.onnx.export).parameters.keys() - SET_HERE)
    if unknown := [name for name in options if name not in taken]:
        raise ConfigurationError(f"Expected options of torch.onnx.export, {', '.join(taken)}, but got {unknown[0]!r}.")
    if not isinstance(dynamic_shapes, dict | tuple | list | None):
        raise ConfigurationError(
            f"Expected argument `dynamic_shapes` to be a dict, a tuple or None but got {dynamic_shapes!r}."
        )
    place = Path(path)
    if not place.parent.is_dir() or place.is_dir():
        raise ConfigurationError(f"Expected the path of a file in an existing folder but got {str(path)!r}. Create the folder.")
    if place.is_symlink() or (place.exists() and not place.is_file()):
        raise not_plain(place)
    _check_exact(module)
    with evaluating(module), torch.no_grad():
        program = torch.export.export(module, tuple(args), dynamic_shapes=dynamic_shapes)
    program = program.run_decompositions(_decompositions() | _stable_sorts())
    exported = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=opset, **options)
    model = cast("ONNXProgram", exported)
    written = model.model.opset_imports.get("")
    if written != opset:  # torch only logs that it cannot convert the model
        raise ConfigurationError(
            f"Expected argument `opset` to be a version that torch can write but got {opset}. Use {written}."
        )
    weights = [value.const_value for value in model.model.graph.initializers.values()]
    if sum(weight.nbytes for weight in weights if weight is not None) > LARGEST:
        model.save(path)  # and the weights to a second file
    else:
        with result_file(place, "wb") as file:
            file.write(model.model_proto.SerializeToString())
    return model


def _decompositions() -> dict[Any, Any]:
    known = {name: kernel for name, kernel in ROW_KERNELS.items() if hasattr(torch.ops.lit_sparse, name)}
    return {getattr(torch.ops.lit_sparse, name).default: kernel.decomposed for name, kernel in known.items()}


def _stable_sorts() -> dict[Any, Any]:
    """Return decompositions of stable sorts to TopK, for which ONNX specifies that ties go to the lowest index."""

    def sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        return torch.ops.aten.topk.default(x, x.shape[dim], dim, descending, True)

    def argsort(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
        return sort(x, dim=dim, descending=descending)[1]

    return {torch.ops.aten.sort.stable: sort, torch.ops.aten.argsort.stable: argsort}


def _check_exact(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"Expected argument `module` to be a torch module but got {full_name(module)}. Wrap it in one."
        )
    for name, part in module.named_modules():
        if isinstance(part, SparseMapping) and part.iterative:
            place = f" at `{name}`" if name else ""
            raise ConfigurationError(
                f"Expected mappings with an exact form in ONNX but got {type(part).__name__}{place}, which is solved by"
                " iteration to a tolerance. Use another mapping, such as Sparsemax or Entmax."
            )
