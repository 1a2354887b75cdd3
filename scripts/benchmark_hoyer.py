"""Measure the Hoyer projection: its passes, what they leave to do, and its time against four other ways of computing it.

Usage:
    python scripts/benchmark_hoyer.py [--folder pictures] [--rounds 15] [--quick]

The experiments follow Thom & Palm (2013): the number of iterations over the dimension n, the entries that each iteration
uses, and the relative speed over n and over the sparseness of the input. ``F.hoyer_projection`` is compared with Hoyer's
algorithm of 2004 and the alternating projections of Thom & Palm in numpy. A third method searches the support in a sorted
vector, in torch, with the sort of torch or numpy. Everything runs on one thread, and the methods take turns. Times are medians
over calls. Prints markdown tables and draws ``hoyer.png``.
"""

from __future__ import annotations

from timing import medians, print_table  # isort: skip

import argparse
import math
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hoyer_algorithms import ALGORITHMS, Array, Trace, alternating, hoyer_2004, numpy_sort, sorted_form, torch_sort
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.optimize import brentq

from lit_sparse.data.images.label_noise import one_thread
from lit_sparse.mappings import functional as F

TARGETS = (0.5, 0.75, 0.9, 0.99)
TARGET = 0.9  # where one has to do
TOLERANCE = 1e-9  # between any two results in float64, whose norm is 1


def vector(n: int, sparseness: float | None, generator: np.random.Generator) -> Array:
    """Return n positive entries: uniform in (0, 1) or, for a given Hoyer sparseness, a power of such."""
    x = 1 - generator.random(n)
    if sparseness is None:
        return x

    def off(power: float) -> float:
        y = x**power
        return math.sqrt(n) - sparseness * (math.sqrt(n) - 1) - float(y.sum() / np.linalg.norm(y))

    return x ** brentq(off, 0.0, 1e4, rtol=1e-3)


def check(x: Array, sparseness: float, y: Array) -> None:
    """Raise unless y is what ``F.hoyer_projection`` makes of x."""
    error = float(np.abs(F.hoyer_projection(torch.from_numpy(x), sparseness, nonneg=True).numpy() - y).max())
    if not error <= TOLERANCE:
        raise RuntimeError(f"Expected the result of F.hoyer_projection up to {TOLERANCE}, but got one that is {error:.1e} off.")


def traces(n: int, target: float, vectors: int) -> dict[str, list[list[int]]]:
    """Return, for each algorithm and each of several random vectors, the sizes of its trace."""
    generator = np.random.default_rng(n)
    found: dict[str, list[list[int]]] = {name: [] for name in ALGORITHMS}
    for _ in range(vectors):
        x = vector(n, None, generator)
        for name, project in ALGORITHMS.items():
            trace = project(x, target)
            check(x, target, trace.y)
            found[name].append(trace.sizes)
    return found


def times(n: int, initial: float, target: float, rounds: int) -> dict[str, float]:
    """Return the median seconds of each projection of a non-negative vector of a given sparseness."""
    x = vector(n, initial, np.random.default_rng(n))
    rows = torch.from_numpy(x)
    for project in (alternating, hoyer_2004):
        check(x, target, project(x, target).y)
    return medians(
        {
            "F.hoyer_projection": lambda: F.hoyer_projection(rows, target, nonneg=True),
            "alternating": lambda: alternating(x, target),
            "Hoyer 2004": lambda: hoyer_2004(x, target),
        },
        rounds,
    )


def times_of_long_vector(n: int, target: float, rounds: int) -> dict[str, float]:
    """Return the median seconds of each projection of n normal entries in float32, signs included."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    expected = F.hoyer_projection(x.double(), target)
    for y in (F.hoyer_projection(x, target), sorted_form(x, target, torch_sort), sorted_form(x, target, numpy_sort)):
        torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4 * float(expected.max()))

    def with_signs(project: Callable[..., Trace]) -> object:
        values = x.numpy()
        return np.copysign(project(np.abs(values), target).y, values)

    return medians(
        {
            "F.hoyer_projection": lambda: F.hoyer_projection(x, target),
            "sorted, numpy.sort": lambda: sorted_form(x, target, numpy_sort),
            "sorted, torch.sort": lambda: sorted_form(x, target, torch_sort),
            "Hoyer 2004": lambda: with_signs(hoyer_2004),
            "alternating": lambda: with_signs(alternating),
        },
        rounds,
    )


COLORS = {"linear time": "#0072B2", "alternating": "#D55E00", "Hoyer 2004": "#009E73"}
MARKERS = {"linear time": "o", "alternating": "s", "Hoyer 2004": "^"}


def draw_passes(axes: Sequence[Any], passes: dict[tuple[float, int], dict[str, list[list[int]]]]) -> None:
    """Draw the number of iterations over n, one panel a target: mean, and the range over vectors."""
    for axis, target in zip(axes, sorted({target for target, _ in passes}), strict=True):
        sizes = sorted(n for t, n in passes if t == target)
        for name in ALGORITHMS:
            counts = [[len(trace) for trace in passes[target, n][name]] for n in sizes]
            axis.fill_between(sizes, [min(c) for c in counts], [max(c) for c in counts], color=COLORS[name], alpha=0.2, lw=0)
            means = [statistics.mean(c) for c in counts]
            axis.plot(sizes, means, color=COLORS[name], marker=MARKERS[name], markersize=4.5, label=name)
        axis.set(xscale="log", xlabel="entries n", title=f"Iterations, target {target:g}")
    most = max(len(trace) for found in passes.values() for sizes in found.values() for trace in sizes)
    axes[0].set(ylabel="iterations", ylim=(0, most + 1))
    axes[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(loc="upper left", frameon=False)


def draw_sizes(axis: Any, n: int, found: dict[str, list[list[int]]]) -> None:
    """Draw how many entries each iteration works on, on average over vectors."""
    for name, mean in mean_sizes(found).items():
        axis.plot(range(1, len(mean) + 1), mean, color=COLORS[name], marker=MARKERS[name], markersize=4.5)
    final = statistics.mean(trace[-1] for trace in found["linear time"])
    axis.axhline(final, color="0.4", lw=1, ls=":", zorder=0)
    axis.annotate(
        "support of the result", (0, final), (6, -4), xycoords=("axes fraction", "data"), textcoords="offset points", va="top"
    )
    axis.set(yscale="log", ylim=(0.6 * final, 1.5 * n), xlabel="iteration", ylabel=f"entries of {n:,}")
    axis.set_title(f"Entries at work, target {TARGET:g}")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def mean_sizes(found: dict[str, list[list[int]]]) -> dict[str, list[float]]:
    """Return the mean size in each iteration; a finished vector keeps its last."""
    means = {}
    for name, sizes in found.items():
        longest = max(len(trace) for trace in sizes)
        padded = [trace + trace[-1:] * (longest - len(trace)) for trace in sizes]
        means[name] = [statistics.mean(column) for column in zip(*padded, strict=True)]
    return means


def draw_speed(axis: Any, cells: dict[tuple[int, float], dict[str, float]], peer: str, norm: LogNorm) -> None:
    """Draw how many times faster ``F.hoyer_projection`` is than a peer, by n and sparseness of the input."""
    sizes, sparsenesses = sorted({n for n, _ in cells}), sorted({s for _, s in cells})
    ratios = [[cells[n, s][peer] / cells[n, s]["F.hoyer_projection"] for n in sizes] for s in sparsenesses]
    axis.imshow(ratios, cmap="cividis", norm=norm, aspect="auto", origin="lower")
    for row, values in enumerate(ratios):
        for column, value in enumerate(values):
            color = "white" if norm(value) < 0.55 else "black"
            axis.text(column, row, f"{value:.0f}" if value >= 10 else f"{value:.1f}", ha="center", va="center", color=color)
    axis.set_xticks(range(len(sizes)), [f"{n:,}" for n in sizes], rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(sparsenesses)), [f"{s:g}" for s in sparsenesses])
    axis.set(xlabel="entries n", ylabel="sparseness of the input", title=f"Speed-up over {peer} in numpy")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def draw_long(axis: Any, n: int, measured: dict[float, dict[str, float]]) -> None:
    """Draw the times for one long vector, one dot a target, with the median ratio to ``F.hoyer_projection``."""
    names = list(next(iter(measured.values())))
    for row, name in enumerate(names):
        own = [1e3 * values[name] for values in measured.values()]
        axis.plot([min(own), max(own)], [row, row], color="0.75", lw=5, solid_capstyle="round", zorder=1)
        axis.scatter(own, [row] * len(own), color="#0072B2" if row == 0 else "0.25", s=16, zorder=2)
        if row:
            ratio = statistics.median(values[name] / values["F.hoyer_projection"] for values in measured.values())
            axis.text(max(own) * 1.4, row, f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x", va="center")
    largest = max(max(values.values()) for values in measured.values())
    axis.set_yticks(range(len(names)), names)
    axis.set(xscale="log", xlabel="milliseconds", title=f"One vector of {n:,} entries", ylim=(len(names) - 0.5, -0.5))
    axis.set_xlim(right=4e3 * largest)


def draw(
    path: Path,
    passes: dict[tuple[float, int], dict[str, list[list[int]]]],
    sizes: tuple[int, dict[str, list[list[int]]]],
    cells: dict[tuple[int, float], dict[str, float]],
    long: tuple[int, dict[float, dict[str, float]]],
) -> None:
    """Draw everything that was measured."""
    figure = Figure(figsize=(15, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 1)
    upper = figure.add_subfigure(grid[0]).subplots(1, 4, sharey=True)
    lower = figure.add_subfigure(grid[1]).subplots(1, 4)
    draw_passes(upper, passes)
    draw_sizes(lower[0], *sizes)
    ratios = [cell[peer] / cell["F.hoyer_projection"] for cell in cells.values() for peer in ("Hoyer 2004", "alternating")]
    norm = LogNorm(min(ratios), max(ratios))
    draw_speed(lower[1], cells, "Hoyer 2004", norm)
    draw_speed(lower[2], cells, "alternating", norm)
    draw_long(lower[3], *long)
    for axis in [*upper, lower[0], lower[3]]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="0.9", zorder=0)
        axis.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main(args: Sequence[str] | None = None) -> None:
    """Measure, print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("pictures"), help="where hoyer.png goes")
    parser.add_argument("--rounds", type=int, default=15, help="rounds over all contestants")
    parser.add_argument("--vectors", type=int, default=10, help="random vectors that iterations are counted for")
    parser.add_argument("--quick", action="store_true", help="short vectors, to see whether it runs")
    options = parser.parse_args(args)
    lengths = [100, 1000] if options.quick else [10, 100, 1000, 10_000, 100_000, 1_000_000]
    cells = [(n, s) for n in ([64, 256] if options.quick else [4**k for k in range(2, 10)]) for s in (0.1, 0.3, 0.5, 0.7, 0.85)]
    with one_thread():
        measure_and_report(lengths, cells, options)


def measure_and_report(lengths: list[int], cells: list[tuple[int, float]], options: argparse.Namespace) -> None:
    """Measure at these lengths, and at these lengths with these sparsenesses of the input."""
    print(f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}, numpy {np.__version__}")

    passes = {(target, n): traces(n, target, options.vectors) for target in TARGETS for n in lengths}
    means = {key: [statistics.mean(map(len, found[name])) for name in ALGORITHMS] for key, found in passes.items()}
    print_table(
        f"Iterations, mean over {options.vectors} vectors of uniform entries:",
        ["target", "n", *ALGORITHMS],
        [[f"{target:g}", f"{n:,}", *(f"{mean:.1f}" for mean in row)] for (target, n), row in means.items()],
    )

    n = lengths[-2]
    found = mean_sizes(passes[TARGET, n])
    print_table(
        f"Entries at work in each iteration, n = {n:,}, target {TARGET}: above the trial threshold, or left in the vector:",
        ["iteration", *ALGORITHMS],
        [
            [str(i + 1), *(f"{found[name][i]:,.0f}" if i < len(found[name]) else "" for name in ALGORITHMS)]
            for i in range(max(map(len, found.values())))
        ],
    )

    speed = {(n, initial): times(n, initial, TARGET, options.rounds) for n, initial in cells}
    sparsenesses = sorted({initial for _, initial in cells})
    for peer in ("Hoyer 2004", "alternating"):
        ratios = {key: cell[peer] / cell["F.hoyer_projection"] for key, cell in speed.items()}
        print_table(
            f"Times faster than {peer}, target {TARGET}, by n and sparseness of the input, float64:",
            ["n", *(f"{s:g}" for s in sparsenesses)],
            [[f"{n:,}", *(f"{ratios[n, s]:.1f}" for s in sparsenesses)] for n in sorted({n for n, _ in cells})],
        )

    long = {target: times_of_long_vector(lengths[-1], target, options.rounds) for target in TARGETS}
    names = list(long[TARGET])
    print_table(
        f"One vector of {lengths[-1]:,} normal entries, float32, signs kept: ms (ratio to F.hoyer_projection):",
        ["target", *names],
        [
            [f"{t:g}", *(f"{1e3 * cell[name]:.2f} ({cell[name] / cell[names[0]]:.1f})" for name in names)]
            for t, cell in long.items()
        ],
    )
    least = min(cell["sorted, torch.sort"] / cell["F.hoyer_projection"] for cell in long.values())
    print(f"\nAgainst the sorted form on torch.sort, F.hoyer_projection is at least {least:.1f} times as fast.")

    path = options.folder / "hoyer.png"
    draw(path, passes, (n, passes[TARGET, n]), speed, (lengths[-1], long))
    print(f"Drew {path}.")


if __name__ == "__main__":
    main()
