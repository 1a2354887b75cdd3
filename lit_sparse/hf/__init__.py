"""Exact sparse attention in Hugging Face transformers models, with losses and callbacks for their Trainer.

It needs the extra ``hf``. Transformers is imported when a function is called.

Example:
    >>> from lit_sparse.hf import sparsify
    >>> from lit_sparse.mappings import Sparsemax
    >>> from transformers import AutoModel  # doctest: +SKIP
    >>> report = sparsify(
    ...     AutoModel.from_pretrained("bert-base-uncased"), Sparsemax()
    ... )  # doctest: +SKIP
"""

from lit_sparse.ground.arguments import check_types
from lit_sparse.hf.adapter import LayerMapping
from lit_sparse.hf.attachment import AttentionReport, LayerReport, from_pretrained, sparsify
from lit_sparse.hf.callbacks import AlphaAnnealing, AnnealedEntmax, SparsityCallback
from lit_sparse.hf.loss_functions import (
    example_gradients,
    fenchel_young_loss_func,
    risk_loss_func,
    weighted_dataset,
    weighted_loss_func,
)
from lit_sparse.hf.pooling import SparseAttentionPooling
from lit_sparse.hf.registry import register
from lit_sparse.hf.sae_lens import save_for_sae_lens
from lit_sparse.hf.splicing import activations, loss_recovered, spliced

__all__ = [
    "AlphaAnnealing",
    "AnnealedEntmax",
    "AttentionReport",
    "LayerMapping",
    "LayerReport",
    "SparseAttentionPooling",
    "SparsityCallback",
    "activations",
    "example_gradients",
    "fenchel_young_loss_func",
    "from_pretrained",
    "loss_recovered",
    "register",
    "risk_loss_func",
    "save_for_sae_lens",
    "sparsify",
    "spliced",
    "weighted_dataset",
    "weighted_loss_func",
]

check_types(globals())
