"""Neural networks that decide sparsely, as PyTorch layers and PyTorch Lightning modules.

The package imports nothing by itself: take what you need from its rooms, for example
``from lit_sparse.mappings import Sparsemax``, which brings torch, numpy and numba alone.
:func:`load` returns a trained model.
"""

from typing import TYPE_CHECKING, Any

from lit_sparse.version import __version__

if TYPE_CHECKING:
    from lit_sparse.loading import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from lit_sparse.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
