"""California housing by KL-DRO with single examples, small and large batches; used by reproduce_logsumexp.py (Figure 3).

All seeds of a setting are trained at once: their parameters are rows of one tensor, and each sees its own order of the data,
that of ``CaliforniaHousingDataModule(seed=seed)``. tests/scripts/test_reproduce_logsumexp.py shows that ``lit-sparse fit``
gives the same numbers.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from compare_runs import COLORS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from lit_sparse.data import CaliforniaHousingDataModule
from lit_sparse.data.base import in_batches, shuffled
from lit_sparse.risks.safe_kl_dro import link_value

RHO, LAM, MOMENTUM, FAR = 1e-3, 1.0, 0.9, 3.0
#: The published step sizes by batch size; those of the batch baseline are its best.
RATES = {"safe": {1000: 1e-5, 100: 1e-6, 10: 1e-7}, "batch": {1000: 1e-5, 100: 1e-5, 10: 1e-6}}
#: Name -> link, or None for the batch baseline.
METHODS = {"safe KL": "softplus", "capped exponential": "capped_exp", "batch LSE": None}


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Return standardized features with an intercept (N, 9), and targets (N,)."""
    data = CaliforniaHousingDataModule(path=str(path), use_all=True)
    data.setup()
    batch = data.fetch("train", 0, torch.arange(data.size("train")))
    return batch["features"], batch["target"]


def log_mean_exp(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the objective (S,) of all data at parameters (S, D), in float64."""
    losses = (theta.double() @ x.double().mT - y.double()).square()
    return LAM * (torch.logsumexp(losses / LAM, 1) - math.log(len(y)))


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    """Return the solution (D,), as RobustRegressor begins with it."""
    return torch.linalg.lstsq(x.double(), y.double().unsqueeze(1), driver="gelsd").solution[:, 0].float()


def optimum(x: Tensor, y: Tensor) -> float:
    """Return the least objective, by Newton's method with all data, in float64."""
    x, y = x.double(), y.double()
    theta = least_squares(x, y).double()

    def value(at: Tensor) -> Tensor:
        return log_mean_exp(at.unsqueeze(0), x, y)[0]

    for _ in range(200):
        slope, curvature = torch.func.grad(value)(theta), torch.func.hessian(value)(theta)
        move, size = torch.linalg.solve(curvature, slope), 1.0
        while value(theta - size * move) > value(theta) - 1e-4 * size * (slope @ move) and size > 1e-12:
            size /= 2
        theta = theta - size * move
        if float(slope.norm()) < 1e-11:
            break
    return float(value(theta))


def objective(losses: Tensor, dual: Tensor, link: str | None) -> Tensor:
    """Return the sum over seeds of the risk of losses (S, B) at dual variables (S,)."""
    if link is None:
        return LAM * (torch.logsumexp(losses / LAM, 1) - math.log(losses.shape[1])).sum()
    return (dual + LAM * link_value((losses - dual.unsqueeze(1)) / LAM, RHO, link).mean(1) - LAM).sum()


def train(x: Tensor, y: Tensor, link: str | None, batch: int, rate: float, seeds: Sequence[int], epochs: int) -> Tensor:
    """Return the objective of all data (epochs + 1, S) before the first epoch and after each of them."""
    theta = least_squares(x, y).expand(len(seeds), -1).clone().requires_grad_()
    dual = torch.zeros(len(seeds), requires_grad=True)
    optimizer = torch.optim.SGD([theta, dual] if link else [theta], lr=rate, momentum=MOMENTUM, nesterov=True)
    curve = [log_mean_exp(theta.detach(), x, y)]
    for epoch in range(epochs):
        orders = torch.stack([shuffled(len(y), seed, epoch) for seed in seeds])
        for rows in in_batches(orders.mT, batch):
            rows = rows.mT
            losses = ((x[rows] * theta.unsqueeze(1)).sum(-1) - y[rows]).square()
            optimizer.zero_grad()
            objective(losses, dual, link).backward()
            optimizer.step()
        curve.append(log_mean_exp(theta.detach(), x, y))
    return torch.stack(curve)


def train_all(own: argparse.Namespace, options: Sequence[str]) -> int:
    """Train what is not in the table of results yet, and write them."""
    stem = own.results / "logsumexp_regression"
    folder = own.output / f"regression_{own.epochs}"
    folder.mkdir(parents=True, exist_ok=True)
    x, y = load(own.data)
    best, found = optimum(x, y), {}
    print(f"start {float(log_mean_exp(least_squares(x, y).unsqueeze(0), x, y)):.5f}, optimum {best:.5f}", flush=True)
    for method, link in METHODS.items():
        for batch, rate in RATES["safe" if link else "batch"].items():
            seeds = range(own.seeds if batch > 10 else max(1, own.seeds // 4))
            file = folder / f"{method.replace(' ', '_')}_{batch}_{len(seeds)}.pt"
            if not file.exists() and not own.only_tables:
                curve = train(x, y, link, batch, rate, seeds, own.epochs)
                torch.save({"curve": curve}, file)
            if file.exists():
                found[method, batch] = torch.load(file, weights_only=True)
                print(method, batch, _summary(found[method, batch]), flush=True)
    _write(stem, found, best, own.epochs)
    return 0


def _summary(run: dict) -> tuple[float, float, int, int]:
    """Return the median of what is left after the last epoch, the worst, how many ended above 3, and how many there are."""
    last = run["curve"][-1].tolist()
    wide = [value if math.isfinite(value) else math.inf for value in last]
    return statistics.median(wide), max(wide), sum(value > FAR for value in wide), len(wide)


def _write(stem: Path, found: dict, best: float, epochs: int) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "batch", "seed", "epoch", "log_mean_exp"))
        for (method, batch), run in found.items():
            for epoch in sorted({0, 1, 2, 5, 10, 20, 30, 40, epochs} & set(range(epochs + 1))):
                writer.writerows(
                    (method, batch, seed, epoch, f"{v:.5f}") for seed, v in enumerate(run["curve"][epoch].tolist())
                )
    lines = ["# California housing, KL-DRO", ""]
    lines += [f"Full-data lam log mean exp of squared errors, lam = 1, after {epochs} epochs; the optimum is {best:.5f}.", ""]
    lines += ["| method | batch | step size | seeds | median | least | most | ended above 3 |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for (method, batch), run in found.items():
        median, worst, far, size = _summary(run)
        rate = RATES["safe" if METHODS[method] else "batch"][batch]
        least = float(run["curve"][-1].min())
        lines.append(f"| {method} | {batch} | {rate:g} | {size} | {median:.3f} | {least:.3f} | {worst:.3f} | {far} |")
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, size in zip(figure.subplots(1, 3, sharey=True), (10, 100, 1000), strict=True):
        for number, method in enumerate(METHODS):
            if (method, size) in found:
                curve = found[method, size]["curve"].nan_to_num(math.inf).clamp_max(1e3)
                middle, low, high = curve.median(1).values, curve.quantile(0.1, 1), curve.quantile(0.9, 1)
                axis.plot(range(len(curve)), middle, color=COLORS[number], label=method)
                axis.fill_between(range(len(curve)), low, high, color=COLORS[number], alpha=0.2)
        axis.axhline(best, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=f"batch {size}", xlabel="epoch", ylim=(1.9, 4), xlim=(0, None))
    figure.axes[0].set_ylabel("log mean exp of squared errors")
    if figure.axes[-1].lines[1:]:
        figure.axes[-1].legend()
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    print(f"wrote {stem}.md, .csv and .png")
