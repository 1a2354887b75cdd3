"""Data modules of text: what is read, what is left out, how batches are made up."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_sparse.data import Ragged, SummarizationDataModule, TranslationDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.models import Seq2Seq
from lit_sparse.text import Vocabulary, VocabularyOptions


def pairs(number: int) -> tuple[list[str], list[str]]:
    source = [" ".join(f"w{(i * j) % 7}" for j in range(1, 2 + i % 9)) for i in range(number)]
    return source, [line.upper().replace("W", "V") + " ." for line in source]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, number in (("train", 103), ("val", 10), ("test", 7)):
        source, target = pairs(number)
        (tmp_path / f"{split}.de").write_text("\n".join(source) + "\n", encoding="utf-8")
        with gzip.open(tmp_path / f"{split}.en.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(target) + "\n")
    return tmp_path


def module(folder: Path, **options: Any) -> TranslationDataModule:
    return TranslationDataModule(str(folder), source="de", target="en", **{"batch_size": 8, "eval_batch_size": 4, **options})


def test_ragged_sequences_are_padded() -> None:
    ragged = Ragged.of([[1, 2, 3], [], [4]])
    padded, lengths = ragged.padded(torch.tensor([1, 0, 2, 0]), 9)
    assert padded.tolist() == [[9, 9, 9], [1, 2, 3], [4, 9, 9], [1, 2, 3]]
    assert lengths.tolist() == [0, 3, 1, 3]
    assert Ragged.of([]).padded(torch.zeros(0, dtype=torch.int64), 0)[0].shape == (0, 1)
    assert Ragged.of([[], []]).padded(torch.tensor([0, 1]), 5)[0].tolist() == [[5], [5]]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=6), st.data())
def test_ragged_sequences_are_chosen_cut_and_framed(sequences: list[list[int]], drawn: st.DataObject) -> None:
    def listed(ragged: Ragged) -> list[list[int]]:
        rows = [ragged.padded(torch.tensor([i]), -1) for i in range(len(ragged))]
        return [row[0, : int(length)].tolist() for row, length in rows]

    ragged = Ragged.of(iter(sequences))
    indices = drawn.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=4)) if sequences else []
    assert listed(ragged) == sequences
    assert listed(ragged.chosen(torch.tensor(indices, dtype=torch.int64))) == [sequences[i] for i in indices]
    assert listed(ragged.cut(3)) == [sequence[:3] for sequence in sequences]
    assert listed(ragged.framed(7, 8)) == [[7, *sequence, 8] for sequence in sequences]


def test_a_batch_holds_the_text(folder: Path) -> None:
    data = module(folder)
    data.setup()
    source, target = pairs(103)
    batch = next(iter(data.train_dataloader()))
    for row, index in enumerate(batch["index"].tolist()):
        length = int(batch["source_length"][row])
        assert data.vocabularies["source"].decode(batch["source"][row].tolist()) == source[index]
        assert (batch["source"][row, length:] == data.vocabularies["source"].pad).all()
        written = batch["target"][row][: int(batch["target_length"][row])].tolist()
        assert (written[0], written[-1]) == (data.vocabularies["target"].bos, data.vocabularies["target"].eos)
        assert data.vocabularies["target"].decode(written) == target[index].lower().replace(" .", ".")
    assert "references" not in batch
    tested = next(iter(data.test_dataloader()))
    assert tested["references"] == [[target[index]] for index in tested["index"].tolist()]
    assert tested["source_text"] == [source[index] for index in tested["index"].tolist()]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_example_is_seen_once_in_batches_of_one_length(folder: Path, processes: int) -> None:
    data = module(folder)
    data.setup()
    shares = [data.train_batches(3, rank, processes) for rank in range(processes)]
    assert len({len(share) for share in shares}) == 1
    seen = torch.cat([batch for share in shares for batch in share]).sort().values
    assert len(seen.unique()) == len(seen) == 103 - 103 % processes
    lengths = data.sequences("train")["target"].lengths
    spread = [int(lengths[batch].max() - lengths[batch].min()) for share in shares for batch in share]
    assert max(spread) <= 2, "batches hold sentences of about one length"
    assert any((a != b).any() for a, b in zip(shares[0], data.train_batches(4, 0, processes), strict=True) if len(a) == len(b))
    again = data.train_batches(3, 0, processes)
    assert all(torch.equal(a, b) for a, b in zip(shares[0], again, strict=True))


def test_evaluation_begins_with_the_longest_and_leaves_nothing_out(folder: Path) -> None:
    data = module(folder)
    data.setup()
    lengths = [batch["target_length"].tolist() for batch in data.val_dataloader()]
    flat = [length for batch in lengths for length in batch]
    assert all(batch == sorted(batch, reverse=True) for batch in lengths)
    assert max(flat) == flat[0]
    assert len(flat) == 10
    data.eval_batch_size = 2
    starts = [batch["target_length"][0].item() for batch in data.val_dataloader()]
    assert starts != sorted(starts, reverse=True), "some batches alone tell of all lengths"
    assert sorted(i for batch in data.val_dataloader() for i in batch["index"].tolist()) == list(range(10))


def test_long_and_empty_pairs_are_left_out_of_training_alone(tmp_path: Path) -> None:
    rows = [{"source": "a b", "target": "x"}, {"source": "", "target": "x"}, {"source": "a " * 60, "target": "y"}]
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = TranslationDataModule(str(tmp_path), max_test_length=55)
    data.setup()
    assert data.size("train") == 1
    assert data.size("val") == 3
    with pytest.warns(UserWarning, match=r"1 of the val data are truncated to max_test_length=55 .* source 3"):
        assert data.sequences("val")["source"].lengths.tolist() == [2, 0, 55]
    (tmp_path / "train.jsonl").write_text(json.dumps(rows[1]) + "\n")
    empty = TranslationDataModule(str(tmp_path))
    empty.setup()
    with pytest.raises(DataError, match="Expected training examples of 1"):
        empty.size("train")


def test_vocabularies_come_from_training_text_alone(folder: Path) -> None:
    (folder / "test.de").write_text("\n".join(["neverseen"] * 7) + "\n")
    data = module(folder)
    data.setup()
    assert "neverseen" not in data.vocabularies["source"]
    batch = next(iter(data.test_dataloader()))
    assert batch["source"].tolist() == [[data.vocabularies["source"].unk]] * 4


def test_options_of_vocabularies_are_followed(folder: Path, tmp_path: Path) -> None:
    small = VocabularyOptions(kind="bpe", max_size=12, lowercase=False)
    data = module(folder, source_vocabulary=small)
    assert len(data.vocabularies["source"]) <= 12
    mine = Vocabulary.build(["w1 w2"])
    assert module(folder, source_vocabulary=mine).vocabularies["source"] is mine
    mine.save(tmp_path / "mine.json")
    saved = VocabularyOptions(file=str(tmp_path / "mine.json"))
    assert module(folder, source_vocabulary=saved).vocabularies["source"] == mine


def test_the_vocabularies_of_a_model_are_taken_over(folder: Path) -> None:
    theirs = {"source": Vocabulary.build(["w1 w2"]), "target": Vocabulary.build(["v1"])}
    data = module(folder)
    data.setup()
    before = data.sequences("test")["source"]
    data.use_vocabularies(theirs)
    assert data.sequences("test")["source"] is not before
    assert data.vocabularies == theirs
    given = module(folder, source_vocabulary=Vocabulary.build(["w1 w3"]))
    with pytest.raises(ConfigurationError, match="source vocabulary of the checkpoint"):
        given.use_vocabularies(theirs)
    with pytest.raises(ConfigurationError, match=r"model's vocabularies \['text'\]"):
        data.use_vocabularies({"text": theirs["source"]})


def test_options_that_a_model_overrules_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = {"source": Vocabulary.build(["w1"], kind="bpe"), "target": Vocabulary.build(["v1"])}
    gone = str(folder / "gone.json")
    with caplog.at_level(logging.INFO):
        module(folder, target_vocabulary=VocabularyOptions(file=gone)).use_vocabularies(theirs)
    assert "the source vocabulary is the model's, with kind='bpe'" in caplog.text
    assert f"{gone!r} does not exist; the target vocabulary is the model's" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        module(folder, source_vocabulary=VocabularyOptions(kind="bpe")).use_vocabularies(theirs)
    assert "note" not in caplog.text


def test_whatever_is_cut_is_told(folder: Path) -> None:
    data = module(folder, max_test_length=2)
    data.setup()
    with pytest.warns(UserWarning) as caught:
        data.sequences("val")
    for role in ("source", "target"):
        assert any(f"are truncated to max_test_length=2 tokens: {role}" in str(one.message) for one in caught)


def test_more_processes_than_examples_are_refused_on_each(folder: Path) -> None:
    data = module(folder)
    data.setup()
    data.trainer = type("Trainer", (), {"global_rank": 1, "world_size": 11})()  # type: ignore[assignment]
    with pytest.raises(
        DataError, match=r"at least 11 examples in the val data, one per process, but got 10.* --trainer.devices 10"
    ):
        data.val_dataloader()


def test_a_process_may_be_without_examples_unless_it_predicts(folder: Path) -> None:
    """Lightning would skip the hooks at the end of an epoch without batches, in which the other processes wait."""
    data = module(folder)
    data.setup()
    trainer = SimpleNamespace(global_rank=10, world_size=11, predicting=False, lightning_module=Seq2Seq)
    data.trainer = trainer  # type: ignore[assignment]
    assert list(data.val_dataloader()) == [{}]
    trainer.predicting = True
    with pytest.raises(DataError, match="at least 11 examples in the val data"):
        data.val_dataloader()


def test_several_references_are_read(tmp_path: Path) -> None:
    plain = [{"article": "a b c", "title": "a"}]
    many = [{"article": "a b", "references": ["x", "y z"]}, {"article": "c", "references": ["w"]}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    (tmp_path / "duc.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many))
    data = SummarizationDataModule(str(tmp_path), val="train", test="duc", references="references")
    data.setup()
    batch = next(iter(data.test_dataloader()))
    assert sorted(batch["references"]) == [["w"], ["x", "y z"]]
    assert batch["target"].shape[0] == 2
    for wrong in (5, [], ["a", None], {"x": 1}, None):
        rows = [*many, {"article": "d", "references": wrong}]
        (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = SummarizationDataModule(str(tmp_path), val="train", test="bad", references="references")
        with pytest.raises(DataError, match=r"(row|line) 3"):
            data.setup("test")


def test_what_is_predicted_is_a_file_of_lines_or_the_test_split(folder: Path) -> None:
    (folder / "in.txt").write_text("w1 w2\n\nw3 😀 \u2028 x\u0000y\n", encoding="utf-8")
    data = module(folder, predict=str(folder / "in.txt"))
    data.setup("predict")
    rows = {
        index: text
        for batch in data.predict_dataloader()
        for index, text in zip(batch["index"].tolist(), batch["source_text"], strict=True)
    }
    assert rows == {0: "w1 w2", 1: "", 2: "w3 😀 \u2028 x\u0000y"}
    (folder / "bad.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(DataError, match=r"bad\.txt.*line 2"):
        module(folder, predict=str(folder / "bad.txt")).setup("predict")
    other = module(folder)
    other.setup("predict")
    assert other.size("predict") == 7
    (folder / "in.jsonl").write_text('{"de": "w1 w2", "x": 1}\n{"de": "w3"}\n')
    table = module(folder, predict=str(folder / "in.jsonl"))
    table.setup("predict")
    assert table.texts("predict") == {"source": ["w1 w2", "w3"]}


def test_the_place_in_an_epoch_is_kept(folder: Path) -> None:
    data = module(folder)
    data.setup()
    loader = data.train_dataloader()
    batches = [batch["index"].tolist() for batch in loader] + [batch["index"].tolist() for batch in loader]
    again = module(folder)
    again.setup()
    iterator = iter(again.train_dataloader())
    for _ in range(5):
        next(iterator)
    state = again.state_dict()
    third = module(folder)
    third.setup()
    third.load_state_dict(state)
    rest = third.train_dataloader()
    found = [batch["index"].tolist() for batch in rest] + [batch["index"].tolist() for batch in rest]
    assert found == batches[5:]


def test_bad_input_is_refused(folder: Path) -> None:
    (folder / "val.de").write_text("one line\n")
    with pytest.raises(DataError, match=r"val\.de 1, val\.en\.gz 10"):
        module(folder).setup("fit")
    with pytest.raises(DataError, match="nowhere"):
        TranslationDataModule("./nowhere", source="de", target="en").setup("fit")
    with pytest.raises(ConfigurationError, match="max_length"):
        module(folder, max_length=0)
    (folder / "one.jsonl").write_text(json.dumps({"source": 3, "target": "x"}) + "\n")
    with pytest.raises(DataError, match=r"Expected text as source but got 3 in row 1 of the val data \(counted from 1\)"):
        TranslationDataModule(str(folder), val="one").texts("val")
    with pytest.raises(DataError, match=r"(?s)quelle.*source"):
        TranslationDataModule(str(folder), source="quelle", val="one").texts("val")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_text_of_spaces_alone_is_refused(folder: Path, split: Any) -> None:
    number = len((folder / f"{split}.de").read_text().splitlines())
    (folder / f"{split}.de").write_text("  \t \n" * number)
    data = module(folder)
    data.setup()
    with pytest.raises(DataError, match=r"Expected training examples|text as source in the (val|test) data but got"):
        data.sequences(split)


def test_fit_says_that_the_test_split_is_missing(folder: Path) -> None:
    module(folder).setup("fit")
    (folder / "test.de").unlink()
    with pytest.warns(UserWarning, match=r"The test split is missing: `fit` runs without it.*There is no test\.de"):
        module(folder).setup("fit")
    with pytest.raises(DataError, match=r"There is no test\.de"):
        module(folder).setup("test")
