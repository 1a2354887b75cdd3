"""The scripts of attention models run, and what is timed against the package computes the same."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.mappings import Fusedmax, Softmax, Sparsemax
from lit_sparse.models import EntailmentClassifier, Seq2Seq
from lit_sparse.nn import RecurrentBody
from lit_sparse.text import Vocabulary

from .test_scripts import assert_picture, load

SIZES = {"width": 8, "layers": 2, "vocabulary": 30, "device": "cpu"}


def test_what_is_written_by_hand_computes_the_same() -> None:
    script = load("benchmark_attention")
    options = argparse.Namespace(**SIZES)
    data = script.RandomPairs(70, options.vocabulary)
    ours = script.model_of(Softmax(), options).build(data.vocabularies).eval()
    plain = script.ByHand(options.width, options.layers, options.vocabulary).eval()
    names = {"source": "source_embedding", "target": "target_embedding", "output": "output"}
    for name, its in names.items():
        getattr(plain, name).load_state_dict(getattr(ours, its).state_dict())
    for name in ("encoder", "score", "merge"):
        getattr(plain, name).load_state_dict(getattr(ours.body, name).state_dict())
    for layer, parameters in enumerate(ours.body.decoder.all_weights):
        for name, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), parameters, strict=True):
            getattr(plain.cells[layer], name).data.copy_(value.data)
    batch = next(iter(data.train_dataloader()))
    expected = ours.run_step(batch, 0, "train")["loss"]
    torch.testing.assert_close(plain(batch["source"], batch["source_length"], batch["target"]), expected)


@pytest.mark.gate
def test_benchmark_attention_prints_its_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_attention")
    monkeypatch.setattr(script, "WARM_UP", 1)
    threads = torch.get_num_threads()
    sizes = [f"--{name}={value}" for name, value in SIZES.items()]
    try:
        script.main([*sizes, "--steps=2", "--rounds=1", f"--threads={threads}", "--lengths=70", "--heads=2", "--deviations=1"])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    for mapping in script.MAPPINGS:
        assert f"| {mapping} |" in printed
    assert "ratio, median" in printed
    assert "seconds for 1,000 sentences" in printed
    assert "| 70 | 1.0 | True | 1 | entmax 1.5, sparse |" in printed


@pytest.fixture
def checkpoints(tmp_path: Path) -> dict[str, str]:
    """Untrained models of both kinds, saved."""
    words = Vocabulary.build(["ein Hund läuft über die Straße", "a dog runs"])
    recurrent = Seq2Seq(Fusedmax(), RecurrentBody(8, 1)).build({"source": words, "target": words})
    other = Seq2Seq(Sparsemax(), RecurrentBody(8, 1)).build({"source": words, "target": words})
    classifier = EntailmentClassifier(Sparsemax(), width=8, vector_size=5).build({"text": words})
    paths = {}
    for name, model in (("fusedmax", recurrent), ("sparsemax", other), ("classifier", classifier)):
        trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        trainer.strategy.connect(model)
        paths[name] = str(tmp_path / f"{name}.ckpt")
        trainer.save_checkpoint(paths[name])
    return paths


@pytest.mark.gate
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_attention_of_checkpoints_is_drawn(ending: str, checkpoints: dict[str, str], tmp_path: Path) -> None:
    script = load("plot_attention")
    (tmp_path / "lines.txt").write_text("ein Hund\ndie Straße läuft über\n", encoding="utf-8")
    (tmp_path / "pairs.txt").write_text("A dog runs\tA dog\n", encoding="utf-8")
    writers = [f"{name}={checkpoints[name]}" for name in ("fusedmax", "sparsemax")]
    for arguments, examples in ((writers, "lines.txt"), ([f"x={checkpoints['classifier']}"], "pairs.txt")):
        path = tmp_path / f"new/{examples}.{ending}"
        assert script.main([*arguments, "--examples", str(tmp_path / examples), "--output", str(path)]) == 0
        assert_picture(path)


def test_cells_have_one_size_and_lines_are_chosen_by_a_rule(checkpoints: dict[str, str], tmp_path: Path) -> None:
    script = load("plot_attention")
    path = tmp_path / "lines.txt"
    path.write_text("ein\n\nein Hund\ndie Straße läuft über\nein Hund läuft über die Straße\nder Hund\n", encoding="utf-8")
    assert script.lines_of(str(path), 2, 4) == ["ein Hund", "die Straße läuft über", "der Hund"]
    assert len(script.lines_of(str(path), 0, 9)) == 5
    models = {name: script.model_of(checkpoints[name]) for name in ("fusedmax", "sparsemax")}
    with torch.no_grad():
        rows = [[script.panel_of(*pair, line, None) for pair in models.items()] for line in ("ein Hund", "die Straße läuft")]
    figure = script.figure_of(rows)
    assert [axis.get_title("left") for axis in figure.axes] == ["fusedmax", "sparsemax"] * 2
    for axis, (_, panel, _) in zip(figure.axes, [panel for row in rows for panel in row], strict=True):
        box = axis.get_window_extent()
        inches = box.width / figure.dpi / len(panel.source), box.height / figure.dpi / len(panel.output)
        assert inches == pytest.approx((script.CELL, script.CELL))
    boxes = [axis.get_window_extent() for axis in figure.axes]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_mistakes_are_explained(checkpoints: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("plot_attention")
    (tmp_path / "lines.txt").write_text("no tab\n", encoding="utf-8")
    torch.save({"hyper_parameters": {"_class_path": "lit_sparse.models.SignalingGame"}}, tmp_path / "game.ckpt")
    for checkpoint, words in (
        (checkpoints["classifier"], "parted by a tab"),
        (str(tmp_path / "none.ckpt"), "not a checkpoint"),
        (str(tmp_path / "game.ckpt"), "does not attend to text"),
        ("", "Expected NAME=CHECKPOINT"),
        (f"{checkpoints['fusedmax']} --words 3 9", "Expected lines of 3 to 9 words"),
    ):
        arguments = [*f"x={checkpoint}".split(), "--examples", str(tmp_path / "lines.txt"), "--output", str(tmp_path / "x.png")]
        assert script.main(arguments) == 2
        assert words in capsys.readouterr().err
