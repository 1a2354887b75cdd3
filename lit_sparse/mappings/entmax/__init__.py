"""Entmax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.entmax.layer import Entmax, LearnableEntmax, entmax

__all__ = ["Entmax", "LearnableEntmax", "entmax"]
