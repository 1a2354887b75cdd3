"""Neural networks that decide sparsely, as PyTorch layers and PyTorch Lightning modules.

The package imports nothing by itself: take what you need from its rooms, for example
``from lit_sparse.mappings import Sparsemax``, which brings torch, numpy and numba alone.
"""

from lit_sparse.version import __version__

__all__ = ["__version__"]
