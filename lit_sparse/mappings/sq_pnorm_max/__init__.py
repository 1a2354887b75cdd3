"""SqPNormMax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.sq_pnorm_max.layer import SqPNormMax, sq_pnorm_max

__all__ = ["SqPNormMax", "sq_pnorm_max"]
