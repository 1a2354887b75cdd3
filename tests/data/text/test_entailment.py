"""Pairs for entailment: labels, words with vectors, what is left out and what is refused."""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.data import EntailmentDataModule
from lit_sparse.data.readers.word_vectors import read_words
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.text import Vocabulary, VocabularyOptions

NAMES = ("entailment", "neutral", "contradiction")
PREMISES = ("A dog runs.", "Two cats sleep on a sofa.", "Nobody's here.", "A man, a boat")
HYPOTHESES = ("An animal moves.", "Cats play!", "It is empty.", "A man swims across the lake in winter.")
VECTORS = "the 0 1\n, 2 3\nDog 4 5\ndog 6 7\nzebra 8 9\ntwo words 1 1\nlake 2 2\ncats 3 3\nyak 4 4\n's 5 5\n"


def rows(labels: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [
        {"premise": PREMISES[i % 4], "hypothesis": HYPOTHESES[i % 4], "label": label, **more} for i, label in enumerate(labels)
    ]


def write(folder: Path, name: str, content: list[dict[str, Any]]) -> None:
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "train", rows([*NAMES, "entailment"])[:3])
    write(tmp_path, "val", rows(["neutral", "neutral", "-", "contradiction"]))
    write(tmp_path, "test", rows([2, -1, 0, 1]))
    (tmp_path / "words.2d.txt").write_text(VECTORS)
    return tmp_path


def data(folder: Path, **options: Any) -> EntailmentDataModule:
    return EntailmentDataModule(str(folder), **{"batch_size": 2, "eval_batch_size": 3, **options})


def test_a_batch_holds_the_pairs(folder: Path) -> None:
    module = data(folder)
    module.setup()
    text = module.vocabularies["text"]
    batch = module.fetch("val", 0, torch.tensor([2, 0]))
    assert batch["premise_text"] == [PREMISES[3], PREMISES[0]]
    assert batch["hypothesis_text"] == [HYPOTHESES[3], HYPOTHESES[0]]
    assert batch["label"].tolist() == [2, 1]
    assert batch["label"].dtype == torch.int64
    assert batch["index"].tolist() == [2, 0]
    assert batch["premise_length"].tolist() == [5, 4]
    assert text.lookup_tokens(batch["premise"][1].tolist()) == ["a", "dog", "runs", ".", "<pad>"]
    assert batch["hypothesis"].shape == (2, 9)
    seen = [module.fetch("train", 0, indices) for indices in module.train_batches(0, 0, 1)]
    assert sorted(torch.cat([batch["index"] for batch in seen]).tolist()) == [0, 1, 2]
    assert torch.cat([batch["label"] for batch in seen]).sum() == 3
    assert not any(name.endswith("_text") for batch in seen for name in batch)
    (batch,) = module.test_dataloader()
    assert sorted(zip(batch["index"].tolist(), batch["label"].tolist(), strict=True)) == [(0, 2), (1, 0), (2, 1)]


@pytest.mark.parametrize("labels", [["neutral", "-", "contradiction"], [1, -1, 2]], ids=["names", "numbers"])
def test_pairs_without_a_gold_label_are_left_out(labels: list[Any], folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder, "val", rows(labels))
    with caplog.at_level(logging.INFO):
        texts = data(folder).texts("val")
    assert texts["label"] == [1, 2]
    assert texts["premise"] == [PREMISES[0], PREMISES[2]]
    assert "1 of 3 pairs of the val data are left out: they have no gold label" in caplog.text
    assert data(folder).size("val") == 2


def test_labels_that_are_missing_are_none(folder: Path) -> None:
    write(folder, "val", rows([None, "neutral", None]))
    assert data(folder).texts("val")["label"] == [1]
    (folder / "val.jsonl").unlink()
    (folder / "val.csv").write_text("premise,hypothesis,label\na,b,1\nc,d,\ne,f,0\n")
    assert data(folder).texts("val") == {"premise": ["a", "e"], "hypothesis": ["b", "f"], "label": [1, 0]}
    (folder / "val.csv").write_text("premise,hypothesis,label\na,b,1\nc,d,-\ne,f,0\n")
    assert data(folder).texts("val")["label"] == [1, 0], "a dash among numbers"


def test_labels_have_any_names(folder: Path) -> None:
    write(folder, "val", rows(["no", "yes", 0, 1]))
    assert data(folder, labels=["yes", "no"]).texts("val")["label"] == [1, 0, 0, 1]
    (folder / "val.jsonl").unlink()
    (folder / "val.csv").write_text("first,second,answer\na,b,1\nc,d,-1\ne,f,0\n")
    module = data(folder, premise="first", hypothesis="second", label="answer", labels=["yes", "no"])
    assert module.texts("val") == {"premise": ["a", "e"], "hypothesis": ["b", "f"], "label": [1, 0]}


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("neutrall", r"got 'neutrall' in row 3 \(counted from 1\) of the val data.*0 \.\. 2.*Did you mean 'neutral'\?"),
        (
            3,
            r"column 'label' but got 3 in row 3 .* Allowed are entailment, neutral, .* -1 or null without a label",
        ),
        (-2, "got -2 in row 3"),
        (1.5, "got 1.5 in row 3"),
        (True, "got True in row 3"),
        (["neutral"], "got \\['neutral'\\] in row 3"),
    ],
)
def test_labels_that_are_none_of_them_are_refused(label: Any, words: str, folder: Path) -> None:
    write(folder, "val", rows(["-", "neutral", label]))
    with pytest.raises(DataError, match=words):
        data(folder).setup("validate")


def test_data_that_do_not_fit_are_explained(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'gold_label'\. Its columns are premise, hypothesis, label"):
        data(folder, label="gold_label").setup("fit")
    write(folder, "val", rows(["-", "-"]))
    with pytest.raises(DataError, match="gold labels in the column 'label' but got none in 2 pairs of the val data"):
        data(folder).setup("fit")
    write(folder, "val", [*rows(["-", "neutral"]), {"premise": 5, "hypothesis": "b", "label": "neutral"}])
    with pytest.raises(DataError, match=r"Expected text as premise but got 5 in row 3 of the val data \(counted from 1\)"):
        data(folder).setup("fit")
    with pytest.raises(ConfigurationError, match=r"vocabulary.* with `vectors` but got kind bpe"):
        data(folder, vectors="words.txt", vocabulary=VocabularyOptions("bpe"))
    with pytest.raises(ConfigurationError, match="`labels` to be at least two different names"):
        data(folder, labels=["neutral"])
    with pytest.raises(ConfigurationError, match="`vector_size`"):
        data(folder, vector_size=0)
    with pytest.raises(DataError, match=r"'.*gone.txt' does not exist"):
        _ = data(folder, vectors=str(folder / "gone.txt")).vocabularies
    with pytest.raises(DataError, match=r"width 3 but got 2 in"):
        _ = data(folder, vectors=str(folder / "words.2d.txt"), vector_size=3).vocabularies


def test_the_vocabulary_goes_beyond_training_where_there_are_vectors(folder: Path) -> None:
    training = data(folder).vocabularies["text"].get_itos()
    assert "lake" not in training
    assert "winter" not in training
    module = data(folder, vectors=str(folder / "words.2d.txt"))
    text = module.vocabularies["text"]
    assert text.get_itos() == [*training, "the", ",", "zebra", "lake", "yak"], "what is no token of lower case is left out"
    sentence = module.fetch("val", 0, torch.tensor([2]))["hypothesis"][0].tolist()
    expected = ["a", "<unk>", "<unk>", "<unk>", "the", "lake", "<unk>", "<unk>", "."]
    assert text.lookup_tokens(sentence) == expected, "words of other splits that have no vector stay unknown"
    vectors, known = module.vectors()  # type: ignore[misc]
    assert vectors.shape == (len(text), 2)
    has = {token: vectors[i].tolist() for i, token in enumerate(text) if known[i]}
    assert has.pop("'s") == [5, 5]
    assert has == {",": [2, 3], "the": [0, 1], "dog": [6, 7], "cats": [3, 3], "zebra": [8, 9], "lake": [2, 2], "yak": [4, 4]}
    assert not vectors[~known].any()
    assert data(folder).vectors() is None


def test_the_vocabulary_is_no_larger_than_asked_for(folder: Path) -> None:
    path, full = str(folder / "words.2d.txt"), data(folder).vocabularies["text"].get_itos()
    for size, expected in ((len(full) + 2, ["the", ","]), (len(full), [])):
        module = data(folder, vectors=path, vocabulary=VocabularyOptions(max_size=size))
        assert module.vocabularies["text"].get_itos() == [*full, *expected]
    few = data(folder, vectors=path, vocabulary=VocabularyOptions(max_size=6)).vocabularies["text"]
    assert few.get_itos() == full[:6]
    assert few.lowercase
    cased = data(folder, vectors=path, vocabulary=VocabularyOptions(lowercase=False)).vocabularies["text"]
    assert {"Dog", "dog", "A"} <= set(cased)


def test_a_vocabulary_that_is_given_stays(folder: Path) -> None:
    own = Vocabulary.build(["a dog and a boat"])
    own.save(folder / "own.json")
    for given in (own, VocabularyOptions(file=str(folder / "own.json"))):
        module = data(folder, vectors=str(folder / "words.2d.txt"), vocabulary=given)
        assert module.vocabularies["text"] == own
        _, known = module.vectors()  # type: ignore[misc]
        assert [token for token, has in zip(own, known, strict=True) if has] == ["dog"]


def test_the_vocabulary_of_a_model_is_taken(folder: Path) -> None:
    """Training text and vectors are not read, and may be missing."""
    (folder / "train.jsonl").unlink()
    module = data(folder, vectors="gone.txt")
    own = Vocabulary.build(["a dog and a boat"])
    module.use_vocabularies({"text": own})
    module.setup("test")
    assert own.lookup_tokens(module.fetch("test", 0, torch.tensor([0]))["premise"][0].tolist()) == [
        "a",
        "dog",
        "<unk>",
        "<unk>",
    ]


def test_everything_is_predicted(folder: Path) -> None:
    """Pairs without a gold label, too; of a file the columns of the sentences are enough."""
    own = Vocabulary.build(PREMISES)
    pairs = [{name: row[name] for name in ("premise", "hypothesis")} for row in rows([0, 0])]
    write(folder, "mine", pairs)
    for predict, size in ((None, 4), (str(folder / "mine.jsonl"), 2)):
        module = data(folder, predict=predict)
        module.use_vocabularies({"text": own})
        module.setup("predict")
        batches = list(module.predict_dataloader())
        assert sorted(index for batch in batches for index in batch["index"].tolist()) == list(range(size))
        found = {int(i): text for batch in batches for i, text in zip(batch["index"], batch["premise_text"], strict=True)}
        assert [found[i] for i in range(size)] == list(PREMISES[:size])
        assert not any("label" in batch for batch in batches)


def test_the_tokens_of_trees_are_their_leaves(folder: Path) -> None:
    tree = {"sentence1_binary_parse": "( ( A man ) ( is n't ( -LRB- here ) ) )", "sentence2_binary_parse": "( No . )"}
    write(folder, "val", [{**tree, "gold_label": "contradiction"}])
    columns = {"premise": "sentence1_binary_parse", "hypothesis": "sentence2_binary_parse", "label": "gold_label"}
    module = data(folder, vocabulary=VocabularyOptions("spaces"), **columns)
    assert module.texts("val") == {"premise": ["A man is n't -LRB- here"], "hypothesis": ["No ."], "label": [2]}
    write(folder, "train", [{**tree, "gold_label": "contradiction"}])
    assert {"is", "n't", "-lrb-"} <= set(module.vocabularies["text"])
    write(folder, "val", [{**tree, "gold_label": "neutral"}, {"sentence1_binary_parse": "( A )", "gold_label": "neutral"}])
    with pytest.raises(DataError, match="has no value in column 'sentence2_binary_parse' in line 2"):
        data(folder, vocabulary=VocabularyOptions("spaces"), **columns).texts("val")
    write(folder, "val", rows(["neutral"]))
    with pytest.raises(DataError, match="has no column 'sentence1_binary_parse'"):
        data(folder, vocabulary=VocabularyOptions("spaces"), **columns).texts("val")


@pytest.mark.parametrize("vocabulary", [VocabularyOptions(), VocabularyOptions("moses"), Vocabulary.build(["a"])])
def test_the_tokens_of_trees_are_not_split_again(vocabulary: Any, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="kind spaces for the leaves of the trees in 'premise' and 'b_binary_parse'"):
        data(folder, hypothesis="b_binary_parse", vocabulary=vocabulary)


def test_longer_sentences_are_left_out_or_cut(folder: Path) -> None:
    module = data(folder, max_length=6)
    assert module.size("train") == 2
    with pytest.warns(UserWarning, match="max_test_length=4"):
        cut = data(folder, max_test_length=4).fetch("val", 0, torch.tensor([1]))
    assert cut["premise"].shape == (1, 4)


def test_training_pairs_are_counted_among_those_with_a_label(folder: Path) -> None:
    write(folder, "train", rows(["-", "neutral", "-", "entailment", "neutral"]))
    assert data(folder, train_size=2).texts("train")["label"] == [1, 0]
    with pytest.raises(ConfigurationError, match=r"`train_size` in 1 \.\. 3 but got 4"):
        data(folder, train_size=4).texts("train")


def test_words_come_from_every_form_of_vectors(tmp_path: Path) -> None:
    expected = ["the", ",", "Dog", "dog", "zebra", "two words", "lake", "cats", "yak", "'s"]
    (tmp_path / "some.txt").write_text(f"11 2\n{VECTORS}dog 1 1\n")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("some.2d.txt", VECTORS)
        archive.writestr("some.3d.txt", "a 1 2 3")
    torch.save((expected, {word: i for i, word in enumerate(expected)}, torch.zeros(10, 2), 2), tmp_path / "some.pt")
    for name in ("some.txt", "some.zip", "some.pt"):
        assert read_words(str(tmp_path / name), 2) == expected, name
    with pytest.raises(DataError, match="width 3"):
        read_words(str(tmp_path / "some.pt"), 3)
    (tmp_path / "bytes.txt").write_bytes(b"a 1 2\n\xff 1 2\n\xfe 3 4\nb 1 2\n")
    assert read_words(str(tmp_path / "bytes.txt")) == ["a", "b"], "what no text contains is left out"
    with pytest.raises(DataError, match="does not exist"):
        read_words(str(tmp_path / "none.txt"))


@pytest.mark.slow
def test_real_pairs(shared: Path) -> None:
    """All of SNLI's dev split; words of it that training does not have are known by their vectors."""
    glove = str(shared / "data" / "glove" / "glove.6B.50d.subset.txt.gz")
    module = EntailmentDataModule(str(shared / "data" / "snli"), val="dev", vectors=glove, train_size=8000)
    module.setup("fit")
    assert module.size("val") == 9842
    assert torch.bincount(torch.tensor(module.texts("val")["label"])).tolist() == [3329, 3235, 3278]
    vectors, known = module.vectors()  # type: ignore[misc]
    assert vectors.shape == (50_000, 50)
    batch = module.fetch("val", 0, torch.arange(9842))
    there = torch.cat([batch[role][batch[role] != 0] for role in ("premise", "hypothesis")])
    assert float(known[there].float().mean()) > 0.995
    beyond = [number for number, token in enumerate(module.vocabularies["text"]) if token == "foosball"]
    assert known[beyond].all()


@pytest.mark.parametrize(("name", "size"), [("sick_dev", 500), ("mnli_subset_val", 5000), ("cad_snli_dev", 1000)])
def test_other_real_pairs(name: str, size: int, shared: Path) -> None:
    module = EntailmentDataModule(str(shared / "data" / "nli_extra"), val=name)
    module.setup("validate")
    assert module.size("val") == size
    assert len(set(module.texts("val")["label"])) == 3
