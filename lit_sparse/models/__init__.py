"""LightningModules, one model per file, with injected mapping, estimator and optimizer."""

from lit_sparse.ground import train_extra  # noqa: F401
from lit_sparse.ground.arguments import check_types
from lit_sparse.models.base import LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.bayesian_regression import BayesianRegression
from lit_sparse.models.bitvector_vae import BitVectorVAE
from lit_sparse.models.entailment import EntailmentClassifier
from lit_sparse.models.robust_classifier import RobustClassifier
from lit_sparse.models.robust_regressor import RobustRegressor
from lit_sparse.models.schedulers import StepwiseLR
from lit_sparse.models.seq2seq import Seq2Seq
from lit_sparse.models.signaling_game import SignalingGame
from lit_sparse.models.soae import SupervisedOnlineAutoencoder
from lit_sparse.models.sparse_autoencoder import SparseAutoencoder
from lit_sparse.models.ssvae import SemiSupervisedVAE
from lit_sparse.models.text import TextModule
from lit_sparse.models.transport import EntropicTransport

__all__ = [
    "BayesianRegression",
    "BitVectorVAE",
    "EntailmentClassifier",
    "EntropicTransport",
    "LitSparseModule",
    "RobustClassifier",
    "RobustRegressor",
    "SemiSupervisedVAE",
    "Seq2Seq",
    "SignalingGame",
    "SparseAutoencoder",
    "Stage",
    "StepOutput",
    "StepwiseLR",
    "SupervisedOnlineAutoencoder",
    "TextModule",
    "mean_metrics",
]

check_types(globals())
