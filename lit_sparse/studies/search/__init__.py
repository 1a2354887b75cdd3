"""Sweeps: the space, the storage and the search."""
