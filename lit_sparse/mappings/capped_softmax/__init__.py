"""CappedSoftmax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.capped_softmax.layer import CappedSoftmax, capped_softmax

__all__ = ["CappedSoftmax", "capped_softmax"]
