"""Draws the figures of the pages of explanation, in the build.

Usage:
    python docs/_ext/explanation_figures.py FOLDER

Each function of :data:`FIGURES` returns one figure. All random numbers have a seed, so the files are equal in every build.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import BoxStyle, FancyBboxPatch
from torch import Tensor
from torch.nn.functional import one_hot

from lit_sparse.coresets import GIGA, AcceleratedIHT, CoresetSelector, FrankWolfe, NonnegativeOMP, Uniform
from lit_sparse.estimators import Estimator, GumbelSoftmax, LatentBatch, LeaveOneOut, Marginalize, ScoreFunction, SumAndSample
from lit_sparse.mappings import Entmax, FenchelYoungLoss, Softmax, SparseMapping, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.metrics import hoyer_sparseness
from lit_sparse.structures import Budget

__all__ = ["FIGURES", "draw"]

# Okabe & Ito's palette, whose colours are distinct for colour-blind readers.
BLACK, BLUE, RED, GREEN, SKY, PINK, ORANGE, GREY = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#56B4E9",
    "#CC79A7",
    "#E69F00",
    "#7F7F7F",
)
STYLE: dict[Any, Any] = {"svg.hashsalt": "lit_sparse", "font.size": 9.0, "axes.titlesize": 10.0, "lines.linewidth": 1.8}


def draw(folder: Path) -> None:
    """Write every figure as an SVG file, except those that are newer than this module."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = Path(__file__).stat().st_mtime
    with matplotlib.rc_context(STYLE):
        for name, make in FIGURES.items():
            path = folder / f"{name}.svg"
            if not path.is_file() or path.stat().st_mtime < changed:
                figure = make()
                FigureCanvasSVG(figure)
                figure.savefig(path, metadata={"Date": None}, facecolor="white")


def panels(columns: int, width: float = 3.0, height: float = 2.8) -> tuple[Figure, list[Any]]:
    """Return a figure with a row of axes without frames."""
    figure = Figure(figsize=(columns * width, height), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, columns)))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def family() -> list[tuple[str, SparseMapping, str]]:
    """Return label, mapping and colour of three mappings onto the simplex."""
    return [("softmax", Softmax(), BLACK), ("1.5-entmax", Entmax(1.5), BLUE), ("sparsemax", Sparsemax(), RED)]


def regularized_curves() -> Figure:
    """Draw value, mapping and loss of two scores (t, 0) over t."""
    figure, axes = panels(3)
    t = torch.linspace(-3, 3, 241, dtype=torch.float64)
    scores = torch.stack([t, torch.zeros_like(t)], -1)
    first = torch.zeros(len(t), dtype=torch.int64)
    curves = [t.clamp_min(0), (t > 0).double(), (-t).clamp_min(0)]
    for axis, curve in zip(axes, curves, strict=True):
        axis.plot(t, curve, color=GREY, ls=":", label="no regularizer")
    for name, mapping, color in family():
        axes[0].plot(t, mapping.value(scores), color=color, label=name)
        axes[1].plot(t, mapping(scores)[:, 0], color=color)
        axes[2].plot(t, FenchelYoungLoss(mapping, reduction="none")(scores, first), color=color)
    titles = (r"value $\mathrm{max}_\Omega(t, 0)$", r"mapping, first entry", "loss of the first class")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="t")
    axes[0].legend(frameon=False)
    return figure


def fenchel_young_gap() -> Figure:
    """Draw the loss of two scores (t, 0) as the gap between Omega and its tangent of slope t, at the target q."""
    figure, axes = panels(2, width=4.2, height=3.0)
    p = torch.linspace(0, 1, 201, dtype=torch.float64)
    points = torch.stack([p, 1 - p], -1)
    t, q = 0.4, 0.95
    for axis, (name, mapping, color) in zip(axes, [family()[0], family()[2]], strict=True):
        x = torch.tensor([t, 0.0], dtype=torch.float64)
        omega, value, best = mapping.regularizer(points), float(mapping.value(x)), float(mapping(x)[0])
        target = float(mapping.regularizer(torch.tensor([q, 1 - q], dtype=torch.float64)))
        axis.plot(p, omega, color=color, label=r"$\Omega(p, 1 - p)$")
        axis.plot(p, t * p - value, color=GREY, ls="--", label=r"$t p - \mathrm{max}_\Omega(t, 0)$")
        axis.plot([best], [t * best - value], "o", color=color)
        axis.annotate("mapping", (best, t * best - value), (0, -14), textcoords="offset points", ha="center")
        axis.plot([q, q], [t * q - value, target], color=ORANGE, lw=4, solid_capstyle="butt")
        axis.annotate("loss", (q, 0.5 * (target + t * q - value)), (-8, 0), textcoords="offset points", ha="right", va="center")
        axis.set(title=name, xlabel="probability p of the first class")
        axis.legend(frameon=False, loc="upper center")
        axis.margins(y=0.25)
    return figure


def corners() -> Tensor:
    """Return the corners (3, 2) of an equilateral triangle."""
    return torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)


def regularized_simplex() -> Figure:
    """Draw the objective of three scores over the triangle of probabilities, and its maximum."""
    figure, axes = panels(3, height=2.7)
    x = torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64)
    n = 60
    grid = torch.tensor([[i, j, n - i - j] for i in range(n + 1) for j in range(n + 1 - i)], dtype=torch.float64) / n
    place = grid @ corners()
    cases: list[tuple[str, Tensor, Tensor]] = [("argmax", grid @ x, one_hot(x.argmax(), 3).double())]
    for name, mapping, _ in (family()[0], family()[2]):
        cases.append((name, grid @ x - mapping.regularizer(grid), mapping(x)))
    for axis, (name, objective, best) in zip(axes, cases, strict=True):
        axis.tricontourf(place[:, 0], place[:, 1], objective, 14, cmap="Blues")
        outline = corners()[[0, 1, 2, 0]]
        axis.plot(outline[:, 0], outline[:, 1], color=BLACK, lw=1)
        point = best @ corners()
        axis.plot([point[0]], [point[1]], "o", color=RED, ms=8, clip_on=False)
        for label, corner, side in zip(("1", "2", "3"), corners(), (-1, 1, 0), strict=True):
            axis.annotate(
                label, corner.tolist(), (10 * side, 8 if side == 0 else 0), textcoords="offset points", ha="center", va="center"
            )
        axis.set_title(f"{name}: ({', '.join(f'{value:.2f}' for value in best.tolist())})", pad=16)
        axis.set(aspect="equal")
        axis.set_axis_off()
    return figure


def estimator_gradients() -> Figure:
    """Draw gradients of one score by each estimator, 200 draws of each, and the exact gradient."""
    scores = torch.tensor([[1.0, 0.5, 0.0, -0.5, -1.0]])
    losses = torch.tensor([3.0, 1.0, 2.0, 2.5, 1.5])
    estimators: dict[str, Estimator] = {
        "ScoreFunction('mean')": ScoreFunction(mapping=Softmax()),
        "ScoreFunction('self_critic')": ScoreFunction("self_critic", mapping=Softmax()),
        "LeaveOneOut(4)": LeaveOneOut(4, mapping=Softmax()),
        "SumAndSample(2)": SumAndSample(2, mapping=Softmax()),
        "GumbelSoftmax(0.5)": GumbelSoftmax(0.5, mapping=Softmax()),
        "Marginalize": Marginalize(Softmax()),
    }

    def loss_fn(latent: LatentBatch) -> Tensor:
        return (latent.values @ losses.sqrt()).square()  # not linear, so that relaxed values have a bias

    figure, (axis,) = panels(1, width=7.5, height=3.0)
    jitter = np.linspace(-0.3, 0.3, 200)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for place, (name, estimator) in enumerate(reversed(estimators.items())):
            estimator(scores.repeat(1000, 1), loss_fn)  # the mean of these losses is a baseline
            many = scores.repeat(1000, 1).requires_grad_()
            estimator(many, loss_fn).loss.sum().backward()
            assert many.grad is not None
            found = many.grad[:, 0]
            color = RED if name == "Marginalize" else BLUE
            axis.plot(found[:200], place + jitter, ".", color=color, ms=3, alpha=0.6)
            axis.plot([float(found.mean())] * 2, [place - 0.4, place + 0.4], color=BLACK, lw=1.5)
    axis.set_yticks(range(len(estimators)), list(reversed(estimators)))
    axis.set(xlabel="gradient of the loss in the first score", title="200 draws of each estimator; black: mean of 1,000 draws")
    return figure


def sparsemap_polytope() -> Figure:
    """Draw argmax, SparseMAP and the mean of a dense distribution over three structures in the plane."""
    figure, axes = panels(2, width=3.6, height=3.3)
    structure = Budget(2, budget=1)
    every = structure.enumerate().numpy()
    outline = every[[0, 1, 2, 0]]
    for axis, x in zip(axes, ((1.0, 0.75), (0.35, 0.3)), strict=True):
        scores = torch.tensor(x, dtype=torch.float64)
        out = F.sparsemap(scores, structure)
        dense = torch.softmax(structure.enumerate() @ scores, 0) @ structure.enumerate()
        best = structure.maximize(scores.unsqueeze(0))[0]
        axis.fill(outline[:, 0], outline[:, 1], color="#dbe9f6")
        axis.plot(outline[:, 0], outline[:, 1], color=GREY, lw=1)
        axis.plot([x[0], out.marginals[0]], [x[1], out.marginals[1]], color=RED, lw=1, ls="--")
        axis.plot(*every.T, "o", color=BLACK, ms=5)
        for point, marker, color, label in (
            (scores, "x", BLACK, "scores"),
            (best, "s", BLUE, "best structure (MAP)"),
            (out.marginals, "o", RED, "SparseMAP"),
            (dense, "D", GREEN, "dense marginals"),
        ):
            axis.plot([point[0]], [point[1]], marker, color=color, ms=8, label=label, fillstyle="none", mew=2)
        axis.set(aspect="equal", xlabel="entry 1", ylabel="entry 2", title=f"{int((out.probs > 0).sum())} structures")
    axes[0].legend(frameon=False, loc="upper right", bbox_to_anchor=(1.08, 1.02), fontsize=8)
    axes[0].set(ylim=(-0.06, 1.25))
    axes[1].set(ylim=(-0.06, 1.25))
    return figure


def groups() -> Figure:
    """Draw one row of scores under sparsemax, fusedmax and oscarmax."""
    figure, axes = panels(4, width=2.3, height=2.3)
    x = 0.6 * torch.tensor([0.2, 0.9, 1.1, 0.8, -0.3, -0.8, 0.4, 1.15, 0.85, -0.5], dtype=torch.float64)
    cases: list[tuple[str, Tensor]] = [
        ("scores", x),
        ("sparsemax", F.sparsemax(x)),
        (r"fusedmax, $\lambda = 0.13$", F.fusedmax(x, 0.13)),
        (r"oscarmax, $\lambda = 0.04$", F.oscarmax(x, 0.04)),
    ]
    palette = (BLUE, RED, GREEN, ORANGE)
    for axis, (title, y) in zip(axes, cases, strict=True):
        values = sorted({round(value, 9) for value in y.tolist() if value > 0})
        shared = [value for value in values if sum(abs(value - other) < 1e-8 for other in y.tolist()) > 1]
        colors = [
            palette[shared.index(round(value, 9))] if title != "scores" and round(value, 9) in shared else GREY
            for value in y.tolist()
        ]
        axis.bar(range(len(y)), y, color=colors, width=0.95)
        axis.axhline(0, color=BLACK, lw=0.8)
        axis.set(title=title, xticks=[])
        if title != "scores":
            axis.set(ylim=(0, 0.35))
    return figure


def oscar_composition() -> Figure:
    """Draw how far the published composition of oscarmax is from the exact mapping, over the strength of the penalty."""
    figure, axes = panels(2, width=3.8)
    strengths = torch.logspace(-3, 0.3, 34).tolist()
    generator = torch.Generator().manual_seed(0)
    for d, color in ((5, BLACK), (20, BLUE), (50, RED)):
        x = torch.randn(500, d, dtype=torch.float64, generator=generator)
        means, sizes, composed = [], [], []
        for lam in strengths:
            exact, composition = F.oscarmax(x, lam), F.oscarmax(x, lam, exact=False)
            means.append(float((exact - composition).abs().amax(-1).mean()))
            sizes.append(float((exact > 0).sum(-1).double().mean()))
            composed.append(float((composition > 0).sum(-1).double().mean()))
        axes[0].plot(strengths, means, color=color, label=f"d = {d}")
        axes[1].plot(strengths, sizes, color=color, label=f"d = {d}, exact")
        axes[1].plot(strengths, composed, color=color, ls=":", label="composition")
    axes[0].set(title="mean largest difference of a row", xscale="log", xlabel=r"$\lambda$")
    axes[1].set(title="mean support", xscale="log", yscale="log", xlabel=r"$\lambda$")
    axes[0].legend(frameon=False)
    axes[1].legend(frameon=False, fontsize=7.5)
    return figure


def hoyer_projection() -> Figure:
    """Draw the sparseness over the plane with a projection, and the threshold form of a projection of twelve entries."""
    figure, axes = panels(2, width=4.0, height=3.3)
    side = torch.linspace(-1.5, 1.5, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    sparseness = hoyer_sparseness(grid).nan_to_num(0).reshape(201, 201).T
    filled = axes[0].contourf(side, side, sparseness, 10, cmap="Blues")
    figure.colorbar(filled, ax=axes[0], label="sparseness")
    angle = torch.linspace(0, 2 * math.pi, 200)
    axes[0].plot(angle.cos(), angle.sin(), color=GREY, lw=1)
    x = torch.tensor([1.1, 0.9], dtype=torch.float64)
    for target, color in ((0.3, ORANGE), (0.7, RED)):
        y = F.hoyer_projection(x, target)
        every = torch.cartesian_prod(torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0])).double()
        reachable = torch.cat([every * y, every * y.flip(0)])
        axes[0].plot(*reachable.T, "o", color=color, ms=4)
        axes[0].annotate("", y.tolist(), x.tolist(), arrowprops={"arrowstyle": "->", "color": color, "lw": 1.5})
    axes[0].plot([x[0]], [x[1]], "x", color=BLACK, ms=8, mew=2)
    axes[0].set(aspect="equal", title="nearest points of sparseness 0.3 and 0.7, norm 1")
    values = torch.tensor([2.0, 1.7, 1.5, 1.1, 1.0, 0.8, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    result = F.hoyer_projection(values, 0.6)
    inside = result > 0
    slope = (result[0] - result[1]) / (values[0] - values[1])
    tau = float(values[0] - result[0] / slope)
    axes[1].bar(range(12), values, color=[SKY if here else "#dddddd" for here in inside.tolist()], label=r"$|x|$, sorted")
    axes[1].axhline(tau, color=RED, ls="--", label=r"threshold $\tau$")
    axes[1].plot(range(12), result, "o", color=BLACK, label="result, sparseness 0.6")
    axes[1].set(title="threshold form", xticks=[])
    axes[1].legend(frameon=False)
    return figure


def coreset_objectives() -> Figure:
    """Draw the objective of each selector over the size of the coreset."""
    figure, (axis,) = panels(1, width=6.5, height=3.4)
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(400, 12, dtype=torch.float64, generator=generator)
    noise = torch.randn(400, 100, dtype=torch.float64, generator=generator)
    vectors = factors @ torch.randn(12, 100, dtype=torch.float64, generator=generator) + 0.5 * noise
    selectors: dict[str, tuple[CoresetSelector, str, str]] = {
        "uniform": (Uniform(), GREY, ":"),
        "Frank-Wolfe": (FrankWolfe(), ORANGE, "-"),
        "GIGA": (GIGA(), PINK, "-"),
        "A-IHT": (AcceleratedIHT(polish=False), SKY, "-"),
        "A-IHT II": (AcceleratedIHT(debias=True, polish=False), BLUE, "-"),
        "A-IHT II polished": (AcceleratedIHT(debias=True), BLUE, "--"),
        "NN-OMP": (NonnegativeOMP(), RED, "-"),
    }
    whole = float(vectors.sum(0).square().sum())
    sizes = [5, 10, 20, 40, 60, 80]
    for name, (selector, color, line) in selectors.items():
        found = [selector(vectors, k, torch.Generator().manual_seed(k)).objective / whole for k in sizes]
        axis.plot(sizes, found, color=color, ls=line, marker=".", label=name)
    axis.set(yscale="log", xlabel="size k of the coreset", ylabel="squared distance, of that of no examples")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def safe_divergence() -> Figure:
    """Draw the generator f_rho, the weights of examples and the gap to LogSumExp."""
    figure, axes = panels(3)
    colors = ((1e-4, BLACK), (0.1, BLUE), (0.5, RED))
    for rho, color in colors:
        t = torch.linspace(1e-6, min(4.0, 1 / rho - 1e-6), 400, dtype=torch.float64)
        f = t * t.log() + (1 - rho * t) / rho * torch.log1p(-rho * t) + 1
        axes[0].plot(t, f, color=color, label=rf"$\rho = {rho:g}$")
        s = torch.linspace(-3, 5, 200, dtype=torch.float64)
        axes[1].plot(s, torch.sigmoid(s + math.log(rho)) / rho, color=color)
    axes[0].set(title=r"$f_\rho(t)$", xlabel="density t", ylim=(-0.1, 3))
    axes[0].legend(frameon=False)
    axes[1].set(title="weight of an example", xlabel=r"(loss $-$ a) / $\lambda$", ylim=(-0.2, 12))
    rhos = np.logspace(-4, -0.02, 60)
    axes[2].plot(rhos, 1 + (1 - rhos) / rhos * np.log1p(-rhos), color=RED, label="tight bound")
    axes[2].plot(rhos, rhos, color=GREY, ls="--", label=r"$\rho$")
    axes[2].set(title="largest gap to LogSumExp", xscale="log", yscale="log", xlabel=r"$\rho$")
    axes[2].legend(frameon=False)
    return figure


def subpackages() -> Figure:
    """Draw the layers of the package from the contract in pyproject.toml, the highest first."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    contract = re.search(r"Subpackages import in one direction.*?layers = \[(.*?)\]", text, re.DOTALL)
    assert contract is not None
    layers = [line.split(" | ") for line in re.findall(r'"([^"]+)"', contract[1])]
    figure = Figure(figsize=(7.5, 0.36 * len(layers) + 0.3))
    axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set(xlim=(0, 100), ylim=(-0.3, len(layers) + 0.2))
    axis.set_axis_off()
    for level, names in enumerate(reversed(layers)):
        width = 92 / len(names)
        for place, name in enumerate(names):
            box = (7 + place * width, level + 0.12)
            style = BoxStyle("round", pad=0, rounding_size=0.2)
            look: dict[str, Any] = {"boxstyle": style, "facecolor": "#dbe9f6", "edgecolor": BLUE, "mutation_aspect": 0.2}
            axis.add_patch(FancyBboxPatch(box, width - 1, 0.74, **look))
            axis.text(box[0] + (width - 1) / 2, level + 0.48, name, ha="center", va="center", fontsize=8, family="monospace")
    axis.annotate("", (3, 0.2), (3, len(layers) - 0.1), arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.5})
    axis.text(1.4, len(layers) / 2, "imports", rotation=90, ha="center", va="center", color=GREY)
    return figure


#: Name of the file -> function that draws it.
FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function
    for function in (
        regularized_simplex,
        regularized_curves,
        fenchel_young_gap,
        estimator_gradients,
        sparsemap_polytope,
        groups,
        oscar_composition,
        hoyer_projection,
        coreset_objectives,
        safe_divergence,
        subpackages,
    )
}


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
