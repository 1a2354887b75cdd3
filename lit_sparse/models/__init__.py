"""LightningModules: one model a file, each with its mapping, estimator and optimizer injected."""

from lit_sparse.models.base import LitSparseModule, Stage, StepOutput
from lit_sparse.models.bitvector_vae import BitVectorVAE
from lit_sparse.models.signaling_game import SignalingGame
from lit_sparse.models.ssvae import SemiSupervisedVAE

__all__ = ["BitVectorVAE", "LitSparseModule", "SemiSupervisedVAE", "SignalingGame", "Stage", "StepOutput"]
