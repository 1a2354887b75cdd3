"""Draw the pictures of the site into ``docs/gallery/pictures``, again only when this file or the package changes."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

import lit_sparse
from lit_sparse.mappings import Entmax, Fusedmax, Oscarmax, Softmax, SparseMapping, Sparsemax

HERE = Path(__file__).parent
SCORES = torch.tensor([0.8, 0.9, 0.4, 1.15, 1.25, -0.4, 0.85, -0.9], dtype=torch.float64)

# Okabe & Ito's palette: distinct for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY = "#777777"  # text and lines: readable on white and on black
STYLE: dict[str, Any] = {
    "svg.hashsalt": "lit_sparse",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "figure.facecolor": "white",  # a white card in dark mode
    "hatch.linewidth": 0.6,
}

FIGURES: dict[str, Callable[[], Figure]] = {}


def figure(draw: Callable[[], Figure]) -> Callable[[], Figure]:
    """Register a picture by the name of its function."""
    FIGURES[draw.__name__] = draw
    return draw


def blank(width: float, height: float) -> Figure:
    """Return a figure without a window."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(made)
    return made


def bars(axis: Any, weights: np.ndarray, colour: str, size: float = 5.5) -> None:
    """Draw weights as bars, exact zeros as hollow marks, and a line over each group of equal weights."""
    positions = np.arange(len(weights))
    there = weights > 0
    axis.bar(positions[there], weights[there], width=0.72, color=colour)
    if not there.all():  # an empty line that is not clipped would upset the layout
        axis.plot(
            positions[~there], 0 * positions[~there], "o", mfc="white", mec=GREY, mew=1.2, ms=size, clip_on=False, zorder=3
        )
    axis.set_xticks([])
    axis.set_xlim(-0.6, len(weights) - 0.4)


def mark_groups(axis: Any, weights: np.ndarray, *, neighbours: bool) -> None:
    """Draw a line with dots over weights that are equal and above zero."""
    for value in np.unique(weights[weights > 0]):
        members = np.flatnonzero(weights == value)
        runs = np.split(members, np.flatnonzero(np.diff(members) > 1) + 1) if neighbours else [members]
        for run in runs:
            if len(run) > 1:
                axis.plot(run, np.full(len(run), value + 0.035), "-o", color="black", lw=1.0, ms=2.8, zorder=4)


@figure
def one_vector() -> Figure:
    """Draw several mappings of one score vector."""
    chosen: list[tuple[str, SparseMapping, str]] = [
        ("softmax", Softmax(), GREY),
        ("entmax, $\\alpha = 1.5$", Entmax(1.5), SKY),
        ("sparsemax", Sparsemax(), BLUE),
        ("fusedmax", Fusedmax(0.15), ORANGE),
        ("oscarmax", Oscarmax(0.12), GREEN),
    ]
    made = blank(8.6, 4.4)
    axes = made.subplots(2, 3).ravel()
    positions = np.arange(len(SCORES))
    axes[0].bar(positions, SCORES.numpy(), width=0.72, color="#BBBBBB")
    axes[0].axhline(0, color="#444444", lw=0.8)
    axes[0].set(title="scores", xticks=[], xlim=(-0.6, len(SCORES) - 0.4))
    axes[0].spines["bottom"].set_visible(False)
    for axis, (name, mapping, colour) in zip(axes[1:], chosen, strict=True):
        weights = mapping(SCORES).numpy()
        bars(axis, weights, colour)
        if mapping.groups == "tied" or mapping.ordered:
            mark_groups(axis, weights, neighbours=mapping.ordered)
        axis.set(title=name, ylim=(0, 0.62), yticks=[0, 0.25, 0.5])
        count = f"{int((weights > 0).sum())} of {len(weights)} above zero"
        axis.text(0.98, 0.97, count, color="#444444", fontsize=9, ha="right", va="top", transform=axis.transAxes)
    return made


@figure
def gamma_strip() -> Figure:
    """Draw the same scores under several strengths and mappings."""
    strengths = (0.25, 0.5, 1.0, 2.0, 4.0)
    chosen: list[tuple[str, Callable[[float], SparseMapping], str]] = [
        ("softmax", lambda gamma: Softmax(gamma=gamma), GREY),
        ("entmax 1.5", lambda gamma: Entmax(1.5, gamma=gamma), SKY),
        ("sparsemax", lambda gamma: Sparsemax(gamma=gamma), BLUE),
        ("fusedmax", lambda gamma: Fusedmax(0.15, gamma=gamma), ORANGE),
    ]
    made = blank(9.6, 5.2)
    axes = made.subplots(len(chosen), len(strengths), sharey=True)
    for row, (name, build, colour) in zip(axes, chosen, strict=True):
        for axis, gamma in zip(row, strengths, strict=True):
            bars(axis, build(gamma)(SCORES).numpy(), colour, size=4.5)
            axis.set(ylim=(0, 1.05), yticks=[0, 0.5, 1])
        row[0].set_ylabel(name)
    for axis, gamma in zip(axes[0], strengths, strict=True):
        axis.set_title(f"$\\gamma = {gamma:g}$")
    return made


@figure
def support() -> Figure:
    """Draw the mean support over the strength, for 64 scores from N(0, 1)."""
    scores = torch.randn(512, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    strengths = np.logspace(-1.5, 1.5, 25)
    chosen: list[tuple[str, Callable[[float], SparseMapping], str, str]] = [
        ("softmax", lambda gamma: Softmax(gamma=gamma), GREY, ":"),
        ("entmax 1.25", lambda gamma: Entmax(1.25, gamma=gamma), PURPLE, "-."),
        ("entmax 1.5", lambda gamma: Entmax(1.5, gamma=gamma), SKY, "-"),
        ("sparsemax", lambda gamma: Sparsemax(gamma=gamma), BLUE, "-"),
        ("entmax 3", lambda gamma: Entmax(3.0, gamma=gamma), VERMILION, "--"),
    ]
    made = blank(6.4, 3.8)
    axis = made.subplots()
    for name, build, colour, line in chosen:
        sizes = [float((build(float(gamma))(scores) > 0).double().sum(-1).mean()) for gamma in strengths]
        axis.plot(strengths, sizes, line, color=colour, lw=2, label=name)
    axis.set(xscale="log", yscale="log", yticks=[1, 4, 16, 64], yticklabels=["1", "4", "16", "64"])
    axis.set(xlabel="strength $\\gamma$", ylabel="weights above zero, of 64", xlim=(strengths[0], strengths[-1]))
    axis.minorticks_off()
    axis.grid(color="0.92")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made


@figure
def penalties() -> Figure:
    """Draw contours of the regularizers on the simplex of three weights."""
    chosen: list[tuple[str, SparseMapping]] = [
        ("softmax: negative entropy", Softmax()),
        ("sparsemax: half squared norm", Sparsemax()),
        ("fusedmax, $\\lambda = 0.3$", Fusedmax(0.3)),
        ("oscarmax, $\\lambda = 0.3$", Oscarmax(0.3)),
    ]
    steps = np.linspace(0, 1, 81)
    points = torch.tensor(
        [(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-9], dtype=torch.float64
    ).clamp_min(0)
    across, up = (points[:, 1] + 0.5 * points[:, 2]).numpy(), (points[:, 2] * 3**0.5 / 2).numpy()
    made = blank(10.4, 2.9)
    for axis, (name, mapping) in zip(made.subplots(1, len(chosen)), chosen, strict=True):
        heights = mapping.regularizer(points).numpy()
        axis.tricontourf(across, up, heights, levels=14, cmap="cividis_r")
        axis.tricontour(across, up, heights, levels=14, colors="white", linewidths=0.5, linestyles="solid")
        axis.plot([0, 1, 0.5, 0], [0, 0, 3**0.5 / 2, 0], color="#444444", lw=1)
        axis.plot(0.5, 3**0.5 / 6, "o", color="black", ms=3)
        for place, text, where in (
            ((0, 0), "$y_1$", (-9, -9)),
            ((1, 0), "$y_2$", (9, -9)),
            ((0.5, 3**0.5 / 2), "$y_3$", (0, 8)),
        ):
            axis.annotate(text, place, xytext=where, textcoords="offset points", ha="center", va="center")
        axis.set(title=name, aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.13, 1.0))
        axis.title.set_fontsize(10)
        axis.set_axis_off()
    return made


@figure
def decoder_calls() -> Figure:
    """Draw the decoder calls of the tutorial's VAE, from ``decoder_calls.csv``."""
    with (HERE / "decoder_calls.csv").open(encoding="utf-8") as file:
        rows = [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(line for line in file if line[0] != "#")
        ]
    epochs = [row["epoch"] + 1 for row in rows]
    made = blank(6.4, 3.4)
    axis = made.subplots()
    axis.axhline(10, color=GREY, ls=":", lw=2)
    axis.annotate("softmax: always 10", (epochs[-1], 10), xytext=(0, -5), textcoords="offset points", ha="right", va="top")
    axis.fill_between(epochs, [row["p10"] for row in rows], [row["p90"] for row in rows], color=SKY, alpha=0.35, lw=0)
    axis.plot(epochs, [row["mean"] for row in rows], color=BLUE, lw=2)
    axis.annotate("sparsemax: mean, and the 10 % to 90 % band", (epochs[-1], 3.4), ha="right")
    axis.set(xscale="log", xlabel="epoch", ylabel="decoder calls per image", ylim=(0, 10.6), yticks=[1, 4, 7, 10])
    axis.set(xlim=(1, epochs[-1]), xticks=[1, 10, 100], xticklabels=["1", "10", "100"])
    axis.minorticks_off()
    return made


def source() -> str:
    """Return a fingerprint of this file, its table and the package's mappings."""
    mappings = Path(lit_sparse.__file__).parent / "mappings"
    paths = [*sorted(HERE.glob("gallery.py")), *sorted(HERE.glob("*.csv")), *sorted(mappings.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def draw(folder: Path) -> None:
    """Draw all pictures that are missing or older than their source."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, current = folder / ".source", source()
    fresh = mark.is_file() and mark.read_text(encoding="utf-8") == current
    for name, make in FIGURES.items():
        path = folder / f"{name}.svg"
        if not (fresh and path.is_file()):
            with matplotlib.rc_context(STYLE):
                make().savefig(path, metadata={"Date": None})
    mark.write_text(current, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Draw the pictures before the pages are read."""
    draw(HERE.parent / "gallery" / "pictures")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
