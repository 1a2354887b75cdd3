"""Draw every mapping in two and in three dimensions, as Niculae & Blondel (2017) do in their figures 2 and 5.

Usage:
    python scripts/plot_mappings.py [--folder pictures] [--format png] [--resolution 241]

``mappings_2d`` has the value max_Omega and the first coordinate of the mapping of [t, 0] over t; below, mappings that do not
end in the simplex, of [t, 1]. ``mappings_3d`` has the second coordinate of the mapping of [t1, t2, 0] over t1 and t2.
gamma is 1 and, in the structured ones, lam 0.2.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from torch import Tensor

from lit_sparse.mappings import (
    BudgetSparsemax,
    CappedSoftmax,
    Entmax,
    Fusedmax,
    HardThreshold,
    HoyerProjection,
    LPSparseMAP,
    NormMax,
    Oscarmax,
    RegularizedArgmax,
    Softmax,
    SparseMAP,
    SparseMapping,
    Sparsemax,
    SqPNormMax,
    TopKSparsemax,
)
from lit_sparse.structures import BitVector, Budget, Factor, FactorGraph, Pair

RHO = 0.6  # no weight above 5/6 of two, 5/9 of three


def squared_steps(y: Tensor) -> Tensor:
    """Return ``1/2 ||y||^2 + 0.2 sum (y_(i+1) - y_i)^2``: a smooth relative of fusedmax, which has no mapping of its own."""
    return 0.5 * y.square().sum(-1) + 0.2 * y.diff(dim=-1).square().sum(-1)


def simplex_mappings() -> dict[str, SparseMapping]:
    """Name every mapping onto the simplex, by how it is made."""
    return {
        "softmax": Softmax(),
        r"entmax, $\alpha = 1.5$": Entmax(1.5),
        "sparsemax": Sparsemax(),
        "sq-pnorm-max, $p = 1.5$": SqPNormMax(1.5),
        r"norm-max, $\alpha = 4$": NormMax(4.0),
        rf"capped softmax, $\rho = {RHO}$": CappedSoftmax(RHO),
        "top-2 sparsemax": TopKSparsemax(2),
        r"fusedmax, $\lambda = 0.2$": Fusedmax(0.2),
        r"oscarmax, $\lambda = 0.2$": Oscarmax(0.2),
        "regularized argmax, squared steps": RegularizedArgmax(squared_steps),
    }


def other_mappings() -> dict[str, SparseMapping]:
    """Name mappings that do not end in the simplex."""
    return {
        "Hoyer projection to 0.3": HoyerProjection(0.3),
        "Hoyer projection to 0.7": HoyerProjection(0.7),
        "hard threshold, $k = 1$": HardThreshold(1),
        "budget sparsemax, $k = 1.5$": BudgetSparsemax(1.5),
        "Hoyer projection to 0.7, nonneg": HoyerProjection(0.7, nonneg=True),
        "SparseMAP, bits": SparseMAP(BitVector()),
        "SparseMAP, at most one bit": SparseMAP(Budget(None, 1)),
        "LP-SparseMAP, pairs that agree": LPSparseMAP(FactorGraph(None, [Factor(Pair(), "neighbours")]), potentials=[0.7]),
    }


# Okabe & Ito's palette, whose colours are distinct for colour-blind readers, with different strokes for overlapping curves.
STROKES: list[dict[str, Any]] = [
    {"color": "#000000", "ls": "-"},
    {"color": "#0072B2", "ls": "-"},
    {"color": "#D55E00", "ls": "-"},
    {"color": "#009E73", "ls": (0, (5, 1.5))},
    {"color": "#56B4E9", "ls": (0, (3, 1, 1, 1))},
    {"color": "#CC79A7", "ls": "-"},
    {"color": "#E69F00", "ls": (0, (5, 1.5))},
    {"color": "#7F7F7F", "ls": (0, (1.5, 1))},
    {"color": "#000000", "ls": (0, (1.5, 1))},
]


def to_touch(mapping: SparseMapping) -> float:
    """Return Omega for scores far apart: added to max_Omega([t, 0]), it lets the tails touch the tails of max(t, 0)."""
    far = torch.tensor([1e6, 0.0], dtype=torch.float64)
    return float(mapping.regularizer(mapping(far)))


def tidy(axis: Any) -> None:
    """Leave the frame out and draw a faint grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="0.92")
    axis.set_axisbelow(True)


def draw_curves(axes: Sequence[Any], mappings: dict[str, SparseMapping], x: Tensor, constants: dict[str, float]) -> None:
    """Draw value and first coordinate over the first score, on a pair of axes."""
    t = x[:, 0].numpy()
    for (name, mapping), stroke in zip(mappings.items(), STROKES[: len(mappings)], strict=True):
        y = mapping(x)[:, 0].numpy()
        y[1:][np.abs(np.diff(y)) > 0.1] = np.nan  # no line across a jump
        axes[0].plot(t, mapping.value(x).numpy() + constants.get(name, 0.0), lw=1.8, label=name, **stroke)
        axes[1].plot(t, y, lw=1.8, **stroke)
    for axis in axes:
        axis.set(xlim=(t[0], t[-1]), xlabel="t")
        tidy(axis)


def draw_two_dimensions(resolution: int) -> Figure:
    """Draw mappings of [t, 0] and, for those whose results are not probabilities, of [t, 1]."""
    figure = Figure(figsize=(7.3, 6), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3, width_ratios=[1, 1, 0.8])

    mappings = simplex_mappings()
    del mappings["top-2 sparsemax"]  # of two, sparsemax itself
    mappings = {"sparsemax, top-2 sparsemax" if name == "sparsemax" else name: value for name, value in mappings.items()}
    t = torch.linspace(-2.5, 2.5, 4 * resolution + 1, dtype=torch.float64)
    scores = torch.stack([t, torch.zeros_like(t)], -1)
    draw_curves(axes[0], mappings, scores, {name: to_touch(mapping) for name, mapping in mappings.items()})
    axes[0, 0].set(title=r"$\mathrm{max}_\Omega([t, 0])$, up to a constant", ylim=(-0.1, 2.6))
    axes[0, 1].set(title=r"$\Pi_\Omega([t, 0])_1$", ylim=(-0.03, 1.03))

    t = torch.linspace(-3, 3, 4 * resolution + 1, dtype=torch.float64)
    draw_curves(axes[1], other_mappings(), torch.stack([t, torch.ones_like(t)], -1), {})
    axes[1, 0].set(title=r"$\mathrm{max}_\Omega([t, 1])$, other sets", ylim=(0, None))
    axes[1, 1].set(title=r"$\Pi_\Omega([t, 1])_1$, other sets")

    for curves, side in zip(axes[:, 0], axes[:, 2], strict=True):
        side.set_axis_off()
        side.legend(*curves.get_legend_handles_labels(), loc="center left", borderaxespad=0, frameon=False, handlelength=3)
    return figure


def tied(y: Tensor) -> Tensor:
    """Return where the second of three weights is not zero and equals another: boolean (...)."""
    return (y[..., 1] > 0) & ((y[..., 1] == y[..., 0]) | (y[..., 1] == y[..., 2]))


def draw_surface(axis: Any, mapping: SparseMapping, t: Tensor) -> Any:
    """Draw the second coordinate of the mapping of [t1, t2, 0] as levels; exact zeros in grey, tied weights hatched."""
    off = t + 0.25 * (t[1] - t[0])  # off the diagonals, where scores are equal
    y = mapping(torch.stack([*torch.meshgrid(t, off, indexing="xy"), torch.zeros(len(t), len(t), dtype=t.dtype)], -1))
    second, across, up = y[..., 1].numpy(), t.numpy(), off.numpy()
    image = axis.pcolormesh(across, up, np.where(second == 0, np.nan, second), vmin=0, vmax=1, cmap="viridis", rasterized=True)
    axis.pcolormesh(across, up, np.where(second == 0, 0.0, np.nan), cmap=ListedColormap(["0.82"]), rasterized=True)
    axis.contour(across, up, second, levels=np.arange(0.1, 1, 0.1), colors="white", linewidths=0.7)
    if bool(tied(y).any()):
        axis.contourf(across, up, tied(y).numpy(), levels=[0.5, 1.5], colors="none", hatches=["////"])
    axis.set(aspect="equal", xlim=(across[0], across[-1]), ylim=(across[0], across[-1]), xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    return image


def draw_three_dimensions(resolution: int) -> Figure:
    """Draw mappings of [t1, t2, 0]."""
    mappings = simplex_mappings()
    figure = Figure(figsize=(7.3, 9.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(4, 3, sharex=True, sharey=True)
    t = torch.linspace(-2.5, 2.5, resolution, dtype=torch.float64)
    for axis, (name, mapping) in zip(axes.flat, mappings.items(), strict=False):
        image = draw_surface(axis, mapping, t)
        axis.set_title(name)
    for axis in axes.flat[len(mappings) - 3 : len(mappings)]:
        axis.set_xlabel("$t_1$")
        axis.tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("$t_2$")
    for side in axes.flat[len(mappings) :]:
        side.set_axis_off()
    bar = figure.colorbar(image, cax=side.inset_axes((0.1, 0.3, 0.1, 0.7)))
    bar.set_label(r"$\Pi_\Omega([t_1, t_2, 0])_2$")
    patches = [
        Patch(facecolor="0.82", label="exactly zero"),
        Patch(facecolor="none", hatch="////", label="tied with another"),
    ]
    side.legend(handles=patches, loc="lower left", borderaxespad=0, frameon=False)
    return figure


def main(args: Sequence[str] | None = None) -> None:
    """Draw both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("pictures"), help="where the pictures go")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="of the pictures")
    parser.add_argument("--resolution", type=int, default=241, help="points along each axis of the three-dimensional picture")
    options = parser.parse_args(args)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("mappings_2d", draw_two_dimensions), ("mappings_3d", draw_three_dimensions)):
        path = options.folder / f"{name}.{options.format}"
        with matplotlib.rc_context({"hatch.linewidth": 0.6, "font.size": 9, "axes.titlesize": 10}):
            draw(options.resolution).savefig(path, dpi=140)
        print(f"Drew {path}.")


if __name__ == "__main__":
    main()
