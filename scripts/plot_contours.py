"""Draw the posterior mean of log house prices on a map, of all places and of coresets, whose points are dots.

Usage: python scripts/plot_contours.py cal_housing.csv.gz results/coresets_contours.png

Source: Figure 2 of Bayesian Coresets: Revisiting the Nonconvex Optimization Perspective.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import sys

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_sparse.coresets import GIGA, AcceleratedIHT, NonnegativeOMP
from lit_sparse.data import RadialBases
from lit_sparse.studies.problems.coresets import Radial, make


def main(data: str, picture: str) -> None:
    """Draw."""
    problem = make("rbf", 0, data)
    assert isinstance(problem, Radial)
    shown = {"A-IHT II": AcceleratedIHT(debias=True), "GIGA": GIGA(), "NN-OMP": NonnegativeOMP()}
    figure = Figure(figsize=(7.3, 6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, len(shown) + 1, sharex=True, sharey=True)
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
                panel.scatter(*places[coreset.indices].mT, s=coreset.weights.sqrt(), color="black", zorder=2)
            price = (values @ posterior.mean).reshape(80, 80)
            panel.contour(columns, rows, price, levels=levels, linewidths=0.8, zorder=1)
            panel.set_title(name if name not in shown else f"{name}, k = {k}", fontsize=9)
    figure.savefig(picture, dpi=140)
    print(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
