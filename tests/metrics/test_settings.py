"""All metrics: torchmetrics' keyword arguments, collections, and descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchmetrics import Metric, MetricCollection

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.metrics import (
    BitsPerDim,
    Bleu,
    ChrF,
    CountHistogram,
    DeadFraction,
    DecoderCalls,
    ExplainedVariance,
    GroupMeans,
    HoyerSparseness,
    LogMeanExp,
    MeanOverExamples,
    MessageCounts,
    MessageStructure,
    Rouge,
    SupportSize,
    hoyer_sparseness,
)
from lit_sparse.metrics.exact_metric import ExactMetric
from lit_sparse.runs.builder import build
from lit_sparse.runs.descriptions import describe
from lit_sparse.testing import concrete_subclasses

#: Metric -> arguments of one instance, and other arguments, which may change what an update counts.
SETTINGS: dict[type[ExactMetric], tuple[dict[str, Any], list[dict[str, Any]]]] = {
    BitsPerDim: ({"dimensions": 2}, [{"dimensions": 3}]),
    Bleu: ({}, [{"lowercase": True}, {"tokenize": "char"}]),
    ChrF: ({}, [{"lowercase": True}]),
    CountHistogram: ({}, [{"max_count": 3}]),
    DeadFraction: ({"width": 3}, [{"width": 4}]),
    DecoderCalls: ({}, []),
    ExplainedVariance: ({"features": 2}, [{"features": 3}]),
    GroupMeans: ({"value": "loss", "worst": "max"}, [{"value": "loss", "worst": "min"}]),
    HoyerSparseness: ({}, [{"dim": 0}]),
    LogMeanExp: ({"lam": 1.0}, [{"lam": 2.0}]),
    MeanOverExamples: ({}, []),
    MessageCounts: ({"vocabulary": 3}, [{"vocabulary": 3, "classes": 4}]),
    MessageStructure: ({"features": 2}, [{"features": 2, "input_distance": "hamming"}]),
    Rouge: ({}, [{"references": "best"}, {"tokenizer": "spaces"}, {"truncate_bytes": 9}]),
    SupportSize: ({}, []),
}
OPTIONS = {
    "compute_on_cpu": True,
    "dist_sync_on_step": True,
    "process_group": None,
    "dist_sync_fn": None,
    "distributed_available_fn": None,
    "sync_on_compute": False,
    "compute_with_cache": False,
}


def test_no_metric_is_left_out() -> None:
    assert set(SETTINGS) == set(concrete_subclasses(ExactMetric))


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_the_keyword_arguments_of_torchmetrics(kind: type[ExactMetric]) -> None:
    own = SETTINGS[kind][0]
    metric = kind(**own, **OPTIONS)
    assert (metric.compute_on_cpu, metric.dist_sync_on_step, metric.sync_on_compute) == (True, True, False)
    assert set(constructor_parameters(kind)) >= set(OPTIONS)
    again = build("a test", describe(metric), Metric)
    assert type(again) is kind and again._arguments == metric._arguments
    with pytest.raises(TypeError, match="sync_on_compte"):
        kind(**own, sync_on_compte=True)


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_only_equal_metrics_share_states_in_a_collection(kind: type[ExactMetric]) -> None:
    own, others = SETTINGS[kind]
    made: dict[str, Metric] = {"one": kind(**own), "same": kind(**own)}
    made |= {f"other{number}": kind(**other) for number, other in enumerate(others)}
    collection = MetricCollection(made)  # type: ignore[arg-type]
    collection._merge_compute_groups()  # before the first update, all states are equal
    assert sorted(map(sorted, collection.compute_groups.values())) == [
        ["one", "same"],
        *([f"other{number}"] for number in range(len(others))),
    ]


def test_the_case_of_texts_counts_after_a_batch_without_capitals() -> None:
    collection = MetricCollection({"mixed": Bleu(name="a"), "lower": Bleu(lowercase=True, name="b")})
    collection.update(["the cat sat on the mat"], [["the cat sat on the mat"]])
    collection.update(["A DOG RAN AFTER IT"], [["a dog ran after it"]])
    found = collection.compute()
    assert float(found["b"]) > 99.9 > 60 > float(found["a"])


@pytest.mark.parametrize(
    ("make", "better"),
    [
        (Bleu, True),
        (ChrF, True),
        (Rouge, True),
        (lambda: LogMeanExp(1.0), False),
        (lambda: BitsPerDim(3), False),
        (lambda: GroupMeans("accuracy", "min"), True),
        (lambda: GroupMeans("loss", "max"), False),
        (lambda: MessageStructure(3), True),
        (MeanOverExamples, None),
    ],
)
def test_the_better_direction(make: Callable[[], ExactMetric], better: bool | None) -> None:
    assert make().higher_is_better is better
    assert make().is_differentiable is False


@pytest.mark.parametrize("counts", [torch.tensor([1.5]), torch.tensor([2, -1]), torch.tensor([1.0])])
def test_counts_are_integers(counts: torch.Tensor) -> None:

    metric = SupportSize()
    with pytest.raises(ConfigurationError, match="Expected counts"):
        metric.update(counts)
    assert float(metric.compute()["total"]) == 0


@pytest.mark.parametrize("size", [0, 1])
def test_vectors_without_a_sparseness_are_left_out(size: int) -> None:

    assert bool(hoyer_sparseness(torch.ones(3, size)).isnan().all())
    metric = HoyerSparseness()
    metric.update(torch.ones(3, size))
    assert bool(metric.compute().isnan())
    metric.update(torch.eye(4))
    assert float(metric.compute()) == 1.0


@pytest.mark.parametrize("text", ["кошка сидит на ковре", "η γάτα κάθεται", "แมวนั่งบนเสื่อ", "猫坐在垫子上", "в 2020 году"])
def test_rouge_names_a_tokenizer_that_drops_the_letters(text: str) -> None:
    metric = Rouge()
    with pytest.warns(UserWarning, match=r"Rouge's tokenizer 'rouge_score' keeps only a-z"):
        metric.update([text], [[text]])
    metric.update([text], [[text]])  # warned once
    spaces = Rouge(tokenizer="spaces")
    spaces.update([text], [[text]])
    assert float(spaces.compute()["rouge1"]) == 100.0
    german = Rouge()
    german.update(["die Katze über der Matte"], [["die Katze über der Matte"]])
    assert float(german.compute()["rouge1"]) == 100.0
