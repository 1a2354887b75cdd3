"""Pooling of tokens with sparse weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.hf import SparseAttentionPooling
from lit_sparse.mappings import Entmax, HardThreshold, LearnableEntmax, Sparsemax


def pooling(**options: Any) -> SparseAttentionPooling:
    torch.manual_seed(0)
    pool = SparseAttentionPooling(4, **options)
    torch.nn.init.normal_(pool.score.weight, std=3.0)
    return pool


def test_it_averages_a_few_tokens() -> None:
    pool, tokens = pooling(), torch.randn(3, 9, 4)
    mask = torch.rand(3, 9) < 0.7
    mask[0] = False
    mask[1] = True
    pooled, weights = pool.pool(tokens, mask.long())
    expected = Sparsemax()((tokens @ pool.score.weight[0] + pool.score.bias), mask)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(pooled, torch.einsum("bl,bld->bd", expected, tokens))
    assert torch.equal(pool(tokens, mask), pooled)
    assert (weights[1] == 0).any() and (weights[~mask] == 0).all() and (pooled[0] == 0).all()
    assert torch.equal(pool(tokens), pool(tokens, torch.ones(3, 9)))


def test_padding_of_nan_reaches_neither_results_nor_gradients() -> None:
    pool, tokens, mask = pooling(mapping=Sparsemax(gamma=10.0)), torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    mask[:, 3:] = False
    tokens[:, 3:] = torch.nan
    tokens.requires_grad_()
    pool(tokens, mask).square().sum().backward()
    assert pool.score.weight.grad.isfinite().all() and pool.score.weight.grad.abs().max() > 0
    assert tokens.grad.isfinite().all() and (tokens.grad[:, 3:] == 0).all()


@pytest.mark.gate
def test_it_is_a_module_of_sentence_transformers(tmp_path: Path) -> None:
    pool = pooling(mapping=LearnableEntmax(start=1.7))
    torch.nn.init.constant_(pool.mapping.weight, 0.4)
    features = {"token_embeddings": torch.randn(2, 5, 4), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    found = pool(features)
    assert torch.equal(found["sentence_embedding"], pool(features["token_embeddings"]))
    assert found["token_weights"].shape == (2, 5) and found["attention_mask"] is features["attention_mask"]
    assert "sentence_embedding" not in features
    pool.save(str(tmp_path / "1_Pooling"))
    again = SparseAttentionPooling.load(str(tmp_path / "1_Pooling"))
    assert torch.equal(again(features)["sentence_embedding"], found["sentence_embedding"])
    assert again.get_sentence_embedding_dimension() == 4
    config = tmp_path / "1_Pooling" / "config.json"
    config.write_text(config.read_text().replace("lit_sparse.mappings.LearnableEntmax", "os.system"))
    with pytest.raises(CheckpointError, match=r"names 'os\.system'"):
        SparseAttentionPooling.load(str(tmp_path / "1_Pooling"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{broken"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b"[1, 2]"),
        ("config.json", b'{"dim": "4"}'),
        ("config.json", b'{"dim": 4, "path": "x"}'),
        ("config.json", b'{"dim": 5}'),
        ("config.json", b'{"dim": 900000000}'),
        ("pooling.pt", b"nothing"),
    ],
)
def test_damaged_files_are_refused(file: str, content: bytes, tmp_path: Path) -> None:
    pooling().save(str(tmp_path))
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json|pooling\.pt"):
        SparseAttentionPooling.load(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.to(torch.complex64), "values of type"),
        (lambda value: value.long(), "values of type"),
        (lambda value: value * math.nan, r"pooling\.pt' holds NaN"),
    ],
)
def test_weights_of_other_numbers_are_refused(change: Callable[[Tensor], Tensor], message: str, tmp_path: Path) -> None:
    pooling().save(str(tmp_path))
    state = torch.load(tmp_path / "pooling.pt", weights_only=True)
    torch.save({name: change(value) for name, value in state.items()}, tmp_path / "pooling.pt")
    with pytest.raises(CheckpointError, match=message):
        SparseAttentionPooling.load(str(tmp_path))


@pytest.mark.parametrize("file", ["config.json", "pooling.pt"])
def test_links_out_of_the_folder_are_refused(file: str, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "0123" / "1_Pooling"
    pooling().save(str(folder))
    (tmp_path / "blobs").mkdir()
    (folder / file).rename(tmp_path / "blobs" / "abc")
    (folder / file).symlink_to(Path("..", "..", "..", "blobs", "abc"))
    assert SparseAttentionPooling.load(str(folder)).dim == 4
    (tmp_path / "blobs" / "abc").rename(tmp_path / "abc")
    for target in (tmp_path / "abc", Path("/nowhere"), Path(file)):
        (folder / file).unlink()
        (folder / file).symlink_to(target)
        with pytest.raises(CheckpointError, match=r"it is a link out of it|cannot be read"):
            SparseAttentionPooling.load(str(folder))


def test_bad_arguments() -> None:
    for options, text in (
        ({"dim": 0}, "`dim`"),
        ({"dim": 4, "mapping": HardThreshold(2)}, "onto the simplex"),
        ({"dim": 4, "mapping": Entmax}, "the class Entmax"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            SparseAttentionPooling(**options)
    with pytest.raises(ConfigurationError, match=r"tokens \(B, L, 4\) but got shape \(2, 5\)"):
        pooling()(torch.ones(2, 5))
    with pytest.raises(ConfigurationError, match=r"mask of shape \(2, 5\) but got \(2, 4\)"):
        pooling()(torch.ones(2, 5, 4), torch.ones(2, 4))
