"""Expected losses under a discrete latent variable, and their gradients."""

from lit_sparse.estimators.base import Estimator, Expectation, LatentBatch
from lit_sparse.estimators.latents import LatentDistribution
from lit_sparse.estimators.likelihoods import MarginalLikelihood, marginal_likelihood
from lit_sparse.estimators.marginalize import Marginalize, SparseMAPMarginalize, TopKMarginalize
from lit_sparse.estimators.sampler import Sampler, with_gradient_of
from lit_sparse.estimators.sampling import GumbelSoftmax, LeaveOneOut, RunningMean, ScoreFunction, SumAndSample
from lit_sparse.ground.arguments import check_types

__all__ = [
    "Estimator",
    "Expectation",
    "GumbelSoftmax",
    "LatentBatch",
    "LatentDistribution",
    "LeaveOneOut",
    "MarginalLikelihood",
    "Marginalize",
    "RunningMean",
    "Sampler",
    "ScoreFunction",
    "SparseMAPMarginalize",
    "SumAndSample",
    "TopKMarginalize",
    "marginal_likelihood",
    "with_gradient_of",
]

check_types(globals(), "update")
