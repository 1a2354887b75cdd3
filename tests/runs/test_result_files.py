"""Files that runs have written are refused in one message unless they hold what the package writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader

from lit_sparse.cli.loggers import RowsBeforeCheckpoint, RunBoard, RunCSVLogger, run_loggers
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import CSVLogger, pl
from lit_sparse.runs.result_files import read_attention, read_metrics, read_png
from tests.ground.test_stored import ODD_KINDS, check_odd_refused, check_refused

ATTENTION = {"title": "", "source": ["a", "b"], "output": ["o"], "heads": [[[0, 0.5]]]}

BAD: dict[str, tuple[Callable[..., Any], bytes, str]] = {
    "attention, word": (read_attention, json.dumps(ATTENTION | {"heads": [[["x", 1]]]}).encode(), "a row of weights"),
    "attention, whole": (read_attention, json.dumps(ATTENTION | {"heads": [[[1, 0]]]}).encode(), "a row of weights"),
    "attention, large": (read_attention, json.dumps(ATTENTION | {"heads": [[[1e300, 0]]]}).encode(), "a row of weights"),
    "attention, row": (read_attention, json.dumps(ATTENTION | {"heads": [[[0.5]]]}).encode(), "a row of weights"),
    "attention, rows": (read_attention, json.dumps(ATTENTION | {"heads": [[]]}).encode(), "a row of weights"),
    "attention, heads": (read_attention, json.dumps(ATTENTION | {"heads": 3}).encode(), "a row of weights"),
    "attention, source": (read_attention, json.dumps(ATTENTION | {"source": "ab"}).encode(), "a row of weights"),
    "attention, tokens": (read_attention, json.dumps(ATTENTION | {"output": [1]}).encode(), "a row of weights"),
    "attention, title": (read_attention, json.dumps({**ATTENTION, "title": None}).encode(), "a title"),
    "attention, list": (read_attention, b"[]", "a title"),
    "picture": (read_png, b"<svg>", "a PNG picture in .* but got b'<svg>'"),
    "picture, huge": (read_png, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\1\0\0" * 2, "but got 65,536 x 65,536"),
    "picture, cut": (read_png, b"\x89PNG\r\n\x1a\n", "but got 0 x 0"),
}


@pytest.mark.parametrize(("read", "content", "message"), BAD.values(), ids=[*BAD])
def test_bad_content_is_refused(read: Callable[..., Any], content: bytes, message: str, tmp_path: Path) -> None:
    check_refused(read, content, message, tmp_path)


@pytest.mark.parametrize("read", [read_attention, read_png])
@pytest.mark.parametrize("kind", ODD_KINDS)
def test_only_plain_files_are_read(read: Callable[..., Any], kind: str, tmp_path: Path) -> None:
    check_odd_refused(read, kind, tmp_path)


def test_attention_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text(json.dumps(ATTENTION))
    assert read_attention(tmp_path / "0.json", tmp_path) == ATTENTION


def test_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert read_metrics(tmp_path) == []
    path.write_text("epoch,step,val/loss\n0,5,\n1,9,inf\n")
    assert read_metrics(tmp_path) == [{"epoch": 0.0, "step": 5.0}, {"epoch": 1.0, "step": 9.0, "val/loss": float("inf")}]
    for line, message in (("nan,1,1", "finite numbers in column 'epoch'"), ("1,2,abc", "column 'val/loss' in line 2")):
        path.write_text(f"epoch,step,val/loss\n{line}\n")
        with pytest.raises(ConfigurationError, match=message):
            read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("-1,1,1", "column 'epoch', at least 0"),
        ("0,-1,1", "column 'step', at least 0"),
        ("1,9,1\n0,12,1", "'val/loss' in order .* but got epoch 0, step 12 after epoch 1, step 9"),
        ("0,9,1\n1,5,1", "'val/loss' in order .* but got epoch 1, step 5 after epoch 0, step 9"),
        ("1,,1\n0,,1", "'val/loss' in order"),
        ("0,5,1\n0,5,\n0,5,2", r"one 'val/loss' at epoch 0, step 5 in .* but got 1\.0 and 2\.0"),
        ("0,5,nan\n0,5,2", "one 'val/loss'"),
    ],
)
def test_metrics_that_contradict_each_other_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"epoch,step,val/loss\n{lines}\n")
    (tmp_path / "config.yaml").write_text("trainer:\n  accumulate_grad_batches: 1\n")
    with pytest.raises(ConfigurationError, match=message):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        "0,5,1,\n0,5,,2\n0,5,1,\n1,5,2,",  # training, validation, a row that was logged ahead
        "0,0,,1\n,0,1,\n,0,2,\n0,9,,1\n,1,1,",  # a callback's rows, and steps that a model logs, have no epoch
        "0,9,nan,\n0,9,nan,",
        "0,49,,1\n0,0,1,\n0,99,,1\n1,1,2,",  # each column is in order
    ],
)
def test_metrics_as_lightning_logs_them(lines: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"epoch,step,val/loss,train/loss\n{lines}\n")
    assert len(read_metrics(tmp_path)) == lines.count("\n") + 1


def test_validations_before_a_step_is_complete_are_logged_at_one_step(tmp_path: Path) -> None:
    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(batch).sum()
            return found

        def validation_step(self, batch: torch.Tensor) -> None:
            self.log("val/loss", float(self.trainer.fit_loop.batch_idx))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    options: dict[str, Any] = {"accumulate_grad_batches": 2, "val_check_interval": 1, "max_epochs": 1, "log_every_n_steps": 1}
    quiet: dict[str, Any] = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    data = DataLoader(torch.ones(2, 1))
    pl.Trainer(accelerator="cpu", logger=RunCSVLogger(str(tmp_path)), **options, **quiet).fit(Model(), data, data)
    with pytest.raises(ConfigurationError, match="one 'val/loss' at epoch 0, step 0"):
        read_metrics(tmp_path)
    (tmp_path / "config.yaml").write_text("trainer:\n  accumulate_grad_batches: 2\n")
    assert [line["val/loss"] for line in read_metrics(tmp_path) if "val/loss" in line] == [0, 1]


def test_columns_have_printable_names(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,val/\x1b[31mloss\n0,1\n")
    with pytest.raises(ConfigurationError, match="printable"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"epoch,step\n0,x\n", b"epoch,step\n0,1,2\n", b"epoch,step\n\xff,1\n", b'epoch,step\n"' + b"a" * 200_000 + b"\n"],
)
def test_a_continued_run_reads_its_metrics_with_the_same_checks(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"metrics\.csv"):
        RunCSVLogger(str(tmp_path), kept=1).experiment  # noqa: B018
    assert (tmp_path / "metrics.csv").read_bytes() == content


def test_csv_files_of_the_user_lose_no_row_to_a_kill_or_a_test(tmp_path: Path) -> None:
    for step in range(2):  # of two processes, as Lightning would delete the file and hold back rows
        trainer = pl.Trainer(logger=run_loggers(tmp_path / "run", CSVLogger(tmp_path, "", ""), (None, None), step, False))
        trainer.loggers[1].log_metrics({"loss": 1.0}, step)
        RowsBeforeCheckpoint().on_save_checkpoint(trainer, pl.LightningModule(), {})
        assert len(read_metrics(tmp_path)) == step + 1
    (tmp_path / "metrics.csv").write_text("odd\n1,2\n")  # a new run replaces it, as in Lightning
    run_loggers(tmp_path / "run", new := CSVLogger(tmp_path, "", ""), (None, None), None, True)
    new.log_metrics({"loss": 1.0}, 0)
    new.save()
    assert len(read_metrics(tmp_path)) == 1


def test_a_continued_table_has_all_rows_of_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step\n0,1\n")
    with pytest.raises(ConfigurationError, match=r"Expected 2 rows in .* but got 1"):
        RunCSVLogger(str(tmp_path), kept=2).experiment  # noqa: B018


def test_a_checkpoint_with_too_small_a_number_of_rows_loses_none(tmp_path: Path) -> None:
    table = "epoch,step,loss\r\n0,0,1\r\n,1,2\r\n0,1,3\r\n0,1,\r\n0,2,5\r\n"  # one at a step of the user's
    (tmp_path / "metrics.csv").write_text(table, newline="")
    RunCSVLogger(str(tmp_path), 4, 2, 2).experiment  # noqa: B018
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"], "the row of the checkpoint's own step is logged again"
    assert len(read_metrics(tmp_path)) == 4
    RunCSVLogger(str(tmp_path), 1, 2, 2).experiment  # noqa: B018
    assert len((tmp_path / "metrics_4.csv").read_text().splitlines()) == 5
    assert len(read_metrics(tmp_path)) == 1


def test_curves_stay_whole_when_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for start, now in enumerate((3e9, 2e9, 1e9)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        board = RunBoard(str(tmp_path), start or None)
        for step in range(start, 3):
            board.log_metrics({"loss": float(start)}, step)
        board.finalize("success")
    assert [event.value for event in EventAccumulator(str(tmp_path)).Reload().Scalars("loss")] == [0, 1, 2]
