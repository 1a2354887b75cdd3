"""Expected losses under a discrete latent variable, and their gradients."""

from lit_sparse.estimators.base import Estimator, Expectation, LatentBatch
from lit_sparse.estimators.marginal_likelihood import MarginalLikelihood, marginal_likelihood
from lit_sparse.estimators.marginalize import Marginalize
from lit_sparse.estimators.sparsemap_marginalize import SparseMAPMarginalize
from lit_sparse.estimators.top_k_marginalize import TopKMarginalize

__all__ = [
    "Estimator",
    "Expectation",
    "LatentBatch",
    "MarginalLikelihood",
    "Marginalize",
    "SparseMAPMarginalize",
    "TopKMarginalize",
    "marginal_likelihood",
]
