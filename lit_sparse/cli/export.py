"""The command ``lit-sparse export``: write a trained model for programs without Lightning."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

from lit_sparse.errors import ConfigurationError, LitSparseError, full_name
from lit_sparse.ground.commands import command_parser
from lit_sparse.ground.files import result_file

__all__ = ["main", "parser"]

ENDINGS = (".onnx", ".pt2")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse export``."""
    found = command_parser("export", "Write a trained model as an ONNX model or as a program of torch.export.")
    found.add_argument("path", help="run folder, or path or URL of a checkpoint")
    found.add_argument("-o", "--output", required=True, help="file to write, with the ending .onnx or .pt2")
    found.add_argument("--which", default="best", choices=("best", "last"), help="checkpoint of a run folder; best by default")
    found.add_argument("--trust", action="append", default=[], help="class that the checkpoint may name; may be repeated")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse export``: write a model's predictor; dimensions that may change stay dynamic.

    Raises:
        ConfigurationError: for an unsupported file extension, a model that has no predictor, or one that torch cannot export.
    """
    given = parser().parse_args(list(arguments))
    output = Path(given.output)
    if output.suffix not in ENDINGS or not output.parent.is_dir():
        raise ConfigurationError(
            f"Expected a path in an existing folder, with the ending {' or '.join(ENDINGS)}, but got {given.output!r}."
        )

    import torch
    from torch.export import Dim
    from torch.utils._pytree import tree_map

    from lit_sparse.export import decompose, export_onnx
    from lit_sparse.models import LitSparseModule
    from lit_sparse.models.data_protocols import NOT_ACCEPTED
    from lit_sparse.runs.loading import load

    model = load(given.path, given.which, trust=given.trust)
    if not isinstance(model, LitSparseModule):
        raise ConfigurationError(f"Expected a lit_sparse model with a predictor but got {full_name(model)}.")
    for suffix, (module, args) in model.exported().items():
        path = output.with_stem(f"{output.stem}{suffix}")
        dynamic = tree_map(lambda tensor: dict.fromkeys(range(tensor.dim()), Dim.AUTO), args)
        try:
            if output.suffix == ".onnx":
                export_onnx(module, args, path, dynamic_shapes=dynamic)
            else:
                with torch.no_grad():
                    program = torch.export.export(module, args, dynamic_shapes=dynamic)
                packed = io.BytesIO()  # torch ends the process if it cannot write a file
                torch.export.save(decompose(program), packed)
                with result_file(path, "wb") as file:
                    file.write(packed.getbuffer())
        except NOT_ACCEPTED as error:
            if isinstance(error, LitSparseError):
                raise
            wanted = f"Expected the module {type(module).__name__} to be exported"
            raise ConfigurationError(f"{wanted} but got {type(error).__name__}: {error}") from error
        print(path, flush=True)
    return 0
