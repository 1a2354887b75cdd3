"""Plain torch building blocks, without Lightning."""

from lit_sparse.nn.attention import MultiheadAttention, attention
from lit_sparse.nn.mlp import MLP
from lit_sparse.nn.seeded import seeded_normal, seeded_uniform
from lit_sparse.nn.shared_categorical import SharedCategorical

__all__ = ["MLP", "MultiheadAttention", "SharedCategorical", "attention", "seeded_normal", "seeded_uniform"]
