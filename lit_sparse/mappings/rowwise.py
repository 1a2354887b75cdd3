"""Former place of what is now in :mod:`lit_sparse.mappings.masking` and :mod:`lit_sparse.mappings.row_function`."""

from typing import TYPE_CHECKING

from lit_sparse.aliases import moved_names

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
