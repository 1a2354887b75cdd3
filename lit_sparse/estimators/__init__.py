"""Expected losses under a discrete latent variable, and their gradients."""

from lit_sparse.estimators.base import Estimator, Expectation, LatentBatch
from lit_sparse.estimators.marginalize import Marginalize

__all__ = ["Estimator", "Expectation", "LatentBatch", "Marginalize"]
