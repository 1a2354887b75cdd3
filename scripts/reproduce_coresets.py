"""Compare coreset selectors on the published problems: divergence of posteriors against the size of the coreset.

Usage:
    python scripts/reproduce_coresets.py {gaussian,rbf,contours,small,large} [--data FOLDER] [--problems synth_lr ...]
        [--trials 10] [--sizes 20 100 ...] [--selectors A-IHT GIGA ...] [--results FOLDER] [--only_tables]

    python scripts/reproduce_coresets.py mnist [--seeds 0 1 2] [--jobs 2] [--output runs/reproduce] -- \
        --data.init_args.folder FOLDER

``gaussian`` and ``rbf`` are Figure 1 of the publication, ``contours`` Figure 2, ``small`` Figure 3 (six data sets of 500 rows),
``large`` Figure 4 (9,000 and 11,055 rows), and ``mnist`` trains a network on 5 % of MNIST. ``--data`` is the folder with the
``.npz`` and ``.libsvm.gz`` files, and for ``rbf`` and ``contours`` that with ``cal_housing.csv.gz``. Every coreset is a row of
``<results>/coresets_<figure>.csv``, written at once: the same command goes on where a killed one ended. A trial's number seeds
its data, as far as they are drawn, and its vectors. SparseVI, slow by design, is run up to k = 30 in the first trial of
three problems alone.

Further files: ``.md`` with medians and ``.png`` with medians and bands (25 to 75 % for Figure 1, 35 to 65 % for
the others).
"""

from __future__ import annotations

import passive_threads  # noqa: F401  # isort: skip

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from coreset_problems import Problem, Radial, make
from coreset_tables import draw, read, write_row, write_table
from jobs import exit_with, parse_own
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_sparse.coresets import GIGA, AcceleratedIHT, Coreset, CoresetSelector, FrankWolfe, NonnegativeOMP, SparseVI, Uniform
from lit_sparse.coresets.posteriors import forward_kl, map_distance, reverse_kl
from lit_sparse.data import RadialBases

ROOT = Path(__file__).resolve().parents[1]
SPARSE_VI, SPARSE_VI_SIZES, SPARSE_VI_PROBLEMS = "SparseVI", (1, 10, 20, 30), ("gaussian", "synth_lr", "phishing")
#: Name -> what builds it, given how many iterations the thresholding ones may take.
SELECTORS: dict[str, Callable[[int], CoresetSelector]] = {
    "A-IHT": lambda most: AcceleratedIHT(max_iter=most, polish=False),
    "A-IHT II": lambda most: AcceleratedIHT(debias=True, max_iter=most, polish=False),
    "A-IHT II polished": lambda most: AcceleratedIHT(debias=True, max_iter=most),
    "NN-OMP": lambda most: NonnegativeOMP(),
    "GIGA": lambda most: GIGA(),
    "Frank-Wolfe": lambda most: FrankWolfe(),
    "uniform": lambda most: Uniform(),
    SPARSE_VI: lambda most: SparseVI(),
}


class Comparison:
    """One figure: its problems, sizes, trials and how it is drawn."""

    def __init__(
        self,
        problems: tuple[str, ...],
        sizes: tuple[int, ...],
        trials: int,
        measures: tuple[str, ...],
        *,
        band: tuple[float, float] = (0.35, 0.65),
        most: int = 300,
    ) -> None:
        self.problems, self.sizes, self.trials, self.measures = problems, sizes, trials, measures
        self.band, self.most = band, most


SMALL = ("synth_lr", "phishing", "ds1", "synth_poiss", "biketrips", "airportdelays")
HUNDREDS = (20, 60, 100, 140, 180, 200, 220, 260, 300)
COMPARISONS = {
    "gaussian": Comparison(("gaussian",), HUNDREDS, 10, ("reverse_kl",), band=(0.25, 0.75)),
    "rbf": Comparison(("rbf",), HUNDREDS, 10, ("forward_kl", "reverse_kl"), band=(0.25, 0.75)),
    "small": Comparison(SMALL, (1, 5, 10, 20, 40, 60, 80, 100), 20, ("forward_kl", "reverse_kl", "map_distance")),
    "large": Comparison(
        ("large_synthetic", "large_phishing"),
        (50, 100, 200, 300, 500),
        10,
        ("symmetrized_kl", "map_distance"),
        most=500,
    ),
}


def compare(name: str, comparison: Comparison, own: argparse.Namespace) -> None:
    """Measure every coreset that is not in the file yet."""
    path = own.results / f"coresets_{name}.csv"
    done = {(row["problem"], int(row["trial"]), row["selector"], int(row["k"])) for row in read(path)}
    for problem_name in own.problems or comparison.problems:
        for trial in range(own.trials or comparison.trials):
            problem: Problem | None = None
            for selector in own.selectors or SELECTORS:
                for k in _sizes(selector, problem_name, trial, comparison, own):
                    if (problem_name, trial, selector, k) in done:
                        continue
                    problem = make(problem_name, trial, own.data) if problem is None else problem
                    write_row(path, {"problem": problem_name, "trial": trial, **measure(problem, selector, k, comparison.most)})
            if problem is not None:
                print(f"{problem_name}, trial {trial}: measured", flush=True)


def _sizes(selector: str, problem: str, trial: int, comparison: Comparison, own: argparse.Namespace) -> tuple[int, ...]:
    if selector == SPARSE_VI:
        return SPARSE_VI_SIZES if problem in SPARSE_VI_PROBLEMS and trial == 0 and not own.sizes else ()
    return tuple(own.sizes) or comparison.sizes


def measure(problem: Problem, selector: str, k: int, most: int) -> dict[str, object]:
    """Select a coreset, and compare its posterior with that of all examples."""
    built = SELECTORS[selector](most)
    if isinstance(built, SparseVI):
        built.resample = problem.resample()
    coreset: Coreset = built(problem.vectors, k, torch.Generator().manual_seed(1000 * problem.seed + k))
    posterior = problem.posterior(coreset.dense())
    return {
        "selector": selector,
        "k": k,
        "size": len(coreset),
        "objective": f"{coreset.objective:.6g}",
        "forward_kl": f"{forward_kl(problem.full, posterior):.6g}",
        "reverse_kl": f"{reverse_kl(problem.full, posterior):.6g}",
        "map_distance": f"{map_distance(problem.full, posterior):.6g}",
    }


def contours(own: argparse.Namespace) -> None:
    """Draw the posterior mean of log prices on the map, of all places and of coresets, whose points are dots (Figure 2)."""
    problem = make("rbf", 0, own.data)
    assert isinstance(problem, Radial)
    shown = {"A-IHT II": AcceleratedIHT(debias=True), "GIGA": GIGA(), "NN-OMP": NonnegativeOMP()}
    figure = Figure(figsize=(4 * (len(shown) + 1), 10), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, len(shown) + 1)
    places, bases, centres = problem.places, RadialBases(), problem.centres
    (west, south), (east, north) = places.min(0).values.tolist(), places.max(0).values.tolist()
    columns, rows = torch.linspace(west, east, 80).double(), torch.linspace(south, north, 80).double()
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2)
    values = bases(grid, centres)
    levels = torch.linspace(10.5, 13.5, 13).tolist()
    for line, k in zip(panels, (220, 260, 300), strict=True):
        for panel, name in zip(line, ["all places", *shown], strict=True):
            posterior = problem.full
            if name in shown:
                coreset = shown[name](problem.vectors, k)
                posterior = problem.posterior(coreset.dense())
                panel.scatter(*places[coreset.indices].mT, s=4 * coreset.weights.sqrt(), color="black", zorder=2)
            price = (values @ posterior.mean).reshape(80, 80)
            panel.contour(columns, rows, price, levels=levels, linewidths=0.8, zorder=1)
            panel.set_title(name if name not in shown else f"{name}, k = {k}", fontsize=9)
    figure.savefig(own.results / "coresets_contours.png", dpi=100)
    print(f"wrote {own.results / 'coresets_contours.png'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=[*COMPARISONS, "contours", "mnist"])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", nargs="+", default=None)
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--sizes", type=int, nargs="+", default=())
    parser.add_argument("--selectors", nargs="+", choices=list(SELECTORS), default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--only_tables", action="store_true")
    own, options = parse_own(parser, sys.argv[1:])
    own.results.mkdir(parents=True, exist_ok=True)
    if own.figure == "contours":
        contours(own)
        return 0
    if own.figure == "mnist":
        from coreset_mnist import train_all

        return train_all(own, options)
    comparison = COMPARISONS[own.figure]
    if not own.only_tables:
        compare(own.figure, comparison, own)
    stem = own.results / f"coresets_{own.figure}"
    rows = read(stem.with_suffix(".csv"))
    write_table(stem.with_suffix(".md"), rows, f"Coresets: {own.figure}", ("objective", *comparison.measures))
    draw(stem.with_suffix(".png"), rows, comparison.measures, comparison.band)
    print(f"wrote {stem}.md, .csv and .png")
    return 0


if __name__ == "__main__":
    exit_with(main)
