"""Entailment: the network by itself, and the classifier under a Trainer in Python and on the command line."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lit_sparse.callbacks import AttentionPlot, CountLogger, TextPredictionWriter
from lit_sparse.cli import main
from lit_sparse.data import DigitsDataModule, EntailmentDataModule, ReferentialGameDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import Fusedmax, LearnableEntmax, Oscarmax, Softmax, SparseMapping, Sparsemax
from lit_sparse.models import EntailmentClassifier
from lit_sparse.text import VocabularyOptions
from tests.conftest import CONFIGS

CONFIG = CONFIGS / "entailment" / "snli_small.yaml"
MAPPINGS = [Softmax(), Sparsemax(gamma=0.2), Fusedmax(gamma=0.2), Oscarmax(0.05, gamma=0.2)]


def vectors(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(5, size, 6, generator=generator, dtype=torch.float64) for size in (5, 6))  # type: ignore[return-value]


#: The word of the premise that decides, wherever it stands, and what it decides.
CLUES = {"sleeps": "entailment", "eats": "neutral", "runs": "contradiction"}
ANIMALS = ("dog", "cat", "horse", "bird", "whale")


def pairs(size: int, seed: int) -> list[dict[str, Any]]:
    made, rng = [], random.Random(seed)
    for number in range(size):
        clue = sorted(CLUES)[number % 3]
        words = ["the", *rng.choices(ANIMALS, k=rng.randrange(1, 5)), clue]
        rng.shuffle(words)
        made.append({"premise": " ".join(words), "hypothesis": f"A {rng.choice(ANIMALS)}.", "label": CLUES[clue]})
    return made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tables, and of vectors for most of their words and for some others."""
    folder = tmp_path_factory.mktemp("pairs")
    for seed, (name, size) in enumerate((("train", 192), ("val", 30), ("test", 25))):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs(size, seed))))
    generator = torch.Generator().manual_seed(0)
    words = [*ANIMALS[:4], "sleeps", "eats", "the", ".", "zebra", "two words", "Whale", "swims"]
    rows = [f"{word} {' '.join(f'{x:.4f}' for x in torch.randn(8, generator=generator).tolist())}" for word in words]
    (folder / "words.8d.txt").write_text("\n".join(rows))
    return folder


def data(folder: Path, **options: Any) -> EntailmentDataModule:
    given = {"vectors": str(folder / "words.8d.txt"), "batch_size": 16, "eval_batch_size": 16, **options}
    return EntailmentDataModule(str(folder), **given)


def small(mapping: SparseMapping | None = None, **options: Any) -> EntailmentClassifier:
    torch.manual_seed(0)
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    return EntailmentClassifier(
        copy.deepcopy(mapping) or Sparsemax(), **{"width": 16, "vector_size": 8, "optimizer": adam, **options}
    )


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=folder, **{**quiet, "enable_checkpointing": False, **options})  # type: ignore[arg-type]


def file_vectors(folder: Path) -> dict[str, Tensor]:
    lines = [line.rsplit(" ", 8) for line in (folder / "words.8d.txt").read_text().splitlines()]
    return {word: torch.tensor([float(number) for number in numbers]) for word, *numbers in lines}


@pytest.mark.cases(quick=1)
@pytest.mark.parametrize("mapping", [*MAPPINGS, LearnableEntmax()], ids=repr)
def test_any_mapping_learns(mapping: SparseMapping, folder: Path, tmp_path: Path) -> None:
    model, fitting = small(mapping), trainer(tmp_path, max_epochs=5, callbacks=[CountLogger()])
    pl.seed_everything(0)
    fitting.fit(model, data(folder))
    logged = {name: float(value) for name, value in fitting.callback_metrics.items()}
    assert logged["val/accuracy"] > 0.9, "chance is 1 in 3"
    assert logged["val/pairs"] == 30
    assert (logged["val/zeros"] > 0.1) == (not isinstance(mapping, Softmax))
    assert 1 <= logged["val/groups_mean"] <= logged["val/support_size_mean"] <= 7
    for name, parameter in model.mapping.named_parameters():
        assert bool(parameter), f"{name} is learnt, too"


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[EntailmentClassifier, Path]:
    """A model after an epoch, and its checkpoint."""
    where = tmp_path_factory.mktemp("trained")
    model, fitting = small(Fusedmax(0.2, gamma=0.5)), trainer(where, max_epochs=1)
    fitting.fit(model, data(folder))
    fitting.save_checkpoint(where / "model.ckpt")
    return model.eval(), where / "model.ckpt"


def test_vectors_are_those_of_the_file_and_stay(trained: tuple[EntailmentClassifier, Path], folder: Path) -> None:
    model, _ = trained
    of_file, stoi = file_vectors(folder), model.vocabularies["text"].get_stoi()
    assert {"zebra", "swims"} <= set(stoi), "words with vectors are known though no training pair has them"
    assert not {"two words", "Whale"} & set(stoi), "what is no token, or is written otherwise, is not"
    weight = model.words.weight.detach()
    for word, number in stoi.items():
        if word in of_file:
            assert torch.equal(weight[number], of_file[word]), word
        elif word != "<pad>":
            assert 0 < float(weight[number].abs().max()) <= 0.05, "a short random vector, not trained either"
    assert not weight[stoi["<pad>"]].any()
    assert not model.words.weight.requires_grad
    again = small().build(model.vocabularies)
    module = data(folder)
    module.use_vocabularies(model.vocabularies)
    again.use_vectors(*module.vectors())  # type: ignore[misc]
    assert torch.equal(again.words.weight, model.words.weight), "they do not depend on the run"


def test_a_loaded_model_needs_no_file_of_vectors(
    trained: tuple[EntailmentClassifier, Path], folder: Path, tmp_path: Path
) -> None:
    model, path = trained
    loaded = EntailmentClassifier.load_from_checkpoint(path, weights_only=True).eval()
    assert repr(loaded.mapping) == repr(model.mapping)
    assert loaded.labels == model.labels
    assert not loaded.words.weight.requires_grad
    without = data(folder, vectors=None)
    without.use_vocabularies(loaded.vocabularies)
    batch = without.fetch("test", 0, torch.arange(25))
    found, expected = (one.predict_step(batch, 0) for one in (loaded, model))
    assert found["candidates"] == expected["candidates"]
    assert torch.equal(found["attention"], expected["attention"])
    assert bool((found["attention"] == 0).any())
    before = loaded.train().words.weight.detach().clone()
    trainer(tmp_path, max_epochs=1).fit(loaded, data(folder, vectors=str(folder / "gone.txt"), train_size=16))
    assert torch.equal(loaded.words.weight, before), "trained on, it keeps the vectors that it has"


def inputs(batch: dict[str, Any]) -> list[Tensor]:
    return [batch[name] for name in ("premise", "premise_length", "hypothesis", "hypothesis_length")]


def test_a_resumed_run_equals_one_that_was_not_cut(folder: Path, tmp_path: Path) -> None:
    whole = small()
    pl.seed_everything(0)
    trainer(tmp_path, max_epochs=2).fit(whole, data(folder))
    pl.seed_everything(0)
    cut = trainer(tmp_path, max_epochs=1)
    cut.fit(small(), data(folder))
    cut.save_checkpoint(tmp_path / "cut.ckpt")
    resumed = small()
    again = data(folder, vectors=str(folder / "gone.txt"))
    trainer(tmp_path, max_epochs=2).fit(resumed, again, ckpt_path=tmp_path / "cut.ckpt", weights_only=True)
    assert not resumed.words.weight.requires_grad
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, atol=1e-6, rtol=0)


def test_a_warm_start_takes_the_vectors_too(trained: tuple[EntailmentClassifier, Path], folder: Path, tmp_path: Path) -> None:
    model, path = trained
    warm = small(Softmax(), initial_weights=str(path))
    fitting = trainer(tmp_path, max_epochs=1)
    (tmp_path / "other.txt").write_text("dog 1 1 1 1 1 1 1 1")
    fitting.fit(warm, data(folder, vectors=str(tmp_path / "other.txt")))
    assert torch.equal(warm.words.weight, model.words.weight)
    assert not warm.words.weight.requires_grad
    assert not torch.equal(warm.network.output.weight, model.network.output.weight)


def test_without_a_file_vectors_are_learnt(folder: Path, tmp_path: Path) -> None:
    model = small()
    module = data(folder, vectors=None)
    model.build(module.vocabularies)
    before = model.words.weight.detach().clone()
    fitting = trainer(tmp_path, max_epochs=5)
    fitting.fit(model, module)
    moved = (model.words.weight - before).abs().amax(-1) > 1e-3
    text = model.vocabularies["text"]
    assert {text.lookup_token(int(i)) for i in moved.nonzero()} >= {*CLUES, *ANIMALS}
    assert not model.words.weight[text.pad].any()
    assert float(fitting.callback_metrics["val/accuracy"]) > 0.9
    fitting.save_checkpoint(tmp_path / "learnt.ckpt")
    assert EntailmentClassifier.load_from_checkpoint(tmp_path / "learnt.ckpt", weights_only=True).words.weight.requires_grad


def test_decay_and_fused_steps_leave_fixed_vectors_alone(folder: Path, tmp_path: Path) -> None:
    model = small(optimizer=functools.partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1, fused=True))
    module = data(folder)
    trainer(tmp_path, max_epochs=1, gradient_clip_val=1.0).fit(model, module)
    expected, known = module.vectors()  # type: ignore[misc]
    assert torch.equal(model.words.weight[known], expected[known])


def test_scores_do_not_depend_on_batches(trained: tuple[EntailmentClassifier, Path], folder: Path, tmp_path: Path) -> None:
    model, _ = trained
    runs = []
    for size in (4, 25):
        testing = trainer(tmp_path, callbacks=[CountLogger()])
        runs += testing.test(model, data(folder, eval_batch_size=size), verbose=False)
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)
    assert runs[0]["test/pairs"] == 25
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    found = model.classify([(row["premise"], row["hypothesis"]) for row in rows], batch_size=3)
    right = [one == row["label"] for one, row in zip(found, rows, strict=True)]
    assert runs[0]["test/accuracy"] == pytest.approx(sum(right) / 25)


def test_pairs_of_text_are_classified(trained: tuple[EntailmentClassifier, Path]) -> None:
    model, _ = trained
    some = [("the dog sleeps", "A cat."), ("", "A cat."), ("the dog", ""), ("", ""), ("unheard-of words", "?")]
    found = model.train().classify(some)
    assert model.training
    model.eval()
    assert set(found) <= set(model.labels)
    assert [model.classify([pair])[0] for pair in some] == found
    assert model.classify(pair for pair in some) == found
    assert model.classify([]) == []


def test_steps_say_what_was_looked_at(trained: tuple[EntailmentClassifier, Path], folder: Path) -> None:
    model, _ = trained
    module = data(folder)
    module.use_vocabularies(model.vocabularies)
    batch = module.fetch("val", 0, torch.tensor([4, 2, 9]))
    output = model.run_step(batch, 0, "val")
    scores, weights = model(*inputs(batch))
    losses = nn.functional.cross_entropy(scores, batch["label"], reduction="none")
    torch.testing.assert_close(output["loss"], losses.mean())
    torch.testing.assert_close(output["per_example"]["loss"], losses)
    assert torch.equal(output["support_size"], (weights > 0).sum(-1))
    assert torch.equal(output["num_allowed"], batch["premise_length"])
    zeros = [(row[:length] == 0).float().mean() for row, length in zip(weights, batch["premise_length"], strict=True)]
    torch.testing.assert_close(output["per_example"]["zeros"], torch.stack(zeros))
    drawn = output["artifacts"]
    assert drawn["attention"].shape == (3, 1, batch["premise"].shape[1])
    assert [" ".join(tokens) for tokens in drawn["source_tokens"]] == [text.lower() for text in batch["premise_text"]]
    assert drawn["output_tokens"] == [[model.labels[int(row.argmax())]] for row in scores]
    assert drawn["index"].tolist() == [4, 2, 9]
    wanted = zip(batch["hypothesis_text"], batch["label"], strict=True)
    assert drawn["title"] == [f"{text} ({model.labels[int(label)]})" for text, label in wanted]
    del batch["hypothesis_text"]
    assert model.run_step(batch, 0, "val")["artifacts"]["title"][0].lower() == drawn["title"][0].lower()
    assert not model.run_step(batch, 0, "train")["artifacts"]


def test_pictures_and_predictions_are_written(trained: tuple[EntailmentClassifier, Path], folder: Path, tmp_path: Path) -> None:
    model, _ = trained
    plot = AttentionPlot(examples=[3, 11], formats=("png",), folder=str(tmp_path))
    trainer(tmp_path, callbacks=[plot]).test(model, data(folder), verbose=False)
    assert sorted(path.name for path in (tmp_path / "pictures" / "attention").iterdir()) == ["11.png", "3.png"]
    writer = TextPredictionWriter(folder=str(tmp_path), attention=True)
    trainer(tmp_path, callbacks=[writer]).predict(model, data(folder, eval_batch_size=4))
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    sources = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == [f"{row['premise']}\t{row['hypothesis']}" for row in sources]
    lines = (tmp_path / "predictions.txt").read_text().splitlines()
    assert lines == model.classify([(row["premise"], row["hypothesis"]) for row in sources])
    for row, line in zip(rows, lines, strict=True):
        scores = [one["score"] for one in row["outputs"]]
        assert sum(scores) == pytest.approx(1)
        assert scores == sorted(scores, reverse=True)
        assert row["outputs"][0]["text"] == line == row["output_tokens"][0]
        assert sum(row["attention"][0]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: small(width=0), "`width`"),
        (lambda: small(vector_size=0), "`vector_size`"),
        (lambda: small(dropout=1.0), "`dropout`"),
        (lambda: small(gate_bias=float("nan")), "`gate_bias`"),
        (lambda: small(labels=("yes",)), "`labels` to be at least two different names"),
        (lambda: small(labels=("yes", "yes")), "`labels` to be at least two different names"),
        (lambda: small(labels="yes"), "`labels` to be at least two different names"),
        (lambda: small().classify([("a", "b")]), "Expected vocabularies for"),
        (lambda: small().use_vectors(torch.zeros(3, 8)), "Expected vocabularies for"),
    ],
)
def test_mistakes_are_explained(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_data_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    wide = small(vector_size=9)
    with pytest.raises(ConfigurationError, match=r"vector_size=9 but got 8 in the data\. Set the model's `vector_size` to 8"):
        trainer(tmp_path, max_epochs=1).fit(wide, data(folder))
    other = small(labels=("contradiction", "entailment", "neutral"))
    with pytest.raises(ConfigurationError, match=r"labels contradiction, entailment, neutral but got entailment, n"):
        trainer(tmp_path, max_epochs=1).fit(other, data(folder))
    with pytest.raises(ConfigurationError, match="Expected vocabularies for EntailmentClassifier"):  # its labels are None
        trainer(tmp_path, max_epochs=1).fit(small(), ReferentialGameDataModule(DigitsDataModule(binarize=False), candidates=2))


def run(*arguments: str) -> int:
    quiet = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1")
    return main([*arguments, *quiet])


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:CosineAnnealingLR.*does not reach its end")  # of a config that trains longer
def test_the_command_line_trains_tests_and_predicts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small config on other data; once trained, the model goes on without the file of vectors."""
    monkeypatch.chdir(tmp_path)
    moved = tmp_path / "words.8d.txt"
    moved.write_text((folder / "words.8d.txt").read_text())
    options = [f"--data.init_args.{name}" for name in (f"path={folder}", "val=val", "vector_size=8", "batch_size=16")]
    config = ("-c", str(CONFIG), *options, f"--data.init_args.vectors={moved}")
    model = ("--model.init_args.vector_size=8", "--model.init_args.width=16", "--model.init_args.mapping=Sparsemax")
    assert run("fit", *config, *model, "--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=1") == 0
    moved.unlink()
    runs = tmp_path / "runs" / "entailment" / "snli_small" / "0"
    (best,) = (path for path in (runs / "checkpoints").iterdir() if path.name != "last.ckpt")
    assert run("test", *config, "--ckpt_path", str(best)) == 0
    assert (
        run(
            "predict",
            *config,
            "--ckpt_path",
            str(best),
            "--trainer.callbacks=TextPredictionWriter",
            f"--trainer.callbacks.folder={tmp_path}",
        )
        == 0
    )
    loaded = EntailmentClassifier.load_from_checkpoint(best, weights_only=True)
    assert type(loaded.mapping) is Sparsemax
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    expected = loaded.classify([(row["premise"], row["hypothesis"]) for row in rows])
    assert (tmp_path / "predictions.txt").read_text().splitlines() == expected
    assert run("fit", *config, *model, "--trainer.max_epochs=4", "--ckpt_path", "last") == 0


@pytest.mark.slow
def test_real_pairs_and_vectors(shared: Path, tmp_path: Path) -> None:
    """A little of SNLI: better than guessing after a few steps, and the vectors of the file as they are."""
    glove = shared / "data" / "glove" / "glove.6B.50d.subset.txt.gz"
    module = EntailmentDataModule(
        str(shared / "data" / "snli"),
        val="dev",
        vectors=str(glove),
        train_size=1000,
        vocabulary=VocabularyOptions(max_size=6000),
    )
    model = small(Sparsemax(), vector_size=50, width=32, dropout=0.0)
    pl.seed_everything(0)
    fitting = trainer(tmp_path, max_epochs=6, limit_val_batches=4, check_val_every_n_epoch=6, num_sanity_val_steps=0)
    fitting.fit(model, module)
    assert float(fitting.callback_metrics["train/accuracy"]) > 0.55
    assert float(fitting.callback_metrics["val/accuracy"]) > 0.4, "chance is 1 in 3"
    text, wanted = model.vocabularies["text"], {b"the", b"woman", b"-", b"skateboarding", b"cello"}
    with gzip.open(glove) as file:
        for line in file:
            word, *numbers = line.split(b" ")
            if word in wanted:
                row = model.words.weight[text[word.decode()]]
                torch.testing.assert_close(row, torch.tensor([float(number) for number in numbers]), atol=0, rtol=0)
                wanted.remove(word)
    assert not wanted
