"""Activations of a model on text: equal to the model's, stored once, continued when killed, and refused when broken."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.data import ActivationDataModule, activations
from lit_sparse.errors import ConfigurationError, DataError, LitSparseError
from lit_sparse.hf import activations as activations_of

from .encoder import make_encoder

WORDS = ["a", "dog", "cat", "runs", "sleeps", "in", "the", "park", "house", "old", "green"]
LAYER = "encoder.layer.0"
Make = Callable[..., ActivationDataModule]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_encoder(tmp_path_factory.mktemp("encoder"), WORDS)


@pytest.fixture
def make(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(activations, "TEXTS", 5)
    monkeypatch.setattr(activations, "BATCH", 2)
    texts = [" ".join(WORDS[i * j % 11] for j in range(1, 2 + i % 5)) for i in range(14)]
    for split in ("train", "val", "test"):
        rows = [{"text": text, "other": text} for text in [*texts, texts[0], " "]]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def made(model: str = encoder, layer: str = LAYER, **options: Any) -> ActivationDataModule:
        options = {"folder": str(tmp_path / "shards"), "path": str(tmp_path), "batch_size": 4, **options}
        return ActivationDataModule(model, layer, **options)

    return made


def setup(data: ActivationDataModule) -> ActivationDataModule:
    data.setup("fit")
    return data


def files(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in sorted((folder / "shards" / "train").glob("*.npy"))}


def test_the_texts_of_a_row_follow_each_other(make: Make, tmp_path: Path) -> None:
    data = make(columns=("text", "other"), max_texts=3)
    rows = [{"text": "a dog", "other": "a cat"}, {"text": "old park", "other": "green park"}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert data._texts("train") == ["a dog", "a cat", "old park"]


def test_rows_are_the_activations_of_the_tokens(make: Make, encoder: str) -> None:
    """Without special tokens and padding; each distinct text once; with the text around a token."""
    from transformers import AutoModel, AutoTokenizer

    data = setup(make())
    model, words = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    _, tokens, _ = data._of("train")
    texts = data._texts("train")
    assert len(set(texts)) == len(texts) == 14 and " " not in texts
    assert data.size("train") == sum(len(text.split()) for text in texts)
    batch = data.fetch("train", 0, torch.arange(data.size("train")))
    for number, text in enumerate(texts):
        inputs = words(text, return_tensors="pt")
        expected = activations_of(model, LAYER, inputs)[0, 1:-1]
        here = tokens[:, 0] == number
        torch.testing.assert_close(batch["features"][here], expected.detach(), atol=1e-5, rtol=1e-5)
        assert batch["token"][here].tolist() == inputs["input_ids"][0, 1:-1].tolist()
    some = torch.tensor([17, 3, 3, 0])
    torch.testing.assert_close(data.fetch("train", 0, some)["features"], batch["features"][some], rtol=0, atol=0)
    row = int((tokens[:, 0] == max(range(len(texts)), key=lambda i: len(texts[i]))).nonzero()[1])
    before, token, after = data.token_text("train", row)
    assert f"{before} {token} {after}".split() in [text.split() for text in texts]


def test_shards_are_made_once_and_continued(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run leaves complete shards, which are not made again; a later run reads what a whole one has."""
    data = setup(make())
    features = data.fetch("train", 0, torch.arange(data.size("train")))["features"]
    before = files(tmp_path)
    assert len(before) == 6
    (tmp_path / "shards" / "train" / "000001.npy").unlink()
    again = setup(make())
    assert torch.equal(again.fetch("train", 0, torch.arange(again.size("train")))["features"], features)
    changed = {name for name, time in files(tmp_path).items() if before[name] != time}
    assert changed == {"000001.npy", "000001_tokens.npy"}
    monkeypatch.setattr(activations, "_loaded", lambda *_: pytest.fail("the model is loaded again"))
    orders = [torch.cat([batch["index"] for batch in setup(make(seed=seed)).train_dataloader()]) for seed in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1]) and not torch.equal(orders[0], orders[2])
    assert orders[0].sort().values.tolist() == [*range(len(features))]
    small = pickle.dumps(setup(make()))
    assert len(small) < 20_000, "worker processes get paths, not activations"


def test_what_does_not_fit_is_refused(make: Make, encoder: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    with pytest.raises(
        ConfigurationError, match=r"a module of BertModel but got 'encoder.layr.0'. Did you mean 'encoder.layer.0'"
    ):
        setup(make(layer="encoder.layr.0"))
    with pytest.raises(ConfigurationError, match="a vector for each of the tokens"):
        setup(make(layer="pooler"))
    assert not (tmp_path / "shards").exists(), "nothing is stored for a module that does not fit"
    larger = make_encoder(tmp_path / "larger", WORDS, vocabulary=9)
    with pytest.raises(DataError, match="token ids below 9"):
        setup(make(larger))
    model = AutoModel.from_pretrained(encoder)
    model.encoder.layer[0].output.dense.bias.data[3] = torch.nan
    broken = make_encoder(tmp_path / "broken", WORDS)
    model.save_pretrained(broken)
    with pytest.raises(DataError, match="Expected finite activations of 'encoder\\.layer\\.0' but got NaN"):
        setup(make(broken))
    with pytest.raises(DataError, match="cannot be loaded"):
        setup(make(str(tmp_path / "nothing")))
    with pytest.raises(ConfigurationError, match="Expected `setup`"):
        make().size("train")
    setup(make())
    for other in ({"layer": "encoder.layer.1"}, {"max_texts": 3}, {"max_length": 4}):
        with pytest.raises(ConfigurationError, match="Choose another `folder`"):
            setup(make(**other))
    with pytest.raises(ConfigurationError, match="same model"):
        setup(make(broken))


def changed(name: str, **entries: Any) -> Callable[[Path], None]:
    """Return a function that changes a JSON file of a folder."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return change


STRIP = {"type": "Strip", "content": "a", "start": 0, "stop": 3}
HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a pipe": lambda folder: os.mkfifo(folder / "other.bin"),
    "a folder": lambda folder: (folder / "other.bin").mkdir(),
    "a link": lambda folder: (folder / "vocab.txt").symlink_to("/etc/hostname"),
    "a pipe of words": lambda folder: os.mkfifo(folder / "vocab.txt"),
    "a panic": changed("tokenizer.json", decoder=STRIP),
    "a length": changed("tokenizer_config.json", model_max_length="x"),
    "layers": changed("config.json", num_hidden_layers=90_000),
    "wide layers": changed("config.json", hidden_size=20_000, intermediate_size=100_000),
    "broken link": lambda folder: (folder / "x.bin").symlink_to("nowhere"),
    "link to itself": lambda folder: (folder / "x.bin").symlink_to("x.bin"),
    "code": changed("config.json", quantization_config={"quant_method": "bitsandbytes"}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_folder_of_a_model_that_may_act_or_hang_is_refused(case: str, make: Make, tmp_path: Path) -> None:
    model = make_encoder(tmp_path / "hostile", WORDS)
    HOSTILE[case](Path(model))
    with pytest.raises(LitSparseError):
        setup(make(model))


@pytest.mark.parametrize("name", ["train", "train/activations.json", "train/000000.npy", "train/000000_tokens.npy"])
def test_no_link_leads_out_of_the_folder(name: str, make: Make, tmp_path: Path) -> None:
    setup(make())
    path, moved = tmp_path / "shards" / name, tmp_path / "moved"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(LitSparseError, match="a link out of it"):
        setup(make())


def test_a_config_with_which_the_model_fails_is_refused(make: Make, tmp_path: Path) -> None:
    path = Path(folder := make_encoder(tmp_path / "broken", WORDS), "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "chunk_size_feed_forward": 7}))
    with pytest.raises(DataError, match=r"fails on the texts: The dimension to be chunked.*\(ValueError\)\. Check"):
        setup(make(folder))


def test_a_lack_of_memory_is_no_fault_of_the_texts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "activations", Mock(side_effect=torch.OutOfMemoryError("CUDA")))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA"):
        setup(make())


def test_activations_that_are_not_finite_are_refused(make: Make, tmp_path: Path) -> None:
    setup(make())
    path = tmp_path / "shards" / "train" / "000000.npy"
    np.save(path, np.load(path) * np.nan)
    with pytest.raises(DataError, match=r"finite activations in .*train"):
        setup(make()).fetch("train", 0, torch.arange(2))


@pytest.mark.parametrize("kind", ["", "_tokens"])
def test_damaged_shards_are_refused_and_never_act(kind: str, make: Make, tmp_path: Path) -> None:
    """Pickles are not loaded, links not followed to devices, and sizes checked before memory is taken."""
    setup(make())
    path = tmp_path / "shards" / "train" / f"000000{kind}.npy"
    whole = path.read_bytes()
    for content in (b"", whole[:-4], whole.replace(b"'shape': (", b"'shape': (9", 1)):
        path.write_bytes(content)
        with pytest.raises(DataError):
            setup(make())
    np.save(path, np.array([Path.cwd()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError):
        setup(make())
    np.save(path, np.zeros((3, 7), dtype=np.int32 if kind else np.float32))
    with pytest.raises(DataError, match="Remove the folder"):
        setup(make())
    np.save(path, np.load(io.BytesIO(whole)).astype(">i4" if kind else ">f4"))  # in the other byte order
    with pytest.raises(DataError):
        setup(make())
    path.write_bytes(whole)
    for other in ("", "_tokens"):
        np.save(file := path.with_name(f"000000{other}.npy"), np.load(file)[:0])
    with pytest.raises(DataError, match="Remove the folder"):
        setup(make())
    (tmp_path / "shards" / "train" / "activations.json").write_text("[]")
    with pytest.raises(ConfigurationError):
        setup(make())
