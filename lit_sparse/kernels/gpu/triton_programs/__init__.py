"""Triton programs for rows that are reduced as a whole: simplex projection, alpha-entmax, and their Jacobians.

Only :mod:`lit_sparse.kernels.gpu.triton_rows` imports this, and only where Triton is installed.

A program takes ``rows`` rows at a time and keeps them in registers: one read and one write, however often Newton's method looks
at them. A row that is too long for that (``long``) is read anew, a tile at a time, for each look. Either way the first looks
are at the maxima of groups of entries, which are few and hold nearly all of the support: a subset has less mass than the row,
so its threshold bounds that of the row from the same side as Newton's method.

Names that the programs share:

- ``x``, ``y``, ``v`` point to tensors (n, d); in functions that a program calls, to the first column of its rows, (rows, 1, 1).
- ``n`` is the number of rows; ``d = units * unit`` their length, written so that the compiler sees what divides it and loads
  as many entries at once.
- A tile (rows, depth, groups) holds consecutive columns, and what stands for nothing after the last. A group is what has the
  same last index; it is in one thread, if ``groups`` entries are what a warp loads at once. ``z`` is a tile: the whole row, or
  the first of a long one.
- ``inside`` (rows,) tells which rows exist, ``live`` (rows,) which are still at work, ``width`` is the type to compute in.
- A number that Python has in double precision comes as two floats, ``high`` and ``low``.
"""

from lit_sparse.kernels.gpu.triton_programs.entmax import apply_jacobian, map_entmax
from lit_sparse.kernels.gpu.triton_programs.simplex import project_simplex

__all__ = ["apply_jacobian", "map_entmax", "project_simplex"]
