"""NormMax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.norm_max.layer import NormMax, norm_max

__all__ = ["NormMax", "norm_max"]
