"""LP-SparseMAP: the layer, its derivative, the solver, and the factors' nearest points."""

from lit_sparse.mappings.lp_sparsemap.layer import LPSparseMAP, LPSparseMAPOutput

__all__ = ["LPSparseMAP", "LPSparseMAPOutput"]
