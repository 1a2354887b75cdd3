"""SoftSort: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.soft_sort.layer import Regularization, SoftRank, SoftSort, soft_rank, soft_sort

__all__ = ["Regularization", "SoftRank", "SoftSort", "soft_rank", "soft_sort"]
