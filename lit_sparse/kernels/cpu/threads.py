"""Runs a compiled kernel on blocks of rows, on as many threads as torch uses.

Kernels run on torch's own OpenMP threads if these are available. After each operation these threads spin for some
milliseconds. Other threads would share cores with them, and a kernel would take twice as long.

Otherwise kernels run on a small pool of Python threads. The same holds for forked processes, where OpenMP's threads are gone
and GNU's library does not notice it. Numba's own ``parallel=True`` fails after a fork. On its work-queue layer it also fails
with two Python threads at once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import torch

from lit_sparse.kernels.cpu.openmp import Parallel, find_parallel

__all__ = ["Array", "over_blocks", "over_rows"]

Array: TypeAlias = np.ndarray[Any, Any]

# A call that one thread ends within this many seconds stays there: waking a second one takes some 50 microseconds.
SERIAL_SECONDS = 100e-6
# A row takes at least about as long, however short it is.
ROW_SECONDS = 50e-9
# Several blocks a thread: one that wakes late, or shares its core for a while, leaves more of them to the others. But none of
# less than this many seconds, for taking one costs the interpreter lock.
BLOCKS_PER_THREAD = 4
BLOCK_SECONDS = 50e-6
# How often a thread without work looks again before it sleeps between looks.
QUICK_LOOKS = 2000
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class _Job:
    """The blocks of one call. Each thread takes blocks until none is left."""

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
            except BaseException as error:  # passed to the caller, which raises it
                self.ended.append(error)
            else:
                self.ended.append(None)

    def wait(self) -> None:
        """Return when every block has ended. At most one block per thread is still running when this is called."""
        blocks = len(self.edges) - 1
        looks = 0
        while len(self.ended) < blocks:
            if looks < QUICK_LOOKS:
                give_way()
            else:
                time.sleep(50e-6)
            looks += 1
        self.tell()

    def tell(self) -> None:
        """Raise the error of a block, if any."""
        for error in self.ended:
            if error is not None:
                raise error


class _Pool:
    """Daemon threads that help with jobs from one queue; as many as were ever asked for."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.size = 0
        self.growing = threading.Lock()

    def run(self, job: _Job, threads: int) -> None:
        """Run a job on this thread and others."""
        if self.size < threads - 1:
            with self.growing:
                while self.size < threads - 1:
                    threading.Thread(target=self._help, name=f"lit_sparse-{self.size}", daemon=True).start()
                    self.size += 1
        for _ in range(threads - 1):
            self.jobs.put(job)
        job.run()
        job.wait()

    def _help(self) -> None:
        while True:
            job = self.jobs.get()
            job.run()
            del job  # an idle thread must not keep arrays alive


class _Team:
    """Torch's own threads."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel

    def run(self, job: _Job, threads: int) -> None:
        """Run a job on this thread and others."""

        def help_out() -> None:
            try:
                job.run()
            except BaseException as error:  # between two blocks: an interrupt
                job.ended.append(error)

        self.parallel(help_out, threads)
        job.tell()
        if len(job.ended) < len(job.edges) - 1:  # an interrupt came between OpenMP's call and `try`, and ctypes dropped it
            raise KeyboardInterrupt


_parallel = find_parallel()
_threads: _Team | _Pool = _Pool() if _parallel is None else _Team(_parallel)
#: ``in_blocks``: whether this thread works on a block of :func:`over_blocks`.
_here = threading.local()


def _start_afresh() -> None:
    """Use new threads in a forked child, where the parent's threads do not exist."""
    global _threads
    _threads = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def over_rows(block: Callable[..., None], shape: tuple[int, ...], cost: float, *args: Any) -> None:
    """Call ``block(start, stop, *args)`` on ranges that together cover all rows, on several threads.

    Args:
        block: compiled function that works on rows ``start .. stop - 1`` of the arrays in ``args``.
        shape: (rows, d) of those arrays.
        cost: about how many seconds one thread needs for one element.
        args: arrays and scalars passed to every call.
    """
    rows, d = shape
    block = getattr(block, "called", None) or block  # without a look-up for each range, once it is compiled
    seconds = rows * (d * cost + ROW_SECONDS)
    threads = 1 if seconds < SERIAL_SECONDS else min(torch.get_num_threads(), rows)
    if threads <= 1 or getattr(_here, "in_blocks", False):
        block(0, rows, *args)
        return
    blocks = min(rows, max(threads, min(threads * BLOCKS_PER_THREAD, int(seconds / BLOCK_SECONDS))))
    job = _Job(block, [rows * i // blocks for i in range(blocks + 1)], args)
    _threads.run(job, threads)


def over_blocks(function: Callable[[int], None], count: int) -> None:
    """Call ``function(0) .. function(count - 1)``, several at a time if torch's own threads are available.

    On these threads, each torch operation within ``function`` is single-threaded, so that threads need not synchronize
    after each operation. Modes such as ``torch.no_grad`` are as in a new thread.

    Args:
        function: function of a block's index; the order of calls must not matter.
        count: number of blocks.
    """

    def run(first: int, last: int) -> None:
        _here.in_blocks = True
        try:
            for number in range(first, last):
                function(number)
        finally:
            _here.in_blocks = False

    threads = min(torch.get_num_threads(), count)
    if threads <= 1 or not isinstance(_threads, _Team):
        for number in range(count):
            function(number)
    else:
        _threads.run(_Job(run, list(range(count + 1)), ()), threads)
