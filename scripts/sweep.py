"""Search a grid over any values of a config: each cell is one ``lit-sparse fit``, and the best is printed at the end.

Usage:
    python scripts/sweep.py CONFIG --grid KEY VALUE [VALUE ...] [--grid KEY VALUE ...] --metric val/nelbo [--mode min]
        [--jobs 2] [--output runs/sweep] [-- OPTIONS OF EVERY lit-sparse COMMAND]

A key is what stands in a config, as ``model.init_args.optimizer.init_args.lr``; a seed is one, too (``seed_everything``). A
cell is judged by the last value of the metric that it logged. A killed sweep goes on when the same command is given again, and
finished cells are only read; more values may be added to it. The table of all cells, the best first, is printed and written to
``<output>/<task>/<config>/sweep.md``, the whole config of the best to ``best.yaml`` in the same folder.

An example, two minutes on two cores:
    python scripts/sweep.py configs/ssvae/digits.yaml --grid model.init_args.optimizer.init_args.lr 1e-3 3e-3
        --grid model.init_args.unlabelled_weight 0.3 1.0 --metric val/nelbo --jobs 2 -- --trainer.max_epochs 50
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import itertools
import math
import re
import shutil
import sys
from pathlib import Path

from lit_sparse.errors import LitSparseError
from lit_sparse.runs import experiment_name
from lit_sparse.studies.engine import Runner, read_metrics
from lit_sparse.studies.study import Cell, Column, Study
from lit_sparse.studies.tables import markdown

KNOWN = {"min": r"loss|nelbo|nll|bits|rate|distortion|perplexity|classification", "max": r"success|accuracy|similarity"}


def cells_of(grid: list[list[str]]) -> dict[str, dict[str, str]]:
    """Return name -> key -> value of each cell."""
    keys = [key for key, *_ in grid]
    short = [key.rsplit(".", 1)[-1] for key in keys]
    shown = short if len(set(short)) == len(short) else keys
    cells = {}
    for values in itertools.product(*(values for _, *values in grid)):
        name = ",".join(f"{key}={value}" for key, value in zip(shown, values, strict=True))
        cells[re.sub(r"[^\w.,=+-]+", "_", name)] = dict(zip(keys, values, strict=True))
    return cells


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
    place = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:place])
    if not Path(options.config).is_file():
        parser.error(f"there is no config {options.config!r}")
    for key, *values in options.grid:
        if not values:
            parser.error(f"--grid {key} has no values; give them behind the key")
    if len({key for key, *_ in options.grid}) < len(options.grid):
        parser.error("a key stands in --grid twice; give all of its values behind one")
    if options.mode is None:
        modes = [mode for mode, names in KNOWN.items() if re.search(names, options.metric)]
        if len(modes) != 1:
            parser.error(f"say whether {options.metric} should be small or large: --mode min or --mode max")
        options.mode = modes[0]
    return options, arguments[place + 1 :]


def main(arguments: list[str] | None = None) -> int:
    """Train what is not trained yet and write the table; the exit status is 1 if a cell failed."""
    options, extra = parse(sys.argv[1:] if arguments is None else arguments)
    metric, cells, name = options.metric, cells_of(options.grid), experiment_name(options.config, "")
    config = str(Path(options.config).resolve())
    study = Study(
        cells={cell: Cell(config=config, options=dict(values)) for cell, values in cells.items()},
        seed_options=[],
        tests={},
        columns={metric: Column(metric)},
        path=Path(name),
    )
    runner = Runner(study, output=(options.output / name).parent, results=options.output / name, extra=extra, jobs=options.jobs)
    failed = runner.run()
    scored = [(float(row.get(metric) or "nan"), row["cell"]) for row in runner.rows.read() if row["cell"] in cells]
    # A cell that diverged is the worst in both modes.
    scored.sort(key=lambda entry: (math.isnan(entry[0]), entry[0] if options.mode == "min" else -entry[0]))
    for message in failed:
        print(message, file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(cells)} cells failed; the table has those that are finished", file=sys.stderr)
    if scored and math.isnan(scored[0][0]):
        lines = read_metrics(runner.run_folder(scored[0][1], 0))
        logged = sorted({key for line in lines for key in line if key.startswith("val/")})
        there = f"such as {', '.join(logged)}" if logged else "which was never validated: --trainer.check_val_every_n_epoch 1"
        raise SystemExit(f"Expected --metric to be something that {scored[0][1]} logged, {there}; got {metric}.")
    if scored:
        keys = [key for key, *_ in options.grid]
        texts = [[*cells[cell].values(), f"{value:.6g}"] for value, cell in scored]
        lines = markdown([[*keys, metric], *texts], left=len(keys))
        folder = options.output / name
        (folder / "sweep.md").write_text("\n".join(lines) + "\n")
        shutil.copyfile(runner.run_folder(scored[0][1], 0) / "config.yaml", folder / "best.yaml")
        print("\n".join(lines))
        print(f"written to {folder / 'sweep.md'}")
        print(f"best, with {metric} = {scored[0][0]:.6g}: {folder / 'best.yaml'}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except LitSparseError as error:
        sys.exit(f"error: {error}")
