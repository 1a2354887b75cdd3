"""Callbacks that draw; :mod:`lit_sparse.callbacks` has their names."""
