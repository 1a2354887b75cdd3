"""Train by PyEPO's regularized Frank-Wolfe loss and by SparseMAPLoss: regret on a test set, calls of the solver, and seconds.

Usage:
    python scripts/benchmark_pyepo.py [--seeds 3] [--epochs 3]

It needs the extra ``pyepo``, and ``ortools``. A linear network learns the costs of a 5 x 5 grid (40 edges) from 100 examples of
PyEPO's generator. Prints a markdown table: regret with its standard error over seeds, and calls for each row of a batch.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyepo
import torch
from pyepo.data.dataset import optDataset
from pyepo.model.ort import shortestPathModel
from torch import nn
from torch.utils.data import DataLoader

from lit_sparse.pyepo import SparseMAPLoss
from lit_sparse.structures import ShortestPath

FEATURES, TRAINED = 5, 100


def train(loss: nn.Module, model: Any, x: Any, c: Any, seed: int, epochs: int) -> tuple[float, float, float]:
    """Return regret, calls of the solver for each row, and seconds."""
    rows = DataLoader(
        optDataset(model, x[:TRAINED], c[:TRAINED]), 20, shuffle=True, generator=torch.Generator().manual_seed(seed)
    )
    test = DataLoader(optDataset(model, x[TRAINED:], c[TRAINED:]), 100)
    torch.manual_seed(seed)
    net = nn.Linear(FEATURES, model.num_cost)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    solve, calls = model.solve, 0

    def counted() -> Any:
        nonlocal calls
        calls += 1
        return solve()

    model.solve = counted
    start = time.perf_counter()
    for _ in range(epochs):
        for features, _, best, _ in rows:
            optimizer.zero_grad()
            loss(net(features), best).backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    del model.solve
    return pyepo.metric.regret(net, model, test), calls / (epochs * TRAINED), seconds


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(arguments)
    found: dict[tuple[float, str], list[tuple[float, float, float]]] = {}
    for seed in range(options.seeds):
        x, c = pyepo.data.shortestpath.genData(3 * TRAINED, FEATURES, (5, 5), deg=4, noise_width=0.5, seed=seed)
        model = shortestPathModel((5, 5))
        for strength in (0.3, 1.0):
            losses = {
                "PyEPO": pyepo.func.regularizedFrankWolfeFenchelYoung(model, lambd=strength, tol=1e-4, max_iter=1000),
                "SparseMAPLoss(model)": SparseMAPLoss(model, strength),
                "SparseMAPLoss(ShortestPath.grid(5, 5))": SparseMAPLoss(ShortestPath.grid(5, 5), strength),
            }
            for name, loss in losses.items():
                found.setdefault((strength, name), []).append(train(loss, model, x, c, seed, options.epochs))
    print("| strength | loss | regret | calls a row | seconds |\n| ---: | --- | ---: | ---: | ---: |")
    for (strength, name), runs in found.items():
        regret, calls, seconds = np.mean(runs, axis=0)
        error = np.std([run[0] for run in runs]) / max(len(runs) - 1, 1) ** 0.5
        print(f"| {strength} | {name} | {regret:.3f} ± {error:.3f} | {calls:.1f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
