"""Compare kernel SGD on the safe semi-dual of entropic transport with that on the dual: Figures 2 and 5 of the publication.

Usage:
    python scripts/logsumexp_transport.py [--seeds 5] [--iterations 10000] [--long 100000] [--results FOLDER] [--only_tables]

From N(0, 1) to the mixture of N(-1, 0.25) and N(1.5, 0.16) in halves (variances), cost (x - y)^2, eps 0.1. The grid has kernel
widths, step sizes C and, for the safe semi-dual, rho. Each setting is run with some seeds. The gap is the optimum minus S(u),
both by quadrature on a grid of 601 points. Each run is a row of ``<results>/logsumexp_transport.csv``, written when it ends,
so the same command continues a killed one. The settings of least median gap are then run for longer.

Further files: ``.md`` with medians over seeds and the largest gaps, ``.png`` with gaps over iterations, and
``logsumexp_densities.png``.

Source: Gladin et al. (2025), LogSumExp approximation, section 3.1 and appendix B.
"""

from __future__ import annotations

import passive_threads  # noqa: F401  # isort: skip

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_sparse.transport import GaussianMixture, KernelPotentials
from lit_sparse.transport.dual import dual_value, grid_measure, semi_dual_value, sinkhorn_potentials

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TARGET, EPS = GaussianMixture([0.0], [1.0]), GaussianMixture([-1.0, 1.5], [0.25, 0.16]), 0.1
WIDTHS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5)
RHOS = (0.1, 0.03, 0.01, 0.003, 0.001)
SAFE_STEPS, DUAL_STEPS = (0.03, 0.1, 0.3, 1.0, 3.0), (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 1.0)
FIELDS = ("objective", "rho", "width", "step_size", "seed", "iterations", "gap", "overflows")


class Setting(NamedTuple):
    """Setting of a run; rho is 1 for the dual, which does not have it."""

    objective: str
    rho: float
    width: float
    step_size: float

    @property
    def label(self) -> str:
        """How tables and pictures call it."""
        rho = f", rho {self.rho:g}" if self.objective == "safe" else ""
        return f"{self.objective}{rho}, width {self.width:g}, C {self.step_size:g}"


class Problem:
    """The two measures on a grid, the optimum between them, and how far a potential is from it."""

    def __init__(self) -> None:
        self.points, self.of_source = grid_measure(SOURCE.log_prob, -6.0, 6.0)
        self.of_target = grid_measure(TARGET.log_prob, -6.0, 6.0)[1]
        self.weights = {"source_weights": self.of_source, "target_weights": self.of_target}
        u, v = sinkhorn_potentials(self.points, self.points, eps=EPS, **self.weights)
        self.optimum = dual_value(u, v, self.points, self.points, eps=EPS, **self.weights)

    def gap(self, potentials: KernelPotentials) -> float:
        """Return the optimum less S(u)."""
        u = potentials.source_potential(self.points)
        return self.optimum - semi_dual_value(u, self.points, self.points, eps=EPS, **self.weights)


def settings() -> Iterator[Setting]:
    """Yield the grid."""
    for width in WIDTHS:
        for step_size in SAFE_STEPS:
            yield from (Setting("safe", rho, width, step_size) for rho in RHOS)
        yield from (Setting("dual", 1.0, width, step_size) for step_size in DUAL_STEPS)


def run(problem: Problem, setting: Setting, seed: int, iterations: int, stops: Sequence[int]) -> Iterator[dict[str, object]]:
    """Yield a row of the table at each of some numbers of iterations; an overflow ends the run, with an infinite gap."""
    potentials = KernelPotentials(setting.width, setting.step_size, capacity=iterations).build(1)
    index = torch.arange(iterations)
    x, y = SOURCE.sample(2 * seed, index), TARGET.sample(2 * seed + 1, index)
    options = {"eps": EPS, "rho": setting.rho, "objective": setting.objective}
    done, broken = 0, 0
    for stop in stops:
        if not broken:
            broken = potentials.ascend(x[done:stop], y[done:stop], **options)[1]
        done = stop
        gap = math.inf if broken else problem.gap(potentials)
        yield dict(zip(FIELDS, (*setting, seed, stop, f"{gap:.6g}", broken), strict=True))


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows measured so far; a line that a killed run left unfinished is none."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader([line for line in file if line.endswith("\n")]))


def measure(path: Path, problem: Problem, seeds: int, iterations: int, long: int) -> None:
    """Run every setting of the grid that is not in the file yet, and then the best of them for longer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read(path)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        for stops, chosen in (((iterations,), lambda: list(settings())), (marks(long), lambda: drawn(rows, iterations))):
            for setting in chosen():
                for seed in range(seeds):
                    if found(rows, setting, seed, stops[-1]):
                        continue
                    for row in run(problem, setting, seed, stops[-1], stops):
                        rows.append({name: str(value) for name, value in row.items()})
                        writer.writerow(row)
                    file.flush()
                print(f"{setting.label}, {stops[-1]} iterations: measured", flush=True)


def marks(long: int) -> tuple[int, ...]:
    """Return after how many iterations gaps are measured."""
    return tuple(sorted({max(10, round(long ** (k / 40))) for k in range(8, 41)} | {long}))


def setting_of(row: dict[str, str]) -> Setting:
    """Return the setting of a row."""
    return Setting(row["objective"], float(row["rho"]), float(row["width"]), float(row["step_size"]))


def found(rows: Sequence[dict[str, str]], setting: Setting, seed: int, iterations: int) -> bool:
    """Return whether a run was measured to its end."""
    wanted = (str(seed), str(iterations))
    return any((row["seed"], row["iterations"]) == wanted and setting_of(row) == setting for row in rows)


def gaps(rows: Sequence[dict[str, str]], iterations: int) -> dict[Setting, list[float]]:
    """Return setting -> its gaps after some iterations, one a seed."""
    seen: dict[tuple[Setting, str], float] = {}
    for row in rows:
        if row["iterations"] == str(iterations):
            seen.setdefault((setting_of(row), row["seed"]), float(row["gap"]))
    grouped: dict[Setting, list[float]] = {}
    for (setting, _), gap in seen.items():
        grouped.setdefault(setting, []).append(gap if math.isfinite(gap) else math.inf)
    return grouped


def best(rows: Sequence[dict[str, str]], iterations: int, objective: str, rho: float) -> Setting:
    """Return the setting of least median gap of those in the grid."""
    asked = set(settings())
    of = {one: gap for one, gap in gaps(rows, iterations).items() if one in asked and one[:2] == (objective, rho)}
    return min(of, key=lambda one: statistics.median(of[one]))


def drawn(rows: Sequence[dict[str, str]], iterations: int) -> list[Setting]:
    """Return the settings whose gaps are drawn over iterations: the best ones, and the dual's at other step sizes."""
    medians = {setting: statistics.median(values) for setting, values in gaps(rows, iterations).items()}
    of_rho = [best(rows, iterations, "safe", rho) for rho in RHOS]
    safe, dual = min(of_rho, key=lambda one: medians[one]), best(rows, iterations, "dual", 1.0)
    steps = sorted({0.03, 0.1, 0.3, 1.0} | {dual.step_size})
    return [*dict.fromkeys((safe, of_rho[0])), *(dual._replace(step_size=step) for step in steps)]


def write_tables(path: Path, rows: Sequence[dict[str, str]], problem: Problem, iterations: int, long: int) -> None:
    """Write the best settings, how they go on, and the whole grid."""
    measured = gaps(rows, iterations)
    seeds = max(len(values) for values in measured.values())
    lines = [
        "# Entropic transport by kernel SGD",
        "",
        f"N(0, 1) to 0.5 N(-1, 0.25) + 0.5 N(1.5, 0.16), cost (x - y)^2, eps {EPS:g}; optimum {problem.optimum:.6f}, its",
        f"entropy included. Gaps (optimum less S(u), by quadrature) over {seeds} seeds after {iterations:,} iterations; kernel",
        "exp(-d^2 / (2 width^2)).",
        "",
        "## Best of each grid",
        "",
        "| setting | median gap | largest gap |",
        "| --- | ---: | ---: |",
    ]
    for objective, rho in (*(("safe", rho) for rho in RHOS), ("dual", 1.0)):
        chosen = best(rows, iterations, objective, rho)
        lines.append(f"| {chosen.label} | {shown(statistics.median(measured[chosen]))} | {shown(max(measured[chosen]))} |")
    lines += ["", "## Over iterations", "", "Median gap, and the largest in parentheses.", ""]
    stops = [stop for stop in (iterations // 10, iterations, long) if stop in marks(long) or stop == iterations]
    lines += ["| setting | " + " | ".join(f"{stop:,}" for stop in stops) + " |", "| --- |" + " ---: |" * len(stops)]
    for setting in drawn(rows, iterations):
        of = [gaps(rows, stop).get(setting, []) for stop in stops]
        cells = [f"{shown(statistics.median(values))} ({shown(max(values))})" if values else "" for values in of]
        lines.append(f"| {setting.label} | " + " | ".join(cells) + " |")
    for objective, rho in (*(("safe", rho) for rho in RHOS), ("dual", 1.0)):
        name = f"safe, rho {rho:g}" if objective == "safe" else "dual (Genevay et al. 2016)"
        steps = SAFE_STEPS if objective == "safe" else DUAL_STEPS
        lines += ["", f"## {name}: median gap", "", "| width | " + " | ".join(f"C {step:g}" for step in steps) + " |"]
        lines.append("| ---: |" + " ---: |" * len(steps))
        for width in WIDTHS:
            of = [measured.get(Setting(objective, rho, width, step), []) for step in steps]
            lines.append(f"| {width:g} | " + " | ".join(shown(statistics.median(v)) if v else "" for v in of) + " |")
    path.write_text("\n".join(lines) + "\n")


def shown(value: float) -> str:
    """Return a number in a few digits."""
    return f"{value:.4f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.1e}"


def draw(path: Path, rows: Sequence[dict[str, str]], iterations: int, long: int) -> None:
    """Draw medians and ranges of gaps over iterations: the best settings, and the dual at several step sizes."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    chosen = drawn(rows, iterations)
    dual = best(rows, iterations, "dual", 1.0)
    safe = [setting for setting in chosen if setting.objective == "safe"]
    for panel, members in ((left, [*safe, dual]), (right, [safe[0], *chosen[len(safe) :]])):
        for setting in members:
            stops = [stop for stop in marks(long) if setting in gaps(rows, stop)]
            values = [[min(gap, 1e12) for gap in gaps(rows, stop)[setting]] for stop in stops]
            line = panel.plot(stops, [statistics.median(some) for some in values], label=setting.label, linewidth=1.3)
            panel.fill_between(stops, [min(v) for v in values], [max(v) for v in values], alpha=0.15, color=line[0].get_color())
        panel.set(xscale="log", yscale="log", xlabel="iterations", ylabel="optimality gap")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, loc="upper right")
    left.set(title="best settings", ylim=(5e-3, 2.0))
    right.set(title="step sizes of the dual", ylim=(5e-3, 1e4))
    figure.savefig(path, dpi=110)


def draw_densities(path: Path) -> None:
    """Draw the densities of the two measures."""
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    points = torch.linspace(-4.0, 4.0, 400, dtype=torch.float64).unsqueeze(1)
    for name, measure_ in (("source", SOURCE), ("target", TARGET)):
        axis.plot(points.flatten().tolist(), measure_.log_prob(points).exp().tolist(), label=name)
    axis.set(xlabel="point", ylabel="density")
    axis.legend()
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--only_tables", action="store_true", help="draw what was measured")
    own = parser.parse_args(argv)
    problem, path = Problem(), own.results / "logsumexp_transport.csv"
    if not own.only_tables:
        measure(path, problem, own.seeds, own.iterations, own.long)
    rows = read(path)
    if not rows:
        sys.exit(f"Nothing was measured in {str(path)!r} yet: leave out --only_tables.")
    write_tables(path.with_suffix(".md"), rows, problem, own.iterations, own.long)
    draw(path.with_suffix(".png"), rows, own.iterations, own.long)
    draw_densities(own.results / "logsumexp_densities.png")
    print(path.with_suffix(".md").read_text().split("## Over")[0])


if __name__ == "__main__":
    main()
