"""HardThreshold: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.hard_threshold.layer import HardThreshold, hard_threshold

__all__ = ["HardThreshold", "hard_threshold"]
