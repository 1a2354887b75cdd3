"""Oscarmax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.oscarmax.layer import Oscarmax, oscarmax

__all__ = ["Oscarmax", "oscarmax"]
