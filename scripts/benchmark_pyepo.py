"""Train by losses of PyEPO and by SparseMAPLoss: regret on a test set, calls of the solver, and seconds.

Usage:
    python scripts/benchmark_pyepo.py [--seeds 3] [--epochs 5]

It needs the extra ``pyepo``, and ``ortools``. A linear network learns the costs of a 5 x 5 grid (40 edges), or the values of 16
items under two capacities, from 100 examples of PyEPO's generators, as in its notebooks. Prints a markdown table with standard
errors over seeds, calls for each row of a batch, and processor time on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyepo
import torch
from pyepo.data.dataset import optDataset
from pyepo.model.ort import knapsackModel, shortestPathModel
from torch import nn
from torch.utils.data import DataLoader

from lit_sparse.pyepo import SparseMAPLoss
from lit_sparse.structures import ShortestPath

FEATURES, TRAINED, TESTED = 5, 100, 200
Losses = dict[str, Callable[[Any], nn.Module]]


def shortest_path(seed: int) -> tuple[Any, Any, Any]:
    """Return a model, features and costs."""
    x, c = pyepo.data.shortestpath.genData(TRAINED + TESTED, FEATURES, (5, 5), deg=4, noise_width=0.5, seed=seed)
    return shortestPathModel((5, 5)), x, c


def knapsack(seed: int) -> tuple[Any, Any, Any]:
    """Return a model, features and values."""
    weights, x, c = pyepo.data.knapsack.genData(TRAINED + TESTED, FEATURES, 16, dim=2, deg=6, noise_width=0.5, seed=seed)
    return knapsackModel(weights, [20, 20]), x, c


BOTH: Losses = {
    "PyEPO, SPO+": pyepo.func.SPOPlus,
    "PyEPO, perturbed, 3 samples": lambda model: pyepo.func.PFY(model, n_samples=3, sigma=1.0),
    "PyEPO, regularized, 20 steps": lambda model: pyepo.func.RFY(model, lambd=1.0, max_iter=20),
    "`SparseMAPLoss(optmodel)`": SparseMAPLoss,
}
PATHS: Losses = {
    "PyEPO, regularized, to 1e-4": lambda model: pyepo.func.RFY(model, lambd=1.0, max_iter=1000, tol=1e-4),
    "`SparseMAPLoss(ShortestPath.grid(5, 5))`": lambda model: SparseMAPLoss(ShortestPath.grid(5, 5)),
}


def train(
    make: Callable[[Any], nn.Module], model: Any, train_data: Any, test_data: Any, seed: int, epochs: int
) -> tuple[float, float, float]:
    """Return regret in percent, calls of the solver for each row, and seconds."""
    rows = DataLoader(train_data, 20, shuffle=True, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    net = nn.Linear(FEATURES, model.num_cost)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    solve, calls = model.solve, 0

    def counted() -> Any:
        nonlocal calls
        calls += 1
        return solve()

    def step(loss: nn.Module, features: Any, *true: Any) -> None:
        optimizer.zero_grad()
        loss(net(features), *(true if isinstance(loss, pyepo.func.SPOPlus) else true[1:2])).backward()

    step(make(model), *next(iter(rows)))  # imports and compiles
    loss, model.solve = make(model), counted
    start = time.process_time()
    for _ in range(epochs):
        for batch in rows:
            step(loss, *batch)
            optimizer.step()
    seconds = time.process_time() - start
    del model.solve
    return 100 * pyepo.metric.regret(net, model, DataLoader(test_data, TESTED)), calls / (epochs * TRAINED), seconds


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| problem | loss | regret, % | solver calls a row | seconds |\n| --- | --- | ---: | ---: | ---: |")
    for problem, losses in ((shortest_path, BOTH | PATHS), (knapsack, BOTH)):
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in losses}
        for seed in range(options.seeds):
            model, x, c = problem(seed)
            data = optDataset(model, x[:TRAINED], c[:TRAINED]), optDataset(model, x[TRAINED:], c[TRAINED:])
            for name, make in losses.items():
                found[name].append(train(make, model, *data, seed, options.epochs))
        for name, runs in sorted(found.items()):
            (regret, calls, seconds), errors = np.mean(runs, 0), np.std(runs, 0) / max(len(runs) - 1, 1) ** 0.5
            shown = f"{regret:.1f} ± {errors[0]:.1f} | {calls:.1f} | {seconds:.2f} ± {errors[2]:.2f}"
            print(f"| {problem.__name__.replace('_', ' ')} | {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
