"""Time the safe LogSumExp against torch's, and training steps by each risk against the mean, in one process.

Usage: python scripts/benchmark_risks.py [--repeats 15] [--threads 2]

Prints two tables: seconds as ratios to ``torch.logsumexp``, forward alone and with backward; and ratios of a step of
RobustClassifier on digits, batch 64, to one by the mean.
"""

from __future__ import annotations

from timing import medians  # isort: skip

import argparse
import platform
import sys
from collections.abc import Callable

import torch

from lit_sparse.data import DigitsDataModule
from lit_sparse.models import RobustClassifier
from lit_sparse.nn import ConvNet
from lit_sparse.risks import KLDRO, CVaR, Mean, Risk, SafeKLDRO, UnbalancedOTDRO, safe_logsumexp

SHAPES = ((64, 50), (4096, 256), (1, 100_000))
RISKS: dict[str, Callable[[], Risk]] = {
    "Mean": Mean,
    "CVaR(0.1)": lambda: CVaR(0.1),
    "KLDRO(1)": lambda: KLDRO(1.0),
    "SafeKLDRO(1, 0.01)": lambda: SafeKLDRO(1.0, 0.01),
    "SafeKLDRO(1, 0.01, capped_exp)": lambda: SafeKLDRO(1.0, 0.01, "capped_exp"),
    "UnbalancedOTDRO(1, 1, 0.1), 5 inner steps": lambda: UnbalancedOTDRO(1.0, 1.0, 0.1),
}


def both(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], object]:
    def call() -> None:
        leaf = x.detach().requires_grad_()
        function(leaf).sum().backward()

    return call


def logsumexps(repeats: int) -> None:
    print("| shape | rho | forward | with backward |\n| --- | ---: | ---: | ---: |")
    for shape in SHAPES:
        x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
        calls: dict[str, Callable[[], object]] = {}
        for name, function in (
            ("torch", lambda values: torch.logsumexp(values, -1)),
            ("1e-3", lambda values: safe_logsumexp(values, 1e-3)),
            ("0.5", lambda values: safe_logsumexp(values, 0.5)),
        ):
            calls[f"{name} forward"] = lambda function=function, x=x: function(x)
            calls[f"{name} both"] = both(function, x)
        found = medians(calls, repeats)
        for rho in ("1e-3", "0.5"):
            ratios = [found[f"{rho} {part}"] / found[f"torch {part}"] for part in ("forward", "both")]
            print(f"| {shape} | {rho} | {ratios[0]:.1f} | {ratios[1]:.1f} |", flush=True)


def steps(repeats: int) -> None:
    data = DigitsDataModule(labelled=1.0, binarize=False, batch_size=64)
    data.setup()
    batch = data.fetch("train", 0, torch.arange(64))
    calls: dict[str, Callable[[], object]] = {}
    for name, make in RISKS.items():
        torch.manual_seed(0)
        model = RobustClassifier(network=ConvNet(8, 8, channels=[32], hidden=64), in_features=64, risk=make())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(model: RobustClassifier = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            model.run_step(batch, 1, "train")["loss"].backward()
            optimizer.step()

        calls[name] = step
    found = medians(calls, 10 * repeats)
    print("\n| risk | a step, of that by the mean |\n| --- | ---: |")
    for name, seconds in found.items():
        print(f"| {name} | {seconds / found['Mean']:.2f} |")


def main(argv: list[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    own = parser.parse_args(argv)
    torch.set_num_threads(own.threads)
    print(f"torch {torch.__version__}, {own.threads} threads, {platform.processor() or platform.machine()}\n")
    logsumexps(own.repeats)
    steps(own.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
