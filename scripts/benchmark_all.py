"""Time the package's operations against other packages, and measure what each part costs.

Usage:
    python scripts/benchmark_all.py [measure] [draw] [costs] [--threads 2] [--rounds 5] [--rows results/benchmarks.csv]
        [--lengths 2048 4096 8192] [--classes 50000 256000]

``measure`` writes a row per comparison. A speed-up is the peer's time over our time, and their calls take turns in one process:
above 1 ours is faster. The rows contain the median, the smallest and the largest speed-up of all rounds, with the date, the
commit and the machine. ``draw`` makes the table (.md) and the chart (.png) of twelve of them next to the rows, from the rows
alone. Both are done by default, in about 10 minutes. ``costs`` runs the scripts that time single parts, in about 15 minutes,
and writes their tables to ``benchmark_costs.md`` beside the rows.

Peers are torch (``scaled_dot_product_attention``, ``linear`` with ``cross_entropy``, ``softmax``), and the packages ``entmax``
and POT, if they are installed. Scores are from N(0, 1) in float32, supports thus small.
"""

from __future__ import annotations

from timing import ratios  # isort: skip

import argparse
import contextlib
import csv
import datetime
import io
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import benchmark_attention
import benchmark_mappings
import benchmark_output_layer
import torch

COLUMNS = ("topic", "case", "ours", "peer", "threads", "median", "least", "largest", "date", "commit", "machine")
SHAPE = (4096, 256)
#: Rows of the table and the chart: topic, case and ours -> what a reader calls it, and the peer.
SHOWN = {
    ("attention, training", "4096 keys", "sparsemax", "SDPA, softmax"): "Sparsemax attention, 4,096 keys, training",
    ("attention, training", "4096 keys", "entmax 1.5", "SDPA, softmax"): "Entmax 1.5 attention, 4,096 keys, training",
    (
        "attention, training",
        "4096 keys, causal",
        "entmax 1.5",
        "SDPA, softmax",
    ): "Entmax 1.5 attention, 4,096 keys, causal, training",
    (
        "attention, training",
        "4096 keys, deviation 0.3",
        "entmax 1.5",
        "SDPA, softmax",
    ): "Entmax 1.5 attention, 4,096 keys, nearly equal scores, training",
    ("attention, forward", "4096 keys", "entmax 1.5", "SDPA, softmax"): "Entmax 1.5 attention, 4,096 keys, forward alone",
    (
        "attention, forward",
        "4096 keys, causal",
        "entmax 1.5",
        "SDPA, softmax",
    ): "Entmax 1.5 attention, 4,096 keys, causal, forward alone",
    (
        "output layer, training",
        "50000 classes",
        "entmax 1.5",
        "linear + cross_entropy",
    ): "Entmax 1.5 output layer, 50,000 classes",
    (
        "output layer, training",
        "256000 classes",
        "entmax 1.5",
        "linear + cross_entropy",
    ): "Entmax 1.5 output layer, 256,000 classes",
    ("mapping, training", "(4096, 256)", "sparsemax", "package entmax"): "Sparsemax of (4096, 256)",
    ("mapping, training", "(4096, 256)", "entmax(1.5)", "package entmax"): "Entmax 1.5 of (4096, 256)",
    ("mapping, forward", "(4096, 256)", "sparsemax", "POT"): "Sparsemax of (4096, 256), forward alone",
    ("mapping, training", "(4096, 256)", "sparsemax", "torch.softmax"): "Sparsemax of (4096, 256)",
}
PEERS = {
    "SDPA, softmax": "PyTorch's softmax attention",
    "linear + cross_entropy": "`linear` and `cross_entropy`",
    "package entmax": "package `entmax`",
    "POT": "package POT",
    "torch.softmax": "`torch.softmax`",
}
#: Title -> command, in the order of the page.
COSTS = {
    "Mappings": "benchmark_mappings.py --wide --shapes 4096x256 512x1024 --threads 2",
    "SparseMAP": "benchmark_sparsemap.py",
    "Factor graphs": "benchmark_factor_graphs.py --rounds 3",
    "Estimators": "benchmark_training.py --rounds 3",
    "Coresets": "benchmark_coresets.py sizes --rounds 2",
    "Risks": "benchmark_risks.py --repeats 25",
    "Auto-encoder": "benchmark_soae.py steps --rounds 5 --steps 100",
    "Translation model": "benchmark_attention.py mappings --steps 100",
    "Start, import and first call": "benchmark_start.py start layer --rounds 3",
}


class Comparison(NamedTuple):
    """Calls that compute the same or serve the same purpose, one of them by a peer."""

    topic: str
    case: str
    calls: dict[str, Callable[[], object]]
    peer: str


def of_attention(options: argparse.Namespace) -> Iterator[Comparison]:
    """Attention with 4 heads of size 64, as benchmark_attention.py times it."""
    inner = argparse.Namespace(heads=4, device="cpu", dtype="float32")
    cases = [(length, 1.0, is_causal) for length in options.lengths for is_causal in (False, True)]
    middle = sorted(options.lengths)[len(options.lengths) // 2 :][:1]
    for length, deviation, is_causal in [*cases, *((length, 0.3, False) for length in middle)]:
        functions, inputs, _ = benchmark_attention.contestants(length, deviation, is_causal, ("sparse",), inner)
        slope = torch.randn_like(inputs[0])

        def infer(function: Callable[[], Any]) -> None:
            with torch.no_grad():
                function()

        def train(function: Callable[[], Any], inputs: Any = inputs, slope: Any = slope) -> None:
            torch.autograd.grad(function(), inputs, slope)

        case = f"{length} keys" + (", causal" if is_causal else "") + (f", deviation {deviation}" if deviation != 1 else "")
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


def where() -> list[str]:
    """Return the date, the commit, and the machine with the version of torch."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    machine = model[1] if model else platform.machine()
    return [datetime.date.today().isoformat(), commit, f"{machine}, torch {torch.__version__}"]


def measure(options: argparse.Namespace) -> None:
    """Write a row per comparison."""
    torch.set_num_threads(options.threads)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    with options.rows.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        source = where()
        for topic in (of_mappings, of_attention, of_output_layers):
            for one in topic(options):
                found = ratios(one.calls, one.peer, options.rounds)
                for name in one.calls.keys() - {one.peer}:
                    speeds = [1 / ratio for ratio in found[name]]
                    values = [f"{f(speeds):.3f}" for f in (statistics.median, min, max)]
                    writer.writerow([one.topic, one.case, name, one.peer, options.threads, *values, *source])
                file.flush()


def draw(options: argparse.Namespace) -> None:
    """Make a table and a chart of the rows that are shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with options.rows.open(encoding="utf-8", newline="") as file:
        found = {(row["topic"], row["case"], row["ours"], row["peer"]): row for row in csv.DictReader(file)}
    if not (rows := {key: row for key in SHOWN if (row := found.get(key))}):
        sys.exit(f"{options.rows} has no row of the table, which shows 4,096 keys and 50,000 or 256,000 classes.")
    lines = ["| operation | compared with | speed-up | least to most |", "| --- | --- | ---: | ---: |"]
    for key, row in rows.items():
        median, least, largest = (f"{float(f'{float(row[name]):.2g}'):g}" for name in ("median", "least", "largest"))
        lines.append(f"| {SHOWN[key]} | {PEERS[key[3]]} | {median}\u00d7 | {least} to {largest} |")
    row = next(iter(rows.values()))
    lines += ["", f"{row['date']}, commit {row['commit']}, {row['machine']}, {row['threads']} threads."]
    options.rows.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    figure = Figure(figsize=(7.3, 1.2 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for place, row in enumerate(rows.values()):
        median, least, largest = (float(row[name]) for name in ("median", "least", "largest"))
        color = "#0072B2" if median >= 1 else "#D55E00"
        axis.barh(place, median - 1, left=1, color=color, height=0.6)
        axis.plot([least, largest], [place, place], color="black", linewidth=1)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set(xscale="log", xlabel="speed-up (right of 1: this package is faster)")
    axis.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    labels = [f"{SHOWN[key]}\nagainst {PEERS[key[3]]}".replace("`", "") for key in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize=9)
    axis.invert_yaxis()
    figure.savefig(options.rows.with_suffix(".png"), dpi=140)


def costs(options: argparse.Namespace) -> None:
    """Run the scripts of single parts, and write what they print to one file."""
    date, commit, machine = where()
    parts = [f"{date}, commit {commit}, {machine}."]
    for title, command in COSTS.items():
        print(command, flush=True)
        script, *rest = shlex.split(command)
        call = [sys.executable, str(Path(__file__).with_name(script)), *rest]
        printed = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        parts += [f"## {title}", f"`python scripts/{command}`", printed]
    path = options.rows.with_name("benchmark_costs.md")
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["measure", "draw", "costs", []], default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096, 8192])
    parser.add_argument("--classes", type=int, nargs="*", default=[50_000, 256_000])
    parser.add_argument("--rows", type=Path, default=Path("results/benchmarks.csv"))
    options = parser.parse_args(arguments)
    for part in options.parts or ["measure", "draw"]:
        {"measure": measure, "draw": draw, "costs": costs}[part](options)


if __name__ == "__main__":
    main()
