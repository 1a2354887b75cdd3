"""Wrong results of a user's own parts are refused by the name of the part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import (
    GIGA,
    CoresetSelector,
    DenseVectors,
    Examples,
    LogisticLikelihood,
    LogLikelihoodVectors,
    NormalLikelihood,
    Projection,
    Selection,
    select_by_group,
)
from lit_sparse.data import (
    ImageDataModule,
    Images,
    LabelNoise,
    RegressionDataModule,
    ResumableDataModule,
    TranslationDataModule,
    TransportDataModule,
)
from lit_sparse.errors import ConfigurationError, LitSparseError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.metrics import TextMetric
from lit_sparse.models import (
    BayesianRegression,
    EntropicTransport,
    LitSparseModule,
    RobustClassifier,
    RobustRegressor,
    SemiSupervisedVAE,
    Seq2Seq,
    SignalingGame,
    StepOutput,
    StepwiseLR,
    SupervisedOnlineAutoencoder,
)
from lit_sparse.nn import InitialBases, RecurrentBody, attention
from lit_sparse.risks import Risk
from lit_sparse.structures import Structure
from lit_sparse.testing import (
    ESTIMATOR_CHECKS,
    MAPPING_CHECKS,
    RISK_CHECKS,
    SELECTOR_CHECKS,
    STRUCTURE_CHECKS,
    check_risk,
)
from lit_sparse.text import Vocabulary
from lit_sparse.transport import Measure, MLPPotentials


class Given(CoresetSelector):
    """Return what the test gives."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def select(self, vectors: Any, k: int, generator: torch.Generator) -> Any:
        return self.found


def selection(indices: list[int], weights: list[float]) -> Selection:
    return Selection(torch.tensor(indices), torch.tensor(weights))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((torch.tensor([0]), torch.tensor([1.0])), "return a Selection but got a tuple"),
        (selection([0, 1, 2], [1.0, 1.0, 1.0]), "at most 2 indices but got 3"),
        (selection([1, 4], [1.0, 1.0]), "indices in 0 .. 3 but got 4"),
    ],
)
def test_a_selector(found: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`select` of .*Given.*{text}"):
        Given(found)(torch.eye(4), 2)
    assert Given(selection([2, 0], [1.0, 2.0]))(torch.eye(4), 2).indices.tolist() == [0, 2]


class OwnEstimator(Marginalize):
    result: Any = None

    def expect(self, scores: Tensor, loss_fn: Any, context: Tensor | None) -> Any:
        found = super().expect(scores, loss_fn, context)
        if self.result == "tensor":
            return found.loss
        return replace(found, loss=found.loss.sum()) if self.result == "scalar" else found


def test_an_estimator() -> None:
    estimator = OwnEstimator(mapping=Sparsemax())
    loss, scores = lambda latent: latent.values[:, 0], torch.zeros(5, 3)
    assert estimator(scores, loss).loss.shape == (5,)
    for result, text in (("tensor", "but got 'Tensor'"), ("scalar", r"but got a loss \(\)")):
        estimator.result = result
        with pytest.raises(ConfigurationError, match=rf"OwnEstimator.*loss of shape \(5,\).*{text}"):
            estimator(scores, loss)


class TrimmedMean(Risk):
    """The mean of all losses but the largest quarter."""

    convex = False
    unbiased = False

    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        weights = torch.ones_like(losses) if weights is None else weights
        order = losses.argsort()
        before = weights[order].cumsum(0) - weights[order]
        kept = torch.minimum(weights[order], (0.75 * weights.sum() - before).clamp_min(0))
        return (kept * losses[order]).sum() / kept.sum() * weights.mean()


class Nothing(Risk):
    def measure(self, losses: Tensor, weights: Tensor | None) -> Any:
        return None


def test_a_risk() -> None:
    check_risk(TrimmedMean())
    with pytest.raises(ConfigurationError, match=r"`measure` of .*Nothing.* to return a floating scalar tensor but got None"):
        Nothing()(torch.ones(3))


class Renamed:
    """A part that keeps its argument under another name."""

    def __init__(self, strength: float = 0.1) -> None:
        super().__init__()
        self.factor = strength


class RenamedMapping(Renamed, Sparsemax):
    pass


class RenamedEstimator(Renamed, Marginalize):
    pass


class RenamedRisk(Renamed, TrimmedMean):
    pass


class RenamedSelector(Renamed, GIGA):
    pass


class RenamedStructure(Renamed, Structure):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return (scores > 0).to(scores.dtype)


@pytest.mark.parametrize(
    "check",
    [
        lambda: MAPPING_CHECKS["objects"](RenamedMapping()),
        lambda: ESTIMATOR_CHECKS["objects"](RenamedEstimator()),
        lambda: RISK_CHECKS["module"](RenamedRisk()),
        lambda: SELECTOR_CHECKS["module"](RenamedSelector()),
        lambda: STRUCTURE_CHECKS["persistence"](RenamedStructure()),
    ],
)
def test_arguments_are_kept_by_their_names(check: Any) -> None:
    with pytest.raises(AssertionError, match=r"Renamed.* to keep the argument `strength` of its constructor"):
        check()


def test_a_model() -> None:
    class OwnModel(LitSparseModule):
        def step(self, batch: Any, batch_idx: int, stage: Any) -> Any:
            return torch.ones(())

    with pytest.raises(ConfigurationError, match=r"`step` of .*OwnModel.* to return a StepOutput but got a Tensor"):
        OwnModel().run_step({}, 0, "train")


def test_entries_of_a_batch_mean_what_a_model_says() -> None:
    """A label may be a vector of probabilities, and a tensor may be the same for all examples."""

    class Several(LitSparseModule):
        def step(self, batch: Any, batch_idx: int, stage: Any) -> StepOutput:
            return StepOutput((batch["scale"] * (batch["x"] - batch["label"])).square().sum(1)[: batch.get("number")])

    batch = {"scale": torch.ones(1), "x": torch.ones(4, 2), "label": torch.full((4, 2), 0.5)}
    assert Several().run_step(batch, 0, "train")["loss"] == 0.5
    with pytest.raises(ConfigurationError, match=r"losses` .* shape \(4,\) but got \(3,\)"):
        Several().run_step(batch | {"index": torch.arange(4), "number": 3}, 0, "train")


class OfAnotherShape(Sparsemax):
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(scores, mask, dim).sum(dim, keepdim=True)


def test_a_mapping() -> None:
    x = torch.randn(2, 3, 4)
    for call in (
        lambda: OfAnotherShape()(x),
        lambda: OfAnotherShape().value(x),
        lambda: Marginalize(mapping=OfAnotherShape())(x[0], lambda latent: latent.values[:, 0]),
        lambda: attention(x, x, x, mapping=OfAnotherShape()),
    ):
        with pytest.raises(ConfigurationError, match=r"`map` of .*OfAnotherShape to return a tensor of the scores' shape"):
            call()


class OwnOmega(Sparsemax):
    result: Any = None

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Any:
        return {"all": y.square().sum(), "each": y.square(), "none": None}[self.result]


def test_an_omega() -> None:
    mapping, x = OwnOmega(), torch.randn(2, 3, 4)
    for mapping.result in ("all", "each", "none"):
        with pytest.raises(ConfigurationError, match=r"`regularizer` of .*OwnOmega to return Omega of each row, \(2, 3\)"):
            mapping.value(x)


def test_listed_values_fit_their_probabilities() -> None:
    estimator = OwnEstimator(mapping=Sparsemax())
    with pytest.raises(ConfigurationError, match=r"values \(5, 2, 3\) and probabilities \(5, 3\)"):
        estimator.over_support(torch.ones(5, 3), torch.ones(5, 2, 3), lambda latent: latent.values[:, 0])


class Largest(Risk):
    def measure(self, losses: Tensor, weights: Tensor | None) -> Any:
        return losses.argmax()

    def draw_rows(self, size: int) -> Any:
        return torch.ones(size, dtype=torch.bool)

    def measurements(self) -> Any:
        return {"name": "text"}


class OwnMetric(TextMetric):
    rows: int = 2

    def __init__(self) -> None:
        super().__init__(3)

    def statistics(self, hypotheses: Any, references: Any) -> Tensor:
        return torch.ones(self.rows, 3, dtype=torch.int64)

    def scores(self, sums: Tensor, number: int) -> Any:
        return 1.0

    def described(self, references: int | None) -> str:
        return ""


def test_a_text_metric() -> None:
    metric, texts = OwnMetric(), (["a", "b"], [["a"], ["b"]])
    metric.update(*texts)
    with pytest.raises(ConfigurationError, match=r"`scores` of .*OwnMetric to return a dict of numbers but got float"):
        metric.compute()
    metric.rows = 1
    with pytest.raises(ConfigurationError, match=r"`statistics` of .*OwnMetric.* a row per text, \(2, 3\), but got \(1, 3\)"):
        metric.update(*texts)


class Whole(MLPPotentials):
    def source_potential(self, x: Tensor) -> Tensor:
        return super().source_potential(x).long()


class Pair(torch.nn.Linear):
    def forward(self, *inputs: Tensor) -> Any:
        found = super().forward(*inputs)
        return found, found


BATCH = {"pixels": torch.rand(4, 3), "label": torch.arange(4) % 2, "index": torch.arange(4)}


def classifier(**options: Any) -> RobustClassifier:
    return RobustClassifier(in_features=3, classes=2, **({"network": torch.nn.Linear(3, 2)} | options))


class Moved:
    def __call__(self, losses: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, inputs.sum()


def moving() -> Risk:
    risk = TrimmedMean()
    risk.adversary = Moved()  # type: ignore[assignment]
    return risk


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: EntropicTransport(Whole(), dim=1)(torch.ones(2, 1), torch.ones(2, 1)),
            r"`source_potential` of .*Whole to return .* shape \(2,\) but got \(2,\) of torch.int64",
        ),
        (
            lambda: classifier(network=Pair(3, 2))(BATCH["pixels"]),
            r"the network Pair to map images \(4, 3\) to scores \(4, 2\) but got tuple",
        ),
        (lambda: classifier(risk=Largest()).run_step(BATCH, 0, "train"), "a floating scalar tensor but got .* of torch.int64"),
        (
            lambda: classifier(risk=Largest()).on_train_epoch_end(),
            "`measurements` of .*Largest to return numbers but got 'text'",
        ),
        (lambda: classifier(risk=moving()).run_step(BATCH, 0, "train"), r"`adversary` of .*TrimmedMean .* \(4, 3\) and \(\)"),
        (lambda: classifier().run_step(BATCH | {"index": torch.arange(7)}, 0, "train"), "a row per example"),
    ],
)
def test_other_results(call: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        call()


class OwnVectors(DenseVectors):
    """Vectors that return something else from one of their methods."""

    def __init__(self, vectors: Tensor, method: str, found: Any) -> None:
        super().__init__(vectors)
        setattr(self, method, lambda *_: found)


@pytest.mark.parametrize(
    ("method", "found"),
    [
        ("measure", None),
        ("measure", (torch.ones(7), torch.ones(3))),
        ("measure", (torch.ones(9), torch.ones(2, 9, 3))),
        ("correlate", torch.ones(9, 1)),
        ("correlate", None),
        ("rows", torch.ones(9, 3)),
        ("combine", torch.ones(1, 3)),
        ("divided", None),
        ("divided", DenseVectors(torch.ones(9, 2))),
        ("subset", DenseVectors(torch.ones(2, 2))),
    ],
)
def test_vectors(method: str, found: Any) -> None:
    long = 1e30 if method == "divided" else 1.0
    given = OwnVectors(long * torch.randn(9, 3).double(), method, found)
    with pytest.raises(ConfigurationError, match=f"`{method}` of .*OwnVectors"):
        select_by_group(GIGA(), given, 9, torch.arange(9) % 2) if method == "subset" else GIGA()(given, 4)


def test_drawn_rows_are_indices() -> None:
    with pytest.raises(IndexError, match=r"indices \(n,\) int64 but got \(4,\) torch.bool"):
        classifier(risk=Largest()).training_step(BATCH, 0)


def own(base: type, **methods: Any) -> Any:
    """Return an instance of a subclass with other methods, which take no ``self``."""
    return type("Own", (base,), {name: staticmethod(call) for name, call in methods.items()})


def stepped(**found: Any) -> Any:
    return own(LitSparseModule, step=lambda *_: StepOutput(**found))().run_step(BATCH, 0, "train")


ROWS = {"features": torch.rand(4, 2), "target": torch.rand(4), "index": torch.arange(4)}


def regression(**methods: Any) -> BayesianRegression:
    return BayesianRegression(likelihood=own(NormalLikelihood, **methods)(), in_features=2)


def autoencoder(**options: Any) -> SupervisedOnlineAutoencoder:
    return SupervisedOnlineAutoencoder(**({"mapping": None, "in_features": 3, "width": 4, "classes": 2} | options))


def points(found: Any) -> Any:
    measure = type("Own", (Measure,), {"dim": 2, "sample": lambda self, seed, index: found})()
    return TransportDataModule(measure, measure).fetch("train", 0, torch.arange(3))


def expected(**found: Any) -> Any:
    class Changed(Marginalize):
        def expect(self, scores: Tensor, loss_fn: Any, context: Tensor | None) -> Any:
            return replace(super().expect(scores, loss_fn, context), **found)

    return Changed(mapping=Sparsemax())(torch.zeros(5, 3), lambda latent: latent.values[:, 0])


class Wider(Projection):
    batch_size = 2
    width = 1

    def project(self, batch: Any) -> Tensor:
        self.width += 1
        return torch.ones(len(batch["x"]), self.width)


def bright(intensity: float) -> Any:
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=3, classes=2)
    return model.run_step(BATCH | {"pixels": torch.full((4, 3), intensity)}, 0, "train")


def game_at(position: Tensor) -> Any:
    model = SignalingGame(Sparsemax(), Marginalize(), in_features=3, vocabulary=4)
    batch = {"target": torch.ones(2, 3), "candidates": torch.ones(2, 2, 3), "position": position}
    return model.run_step(batch, 0, "train")


def game(receiver: Any) -> Any:
    batch = {"target": torch.ones(2, 3), "candidates": torch.ones(2, 2, 3), "position": torch.zeros(2, dtype=torch.int64)}
    model = SignalingGame(Sparsemax(), Marginalize(), in_features=3, vocabulary=4, receiver=receiver)
    return model.run_step(batch, 0, "train")


def fetching(batch: Any) -> Any:
    data = own(ResumableDataModule, size=lambda _: 4, fetch=lambda *_: batch)(batch_size=4)
    return [list(data.val_dataloader()), list(data.train_dataloader())]


def batching(batches: Any) -> Any:
    data = own(ResumableDataModule, size=lambda _: 4, fetch=lambda *_: {}, train_batches=lambda *_: batches)()
    return list(data.train_dataloader())


def own_encoder(kind: type, found: Any) -> Any:
    return own(kind, encode=lambda *_: found)(mapping=None, in_features=3, width=4, classes=2)


def decoding(**methods: Any) -> Any:
    model = Seq2Seq(Sparsemax(), own(RecurrentBody, **methods)(width=4))
    words = Vocabulary.build(["a b"])
    model.build({"source": words, "target": words})
    tokens = torch.ones(2, 3, dtype=torch.int64)
    return model(tokens, torch.full((2,), 3), tokens)


def posterior(**methods: Any) -> Any:
    return LogLikelihoodVectors(own(LogisticLikelihood, **methods)())(
        Examples.of(features=torch.rand(4, 2), target=torch.tensor([1.0, -1.0, 1.0, -1.0]))
    )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: stepped(losses=torch.ones(2)), r"`step\(...\).losses` of .*Own to return .* shape \(4,\) but got \(2,\)"),
        (lambda: stepped(objective=torch.ones(4)), r"`step\(...\).objective` .* shape \(\) but got \(4,\)"),
        (lambda: stepped(losses=torch.ones(4), penalty=torch.ones(4)), r"`step\(...\).penalty` .* shape \(\) but got \(4,\)"),
        (lambda: stepped(losses=torch.ones(4), transport_cost=torch.ones(())), r"transport_cost` .* \(4,\) but got \(\)"),
        (lambda: stepped(losses=torch.ones(4), example_index=torch.ones(4)), "`example_index` of .*Own to be indices"),
        (lambda: stepped(losses=torch.ones(4), per_example={"a": torch.ones(4, 2)}), r"'a' .* of .*Own .* got \(4, 2\)"),
        (lambda: stepped(losses=torch.ones(4), per_example={"a": None}), "'a' .* got NoneType"),
        (lambda: stepped(losses=torch.ones(4), per_example=None), "`per_example` of .*Own to be a dict"),
        (lambda: stepped(losses=torch.ones(4), support_size=torch.ones(4, 2)), r"'support_size' .* got \(4, 2\)"),
        (lambda: game_at(torch.tensor([0, 2])), r"positions in 0 .. 1, of candidates, but got 0 .. 2"),
        (lambda: game_at(torch.zeros(2)), "positions .* got torch.float32"),
        (lambda: bright(1.5), r"intensities in \[0, 1\] but got 1.5 .. 1.5"),
        (
            lambda: RobustRegressor(in_features=2).run_step(ROWS | {"target": torch.rand(4, 1)}, 0, "train"),
            r"a target for each of 4 examples but got \(4, 1\)",
        ),
        (
            lambda: classifier(optimizer=lambda _: None).configure_optimizers(),
            "`optimizer` of .* to return an Optimizer .* NoneType",
        ),
        (lambda: classifier(lr_scheduler=lambda _: None).configure_optimizers(), "a method `step` but got NoneType"),
        (lambda: StepwiseLR(classifier().configure_optimizers(), lambda _: None), "a method `step` but got NoneType"),
        (
            lambda: EntropicTransport(dim=1).run_step(dict.fromkeys(("source", "target"), torch.ones(2, 1).long()), 0, "val"),
            "Expected floating points",
        ),
        (lambda: batching(None), "`train_batches` of .*Own .* got NoneType"),
        (lambda: batching([torch.ones(2)]), "got .* of torch.float32"),
        (lambda: batching([[0, 1]]), "got list"),
        (lambda: own_encoder(SupervisedOnlineAutoencoder, None)(torch.ones(2, 3)), "`encode` of .*Own .* got NoneType"),
        (lambda: decoding(encode=lambda *_: None), "`encode` of .*Own .* got NoneType"),
        (lambda: decoding(encode=lambda *_: {"a": torch.ones(5, 2)}), r"`encode` of .*Own .*\[5, 2\]"),
        (lambda: decoding(decode=lambda *_: None), "`decode` of .*Own .* got NoneType"),
        (lambda: decoding(decode=lambda *_: (torch.ones(2, 3, 4), torch.ones(2, 3))), r"attention weights .* got \(2, 3\)"),
        (lambda: fetching(None), "`fetch` of .*Own to return a batch of 4 examples but got None"),
        (lambda: fetching({"index": torch.arange(2)}), r"a batch of 4 examples but got an `index` \(2,\)"),
        (lambda: posterior(log_prob=lambda *_: torch.ones(())), r"`log_prob` of .*Own .* but got \(\)"),
        (lambda: posterior(derivatives=lambda *_: torch.ones(4)), "`derivatives` of .*Own to return two tensors"),
        (lambda: posterior(derivatives=lambda *_: (torch.ones(()),) * 2), r"`derivatives` of .*Own .* but got \(\)"),
        (lambda: own(RobustClassifier, configure_metrics=lambda _: {"a": 3})().stage_metrics("val"), "`configure_metrics` of"),
        (
            lambda: own(RobustClassifier, configure_predictor=lambda: 3)().predictor(),
            "`configure_predictor` of .*Own .* got int",
        ),
        (lambda: regression(log_prob=lambda *_: torch.ones(())).run_step(ROWS, 0, "train"), r"`log_prob` .* got \(\)"),
        (lambda: regression(mean=lambda eta: eta.mean()).run_step(ROWS, 0, "train"), r"`mean` .* shape \(4,\) but got \(\)"),
        (lambda: regression(mean=lambda eta: eta.mean()).predict_step(ROWS, 0), r"`mean` .* shape \(4,\) but got \(\)"),
        (
            lambda: points(torch.ones(3, 2).numpy()),
            r"`sample` of .*Own to return a floating tensor of shape \(3, 2\) but got numpy.ndarray",
        ),
        (lambda: points(torch.ones(3, 2).long()), r"floating tensor of shape \(3, 2\) but got \(3, 2\) of torch.int64"),
        (lambda: own(ImageDataModule, load=lambda: None)().setup("fit"), "`load` of .*Own .* each Images, but got NoneType"),
        (
            lambda: own(RegressionDataModule, load=lambda: {"train": ()})().setup("fit"),
            "each Table, but got .*'tuple'",
        ),
        (
            lambda: own(TranslationDataModule, read=lambda _: {"source": ["a", "b"], "target": ["c"]})(
                ".", source="a", target="b"
            ).setup("fit"),
            "equally many rows of each role in the train data",
        ),
        (lambda: expected(probs=torch.ones(7)), "whose `probs` have a row per example"),
        (lambda: expected(decoder_calls=torch.ones(2)), "one for each of 5 examples"),
        (
            lambda: autoencoder(initial_bases=own(InitialBases, forward=lambda *_: None)()).start(torch.ones(9, 3)),
            "`forward` of .*Own .* got NoneType",
        ),
        (lambda: autoencoder(mapping=own(torch.nn.Module, forward=lambda x: (x, x))()).encode(torch.ones(2, 3)), "got tuple"),
        (
            lambda: game(own(torch.nn.Module, forward=lambda *args: torch.zeros(len(args[1]), 2).long())()),
            "to scores .* torch.int64",
        ),
        (lambda: Wider()(Examples.of(x=torch.ones(4, 1))), "vectors of equal length but got 2 and 3"),
        (
            lambda: own(ImageDataModule, load=dict)(label_noise=own(LabelNoise, __call__=lambda *_: None)()).noisy(
                Images(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))
            ),
            "int64 labels from .* but got NoneType",
        ),
    ],
)
def test_what_own_parts_return(call: Any, text: str) -> None:
    with pytest.raises(LitSparseError, match=text):
        call()
