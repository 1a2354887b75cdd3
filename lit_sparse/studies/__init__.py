"""Studies: grids of runs as data, their rows, tables and figures."""

from lit_sparse.ground import train_extra  # noqa: F401
