"""The table of the best validation at the end of a training."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lit_sparse.cli import main
from lit_sparse.cli.best_metrics import best_metrics, monitor_of, ordered
from tests.conftest import metrics_of

QUICK = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu")
DIGITS = (
    "fit",
    "-c",
    "ssvae/digits",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=2",
    "--trainer.log_every_n_steps=1",
    *QUICK,
)


def table(text: str) -> tuple[str, dict[str, str]]:
    """Return the title and the entries of the table in an output."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("best validation"))
    end = next(place for place, line in enumerate(lines) if line.startswith("test with"))
    return lines[start], dict(line.split() for line in lines[start + 1 : end])


@pytest.mark.gate
def test_it_describes_the_best_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIGITS, "--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=1"]) == 0
    out = capsys.readouterr().out
    title, entries = table(out)
    run = Path("runs/ssvae/digits/0")
    checkpoint = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    (score,) = [state["best_model_score"] for state in checkpoint["callbacks"].values() if state.get("monitor")]
    assert title == f"best validation: epoch {checkpoint['epoch'] + 1}, largest val/accuracy"
    assert next(iter(entries)) == "val/accuracy"
    assert float(entries["val/accuracy"]) == pytest.approx(float(score), rel=1e-4)
    assert 2 <= len(entries) <= 6
    logged = metrics_of(run)
    for name, value in entries.items():
        assert float(value) == pytest.approx(logged[name][checkpoint["epoch"]], rel=1e-4)
    assert not [name for name in entries if name.endswith(("_p10", "_total", "/examples"))]
    assert len({len(line) for line in out.splitlines() if line.startswith("  val/")}) == 1, "columns are aligned"
    assert out.splitlines()[-1] == f"run folder: {run}"


@pytest.mark.gate
def test_a_continued_run_that_had_ended_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", "-c", "soae/digits", *DIGITS[3:], "--trainer.max_epochs=1"]
    assert main(fit) == 0
    out = capsys.readouterr().out
    assert main([*fit, "--ckpt_path=last"]) == 0
    assert list(table(capsys.readouterr().out)[1].items()) == list(table(out)[1].items())


def test_a_training_without_a_validation_prints_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIGITS, "--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=5"]) == 0
    first, hint, last = capsys.readouterr().out.splitlines()
    assert first == last == "run folder: runs/ssvae/digits/0"
    assert hint.startswith("test with: ")


def test_the_first_of_equal_values_is_best_and_nan_never_is() -> None:
    rows = [{"epoch": i, "val/loss": value} for i, value in enumerate((math.nan, 2.0, 1.0, 1.0, 3.0))] + [{"train/loss": 0.0}]
    assert best_metrics(rows, "val/loss", "min")[0] == "best validation: epoch 3, least val/loss"
    assert best_metrics(rows, "val/loss", "max")[0] == "best validation: epoch 5, largest val/loss"
    assert best_metrics(rows[:1], "val/loss", "min") == []
    assert best_metrics(rows, "val/other", "min") == []


@pytest.mark.parametrize("monitor", [("val/loss", "min"), "val/loss", None, print])
def test_a_model_of_the_user_may_have_another_monitor(monitor: object) -> None:
    model = SimpleNamespace(monitor=monitor)
    assert monitor_of(model) == monitor_of(object()) == ("val/loss", "min")
    assert ordered(["val/accuracy", "val/loss"], model) == ["val/loss", "val/accuracy"]
