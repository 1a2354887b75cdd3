"""Runs a compiled kernel on blocks of rows, on as many threads as torch uses.

Numba's own ``parallel=True`` is not used: on GNU OpenMP a forked data-loader worker that calls a kernel is killed, and on
its work-queue layer two Python threads abort the process. Blocks on a small pool of Python threads survive both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

__all__ = ["over_rows"]

# Below this many elements a call costs less than waking a second thread does (measured on (64, 50) to (4096, 256)).
SERIAL_ELEMENTS = 1 << 17


class _Pool:
    """Daemon threads that take blocks from one queue; as many as were ever asked for."""

    def __init__(self) -> None:
        self.blocks: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...], SimpleQueue[BaseException | None]]]
        self.blocks = SimpleQueue()
        self.size = 0
        self.growing = threading.Lock()

    def grow(self, size: int) -> None:
        with self.growing:
            while self.size < size:
                threading.Thread(target=self._work, name=f"lit_sparse-{self.size}", daemon=True).start()
                self.size += 1

    def _work(self) -> None:
        while True:
            block, args, done = self.blocks.get()
            try:
                block(*args)
            except BaseException as error:  # handed to the caller, who raises it
                done.put(error)
            else:
                done.put(None)
            del block, args, done  # an idle thread must not keep arrays alive


_pool = _Pool()


def _drop_pool() -> None:
    """Start afresh in a forked child, where the threads of the parent do not exist."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool)


def over_rows(block: Callable[..., None], shape: tuple[int, ...], *args: Any) -> None:
    """Call ``block(start, stop, *args)`` on ranges that cover all rows once.

    Args:
        block: compiled function that works on rows ``start .. stop - 1`` of the arrays in ``args``.
        shape: (rows, d) of those arrays.
        args: arrays and scalars handed to every call.
    """
    rows, d = shape
    threads = 1 if rows * d < SERIAL_ELEMENTS else min(torch.get_num_threads(), rows)
    if threads <= 1:
        block(0, rows, *args)
        return
    pool = _pool
    if pool.size < threads - 1:
        pool.grow(threads - 1)
    edges = [rows * i // threads for i in range(threads + 1)]
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    for i in range(1, threads):
        pool.blocks.put((block, (edges[i], edges[i + 1], *args), done))
    try:
        block(edges[0], edges[1], *args)
    finally:
        errors = [done.get() for _ in range(1, threads)]
    for error in errors:
        if error is not None:
            raise error
