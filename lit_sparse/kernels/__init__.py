"""Row algorithms on raw arrays: compiled for CPU threads, with a plain-torch twin for every other device.

No autograd and no modules here: :mod:`lit_sparse.mappings` differentiates.
"""

from lit_sparse.kernels.dispatch import RowKernel
from lit_sparse.kernels.simplex import center_on_support, project_simplex

__all__ = ["RowKernel", "center_on_support", "project_simplex"]
