"""Sizes that cannot be meant are refused before memory is taken for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lit_sparse.coresets import LogisticLikelihood
from lit_sparse.data import SyntheticRegressionDataModule, TransportDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import LeaveOneOut, Marginalize, ScoreFunction, SumAndSample, TopKMarginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.metrics import MessageStructure
from lit_sparse.models import (
    BayesianRegression,
    BitVectorVAE,
    EntropicTransport,
    RobustClassifier,
    RobustRegressor,
    SemiSupervisedVAE,
    SignalingGame,
    SparseAutoencoder,
    SupervisedOnlineAutoencoder,
)
from lit_sparse.nn import MLP, ConvNet, EntailmentNetwork, MultiheadAttention
from lit_sparse.transport import GaussianMixture, KernelPotentials, MLPPotentials

POINT = GaussianMixture([0.0], [1.0])


def vae(**options: Any) -> object:
    return SemiSupervisedVAE(Sparsemax(), ScoreFunction("learnt", mapping=Sparsemax()), **options)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda many: MLP([4, many, 2]), "sizes"),
        (lambda many: MLP([4, -1, 2]), "sizes"),
        (lambda many: ConvNet(many, 8, outputs=2), "height"),
        (lambda many: ConvNet(8, 8, outputs=2, channels=(many,)), "channels"),
        (lambda many: MultiheadAttention(many, 8), "embed_dim"),
        (lambda many: MultiheadAttention(many + 1, 8), "embed_dim"),
        (lambda many: MultiheadAttention(16, many), "num_heads"),
        (lambda many: MultiheadAttention(16, 8, kdim=many), "kdim"),
        (lambda many: EntailmentNetwork(Sparsemax(), features=many), "features"),
        (lambda many: MLPPotentials([many]), "hidden"),
        (lambda many: KernelPotentials(capacity=many), "capacity"),
        (lambda many: EntropicTransport(dim=many), "dim"),
        (lambda many: vae(in_features=many), "in_features"),
        (lambda many: vae(classes=many), "classes"),
        (lambda many: vae(style_features=many), "style_features"),
        (lambda many: vae(inference_hidden=[many]), "inference_hidden"),
        (lambda many: BitVectorVAE(TopKMarginalize(4), bits=many), "bits"),
        (lambda many: BitVectorVAE(TopKMarginalize(4), pixel_features=many), "pixel_features"),
        (lambda many: BitVectorVAE(TopKMarginalize(4), levels=many), "levels"),
        (lambda many: BitVectorVAE(TopKMarginalize(4), importance_samples=many), "importance_samples"),
        (lambda many: BitVectorVAE(TopKMarginalize(4), decoder_hidden=[many]), "decoder_hidden"),
        (lambda many: SparseAutoencoder(Sparsemax(), in_features=3, width=many), "width"),
        (lambda many: SparseAutoencoder(Sparsemax(), in_features=many, width=3), "in_features"),
        (lambda many: SupervisedOnlineAutoencoder(None, width=many), "width"),
        (lambda many: SupervisedOnlineAutoencoder(None, classes=many), "classes"),
        (lambda many: SignalingGame(Sparsemax(), Marginalize(), vocabulary=many), "vocabulary"),
        (lambda many: RobustClassifier(in_features=many), "in_features"),
        (lambda many: RobustRegressor(in_features=many), "in_features"),
        (lambda many: BayesianRegression(LogisticLikelihood(), in_features=many), "in_features"),
        (lambda many: ScoreFunction("learnt", hidden=[many]), "hidden"),
        (lambda many: LeaveOneOut(many), "k"),
        (lambda many: SumAndSample(many), "k"),
        (lambda many: TopKMarginalize(many), "k"),
        (lambda many: TransportDataModule(POINT, POINT, samples=many), "samples"),
        (lambda many: SyntheticRegressionDataModule(size=many), "size"),
        (lambda many: MessageStructure(4, examples=many), "examples"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused_before_memory_is_taken(build: Callable[[int], object], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Expected argument `{name}` to be an integer of at (most|least)"):
        build(10**12)
