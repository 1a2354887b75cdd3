r"""Mappings from scores to sparse points, as layers; :mod:`lit_sparse.mappings.functional` has them as functions.

All of them solve

.. math:: \Pi_\Omega(x) = \arg\max_{y \in C} \langle y, x \rangle - \gamma\,\Omega(y)

for a convex set C and a regularizer :math:`\Omega`, so each has a value :math:`\mathrm{max}_\Omega` with the gradient
:math:`\Pi_\Omega`, and a Fenchel-Young loss (Niculae & Blondel 2017; Blondel, Martins & Niculae 2020).

Example:
    >>> import torch
    >>> from lit_sparse.mappings import Sparsemax
    >>> y = Sparsemax()(torch.tensor([1.0, 0.8, -2.0]))
    >>> bool(y[2] == 0) and bool(y.sum() == 1)
    True
"""

from lit_sparse.ground.arguments import check_types
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.batch_topk import BatchTopK
from lit_sparse.mappings.budget_sparsemax import BudgetSparsemax
from lit_sparse.mappings.capped_softmax.layer import CappedSoftmax
from lit_sparse.mappings.entmax.layer import Entmax, LearnableEntmax
from lit_sparse.mappings.fusedmax.layer import Fusedmax, LearnableFusedmax
from lit_sparse.mappings.hard_threshold.layer import HardThreshold
from lit_sparse.mappings.hoyer.layer import HoyerProjection
from lit_sparse.mappings.jump_relu import JumpReLU
from lit_sparse.mappings.losses import FenchelYoungLoss
from lit_sparse.mappings.lp_sparsemap import LPSparseMAP, LPSparseMAPOutput
from lit_sparse.mappings.norm_max.layer import NormMax
from lit_sparse.mappings.oscarmax.layer import Oscarmax
from lit_sparse.mappings.regularized_argmax import RegularizedArgmax
from lit_sparse.mappings.soft_sort.layer import SoftRank, SoftSort
from lit_sparse.mappings.softmax import Softmax
from lit_sparse.mappings.sparsemap import SparseMAP, SparseMAPOutput
from lit_sparse.mappings.sparsemax import Sparsemax
from lit_sparse.mappings.sq_pnorm_max.layer import SqPNormMax
from lit_sparse.mappings.topk import TopKEntmax, TopKSparsemax

__all__ = [
    "BatchTopK",
    "BudgetSparsemax",
    "CappedSoftmax",
    "Entmax",
    "FenchelYoungLoss",
    "Fusedmax",
    "HardThreshold",
    "HoyerProjection",
    "JumpReLU",
    "LPSparseMAP",
    "LPSparseMAPOutput",
    "LearnableEntmax",
    "LearnableFusedmax",
    "NormMax",
    "Oscarmax",
    "RegularizedArgmax",
    "SoftRank",
    "SoftSort",
    "Softmax",
    "SparseMAP",
    "SparseMAPOutput",
    "SparseMapping",
    "Sparsemax",
    "SqPNormMax",
    "TopKEntmax",
    "TopKSparsemax",
]

check_types(globals())
