"""Search a grid over any values of a config: each cell is one ``lit-sparse fit``, and the best is printed at the end.

Usage:
    python scripts/sweep.py CONFIG --grid KEY VALUE [VALUE ...] [--grid KEY VALUE ...] --metric val/nelbo [--mode min]
        [--jobs 2] [--output runs/sweep] [-- OPTIONS OF EVERY lit-sparse COMMAND]

A key is what stands in a config, as ``model.init_args.optimizer.init_args.lr``; a seed is one, too (``seed_everything``). A
cell is judged by the last value of the metric that it logged. A killed sweep goes on when the same command is given again, and
finished cells are only read; more values may be added to it. The table of all cells, the best first, is printed and written to
``<output>/<task>/<config>/sweep.md`` and ``.csv``, the whole config of the best to ``best.yaml`` in the same folder.

An example, two minutes on two cores:
    python scripts/sweep.py configs/ssvae/digits.yaml --grid model.init_args.optimizer.init_args.lr 1e-3 3e-3
        --grid model.init_args.unlabelled_weight 0.3 1.0 --metric val/nelbo --jobs 2 -- --trainer.max_epochs 50
"""

from __future__ import annotations

import passive_threads  # noqa: F401  # isort: skip

import argparse
import csv
import itertools
import math
import re
import shutil
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import compare_runs
from jobs import Job, exit_with, parse_own, run_all

from lit_sparse.runs import experiment_name


def cells_of(grid: list[list[str]]) -> list[dict[str, str]]:
    """Return key -> value of each cell."""
    keys = [key for key, *_ in grid]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(values for _, *values in grid))]


def name_of(cell: dict[str, str]) -> str:
    """Return a folder name that tells the cell."""
    short = [key.rsplit(".", 1)[-1] for key in cell]
    keys = short if len(set(short)) == len(short) else list(cell)
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(f"{key}={value}" for key, value in zip(keys, cell.values(), strict=True)))


def last_value(run: Path, metric: str) -> float:
    """Return the last value of a metric that a run logged.

    Raises:
        SystemExit: if it logged none.
    """
    lines = compare_runs.read(run / "metrics.csv")
    found = [line[metric] for line in lines if metric in line]
    if not found:
        logged = sorted({key for line in lines for key in line if key.startswith("val/")})
        there = f"such as {', '.join(logged)}" if logged else "which was never validated: --trainer.check_val_every_n_epoch 1"
        raise SystemExit(f"Expected --metric to be something that {run} logged, {there}; got {metric}.")
    return found[-1]


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and those of every command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("config")
    parser.add_argument("--grid", nargs="+", action="append", required=True, metavar="KEY VALUE", help="a key and its values")
    parser.add_argument("--metric", required=True, help="what is compared, as val/nelbo")
    parser.add_argument("--mode", choices=("min", "max"), default=None, help="which is best; known for usual metrics")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--output", type=Path, default=Path("runs/sweep"), help="folder of all runs")
    options, extra = parse_own(parser, arguments)
    if not Path(options.config).is_file():
        parser.error(f"there is no config {options.config!r}")
    for key, *values in options.grid:
        if not values:
            parser.error(f"--grid {key} has no values; give them behind the key")
    if len({key for key, *_ in options.grid}) < len(options.grid):
        parser.error("a key stands in --grid twice; give all of its values behind one")
    if options.mode is None:
        known = {"min": r"loss|nelbo|nll|bits|rate|distortion|perplexity|classification", "max": r"success|accuracy|similarity"}
        modes = [mode for mode, names in known.items() if re.search(names, options.metric)]
        if len(modes) != 1:
            parser.error(f"say whether {options.metric} should be small or large: --mode min or --mode max")
        options.mode = modes[0]
    return options, extra


def main(arguments: list[str] | None = None) -> int:
    """Train what is not trained yet and write the table; the exit status is 1 if a cell failed."""
    options, extra = parse(sys.argv[1:] if arguments is None else arguments)
    mode, name = options.mode, experiment_name(options.config, "")
    cells = cells_of(options.grid)
    jobs = [
        Job(
            options.config,
            f"{name}/{name_of(cell)}",
            options.output,
            [*extra, *(part for key, value in cell.items() for part in (f"--{key}", value))],
        )
        for cell in cells
    ]
    failed = run_all([partial(Job.train, job) for job in jobs], max(1, options.jobs))
    done = [(cell, job) for cell, job in zip(cells, jobs, strict=True) if (job.folder / "finished").is_file()]
    scored = [(last_value(job.folder, options.metric), cell, job) for cell, job in done]
    # A cell that diverged is the worst in both modes.
    scored.sort(key=lambda entry: (math.isnan(entry[0]), entry[0] if mode == "min" else -entry[0]))
    for message in failed:
        print(message, file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(cells)} cells failed; the table has those that are finished", file=sys.stderr)
    if scored:
        rows = [[*cells[0], options.metric], *([*cell.values(), f"{value:.6g}"] for value, cell, _ in scored)]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "| " + "--- | " * len(cells[0]) + "---: |")
        folder = options.output / name
        (folder / "sweep.md").write_text("\n".join(lines) + "\n")
        with (folder / "sweep.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        shutil.copyfile(scored[0][2].folder / "config.yaml", folder / "best.yaml")
        print("\n".join(lines))
        print(f"written to {folder / 'sweep.md'} and .csv")
        print(f"best, with {options.metric} = {scored[0][0]:.6g}: {folder / 'best.yaml'}")
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main)
