"""Every model that has losses of examples weighs them, as a coreset asks, and minimizes any risk of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import NormalLikelihood
from lit_sparse.data import DigitsDataModule, EntailmentDataModule, TranslationDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize, TopKMarginalize
from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.mappings import HardThreshold, Sparsemax
from lit_sparse.models import (
    BayesianRegression,
    BitVectorVAE,
    EntailmentClassifier,
    LitSparseModule,
    RobustClassifier,
    RobustRegressor,
    SemiSupervisedVAE,
    Seq2Seq,
    SignalingGame,
    SparseAutoencoder,
    SupervisedOnlineAutoencoder,
)
from lit_sparse.nn import ConvNet, NoiseBases, RecurrentBody
from lit_sparse.risks import KLDRO, ChiSquareDRO, CVaR, ExponentialOTDRO, GroupDRO, Risk, SafeKLDRO, UnbalancedOTDRO
from lit_sparse.testing import concrete_subclasses
from tests.data.pairs import write_pairs

SIZE = 6
Made = tuple[LitSparseModule, dict[str, Any]]


def images(labels: bool) -> dict[str, Tensor]:
    data = DigitsDataModule(labelled=1.0, batch_size=SIZE)
    data.setup()
    batch = data.fetch("train", 0, torch.arange(SIZE))
    if not labels:
        batch["label"][::2] = -100  # half of them are unlabelled
    return batch


def regression(folder: Path) -> Made:
    batch = {"features": torch.randn(SIZE, 3), "target": torch.randn(SIZE), "index": torch.arange(SIZE)}
    return BayesianRegression(NormalLikelihood(), in_features=3, fit="map", prior_variance=1e20), batch


def rows(folder: Path) -> Made:
    batch = {"features": torch.randn(SIZE, 3), "target": torch.randn(SIZE), "index": torch.arange(SIZE)}
    model = RobustRegressor(in_features=3)
    torch.nn.init.ones_(model.network.weight)
    return model, batch


def classifier(folder: Path) -> Made:
    return RobustClassifier(network=ConvNet(8, 8, channels=[4], hidden=8), in_features=64), images(True)


def bits(folder: Path) -> Made:
    return BitVectorVAE(TopKMarginalize(4), in_features=64, bits=6), images(True)


def classes(folder: Path) -> Made:
    return SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, unlabelled_weight=1.0), images(False)


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


def dictionary(folder: Path) -> Made:
    model = SparseAutoencoder(HardThreshold(2, nonneg=True), in_features=3, width=8)
    return model, {"features": torch.randn(SIZE, 3), "index": torch.arange(SIZE)}


def translation(folder: Path) -> Made:
    for split in ("train", "val", "test"):
        write_pairs(folder, split, 30)
    data = TranslationDataModule(str(folder), source="de", target="en", batch_size=8)
    data.setup("fit")
    model = Seq2Seq(Sparsemax(), RecurrentBody(8, 1, 0.0), loss_normalization="sentence").build(data.vocabularies)
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
    RobustClassifier: classifier,
    RobustRegressor: rows,
    BitVectorVAE: bits,
    SemiSupervisedVAE: classes,
    SignalingGame: game,
    SparseAutoencoder: dictionary,
    SupervisedOnlineAutoencoder: autoencoder,
    Seq2Seq: translation,
    EntailmentClassifier: entailment,
}


def test_no_model_is_left_out() -> None:
    kinds = concrete_subclasses(LitSparseModule)
    assert set(MADE) == {kind for kind in kinds if "risk" in constructor_parameters(kind)}


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_the_loss_is_a_weighted_mean(kind: type[LitSparseModule], tmp_path: Path) -> None:
    """Linear in the weights, the plain one for ones, and of one example alone for a weight of SIZE on it."""
    torch.manual_seed(0)
    model, batch = MADE[kind](tmp_path)

    def loss(weights: Tensor | None) -> Tensor:
        torch.manual_seed(1)
        found: Tensor = model.run_step(batch if weights is None else {**batch, "weight": weights}, 1, "train")["loss"]
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


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_the_objective_is_the_risk(kind: type[LitSparseModule], tmp_path: Path) -> None:
    """The worst example alone by CVaR; close to it by a severe divergence, to the mean by a mild one. Scored by the mean."""
    torch.manual_seed(0)
    model, batch = MADE[kind](tmp_path)

    def loss(weights: Tensor | None = None, stage: str = "train") -> Tensor:
        torch.manual_seed(1)
        found: Tensor = model.run_step(batch if weights is None else {**batch, "weight": weights}, 1, stage)["loss"]
        return found.detach()

    plain, scored = loss(), loss(stage="val")
    alone = torch.stack([loss(SIZE * row) for row in torch.eye(SIZE)])
    model.risk = CVaR(1 / SIZE)
    torch.testing.assert_close(loss(), alone.max(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss(stage="val"), scored)
    kinds = 2 if kind is SemiSupervisedVAE else 1  # of examples, whose means are added
    model.risk = KLDRO(1e6)
    torch.testing.assert_close(loss(), plain, rtol=2e-3, atol=1e-4)
    model.risk = KLDRO(1e-4)
    torch.testing.assert_close(loss(), alone.max(), rtol=1e-2, atol=1e-3)
    model.risk = SafeKLDRO(0.5, 1e-6)
    safe = float(loss())
    model.risk = KLDRO(0.5)
    assert safe == pytest.approx(float(loss()), abs=2e-3 * kinds, rel=1e-4)


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_labels_matter_under_every_risk(kind: type[LitSparseModule], tmp_path: Path) -> None:
    """Other labels of a batch give another gradient."""
    torch.manual_seed(0)
    model, batch = MADE[kind](tmp_path)
    if kind in (BitVectorVAE, SparseAutoencoder):
        return  # models without labels
    if isinstance(model, SemiSupervisedVAE):
        model.unlabelled_weight = 9.0  # the default
    if isinstance(model, RobustRegressor):
        torch.nn.init.constant_(model.network.weight, 0.1)  # squared errors that grow more slowly than the transport cost
    others = dict(batch)
    for name in {"label", "position", "target"} & set(batch):
        labels = batch[name]
        if labels.is_floating_point():
            others[name] = labels if "candidates" in batch else -labels  # in a game, an image
        elif name == "target":  # texts, whose first and last tokens are special
            others[name] = torch.where(labels > 3, labels.flip(0), labels)
        else:
            others[name] = torch.where(labels >= 0, (labels + 1) % 3, labels)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def gradient(risk: Risk, batch: dict[str, Any]) -> Tensor:
        torch.manual_seed(1)
        model.risk = copy.deepcopy(risk)
        batch = batch if risk.group_key is None else {**batch, risk.group_key: torch.arange(SIZE) % 2}
        found = torch.autograd.grad(model.run_step(batch, 1, "train")["loss"], parameters, allow_unused=True)
        return torch.cat([part.flatten() for part in found if part is not None])

    for risk in (risk for one in concrete_subclasses(Risk) for risk in one.examples()):
        if risk.adversary is None or model.adversarial:
            plain, changed = gradient(risk, batch), gradient(risk, others)
            assert float((changed - plain).norm()) > 1e-3 * float(plain.norm()), risk


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_weights_of_kinds_are_weights_of_examples() -> None:
    """The losses reach the risk as they are, with weights in the ratio of 9 to 1."""
    torch.manual_seed(0)
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, style_features=0)  # without random styles
    batch = images(False)
    labelled = batch["label"] >= 0

    def loss(rows: Tensor | slice) -> Tensor:
        found: Tensor = model.run_step({name: values[rows] for name, values in batch.items()}, 1, "train")["loss"]
        return found

    own = torch.stack([loss(torch.tensor([row])) for row in range(SIZE)]) / torch.where(labelled, 1.0, 9.0)
    weights = torch.where(labelled, 0.1 * SIZE / labelled.sum(), 0.9 * SIZE / (~labelled).sum())
    torch.testing.assert_close(loss(slice(None)), own[labelled].mean() + 9 * own[~labelled].mean())
    for risk in (CVaR(0.3), KLDRO(1.0), SafeKLDRO(1.0, 0.1, initial_dual=50.0), ChiSquareDRO(0.5), GroupDRO(2)):
        model.risk = risk.eval()
        groups = None if risk.group_key is None else torch.arange(SIZE) % 2
        if risk.group_key is not None:
            batch[risk.group_key] = torch.arange(SIZE) % 2
        torch.testing.assert_close(loss(slice(None)), 10 * risk(own, weights, groups))


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_a_risk_may_move_inputs(kind: type[LitSparseModule], tmp_path: Path) -> None:
    """For adversarial models the loss increases by more than the cost. Others refuse."""
    torch.manual_seed(0)
    model, batch = MADE[kind](tmp_path)
    options = {name: value for name, value in model.hparams.items() if name in ("in_features", "width")}
    if not kind.adversarial:
        with pytest.raises(ConfigurationError, match="a risk that does not perturb inputs"):
            model._arguments = {}
            LitSparseModule.__init__(model, risk=UnbalancedOTDRO(1.0, 1.0, 0.1))
        return
    assert options
    model.risk = ExponentialOTDRO(1e3, 1.0, inner_steps=0)
    still = float(model.run_step(batch, 1, "train")["loss"].detach())
    model.risk = ExponentialOTDRO(10.0, 100.0, inner_steps=3)
    moved = model.run_step(batch, 1, "train")
    model.risk = CVaR(1.0)
    mean = float(model.run_step(batch, 1, "train")["loss"].detach())
    gained = 1e3 * float(moved["loss"].detach().double().log())
    assert gained > mean + 1e-4
    assert still == pytest.approx(1 + mean / 1e3, abs=1e-3)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradient = torch.autograd.grad(moved["loss"], parameters, allow_unused=True)
    assert all(part is None or bool(part.isfinite().all()) for part in gradient)
