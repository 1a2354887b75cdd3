"""Time the package's operations against other packages: one table of ratios, and one chart.

Usage:
    python scripts/benchmark_all.py [measure] [draw] [--threads 2] [--rounds 5] [--rows results/benchmarks.csv]
        [--lengths 2048 4096 8192] [--classes 50000 256000]

``measure`` writes a row per comparison. A ratio is our time over the peer's, and their calls take turns in one
process: below 1 ours is faster. The rows have the median of the ratios of all rounds, the least and the largest. ``draw`` makes
the table (.md) and the chart (.png) next to the rows, from the rows alone. Both are done by default, in some 10 minutes.

Peers are torch (``scaled_dot_product_attention``, ``linear`` with ``cross_entropy``, ``softmax``), and the packages ``entmax``
and POT, if they are installed. Scores are from N(0, 1) in float32, supports thus small.
"""

from __future__ import annotations

from timing import ratios  # isort: skip

import argparse
import contextlib
import csv
import io
import platform
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import benchmark_attention
import benchmark_mappings
import benchmark_output_layer
import torch

COLUMNS = ("topic", "case", "ours", "peer", "threads", "median", "least", "largest")
SHAPE = (4096, 256)


class Comparison(NamedTuple):
    """Calls that compute the same or serve the same purpose, one of them by a peer."""

    topic: str
    case: str
    calls: dict[str, Callable[[], object]]
    peer: str


def of_attention(options: argparse.Namespace) -> Iterator[Comparison]:
    """Attention with 4 heads of dimension 64, as benchmark_attention.py times it."""
    inner = argparse.Namespace(heads=4, device="cpu", dtype="float32")
    for length in options.lengths:
        for is_causal in (False, True):
            functions, inputs, _ = benchmark_attention.contestants(length, 1.0, is_causal, ("sparse",), inner)
            slope = torch.randn_like(inputs[0])

            def infer(function: Callable[[], Any]) -> None:
                with torch.no_grad():
                    function()

            def train(function: Callable[[], Any], inputs: Any = inputs, slope: Any = slope) -> None:
                torch.autograd.grad(function(), inputs, slope)

            case = f"{length} keys" + (", causal" if is_causal else "")
            for kind, call in (("forward", infer), ("training", train)):
                calls = {name.removesuffix(", sparse"): partial(call, function) for name, function in functions.items()}
                yield Comparison(f"attention, {kind}", case, calls, "SDPA, softmax")


def of_output_layers(options: argparse.Namespace) -> Iterator[Comparison]:
    """A training step of an output layer, as benchmark_output_layer.py times it."""
    for classes in options.classes:
        given = benchmark_output_layer.inputs(2048, 512, classes, 1.0)
        names = (benchmark_output_layer.BASELINE, "sparsemax", "entmax 1.5")
        calls = {name: benchmark_output_layer.call_of(name, *given) for name in names}
        yield Comparison("output layer, training", f"{classes} classes", calls, names[0])


def of_mappings(options: argparse.Namespace) -> Iterator[Comparison]:
    """Mappings of rows, as benchmark_mappings.py times them; the projections of POT have no backward pass."""
    functions = benchmark_mappings.contestants(SHAPE[1])
    x, weights = benchmark_mappings.scores(SHAPE, "cpu", torch.float32)

    def train(name: str) -> None:
        functions[name](x).backward(weights)

    case, ours = str(SHAPE), ("sparsemax", "topk_sparsemax(k=8)", "entmax(1.5)", "entmax(1.25)")
    yield Comparison(
        "mapping, training", case, {name: partial(train, name) for name in ("torch.softmax", *ours)}, "torch.softmax"
    )
    for name in ours:
        if f"entmax: {name}" in functions:
            calls = {name: partial(train, name), "package entmax": partial(train, f"entmax: {name}")}
            yield Comparison("mapping, training", case, calls, "package entmax")
    try:
        from ot.utils import proj_simplex, projection_sparse_simplex
    except ImportError:
        return
    rows = x.detach().numpy()
    columns = rows.T.copy()

    def project_few() -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints shapes
            projection_sparse_simplex(rows, 8, axis=1)

    peers: dict[str, Callable[[], object]] = {"sparsemax": lambda: proj_simplex(columns), "topk_sparsemax(k=8)": project_few}
    for name, call in peers.items():
        yield Comparison("mapping, forward", case, {name: partial(functions[name], x.detach()), "POT": call}, "POT")


def measure(options: argparse.Namespace) -> None:
    """Write a row per comparison."""
    torch.set_num_threads(options.threads)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    with options.rows.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for topic in (of_mappings, of_attention, of_output_layers):
            for one in topic(options):
                found = ratios(one.calls, one.peer, options.rounds)
                for name in one.calls.keys() - {one.peer}:
                    values = [f"{f(found[name]):.3f}" for f in (statistics.median, min, max)]
                    writer.writerow([one.topic, one.case, name, one.peer, options.threads, *values])
                file.flush()


def draw(options: argparse.Namespace) -> None:
    """Make a table and a chart of the rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with options.rows.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["topic"], row["peer"], row["ours"]))
    lines = ["| topic | case | ours | peer | time, ours over the peer (least to largest) |", "| --- | --- | --- | --- | ---: |"]
    for row in rows:
        ratio = f"{float(row['median']):.2f} ({float(row['least']):.2f} to {float(row['largest']):.2f})"
        lines.append(f"| {row['topic']} | {row['case']} | {row['ours']} | {row['peer']} | {ratio} |")
    options.rows.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    figure = Figure(figsize=(8, 1 + 0.22 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for place, row in enumerate(rows):
        median, least, largest = (float(row[name]) for name in ("median", "least", "largest"))
        color = "#0072B2" if median <= 1 else "#D55E00"
        axis.plot([least, largest], [place, place], color=color, linewidth=1)
        axis.plot([median], [place], "o", color=color, markersize=5)
    axis.axvline(1.0, color="#7F7F7F", linewidth=1)
    labels = [f"{row['topic']}, {row['case']}: {row['ours']} / {row['peer']}" for row in rows]
    axis.set(xscale="log", xlabel="our time over the peer's (left of 1: ours is faster)")
    axis.set_yticks(range(len(rows)), labels, fontsize=7)
    axis.invert_yaxis()
    figure.savefig(options.rows.with_suffix(".png"), dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Measure, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["measure", "draw", []], default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096, 8192])
    parser.add_argument("--classes", type=int, nargs="*", default=[50_000, 256_000])
    parser.add_argument("--rows", type=Path, default=Path("results/benchmarks.csv"))
    options = parser.parse_args(arguments)
    print(f"{platform.machine()}, torch {torch.__version__}, {options.threads} threads")
    for part in ("measure", "draw"):
        if part in options.parts or not options.parts:
            {"measure": measure, "draw": draw}[part](options)


if __name__ == "__main__":
    main()
