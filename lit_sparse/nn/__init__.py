"""Plain torch building blocks, without Lightning."""

from lit_sparse.nn.attention import MultiheadAttention, attention
from lit_sparse.nn.mlp import MLP
from lit_sparse.nn.seeded import seed_generator, seeded_normal, seeded_uniform
from lit_sparse.nn.shared_categorical import SharedCategorical
from lit_sparse.nn.signaling import Receiver, Sender

__all__ = [
    "MLP",
    "MultiheadAttention",
    "Receiver",
    "Sender",
    "SharedCategorical",
    "attention",
    "seed_generator",
    "seeded_normal",
    "seeded_uniform",
]
