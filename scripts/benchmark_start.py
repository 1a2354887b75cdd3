"""Time the start: of the command line, until its first training step, and of one layer; and a loader's share of a step.

Usage:
    python scripts/benchmark_start.py [start] [layer] [loader] [--rounds 7] [--steps 200] [--run "CONFIG --KEY=VALUE ..."]

``start`` starts processes in turn. One imports torch, one imports Lightning, and one runs ``lit-sparse fit`` up to the end of
its first step. Times are processor times since the process began; other programs lengthen them little.

``layer`` imports subpackages after torch, and calls mappings and their derivatives for the first time, without machine code.

``loader`` measures for each ``--run`` the time in which the trainer waits for the next batch, over that time and the step's, by
Lightning's own profiler. A run is a config, by name or path, with its options.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.profilers import SimpleProfiler
from timing import print_table

from lit_sparse.cli import main as lit_sparse

WARM_UP = 20
LAYERS = (
    *(
        "Sparsemax()",
        "TopKSparsemax(2)",
        "Entmax(1.5)",
        "Fusedmax()",
        "Oscarmax()",
        "HoyerProjection(0.5)",
        "CappedSoftmax(0.5)",
    ),
    *("SqPNormMax()", "HardThreshold(2)", "SparseMAP(Budget(None, 2))"),
)
RUNS = ("ssvae/digits", "soae/digits", "signaling_game/digits", "robust/digits")


class PrintTime(pl.Callback):
    """Prints the process's seconds after its first step."""

    def on_train_batch_end(self, *_: Any) -> None:
        """See the base class."""
        print(f"\nseconds: {time.process_time()}")


class Waits(SimpleProfiler):
    """Keeps what it measures after the run, without a report."""

    last: Waits

    def __init__(self) -> None:
        super().__init__()
        Waits.last = self

    def describe(self) -> None:
        """See the base class."""

    def teardown(self, stage: str | None) -> None:
        """See the base class."""


def measured(commands: dict[str, tuple[str, ...]], rounds: int) -> dict[str, list[float]]:
    """Return what processes print as their seconds. They run in turn, each with its own empty folder."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    for _ in range(rounds):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"},
                    check=True,
                    capture_output=True,
                    text=True,
                )
            line = next(line for line in done.stdout.splitlines() if line.startswith("seconds:"))
            seconds[name].append(float(line.split()[-1]))
    return seconds


def print_start(rounds: int) -> None:
    """Print the seconds of the starts."""
    now = "import time; print('\\nseconds:', time.process_time())"
    fit = ("fit", "-c", "soae/digits", "--trainer.max_steps=1", "--trainer.limit_val_batches=0")
    commands = {
        "`import torch`": ("-c", f"import torch; {now}"),
        "`import pytorch_lightning`": ("-c", f"import pytorch_lightning; {now}"),
        "`lit-sparse fit`, to the end of the first step": (
            *("-m", "lit_sparse", *fit),
            "--trainer.callbacks+=benchmark_start.PrintTime",
        ),
    }
    seconds = measured(commands, 1 + rounds)  # the first writes the byte code
    rows = []
    for name, (_, *values) in seconds.items():
        differences = [ours - other for ours, other in zip(values, seconds["`import pytorch_lightning`"][1:], strict=True)]
        rows.append([name, f"{statistics.median(values):.2f}", f"{statistics.median(differences):+.2f}"])
    print_table("Seconds of the processor", ["start", "s, median", "to `import pytorch_lightning`, s"], rows)


def print_layer(rounds: int) -> None:
    """Print the seconds of imports and of first calls."""
    now = "time.process_time()"
    commands = {
        f"`import lit_sparse.{name}`": (
            "-c",
            f"import time, torch; t = {now}; import lit_sparse.{name}; print('seconds:', {now} - t)",
        )
        for name in ("mappings", "nn", "estimators", "risks")
    }
    before = "import time, torch; from lit_sparse.mappings import *; from lit_sparse.structures import Budget; f = "
    after = f"; x = torch.randn(3, 8, requires_grad=True); t = {now}; f(x).sum().backward(); print('seconds:', {now} - t)"
    commands |= {f"first call of `{mapping}`": ("-c", before + mapping + after) for mapping in LAYERS}
    rows = [[name, f"{statistics.median(values):.2f}"] for name, values in measured(commands, rounds).items()]
    print_table("Seconds of the processor", ["what", "s, median"], rows)


def print_loader(runs: list[list[str]], steps: int) -> None:
    """Print the share of the loader in the time of a step."""
    rows = []
    for config, *options in runs:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            status = lit_sparse(
                [
                    *("fit", "-c", config, "--trainer.limit_val_batches=0", f"--trainer.max_steps={WARM_UP + steps}"),
                    *("--trainer.profiler=benchmark_start.Waits", f"--output_dir={folder}", *options),
                ]
            )
        if status:
            raise SystemExit(said.getvalue())
        kept = sys.modules["benchmark_start"].Waits.last.recorded_durations
        waits, trained = (
            [1e3 * t for t in kept[key][WARM_UP:]]
            for key in ("[_TrainingEpochLoop].train_dataloader_next", "run_training_batch")
        )
        wait, step = statistics.median(waits), statistics.median(trained)
        mean = statistics.fmean(waits[: len(trained)]) / (statistics.fmean(waits[: len(trained)]) + statistics.fmean(trained))
        rows.append([config, f"{wait:.3f}", f"{step:.2f}", f"{100 * wait / (wait + step):.1f}", f"{100 * mean:.1f}"])
    print_table("The loader", ["config", "loader, ms", "step, ms", "share of medians, %", "share of means, %"], rows)


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["start", "layer", "loader", []], default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--run", action="append", help="a config and its options, in quotes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    what = options.what or ["start", "layer", "loader"]
    if "start" in what:
        print_start(options.rounds)
    if "layer" in what:
        print_layer(options.rounds)
    if "loader" in what:
        print_loader([run.split() for run in options.run or RUNS], options.steps)


if __name__ == "__main__":
    main()
