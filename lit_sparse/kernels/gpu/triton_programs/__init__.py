"""Triton programs: attention in blocks, and rows that are reduced as a whole.

Only :mod:`lit_sparse.kernels.gpu.triton_rows` imports this, and only where Triton is installed.

The modules ``attention``, ``lists`` and ``listed`` describe their own programs. The others map rows, or multiply them by a
Jacobian.

A program takes ``rows`` rows at a time and keeps them in registers, so that all Newton steps share one read and one write.

Longer rows (``long``) are read again in each step, tile by tile. In both cases the first steps use only the maxima of groups of
entries, which are few and hold nearly all of the support. A subset has less mass than the row, so its threshold bounds the
row's threshold from the same side as Newton's method.

Names that the programs share:

- ``x``, ``y``, ``v`` point to tensors (n, d); in functions that a program calls, to the first column of its rows, (rows, 1, 1).
- ``n`` is the number of rows; ``d = units * unit`` their length, written so that the compiler sees what divides it and loads
  as many entries at once.
- A tile (rows, depth, groups) holds consecutive columns, and what stands for nothing after the last. A group is what has the
  same last index; it is in one thread, if ``groups`` entries are what a warp loads at once. ``z`` is a tile: the whole row, or
  the first of a long one.
- ``inside`` (rows,) marks rows that exist, ``live`` (rows,) rows that are not finished, ``width`` is the type to compute in.
- A number that Python has in double precision comes as two floats, ``high`` and ``low``.
"""

from lit_sparse.kernels.gpu.triton_programs.attention import attend_blocks
from lit_sparse.kernels.gpu.triton_programs.attention_slopes import differentiate_keys, differentiate_queries
from lit_sparse.kernels.gpu.triton_programs.budget import budget_jacobian, map_budget
from lit_sparse.kernels.gpu.triton_programs.capped import capped_jacobian, map_capped
from lit_sparse.kernels.gpu.triton_programs.entmax import apply_jacobian, map_entmax
from lit_sparse.kernels.gpu.triton_programs.hoyer import hoyer_jacobian, project_hoyer
from lit_sparse.kernels.gpu.triton_programs.largest import keep_chosen, threshold_hard
from lit_sparse.kernels.gpu.triton_programs.listed import multiply_listed, scatter_listed, sum_listed
from lit_sparse.kernels.gpu.triton_programs.lists import mark_scores, write_lists
from lit_sparse.kernels.gpu.triton_programs.score_bounds import bound_scores
from lit_sparse.kernels.gpu.triton_programs.simplex import project_simplex

__all__ = [
    "apply_jacobian",
    "attend_blocks",
    "bound_scores",
    "budget_jacobian",
    "capped_jacobian",
    "differentiate_keys",
    "differentiate_queries",
    "hoyer_jacobian",
    "keep_chosen",
    "map_budget",
    "map_capped",
    "map_entmax",
    "mark_scores",
    "multiply_listed",
    "project_hoyer",
    "project_simplex",
    "scatter_listed",
    "sum_listed",
    "threshold_hard",
    "write_lists",
]
