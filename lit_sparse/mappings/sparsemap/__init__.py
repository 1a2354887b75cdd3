"""SparseMAP: the layer, and the solver with its derivatives."""

from lit_sparse.mappings.sparsemap.layer import SparseMAP, SparseMAPOutput

__all__ = ["SparseMAP", "SparseMAPOutput"]
