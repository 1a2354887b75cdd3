"""Runs that are continued after their folder was moved, or from a checkpoint in another folder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main

SMALL = ["trainer.accelerator=cpu", "trainer.check_val_every_n_epoch=1", "data.epoch_size=60", "data.batch_size=10"]
SMALL += ["data.val_size=60", "data.test_size=60", "data.eval_batch_size=30", "name=x", "trainer.log_every_n_steps=1"]


def fit(folder: str, epochs: int, *words: str) -> None:
    options = [f"--{word}" for word in (*SMALL, f"output_dir={folder}", f"trainer.max_epochs={epochs}")]
    assert main(["fit", "-c", "ssvae/digits", *options, *words]) == 0


def accuracies(run: Path) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["val/accuracy"]) for row in csv.DictReader(file) if row.get("val/accuracy")]


@pytest.mark.gate
def test_a_moved_run_keeps_its_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit("a", 1)
    (tmp_path / "a").rename("b")
    fit("b", 3, "--ckpt_path=last", "--model.init_args.optimizer.init_args.lr=1e-30")  # learns nothing more
    run = tmp_path / "b/x/0"
    found = accuracies(run)
    assert len(found) == 3
    assert max(found[1:]) <= found[0]
    assert torch.load(run / "checkpoints/best.ckpt", weights_only=True)["epoch"] == 0
    test = ["test", "-c", str(run / "config.yaml"), "--ckpt_path=best", "--trainer.accelerator=cpu"]
    assert main(test) == 0
    fit("c", 4, "--ckpt_path=b/x/0/checkpoints/best.ckpt")
    assert main([word.replace("b/x/0", "c/x/0") for word in test]) == 0
