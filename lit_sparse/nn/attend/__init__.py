"""Attention with any mapping: what it computes with, the plan that chooses a way, and the ways."""

from lit_sparse.nn.attend.function import attention
from lit_sparse.nn.attend.layer import MultiheadAttention

__all__ = ["MultiheadAttention", "attention"]
