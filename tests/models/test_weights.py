"""Every model that trains by minibatches weighs the losses of its examples, as a coreset asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import NormalLikelihood
from lit_sparse.data import DigitsDataModule, EntailmentDataModule, TranslationDataModule
from lit_sparse.estimators import Marginalize, TopKMarginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import (
    BayesianRegression,
    BitVectorVAE,
    EntailmentClassifier,
    LitSparseModule,
    SemiSupervisedVAE,
    Seq2Seq,
    SignalingGame,
    SupervisedOnlineAutoencoder,
    TextModule,
)
from lit_sparse.nn import NoiseBases, RecurrentBody
from lit_sparse.testing import concrete_subclasses
from tests.data.pairs import write_pairs

SIZE = 6
Made = tuple[LitSparseModule, dict[str, Any]]


def images(labels: bool) -> dict[str, Tensor]:
    data = DigitsDataModule(labelled=1.0, batch_size=SIZE)
    data.setup()
    batch = data.fetch("train", 0, torch.arange(SIZE))
    if not labels:
        batch["label"][::2] = -100  # a part of them is not told
    return batch


def regression(folder: Path) -> Made:
    batch = {"features": torch.randn(SIZE, 3), "target": torch.randn(SIZE), "index": torch.arange(SIZE)}
    return BayesianRegression(NormalLikelihood(), in_features=3, fit="map", prior_variance=1e20), batch


def bits(folder: Path) -> Made:
    return BitVectorVAE(TopKMarginalize(4), in_features=64, bits=6), images(True)


def classes(folder: Path) -> Made:
    return SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64), images(False)


def game(folder: Path) -> Made:
    candidates = torch.rand(SIZE, 4, 6)
    position = torch.arange(SIZE) % 4
    target = candidates[torch.arange(SIZE), position]
    batch = {"target": target, "candidates": candidates, "position": position, "index": torch.arange(SIZE)}
    return SignalingGame(Sparsemax(), Marginalize(), in_features=6, vocabulary=5), batch


def autoencoder(folder: Path) -> Made:
    model = SupervisedOnlineAutoencoder(Sparsemax(), in_features=64, width=20, initial_bases=NoiseBases())
    model._epoch = 3  # part of the loss is reconstruction
    return model, images(True)


def translation(folder: Path) -> Made:
    for split in ("train", "val", "test"):
        write_pairs(folder, split, 30)
    data = TranslationDataModule(str(folder), source="de", target="en", batch_size=8)
    data.setup("fit")
    model = Seq2Seq(Sparsemax(), RecurrentBody(8, 1, 0.0), loss_per="sentence").build(data.vocabularies)
    assert isinstance(model, Seq2Seq)
    return model, data.fetch("train", 0, torch.arange(SIZE))


def entailment(folder: Path) -> Made:
    lines = [f'{{"premise": "a b {i}", "hypothesis": "c {i % 3}", "label": "neutral"}}' for i in range(20)]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    data = EntailmentDataModule(str(folder), val="dev", batch_size=8)
    data.setup("fit")
    model = EntailmentClassifier(Sparsemax(), vector_size=5, width=4, dropout=0.0).build(data.vocabularies)
    assert isinstance(model, EntailmentClassifier)
    return model, data.fetch("train", 0, torch.arange(SIZE))


MADE: dict[type[LitSparseModule], Callable[[Path], Made]] = {
    BayesianRegression: regression,
    BitVectorVAE: bits,
    SemiSupervisedVAE: classes,
    SignalingGame: game,
    SupervisedOnlineAutoencoder: autoencoder,
    Seq2Seq: translation,
    EntailmentClassifier: entailment,
}


def test_no_model_is_left_out() -> None:
    assert set(MADE) == {kind for kind in concrete_subclasses(LitSparseModule) if kind is not TextModule}


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_the_loss_is_a_weighted_mean(kind: type[LitSparseModule], tmp_path: Path) -> None:
    """Linear in the weights, the plain one for ones, and of one example alone for a weight of SIZE on it."""
    torch.manual_seed(0)
    model, batch = MADE[kind](tmp_path)

    def loss(weights: Tensor | None) -> Tensor:
        torch.manual_seed(1)
        found: Tensor = model.step(batch if weights is None else {**batch, "weight": weights}, 1, "train")["loss"]
        return found

    plain = loss(None)
    torch.testing.assert_close(loss(torch.ones(SIZE)), plain)
    one, two = torch.rand(SIZE), torch.rand(SIZE)
    torch.testing.assert_close(loss(one) + 2 * loss(two), loss(one + 2 * two), rtol=1e-4, atol=1e-5)
    alone = torch.stack([loss(SIZE * row) for row in torch.eye(SIZE)])
    torch.testing.assert_close(alone.mean(), plain, rtol=1e-4, atol=1e-5)
    assert float(alone.detach().std()) > 0, "examples have losses of their own"
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradient = torch.autograd.grad(loss(torch.zeros(SIZE)), parameters, allow_unused=True)
    assert all(part is None or float(part.abs().max()) < 1e-6 for part in gradient), "no weight, no gradient"
