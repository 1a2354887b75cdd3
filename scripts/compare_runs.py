"""Compare runs of latent-variable models: decoder calls and a metric over training, and the test results in a table.

Usage:
    python scripts/compare_runs.py [--metric nelbo] [--output comparison.png] NAME=RUN_FOLDER [NAME=RUN_FOLDER ...]

Reads the metrics.csv of each run. Draws the median decoder calls per example with the band from the 10th to the 90th
percentile. Also draws a validation metric against epochs and against cumulative median decoder calls, as figure 5 of Correia,
Niculae, Aziz & Martins (2020). The metric is the first of nelbo, success and loss that all runs logged, or what ``--metric``
says. Prints a markdown table with the first and the last epoch and the last test; "-" stands for a run that was not tested.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

CALLS = "train/decoder_calls_"
BAND = ("p10", "median", "p90")
#: Metrics, those that come first preferred, and how they are called in a picture.
LABELS = {
    "nelbo": "negative ELBO of validation, nats",
    "success": "success in validation",
    "loss": "loss of validation",
}
# Okabe & Ito's palette, whose colours are distinct for colour-blind readers.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
FEW = 20  # points, below which each is marked
STYLES = ["-", "--", ":"]  # one after another, when the colours are used up


def read(path: Path) -> list[dict[str, float]]:
    """Return the lines of a metrics file, without its empty cells."""
    with path.open(newline="") as file:
        return [{key: float(value) for key, value in line.items() if value} for line in csv.DictReader(file)]


def epochs_of(run: Path) -> list[dict[str, float]]:
    """Return one line an epoch, all that was logged in it.

    Raises:
        SystemExit: if the run logged no decoder calls.
    """
    merged: dict[int, dict[str, float]] = {}
    for line in read(run / "metrics.csv"):
        merged.setdefault(int(line["epoch"]), {}).update(line)
    found = [merged[epoch] for epoch in sorted(merged) if f"{CALLS}median" in merged[epoch]]
    if not found:
        raise SystemExit(f"Expected a run that logged {CALLS}median but {run} has none.")
    return found


def tested(run: Path) -> dict[str, float]:
    """Return the results of the newest test; empty without one."""
    tests = sorted(run.glob("test/*/metrics.csv"), key=lambda path: int(path.parent.name))
    return read(tests[-1])[-1] if tests else {}


def draw(
    runs: dict[str, list[dict[str, float]]],
    path: Path,
    key: str = "val/nelbo",
    label: str = LABELS["nelbo"],
) -> None:
    """Draw the three panels; ``key`` is what the second and third show."""
    figure = Figure(figsize=(14, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    calls, by_epoch, by_cost = figure.subplots(1, 3)
    for number, (title, lines) in enumerate(runs.items()):
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        epochs = [line["epoch"] + 1 for line in lines]
        low, median, high = ([line[f"{CALLS}{name}"] for line in lines] for name in BAND)
        calls.plot(epochs, median, color=color, ls=style, label=title)
        calls.fill_between(epochs, low, high, color=color, alpha=0.15, lw=0)
        cost, points = 0.0, []
        for line in lines:
            cost += line[f"{CALLS}median"]
            if key in line:
                points.append((line["epoch"] + 1, cost, line[key]))
        look = {"color": color, "ls": style, "label": title, "marker": "." if len(points) < FEW else None}
        by_epoch.plot([p[0] for p in points], [p[2] for p in points], **look)
        by_cost.plot([p[1] for p in points], [p[2] for p in points], **look)
    calls.set(xlabel="epoch", ylabel="decoder calls, median and 10-90 %", ylim=(0, None))
    by_epoch.set(xlabel="epoch", ylabel=label)
    by_cost.set(xlabel="cumulative median decoder calls")
    handles = by_epoch.get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", frameon=False)
    for axis in (calls, by_epoch, by_cost):
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def metric_of(runs: dict[str, list[dict[str, float]]], asked: str | None) -> str:
    """Return the metric to compare: that asked for, or the first known one that all runs logged.

    Raises:
        SystemExit: if a run has not logged it, in validation or else in training.
    """
    wanted = [asked.removeprefix("val/")] if asked else list(LABELS)
    for stage in ("val/", "train/"):
        logged = [
            {key.removeprefix(stage) for line in lines for key in line if key.startswith(stage)} for lines in runs.values()
        ]
        found = [name for name in wanted if name in set.intersection(*logged)]
        if found:
            return found[0]
    raise SystemExit(
        f"Expected a --metric that all runs logged, of {', '.join(sorted(set.intersection(*logged)))}; got {asked}."
    )


def number(value: float) -> str:
    """Return four digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(runs: dict[str, list[dict[str, float]]], tests: dict[str, dict[str, float]], metric: str = "nelbo") -> list[str]:
    """Return the lines of the table."""
    bits = any("test/bits_per_dim" in test for test in tests.values())
    head = [f"train {metric}, first and last epoch", "median decoder calls", "mean decoder calls", f"test {metric}"]
    rows = [["", "epochs", *head, *(["bits/dim"] if bits else [])]]
    for name, epochs in runs.items():
        first, last, test = epochs[0], epochs[-1], tests[name]

        def both(key: str, form: Callable[[float], str], ends: tuple[dict[str, float], ...] = (first, last)) -> str:
            return ", ".join(form(end[key]) if key in end else "-" for end in ends)

        cells = [
            name,
            str(len(epochs)),
            both(f"train/{metric}", number),
            both(f"{CALLS}median", "{:g}".format),
            both(f"{CALLS}mean", "{:.2f}".format),
            number(test[f"test/{metric}"]) if f"test/{metric}" in test else "-",
        ]
        if bits and "test/bits_per_dim" in test:
            cells.append(f"{test['test/bits_per_dim']:.3f} ± {test['test/bits_per_dim_standard_error']:.1g}")
        elif bits:
            cells.append("-")
        rows.append(cells)
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows]
    lines.insert(1, "| --- |" + " ---: |" * (len(rows[0]) - 1))
    return lines


def main() -> None:
    """Draw the picture and print the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN_FOLDER")
    parser.add_argument("--metric", default=None)
    parser.add_argument("--output", type=Path, default=Path("comparison.png"))
    options = parser.parse_args()
    folders = dict(argument.split("=", 1) if "=" in argument else (argument, argument) for argument in options.runs)
    for folder in folders.values():
        if not (Path(folder) / "metrics.csv").is_file():
            parser.error(f"{folder!r} is not a run folder: it has no metrics.csv. A run prints its folder last.")
    runs = {name: epochs_of(Path(folder)) for name, folder in folders.items()}
    metric = metric_of(runs, options.metric)
    draw(runs, options.output, f"val/{metric}", LABELS.get(metric, f"{metric} of validation"))
    print("\n".join(table(runs, {name: tested(Path(folder)) for name, folder in folders.items()}, metric)))
    print(f"drawn: {options.output}")


if __name__ == "__main__":
    main()
