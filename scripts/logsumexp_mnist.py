"""Train on MNIST with wrong labels by three objectives, one image an update; used by reproduce_logsumexp.py (Figure 4)."""

from __future__ import annotations

import argparse
import csv
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from compare_runs import COLORS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from lit_sparse.cli import build_cli
from lit_sparse.errors import DataError
from lit_sparse.risks import UnbalancedOTDRO

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "robust"
#: Name -> name of its runs, and overlay.
ARMS = {"mean": ("mnist_mean", "mean"), "safe KL": ("mnist", None), "exponentials": ("mnist_exponential", "exponential")}
FIELDS = ("step", "train_loss", "val_accuracy", "test_accuracy", "overflows")
ROBUST_EXAMPLES, VAL_EXAMPLES = 300, 2000


class Curves(pl.Callback):
    """Write what is drawn, at the first step and after every so many, to a file that a continued run goes on with.

    Args:
        path: path of the file.
        every: interval in steps.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.path = path
        self.every = every

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        kept = [row for row in rows_of(self.path) if int(row["step"]) <= trainer.global_step]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)
        if not kept:
            self._measure(trainer, pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step % self.every == 0:
            self._measure(trainer, pl_module)

    def _measure(self, trainer: pl.Trainer, model: Any) -> None:
        data: Any = trainer.datamodule
        data.setup("test")
        model.eval()
        rows = {
            "step": trainer.global_step,
            "train_loss": robust_loss(model, data.fetch("train", 0, torch.arange(ROBUST_EXAMPLES))),
            "val_accuracy": accuracy(model, data.fetch("val", 0, torch.arange(VAL_EXAMPLES))),
            "test_accuracy": accuracy(model, data.fetch("test", 0, torch.arange(data.size("test")))),
            "overflows": int(model.risk.measurements().get("overflows", 0)),
        }
        model.train()
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(rows)


@torch.no_grad()
def accuracy(model: Any, batch: dict[str, Tensor]) -> float:
    """Return the share of images whose label is found."""
    found = torch.cat([model(pixels).argmax(1) for pixels in batch["pixels"].split(1000)])
    return float((found == batch["label"]).double().mean())


def robust_loss(model: Any, batch: dict[str, Tensor]) -> float:
    """Return ``kappa beta log mean exp`` of the losses of perturbed images minus their cost, kappa = beta = 1 (equation 20)."""
    adversary = UnbalancedOTDRO(1.0, 1.0, 0.1)

    def losses_at(pixels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(model(pixels), batch["label"], reduction="none")

    moved, cost = adversary.perturb(losses_at, batch["pixels"])
    with torch.no_grad():
        losses = (losses_at(moved) - cost).double()
    return float(torch.logsumexp(losses, 0) - math.log(len(losses)))


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def train_all(own: argparse.Namespace, options: Sequence[str]) -> int:
    """Train unfinished runs, and write table and curves of finished ones."""
    for arm, (run, risk) in ARMS.items():
        overlay = () if risk is None else ("-c", str(CONFIGS / "risk" / f"{risk}.yaml"))
        for seed in own.seeds if not own.only_tables and arm in own.arms else ():
            train(own.output / f"mnist_{run}_{seed}", seed, own.every, (*overlay, *options))
    write(own)
    return 0


def train(folder: Path, seed: int, every: int, options: Sequence[str]) -> None:
    """Train one network, from where a killed run stands."""
    if (folder / "done").exists():
        return
    torch.set_num_threads(1)
    words = ("--seed_everything", str(seed), "--data.init_args.seed", str(seed), "--trainer.logger", "false")
    words += ("--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "0", "--trainer.accelerator", "cpu")
    words += ("--trainer.enable_checkpointing", "false")  # ours is added below
    cli: Any = build_cli(["fit", "-c", str(CONFIGS / "mnist.yaml"), *words, *options])
    last = folder / "last.ckpt"
    keeps = ModelCheckpoint(folder, filename="last", every_n_train_steps=every, enable_version_counter=False)
    cli.trainer.callbacks += [Curves(folder / "curves.csv", every), keeps]
    print(f"{folder.name}: {'goes on' if last.exists() else 'begins'}", flush=True)
    ended = "finished"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # it goes on
        try:
            cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=str(last) if last.exists() else None, weights_only=True)
        except DataError as error:
            ended = f"ended at step {cli.trainer.global_step}: {error}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "done").write_text(ended + "\n")
    print(f"{folder.name}: {ended}", flush=True)


def write(own: argparse.Namespace) -> None:
    """Write curves, a table and a picture."""
    stem = own.results / "logsumexp_mnist"
    runs = {
        (arm, seed): rows
        for arm, (run, _) in ARMS.items()
        for seed in own.seeds
        if (rows := rows_of(own.output / f"mnist_{run}_{seed}" / "curves.csv"))
    }
    if not runs:
        return
    own.results.mkdir(parents=True, exist_ok=True)
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arm", "seed", *FIELDS))
        for (arm, seed), rows in runs.items():
            writer.writerows((arm, seed, *(_short(row[name]) for name in FIELDS)) for row in rows)
    goal = max((min(float(row["train_loss"]) for row in rows) for (arm, _), rows in runs.items() if arm != "mean"), default=0.0)
    lines = ["# MNIST, a quarter of the labels wrong", ""]
    lines += ["Test accuracy by true labels, in %, peak over the curve and at the end; loss is log mean exp (equation 20).", ""]
    names = (
        "seed",
        "steps",
        "peak",
        "end",
        "fall",
        "validation, end",
        "loss, end",
        f"steps to {goal:.3f}",
        "overflows",
    )
    lines += [f"| trained by | {' | '.join(names)} |", f"| --- | {' | '.join(['---:'] * len(names))} |"]
    for (arm, seed), rows in runs.items():
        tests = [100 * float(row["test_accuracy"]) for row in rows]
        last = rows[-1]
        reached = next((row["step"] for row in rows if float(row["train_loss"]) <= goal), "never")
        lines.append(
            f"| {arm} | {seed} | {last['step']} | {max(tests):.2f} | {tests[-1]:.2f} | {max(tests) - tests[-1]:.2f} |"
            f" {100 * float(last['val_accuracy']):.2f} | {float(last['train_loss']):.3f} | {reached} | {last['overflows']} |"
        )
    for (arm, seed), _ in runs.items():
        done = own.output / f"mnist_{ARMS[arm][0]}_{seed}" / "done"
        ended = done.read_text().strip() if done.exists() else "not finished"
        if ended != "finished":
            lines += ["", f"{arm}, seed {seed}: {ended}"]
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, name, label in zip(
        figure.subplots(1, 3),
        ("test_accuracy", "val_accuracy", "train_loss"),
        ("test accuracy, true labels", "validation accuracy, noisy labels", "log mean exp of moved training images"),
        strict=True,
    ):
        for number, arm in enumerate(ARMS):
            for (other, _), rows in runs.items():
                if other == arm:
                    steps, values = [int(row["step"]) for row in rows], [float(row[name]) for row in rows]
                    axis.plot(steps, values, color=COLORS[number], label=arm)
        axis.set(xlabel="updates", ylabel=label)
        if name == "train_loss":
            axis.set_ylim(0, 4)
    figure.axes[0].legend()
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    print(f"wrote {stem}.md, .csv and .png")


def _short(text: str) -> str:
    return text if text.isdigit() else f"{float(text):.5g}"
