"""The parts of a model of text: bodies, vocabularies and metrics that do not fit are refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as nnf

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import (
    Softmax,
    Sparsemax,
)
from lit_sparse.metrics import Bleu, ChrF, Rouge
from lit_sparse.models import Seq2Seq
from lit_sparse.nn import RecurrentBody, TransformerBody
from lit_sparse.text import Vocabulary

from .test_seq2seq import small


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("init_range", [None, 0.1])
@pytest.mark.parametrize("name", ["recurrent", "transformer"])
def test_no_token_is_likely_before_training(name: str, init_range: float | None, tied: bool) -> None:
    """The first loss is about as large as for guessing, for every initialization of the layers."""
    torch.manual_seed(0)
    body = TransformerBody(64, 2, 0.0, heads=4, feedforward=128) if name == "transformer" else RecurrentBody(64, 1, 0.0)
    words = [f"w{number}" for number in range(2000)]
    vocabulary = Vocabulary.build(words)
    model = small(body=body, init_range=init_range, tied_embeddings=tied)
    model.build({"source": vocabulary, "target": vocabulary})
    source, target = torch.randint(4, 2000, (8, 9)), torch.randint(4, 2000, (8, 7))
    scores, _ = model(source, torch.full((8,), 9), target)
    guessed = nnf.cross_entropy(scores.flatten(0, 1), torch.randint(4, 2000, (56,)))
    assert float(guessed.detach()) < 1.3 * math.log(2004)


def test_a_body_belongs_to_one_model() -> None:
    body = RecurrentBody(8, layers=1)
    first = small(Softmax(), body=body)
    with pytest.raises(ConfigurationError, match=r"that another model uses with Softmax\(.*. Make one for each"):
        small(Sparsemax(), body=body)
    assert isinstance(first.body.mapping, Softmax)


def test_metrics_that_would_be_one_number_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"got 'chrf' twice, for ChrF and ChrF\. Set a `name`"):
        small(metrics=[ChrF(), ChrF(lowercase=True)])
    with pytest.raises(ConfigurationError, match="but got 'rouge"):
        small(metrics=[Rouge(references="average"), Bleu(), Rouge(references="best")])
    small(metrics=[ChrF(), ChrF(lowercase=True, name="chrf_lower")])


def test_parts_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"`mapping` to be a SparseMapping, such as .* but got str"):
        Seq2Seq("fusedmax")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="`body` to be an EncoderDecoder or None but got 'lstm'"):
        Seq2Seq(Softmax(), "lstm")  # type: ignore[arg-type]


def test_vocabularies_of_another_model_leave_it_as_it_was() -> None:
    model = small()
    with pytest.raises(ConfigurationError, match="Expected the vocabularies source and target for Seq2Seq but got text"):
        model.build({"text": Vocabulary.build(["a"])})
    model.build({"source": Vocabulary.build(["a"]), "target": Vocabulary.build(["b"])})
    assert model.generate(["a"]) == model.generate({"a": 1}) == model.generate(line for line in ["a"]) != []
