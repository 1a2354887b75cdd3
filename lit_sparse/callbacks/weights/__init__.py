"""Callbacks that change weights."""

from lit_sparse.callbacks.weights.optimal_brain_damage import OptimalBrainDamage
from lit_sparse.callbacks.weights.sparse_connectivity import SparseConnectivity

__all__ = ["OptimalBrainDamage", "SparseConnectivity"]
