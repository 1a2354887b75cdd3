"""Lets idle OpenMP threads sleep, as the command line does; imported before torch by the other scripts."""

from lit_sparse.cli import wait_passively

wait_passively()
