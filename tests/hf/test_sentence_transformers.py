"""The package sentence-transformers, with attention by name, with a sparsified encoder, and with sparse pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs it: pip install sentence-transformers")

from lit_sparse import hf  # noqa: E402
from lit_sparse.hf import SparseAttentionPooling  # noqa: E402
from lit_sparse.mappings import LearnableEntmax, Sparsemax  # noqa: E402

from . import tiny  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "dog", "runs", "sleeps"]
TEXTS = ["a man runs", "a dog sleeps a a a"]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """Return the folder of a tiny BERT with its words."""
    model = tiny.bert(vocab_size=len(WORDS)).bert
    model.save_pretrained(tmp_path / "bert")
    words = {word: number for number, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=words).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def loaded(folder: Path, **options: Any) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu", **options)


def encoded(model: Any) -> torch.Tensor:
    return torch.from_numpy(model.encode(TEXTS, show_progress_bar=False))


def test_an_attention_is_chosen_by_name(encoder: Path) -> None:
    hf.register()
    found = {
        name: encoded(loaded(encoder, model_kwargs={"attn_implementation": name}))
        for name in ("eager", "lit_sparse_softmax", "lit_sparse_sparsemax")
    }
    assert torch.equal(found["lit_sparse_softmax"], found["eager"])
    assert (found["lit_sparse_sparsemax"] - found["eager"]).abs().max() > 1e-3
    model = loaded(encoder)
    hf.sparsify(model[0].model, Sparsemax())
    assert torch.equal(encoded(model), found["lit_sparse_sparsemax"])


def test_sparse_pooling_trains_and_is_saved_and_loaded(encoder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    pool = SparseAttentionPooling(32, LearnableEntmax())
    model = sentence_transformers.SentenceTransformer(modules=[loaded(encoder)[0], pool], device="cpu")
    mean = encoded(loaded(encoder))
    torch.testing.assert_close(encoded(model), mean, rtol=1e-5, atol=1e-5)  # it starts as the mean
    torch.nn.init.normal_(pool.score.weight, std=0.3)
    inputs = model.preprocess(TEXTS) if hasattr(model, "preprocess") else model.tokenize(TEXTS)
    features = model(inputs)
    assert (features["token_weights"][1] == 0).any() and (features["token_weights"].sum(-1) - 1).abs().max() < 1e-6
    features["sentence_embedding"].square().sum().backward()
    assert pool.score.weight.grad.abs().max() > 0 and pool.mapping.weight.grad.abs().max() > 0
    expected = encoded(model)
    assert (expected - mean).abs().max() > 1e-3 and model[1].get_sentence_embedding_dimension() == 32
    model.save(str(tmp_path / "saved"))
    assert torch.equal(encoded(loaded(tmp_path / "saved", trust_remote_code=True)), expected)


def test_a_sparsified_encoder_is_loaded_with_its_mapping(encoder: Path, tmp_path: Path) -> None:
    model = loaded(encoder)
    hf.sparsify(model[0].model, LearnableEntmax((4, 1, 1), start=1.9))
    expected = encoded(model)
    model.save(str(tmp_path / "saved"))
    again = loaded(tmp_path / "saved")
    assert (encoded(again) - expected).abs().max() > 1e-3, "sentence-transformers alone loads softmax"
    again[0].model = hf.from_pretrained(transformers.AutoModel, tmp_path / "saved")
    assert torch.equal(encoded(again), expected)
