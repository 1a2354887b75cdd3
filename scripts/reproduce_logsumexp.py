"""Reproduce the experiments of Improved Stochastic Optimization of LogSumExp.

Usage:
    python scripts/reproduce_logsumexp.py transport [...]
    python scripts/reproduce_logsumexp.py regression --data cal_housing.csv.gz [--epochs 50] [--seeds 20]
    python scripts/reproduce_logsumexp.py mnist [--seeds 0] [--arms mean "safe KL" exponentials] [--every 5000] -- \
        --data.init_args.folder FOLDER

``transport`` is Figures 2 and 5, entropic transport in one dimension. ``regression`` is Figure 3, California housing by KL-DRO.
``mnist`` is Figure 4, MNIST with wrong labels. The same command continues a killed one. Tables and pictures go to
``results/logsumexp_*``; ``--only_tables`` makes them from finished runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import logsumexp_mnist
import logsumexp_regression
import logsumexp_transport
from jobs import exit_with, parse_own

ROOT = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """Run one experiment."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["transport"]:
        return int(logsumexp_transport.main(arguments[1:]) or 0)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("transport", help="Figures 2 and 5; see its own --help")
    regression = commands.add_parser("regression", help="Figure 3")
    regression.add_argument("--data", type=Path, required=True, help="the csv file of California housing")
    regression.add_argument("--epochs", type=int, default=50)
    regression.add_argument("--seeds", type=int, default=20, help="runs at batch 100 and 1000; a quarter of them at 10")
    mnist = commands.add_parser("mnist", help="Figure 4")
    mnist.add_argument("--arms", nargs="+", choices=tuple(logsumexp_mnist.ARMS), default=tuple(logsumexp_mnist.ARMS))
    mnist.add_argument("--seeds", nargs="+", type=int, default=[0])
    mnist.add_argument("--every", type=int, default=5000, help="updates between two points of the curves, and checkpoints")
    for command in (regression, mnist):
        command.add_argument(
            "--output", type=Path, default=ROOT / "runs" / "logsumexp", help="what a killed command goes on with"
        )
        command.add_argument("--results", type=Path, default=ROOT / "results")
        command.add_argument("--only_tables", action="store_true", help="from what there is")
    own, options = parse_own(parser, arguments)
    return (logsumexp_mnist if own.command == "mnist" else logsumexp_regression).train_all(own, options)


if __name__ == "__main__":
    exit_with(main)
