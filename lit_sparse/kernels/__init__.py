"""Row algorithms on raw arrays: compiled for CPU threads, with a reference in plain torch operations for every other device.

No autograd and no modules here: :mod:`lit_sparse.mappings` differentiates.
"""

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.rows import plain_top, write_invalid
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.kernels.row_kernel import RowKernel
from lit_sparse.kernels.simplex import center_on_support, project_simplex

__all__ = ["RowKernel", "center_on_support", "compile_rows", "over_rows", "plain_top", "project_simplex", "write_invalid"]
