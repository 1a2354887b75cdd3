"""What is printed while a command runs, and its scores."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytorch_lightning.callbacks import ModelSummary, TQDMProgressBar
from rich.console import Console

from lit_sparse.cli import main
from lit_sparse.cli.best_metrics import ordered
from lit_sparse.cli.callbacks import not_named
from lit_sparse.cli.progress import Parts, Watch, _drawing
from lit_sparse.lightning.choice import pl
from tests.conftest import Command, metrics_of

pty = pytest.importorskip("pty", reason="needs a pseudo terminal")

DIGITS = ("-c", "ssvae/digits", "--trainer.accelerator=cpu")
SHORT = (
    "fit",
    *DIGITS,
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.log_every_n_steps=1",
)


@pytest.mark.gate
def test_a_line_for_each_epoch_and_the_scores_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    logged = metrics_of(Path("runs/ssvae/digits/0"))
    assert first == lines[-1] == "run folder: runs/ssvae/digits/0"
    parts = "risk Mean, mapping Sparsemax, estimator Marginalize"
    assert " ".join(lines[:2]) == f"SemiSupervisedVAE ({parts}) on DigitsDataModule, 206,170 parameters"
    assert lines[2].startswith("epoch 1/2")
    one, two = (line for line in lines if line.startswith("epoch "))
    assert re.fullmatch(rf"epoch 1/2  \d:\d\d:\d\d left  train/loss {logged['train/loss'][0]:.4g}", one)
    validated = (f"{name} {logged[name][0]:.4g}" for name in ("val/accuracy", "val/loss"))
    told = rf"epoch 2/2  took \d:\d\d:\d\d  train/loss {logged['train/loss'][1]:.4g} *  {' *  '.join(validated)}"
    assert re.fullmatch(told, two)

    assert main(["test", *DIGITS, "--ckpt_path=last", "--quiet"]) == 0
    title, *scores, last = capsys.readouterr().out.splitlines()
    assert title == "test scores:"
    assert [line.split()[0] for line in scores[:3]] == ["test/accuracy", "test/loss", "test/nelbo"]
    assert not [line for line in scores if re.search("_p10|_median|examples", line)]
    assert last == "run folder: runs/ssvae/digits/0/test/0"


@pytest.mark.gate
def test_lightning_says_little_of_a_usual_run(lit_sparse: Command) -> None:
    said = lit_sparse(*SHORT).stderr
    assert not [text for text in ("Seed set", "GPU available: False", "stopped:") if text in said]


@pytest.mark.gate
def test_only_results_are_printed_if_asked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--quiet", "--trainer.callbacks+=TQDMProgressBar"]) == 0
    out, error = capfd.readouterr()
    assert out.startswith("best validation: ")
    assert out.count("run folder: ") == 1
    assert error == ""
    assert "quiet" not in Path("runs/ssvae/digits/0/config.yaml").read_text()


@pytest.mark.gate
def test_a_bar_in_a_terminal_of_80_columns() -> None:
    process, terminal = pty.fork()
    if not process:
        os.environ.update(TERM="xterm", COLUMNS="80")
        os.execv(sys.executable, [sys.executable, "-m", "lit_sparse", *SHORT])
    text = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            text += piece
    except OSError:  # the end, on Linux
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "\n", text.decode())
    lines = [line for line in re.split(r"[\r\n]+", shown) if line]
    assert any(re.match(r"epoch 2/2 ", line) for line in lines)
    metrics = [line for line in lines if re.match(r"train/loss \S+ *  val/accuracy \S+ *  val/loss \S+$", line)]
    assert metrics
    assert all(len(line) <= 80 for line in lines[: lines.index(metrics[-1])])


@pytest.mark.parametrize("limits", [(10, -1), (-1, 100), (1000, 100)])
def test_the_time_left_is_told_by_what_was_done_since_the_start(
    limits: tuple[int, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is continued after a fifth, and a tenth takes 30 s; seven tenths are left."""
    now = 5.0
    monkeypatch.setattr("lit_sparse.cli.progress.time", SimpleNamespace(monotonic=lambda: now))
    places = {"max_epochs": limits[0], "max_steps": limits[1], "current_epoch": 2, "global_step": 20}
    trainer: Any = SimpleNamespace(**places, callback_metrics={})
    watch, module = Watch(), pl.LightningModule()
    watch.on_train_start(trainer, module)
    now, trainer.global_step = 35.0, 30
    watch.on_train_epoch_end(trainer, module)
    watch.on_train_epoch_start(trainer, module)
    assert capsys.readouterr().out.endswith("  0:03:30 left\n")


@pytest.mark.parametrize("width", [30, 80])
def test_the_bar_shows_as_many_metrics_as_it_has_room_for(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    texts = [f"val/a_rather_long_name_{number} 0.5" for number in range(3)]
    console.print(_drawing(width, "epoch 3/9", 0.25, "0:00:12 left", texts))
    bar, metrics = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert re.fullmatch(r"epoch 3/9 ━.* 0:00:12 left", bar)
    assert len(bar) == width
    assert metrics == "  ".join(texts[: width // 30])


@pytest.mark.parametrize(("own", "named"), [(Watch(), TQDMProgressBar()), (Parts(pl.LightningModule(), None), ModelSummary())])
def test_a_config_replaces_the_bar_and_the_table(own: Any, named: Any) -> None:
    assert not_named([own], named) == []
    assert not_named([own], None) == [own]


def test_scores_of_a_model_precede_their_components_and_counts() -> None:
    class Model:
        monitor = ("val/accuracy", "max")
        val_metrics = ("loss", "accuracy", "bleu", "chrf")

    names = ["bleu", "bleu_bp", "bleu_precision1", "support_size_mean", "chrf", "loss", "perplexity", "accuracy", "loss_step"]
    found = ordered([f"test/{name}" for name in names], Model())
    expected = ["accuracy", "loss", "bleu", "chrf", "perplexity", "bleu_bp", "bleu_precision1", "support_size_mean"]
    assert found == [f"test/{name}" for name in expected]
