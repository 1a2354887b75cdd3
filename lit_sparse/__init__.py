"""Neural networks that decide sparsely, as PyTorch layers and PyTorch Lightning modules.

Importing the package itself loads nothing else. Import from its subpackages, for example
``from lit_sparse.mappings import Sparsemax``, which loads only torch, numpy and numba. :func:`load` returns a trained model.
"""

from typing import TYPE_CHECKING, Any

from lit_sparse.version import __version__

if TYPE_CHECKING:
    from lit_sparse.runs.loading import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from lit_sparse.runs.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
