"""Bayesian coresets: a few weighted examples that represent a data set."""

from lit_sparse.coresets.coreset import Coreset
from lit_sparse.coresets.examples import Examples
from lit_sparse.coresets.file_vectors import FileVectors
from lit_sparse.coresets.greedy import GIGA, FrankWolfe, KCenter, NonnegativeOMP, SparseVI
from lit_sparse.coresets.groups import select_by_group
from lit_sparse.coresets.iht import IHT, AcceleratedIHT
from lit_sparse.coresets.last_layer import LastLayerGradients
from lit_sparse.coresets.likelihoods import Likelihood, LogisticLikelihood, NormalLikelihood, PoissonLikelihood
from lit_sparse.coresets.posteriors import GaussianPosterior
from lit_sparse.coresets.projections import ExactGaussianVectors, FunctionVectors, LogLikelihoodVectors, Projection
from lit_sparse.coresets.selector import CoresetSelector, Selection, Uniform
from lit_sparse.coresets.sharded_vectors import ShardedVectors
from lit_sparse.coresets.state import SelectionState
from lit_sparse.coresets.vectors import BlockVectors, DenseVectors, Vectors, VectorSource
from lit_sparse.ground.arguments import check_types

__all__ = [
    "GIGA",
    "IHT",
    "AcceleratedIHT",
    "BlockVectors",
    "Coreset",
    "CoresetSelector",
    "DenseVectors",
    "ExactGaussianVectors",
    "Examples",
    "FileVectors",
    "FrankWolfe",
    "FunctionVectors",
    "GaussianPosterior",
    "KCenter",
    "LastLayerGradients",
    "Likelihood",
    "LogLikelihoodVectors",
    "LogisticLikelihood",
    "NonnegativeOMP",
    "NormalLikelihood",
    "PoissonLikelihood",
    "Projection",
    "Selection",
    "SelectionState",
    "ShardedVectors",
    "SparseVI",
    "Uniform",
    "VectorSource",
    "Vectors",
    "select_by_group",
]

check_types(globals(), "fit", "log_prob", "derivatives", "mean")
