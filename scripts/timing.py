"""Shared parts of the benchmarks: medians of calls that take turns, and tables.

Scripts import it before torch: idle OpenMP threads sleep, as the command line lets them.
"""

from __future__ import annotations

from lit_sparse.cli import wait_passively  # isort: skip

wait_passively()

import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch


def clock() -> float:
    """Return seconds: elapsed time, or processor time if torch has one thread and no GPU.

    The time of the processor does not count programs that share it.
    """
    return time.process_time() if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter()


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return a median, and the least and the most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def medians(contestants: dict[str, Callable[[], object]], rounds: int, least: float = 2e-3) -> dict[str, float]:
    """Return the median seconds of a call of each method, see :func:`seconds_of`."""
    return {name: statistics.median(values) for name, values in seconds_of(contestants, rounds, least).items()}


def ratios(contestants: dict[str, Callable[[], object]], baseline: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each method divided by the baseline's, in increasing order, one per round."""
    seconds = seconds_of(contestants, rounds, 0.0)
    return {name: sorted(a / b for a, b in zip(x, seconds[baseline], strict=True)) for name, x in seconds.items()}


def seconds_of(contestants: dict[str, Callable[[], object]], rounds: int, least: float) -> dict[str, list[float]]:
    """Return the seconds of calls of each method.

    In each round the methods take turns in random order, so that none always follows the same one, whose memory and threads
    it inherits. In its turn a method is called several times if it is fast.

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
