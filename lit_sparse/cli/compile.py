"""The command ``lit-sparse compile``: compile mappings ahead of their first call."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.ground.commands import command_parser

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse compile``."""
    found = command_parser("compile", "Compile mappings and their derivatives, and keep the machine code for later processes.")
    found.add_argument("mapping", nargs="*", help="Sparsemax, Entmax, ...; all of them by default")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse compile``: compile mappings for float32 and float64 before their first use.

    Raises:
        ConfigurationError: for an unknown mapping, or without a folder for machine code.
    """
    names = parser().parse_args(list(arguments)).mapping

    import torch

    from lit_sparse.kernels.cpu.cache import cache_folder, refusal
    from lit_sparse.mappings import SparseMapping
    from lit_sparse.testing import concrete_subclasses

    classes = {cls.__name__: cls for cls in concrete_subclasses(SparseMapping)}  # type: ignore[type-abstract]
    for name in names:
        if name not in classes:
            raise ConfigurationError(
                f"Expected a mapping, {', '.join(classes)}, but got {name!r}.{did_you_mean(name, classes)}"
            )
    folder = cache_folder()
    if reason := refusal(folder):
        raise ConfigurationError(
            f"Expected a folder for machine code but got {folder}: {reason}. Set NUMBA_CACHE_DIR to your own folder."
        )
    for name in names or classes:
        for mapping in classes[name].examples():
            for dtype in (torch.float32, torch.float64):
                x = torch.randn(2, 8, dtype=dtype, requires_grad=True)
                mapping(x).square().sum().backward()
        print(name, flush=True)
    print(f"The machine code is in {folder}.")
    return 0
