"""Runs a compiled kernel on blocks of rows, on as many threads as torch uses.

Numba's own ``parallel=True`` is not used: on GNU OpenMP a forked data-loader worker that calls a kernel is killed, and on
its work-queue layer two Python threads abort the process. Blocks on a small pool of Python threads survive both.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

__all__ = ["over_rows"]

# A call that one thread ends within this many seconds stays there: waking a second one takes some 50 microseconds.
SERIAL_SECONDS = 100e-6
# Several blocks a thread: one that wakes late, or shares its core for a while, leaves more of them to the others.
BLOCKS_PER_THREAD = 4
# How often a thread without work looks again before it sleeps between looks.
QUICK_LOOKS = 2000
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class _Job:
    """The blocks of one call. Whoever runs it takes blocks until none is left."""

    def __init__(self, block: Callable[..., None], edges: list[int], args: tuple[Any, ...]) -> None:
        self.block = block
        self.edges = edges
        self.args = args
        self.next = itertools.count()  # taking the next number is atomic
        self.ended: list[BaseException | None] = []  # one entry a block: None, or what went wrong

    def run(self) -> None:
        for i in self.next:
            if i + 1 >= len(self.edges):
                return
            try:
                self.block(self.edges[i], self.edges[i + 1], *self.args)
            except BaseException as error:  # handed to the caller, who raises it
                self.ended.append(error)
            else:
                self.ended.append(None)

    def wait(self) -> None:
        """Return when every block has ended. At most one block a thread is still running when this is called."""
        blocks = len(self.edges) - 1
        looks = 0
        while len(self.ended) < blocks:
            if looks < QUICK_LOOKS:
                give_way()
            else:
                time.sleep(50e-6)
            looks += 1
        for error in self.ended:
            if error is not None:
                raise error


class _Pool:
    """Daemon threads that help with jobs from one queue; as many as were ever asked for."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.size = 0
        self.growing = threading.Lock()

    def ask(self, job: _Job, helpers: int) -> None:
        if self.size < helpers:
            with self.growing:
                while self.size < helpers:
                    threading.Thread(target=self._help, name=f"lit_sparse-{self.size}", daemon=True).start()
                    self.size += 1
        for _ in range(helpers):
            self.jobs.put(job)

    def _help(self) -> None:
        while True:
            job = self.jobs.get()
            job.run()
            del job  # an idle thread must not keep arrays alive


_pool = _Pool()


def _drop_pool() -> None:
    """Start afresh in a forked child, where the threads of the parent do not exist."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool)


def over_rows(block: Callable[..., None], shape: tuple[int, ...], cost: float, *args: Any) -> None:
    """Call ``block(start, stop, *args)`` on ranges that cover all rows once.

    Args:
        block: compiled function that works on rows ``start .. stop - 1`` of the arrays in ``args``.
        shape: (rows, d) of those arrays.
        cost: about how many seconds one thread needs for one element.
        args: arrays and scalars handed to every call.
    """
    rows, d = shape
    threads = 1 if rows * d * cost < SERIAL_SECONDS else min(torch.get_num_threads(), rows)
    if threads <= 1:
        block(0, rows, *args)
        return
    blocks = min(rows, threads * BLOCKS_PER_THREAD)
    job = _Job(block, [rows * i // blocks for i in range(blocks + 1)], args)
    _pool.ask(job, threads - 1)
    job.run()
    job.wait()
