"""Every mapping as a function of scores: ``from lit_sparse.mappings import functional as F``."""

from lit_sparse.mappings.entmax import entmax
from lit_sparse.mappings.softmax import softmax
from lit_sparse.mappings.sparsemax import sparsemax
from lit_sparse.mappings.topk_sparsemax import topk_sparsemax

__all__ = ["entmax", "softmax", "sparsemax", "topk_sparsemax"]
