"""Time the supervised online auto-encoder: its step against tanh's, online updates under Lightning, and projections of bases.

Usage:
    python scripts/benchmark_soae.py [steps] [online] [projection] [--rounds 9] [--steps 200] [--threads 1]

On images of MNIST's size and density, 1,000 hidden units. ``steps`` times forward pass, backward pass and ``torch.optim.SGD``
of the same model with a Hoyer projection, a hard threshold, and tanh, in turns. It prints the medians of their ratios within a
round, for one image per update also with a sparse gradient. ``online`` counts updates per second with one image each, of this
model and of the robust classifier. Steps by hand and batches of the command line, of 1 and of 50 updates, take turns. The
command line's speed is a share of the loop's, in all. Times are processor times. ``projection`` is
``F.hoyer_projection`` of 1,000 vectors of 784, and what ``SparseConnectivity`` takes with them. Without an argument it measures
all three.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import itertools
import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from timed_fit import WARM_UP, timed_fit
from timing import clock, spread
from torch import Tensor, nn

from lit_sparse.callbacks import ActivityHistogram, BasesPlot, ReconstructionPlot, SparseConnectivity
from lit_sparse.data import ImageDataModule
from lit_sparse.data.images.base import Images
from lit_sparse.data.splits import Split
from lit_sparse.mappings import HardThreshold, HoyerProjection
from lit_sparse.mappings import functional as F
from lit_sparse.models import LitSparseModule, RobustClassifier, SupervisedOnlineAutoencoder
from lit_sparse.risks import UnbalancedOTDRO

WIDTH, PIXELS = 1000, 784
TRANSFERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "tanh": (nn.Tanh, {}),
    "Hoyer, 0.8": (lambda: HoyerProjection(0.8), {}),
    "90 largest": (lambda: HardThreshold(90), {}),
    "Hoyer, 0.8, sparse gradient": (lambda: HoyerProjection(0.8), {"sparse_gradient": True}),
}
SPARSE_GRADIENT = "Hoyer, 0.8, sparse gradient"


def images(number: int) -> Images:
    """Return noise of which a fifth is ink, as in MNIST."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(number, PIXELS, generator=generator) * (torch.rand(number, PIXELS, generator=generator) < 0.2)
    return Images(pixels, torch.randint(10, (number,), generator=generator))


class NoiseDataModule(ImageDataModule):
    """As many images as one asks for."""

    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(labelled=1.0, binarize=False, **options)
        self.number = number

    def load(self) -> dict[Split, Images]:
        """See the base class."""
        return {"train": images(self.number), "val": images(64), "test": images(64)}


def model_of(transfer: str) -> SupervisedOnlineAutoencoder:
    """Return a model as it is before training."""
    make, options = TRANSFERS[transfer]
    torch.manual_seed(0)
    model = SupervisedOnlineAutoencoder(make(), width=WIDTH, optimizer=lambda p: torch.optim.SGD(p, lr=0.01), **options)
    model.start_from(images(2 * WIDTH).pixels)
    return model


def robust_model() -> RobustClassifier:
    """Return the published robust classifier."""
    torch.manual_seed(0)
    return RobustClassifier(risk=UnbalancedOTDRO(1.0, 1.0, 0.1), optimizer=lambda p: torch.optim.SGD(p, lr=1e-4))


def step_by_hand(model: LitSparseModule, batch_size: int) -> Callable[[], None]:
    """Return a step of a loop by hand."""
    optimizer: Any = model.configure_optimizers()
    data = images(max(4096, batch_size))
    model.train()
    count = itertools.count()

    def step() -> None:
        number = next(count)
        first = number * batch_size % (len(data) - batch_size + 1)
        rows = slice(first, first + batch_size)
        batch = {"pixels": data.pixels[rows], "label": data.labels[rows]}
        optimizer.zero_grad()
        loss: Tensor = model.run_step(batch, number, "train")["loss"]
        loss.backward()
        optimizer.step()

    return step


def loop(model: LitSparseModule, batch_size: int, steps: int) -> float:
    """Return seconds a step of a loop by hand."""
    step = step_by_hand(model, batch_size)
    for _ in range(WARM_UP):
        step()
    began = clock()
    for _ in range(steps):
        step()
    return (clock() - began) / steps


def with_lightning(make: Callable[[], LitSparseModule], steps: int, updates: int) -> tuple[float, float]:
    """Return seconds of a step by hand, and its share of an online update under Lightning, with so many in a batch."""
    model, step = make(), step_by_hand(make(), 1)
    warm_up = max(2, WARM_UP // updates)
    batches = warm_up + steps // updates + 1
    data = NoiseDataModule(batches * updates, batch_size=1, eval_batch_size=64, updates_per_batch=updates)

    def pictures(folder: str) -> list[pl.Callback]:
        drawn = (BasesPlot(folder=folder), ActivityHistogram(folder=folder), ReconstructionPlot(folder))
        return [*drawn, *([SparseConnectivity("encoder", 0.75)] if hasattr(model, "encoder") else [])]

    by_hand = lambda: [step() for _ in range(updates)]  # noqa: E731
    ours, plain, _ = timed_fit(model, data, steps // updates, by_hand, pictures, warm_up, log_every_n_steps=1000)
    return statistics.median(plain) / updates, sum(plain) / sum(ours)


def measure_steps(rounds: int, steps: int) -> None:
    """Print milliseconds a step and ratios to tanh."""
    print("| batch | transfer | ms a step, median | over tanh, median (least to most) |")
    print("| ---: | --- | ---: | ---: |")
    for batch_size in (64, 1):
        names = [name for name in TRANSFERS if batch_size == 1 or name != SPARSE_GRADIENT]
        count = steps if batch_size > 1 else 5 * steps
        taken = {name: [0.0] * rounds for name in names}
        for number in range(rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                taken[name][number] = loop(model_of(name), batch_size, count) * 1e3
        for name in names:
            ratios = [a / b for a, b in zip(taken[name], taken["tanh"], strict=True)]
            print(f"| {batch_size} | {name} | {statistics.median(taken[name]):.3f} | {spread(ratios)} |")


def measure_online(rounds: int, steps: int) -> None:
    """Print updates a second."""
    print("| model | updates a second, by hand | 1 per batch, share | 50 per batch, share |")
    print("| --- | ---: | ---: | ---: |")
    models: dict[str, Callable[[], LitSparseModule]] = {
        name: partial(model_of, name) for name in ("Hoyer, 0.8", SPARSE_GRADIENT)
    }
    for name, make in {**models, "robust classifier": robust_model}.items():
        one, several = ([with_lightning(make, steps, count) for _ in range(rounds)] for count in (1, 50))
        speed = spread([1 / seconds for seconds, _ in one + several], ".0f")
        print(f"| {name} | {speed} | {spread([share for _, share in one])} | {spread([share for _, share in several])} |")


def measure_projection(rounds: int) -> None:
    """Print milliseconds a projection."""
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    callback, model = SparseConnectivity("encoder", 0.75), model_of("tanh")
    bases = model.bases.detach().clone()
    alone: list[float] = []
    called: list[float] = []
    for _ in range(3 * rounds):
        began = time.perf_counter()
        F.hoyer_projection(bases, 0.75)
        alone.append(1e3 * (time.perf_counter() - began))
        model.bases.data.copy_(bases)
        callback.setup(trainer, model, "fit")
        began = time.perf_counter()
        callback.on_train_start(trainer, model)
        called.append(1e3 * (time.perf_counter() - began))
    print("| 1,000 vectors of 784 to sparseness 0.75 | ms, median (least to most) |")
    print("| --- | ---: |")
    print(f"| F.hoyer_projection | {spread(alone)} |")
    print(f"| SparseConnectivity | {spread(called)} |")


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="steps, online or projection; all of them by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200, help="of a round; five times as many with one image each")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    parts = options.parts or ["steps", "online", "projection"]
    unknown = sorted(set(parts) - {"steps", "online", "projection"})
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; choose from steps, online, projection")
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    print(f"{platform.machine()}, torch {torch.__version__}, {options.threads} of {os.cpu_count()} threads")
    if "steps" in parts:
        measure_steps(options.rounds, options.steps)
    if "online" in parts:
        measure_online(max(1, options.rounds // 3), 5 * options.steps)
    if "projection" in parts:
        measure_projection(options.rounds)


if __name__ == "__main__":
    main()
