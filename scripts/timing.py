"""Shared parts of the benchmarks: medians of calls that take turns, tables, and the time of a training step under Lightning.

Scripts import it before torch: idle OpenMP threads sleep, as the command line lets them.
"""

from __future__ import annotations

from lit_sparse.cli import wait_passively  # isort: skip

wait_passively()

import contextlib
import io
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from lit_sparse.callbacks import CountLogger, SecondsLogger

#: Steps that are not timed.
WARM_UP = 30


def clock() -> float:
    """Return seconds: elapsed ones, or those of the processor if torch has one thread and no GPU.

    The time of the processor does not count programs that share it.
    """
    return time.process_time() if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter()


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return a median, and the least and the most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def medians(contestants: dict[str, Callable[[], object]], rounds: int, least: float = 2e-3) -> dict[str, float]:
    """Return the median seconds of a call of each contestant, see :func:`seconds_of`."""
    return {name: statistics.median(values) for name, values in seconds_of(contestants, rounds, least).items()}


def ratios(contestants: dict[str, Callable[[], object]], baseline: str, rounds: int) -> dict[str, list[float]]:
    """Return the ratios of the seconds of each contestant to those of the baseline, in increasing order, one per round."""
    seconds = seconds_of(contestants, rounds, 0.0)
    return {name: sorted(a / b for a, b in zip(x, seconds[baseline], strict=True)) for name, x in seconds.items()}


def seconds_of(contestants: dict[str, Callable[[], object]], rounds: int, least: float) -> dict[str, list[float]]:
    """Return the seconds of calls of each contestant.

    In each round the contestants take turns in random order, so that none always follows the same one, whose memory and threads
    it inherits. In its turn a contestant is called several times if it is fast.

    Args:
        contestants: name -> call.
        rounds: number of rounds.
        least: seconds that a turn takes at least, about.
    """
    counts: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for name, call in contestants.items():
        call()  # compile, allocate
        counts[name] = max(1, int(least / max(_seconds(call), 1e-9)))
    names, order = list(contestants), random.Random(0)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            seconds[name] += [_seconds(contestants[name]) for _ in range(counts[name])]
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    began = clock()
    call()
    return clock() - began


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a markdown table under a title."""
    print(f"\n{title}\n" if title else "")
    print(f"| {' | '.join(columns)} |\n| {' | '.join(['---:'] * len(columns))} |")
    for row in rows:
        print(f"| {' | '.join(row)} |")


class Stopwatch(pl.Callback):
    """The seconds of each batch, and those of a step by hand that follows it, in turn: other programs slow both alike."""

    def __init__(self, by_hand: Callable[[], object]) -> None:
        self.by_hand = by_hand
        self.before: float | None = None
        self.batches: list[float] = []
        self.steps: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop the watch, make a step by hand, and start the watch."""
        now = clock()
        if self.before is not None:
            self.batches.append(now - self.before)
        began = clock()
        self.by_hand()
        self.before = clock()
        self.steps.append(self.before - began)


def timed_fit(
    model: pl.LightningModule,
    data: pl.LightningDataModule,
    batches: int,
    by_hand: Callable[[], object],
    pictures: Callable[[str], list[pl.Callback]],
    warm_up: int = WARM_UP,
    **options: Any,
) -> tuple[list[float], list[float], pl.Trainer]:
    """Train for an epoch of ``warm_up + batches + 1`` batches on the CPU.

    Args:
        model: model to train.
        data: data module with at least as many batches.
        batches: how many are timed.
        by_hand: the same work by hand, which is done after each batch.
        pictures: further callbacks, for the folder that they write to.
        warm_up: number of batches before those that are timed.
        options: options of the trainer.

    Returns:
        The seconds of each batch, those of the work by hand after it, and the trainer.
    """
    watch = Stopwatch(by_hand)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = pl.Trainer(
            max_epochs=1,
            limit_train_batches=warm_up + batches + 1,
            limit_val_batches=0,
            accelerator="cpu",
            logger=[CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="board")],
            callbacks=[
                *(watch, CountLogger(4096), SecondsLogger(), RichProgressBar(refresh_rate=10)),
                *(*pictures(folder), ModelCheckpoint(folder)),
            ],
            enable_model_summary=False,
            **options,
        )
        trainer.fit(model, data)
    return watch.batches[warm_up:], watch.steps[1 + warm_up :], trainer
