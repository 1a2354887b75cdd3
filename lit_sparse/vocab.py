"""Former module of names that have moved to :mod:`lit_sparse.text`."""

from typing import TYPE_CHECKING

from lit_sparse.aliases import moved_names

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
