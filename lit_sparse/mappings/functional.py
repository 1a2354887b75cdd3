"""Every mapping as a function of scores: ``from lit_sparse.mappings import functional as F``."""

from lit_sparse.mappings.batch_topk import batch_topk
from lit_sparse.mappings.budget_sparsemax import budget_sparsemax
from lit_sparse.mappings.capped_softmax.layer import capped_softmax
from lit_sparse.mappings.entmax.layer import entmax
from lit_sparse.mappings.fusedmax.layer import fusedmax
from lit_sparse.mappings.hard_threshold.layer import hard_threshold
from lit_sparse.mappings.hoyer.layer import hoyer_projection
from lit_sparse.mappings.jump_relu import jump_relu
from lit_sparse.mappings.lp_sparsemap.layer import lp_sparsemap
from lit_sparse.mappings.norm_max.layer import norm_max
from lit_sparse.mappings.oscarmax.layer import oscarmax
from lit_sparse.mappings.regularized_argmax import regularized_argmax
from lit_sparse.mappings.soft_sort.layer import soft_rank, soft_sort
from lit_sparse.mappings.softmax import softmax
from lit_sparse.mappings.sparsemap.layer import sparsemap
from lit_sparse.mappings.sparsemax import sparsemax
from lit_sparse.mappings.sq_pnorm_max.layer import sq_pnorm_max
from lit_sparse.mappings.topk import topk_entmax, topk_sparsemax

__all__ = [
    "batch_topk",
    "budget_sparsemax",
    "capped_softmax",
    "entmax",
    "fusedmax",
    "hard_threshold",
    "hoyer_projection",
    "jump_relu",
    "lp_sparsemap",
    "norm_max",
    "oscarmax",
    "regularized_argmax",
    "soft_rank",
    "soft_sort",
    "softmax",
    "sparsemap",
    "sparsemax",
    "sq_pnorm_max",
    "topk_entmax",
    "topk_sparsemax",
]
