"""Fusedmax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.fusedmax.layer import Fusedmax, LearnableFusedmax, fusedmax

__all__ = ["Fusedmax", "LearnableFusedmax", "fusedmax"]
