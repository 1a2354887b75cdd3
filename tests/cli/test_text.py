"""Models of text from the command line: what is written, what is drawn, and the messages for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_sparse.cli import main
from lit_sparse.text import Vocabulary
from tests.conftest import CONFIGS, ROOT, metrics_of
from tests.data.pairs import write_pairs

TRANSLATION = ("-c", str(ROOT / "tests" / "support" / "translation.yaml"))
SNLI = ("-c", str(CONFIGS / "entailment" / "snli_small.yaml"))
SHORT = ("--trainer.max_epochs=1",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for split, number in (("train", 30), ("val", 6), ("test", 5)):
        write_pairs(tmp_path / "pairs", split, number)
    return tmp_path


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:.*truncated to max_test_length")
def test_a_run_holds_vocabularies_pictures_signatures_and_predictions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *TRANSLATION]) == 0
    run = here / "runs" / "translation" / "0"
    assert len(Vocabulary.load(run / "vocabularies" / "source.json")) > 10
    assert list((run / "pictures" / "attention").glob("*.svg"))
    config = ("-c", str(run / "config.yaml"), "--ckpt_path", "best")
    assert main(["test", *config]) == 0
    lines = (run / "test" / "0" / "signatures.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["bleu", "chrf", "rouge20"]
    assert len(list((run / "test" / "0" / "pictures" / "attention").glob("*.png"))) == 4
    hostile = ["ein Hund", "", "läuft " * 10_000, "😀", "שלום", "ein\u0000Hund", "a\u2028b", "Haus\r"]
    (here / "in.txt").write_bytes(("\n".join(hostile) + "\n").encode())
    drawn = ("--trainer.callbacks=TextPredictionWriter", "--trainer.callbacks.attention=true")
    assert main(["predict", *config, "--data.init_args.predict=in.txt", *drawn]) == 0
    assert (run / "predict" / "0" / "predictions.txt").read_text(encoding="utf-8").count("\n") == len(hostile)
    rows = [json.loads(line) for line in (run / "predict" / "0" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["index"] for row in rows] == list(range(len(hostile)))
    assert rows[0]["source_tokens"] == ["ein", "hund"]
    assert len(rows[0]["attention"]) == len(rows[0]["output_tokens"])
    capsys.readouterr()
    (here / "in.txt").write_bytes(b"gut\n\n\xff\n")
    assert main(["predict", *config, "--data.init_args.predict=in.txt"]) == 2
    assert "line 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (("train.en", "one line\n"), (), ("train.de 30", "train.en 1")),
        (None, ("--data.init_args.source=fr",), ("train.fr",)),
        (None, ("--data.init_args.path=./pears",), ("./pears", "Did you mean 'pairs'")),
        (("train.jsonl", '{"de": "a", "english": "b"}\n'), ("--data.init_args.train=train.jsonl",), ("'en'", "de, english")),
        (None, ("--data.init_args.source_vocabulary.kind=word",), ("word", "Did you mean 'words'")),
        (None, ("--data.init_args.source_vocabulary=null",), ("Expected `source_vocabulary` to be a dict but got 'null'",)),
        (None, ("--data.init_args.target_vocabulary=[]",), ("Expected `target_vocabulary` to be a dict but got '[]'",)),
        (None, ("--model.init_args.body=TransformerBdy",), ("Did you mean 'TransformerBody'",)),
        (None, ("--model.init_args.metrics=[Blue]",), ("Did you mean 'Bleu'",)),
        (None, ("--model.init_args.body.init_args.width=0",), ("width",)),
        pytest.param(None, ("--data.init_args.predict=nothing.txt",), (), marks=pytest.mark.gate),
    ],
)
def test_bad_input_is_refused_in_one_message(
    change: tuple[str, str] | None,
    options: tuple[str, ...],
    words: tuple[str, ...],
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if change is not None:
        (here / "pairs" / change[0]).write_text(change[1])
    status = main(["fit", *TRANSLATION, *SHORT, *options])
    message = capsys.readouterr().err
    assert status == (2 if words else 0), message
    for word in words:
        assert word in message
    if words:
        assert not (here / "runs").exists() or not list((here / "runs").rglob("metrics.csv"))


@pytest.mark.slow
def test_a_vocabulary_that_does_not_match_the_checkpoint_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *TRANSLATION, *SHORT]) == 0
    Vocabulary.build(["other words"]).save(here / "other.json")
    given = "--data.init_args.source_vocabulary.file=other.json"
    assert main(["test", *TRANSLATION, given, "--ckpt_path", "best"]) == 2
    assert "vocabulary of the checkpoint" in capsys.readouterr().err
    # the vocabularies of the training text are not made again: other training text changes nothing
    write_pairs(here / "pairs", "train", 3, seed=9)
    assert main(["test", *TRANSLATION, "--ckpt_path", "best"]) == 0
    own = str(here / "runs" / "translation" / "0" / "vocabularies" / "source.json")
    assert main(["test", *TRANSLATION, f"--data.init_args.source_vocabulary.file={own}", "--ckpt_path", "best"]) == 0


@pytest.mark.slow
def test_a_trained_model_writes_otherwise_when_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How it searches and is scored is not what it has learnt; its layers are."""
    assert main(["fit", *TRANSLATION, *SHORT]) == 0
    capsys.readouterr()
    best = ("--ckpt_path", "best")
    options = ("--model.init_args.beam_size=3", "--model.init_args.n_best", "3", "--model.init_args.metrics=[ChrF]")
    assert main(["predict", *TRANSLATION, *options, *best]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: model")]
    assert [line.split()[1] for line in notes] == [f"model.init_args.{name}" for name in ("beam_size", "n_best", "metrics")]
    assert "model.init_args.n_best was 1 when" in notes[1]
    folder = here / "runs" / "translation" / "0" / "predict" / "0"
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert {len(row["outputs"]) for row in rows} == {3}
    assert main(["test", *TRANSLATION, *options, *best]) == 0
    logged = metrics_of(here / "runs" / "translation" / "0" / "test" / "0")
    assert "test/chrf" in logged
    assert "test/bleu" not in logged
    assert main(["test", *TRANSLATION, "--model.init_args.tied_embeddings=true", *best]) == 2
    assert "leave the option out. These may differ: beam_size, length_penalty" in capsys.readouterr().err


def test_data_of_another_model_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"premise": "A man.", "hypothesis": "A man?", "label": "neutral"}] * 3
    for split in ("train", "val", "test"):
        (here / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "data.yaml").write_text("data: {class_path: EntailmentDataModule, init_args: {path: .}}\n")
    (here / "model.yaml").write_text("model: {class_path: Seq2Seq, init_args: {mapping: Softmax}}\n")
    assert main(["fit", "-c", "model.yaml", "-c", "data.yaml", *SHORT]) == 2
    assert "Expected the vocabularies source and target for Seq2Seq but got text" in capsys.readouterr().err


@pytest.mark.cases(quick=2, gate=99)
@pytest.mark.parametrize(
    ("row", "vectors", "words"),
    [
        ({"label": "maybe"}, "", ("row 2", "'maybe'", "entailment, neutral, contradiction")),
        ({"label": 7}, "", ("row 2", "7", "0 .. 2")),
        ({}, "a 1 2\n", ("vectors.txt", "50", "2")),
        ({}, "a x y z\n", ("vectors.txt", "line 1")),
        ({"gold": 1}, None, ("vectors.txt",)),
    ],
)
def test_bad_entailment_data_are_refused(
    row: dict[str, object], vectors: str | None, words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"premise": "A man.", "hypothesis": "A man?", "label": "neutral"}
    for split in ("train", "dev", "test"):
        rows = [good, {**good, **(row if split == "train" else {})}]
        (here / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if vectors is not None:
        (here / "vectors.txt").write_text(vectors or " ".join(["a", *["0.1"] * 50]) + "\n")
    data = ("--data.init_args.path=.", "--data.init_args.vectors=vectors.txt", "--trainer.enable_progress_bar=false")
    assert main(["fit", *SNLI, *data, *SHORT]) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message
