"""Python in processes of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, timeout: int = 280, **environment: str) -> str:
    """Return what ``python ARGUMENTS`` prints, started at the root of the repository; it has to succeed."""
    command, variables = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def sharing_imports() -> str:
    """Return how to start processes that share what one process has imported, which takes many times as long as a test.

    They have the environment of that one, and no threads of OpenMP for compiled kernels, as all forked processes.
    """
    multiprocessing.set_forkserver_preload(["pytest", "lit_sparse.callbacks", "lit_sparse.data", "lit_sparse.models"])
    return "forkserver"


def run_processes(function: Callable[..., None], arguments: tuple[Any, ...], number: int, how: str | None = None) -> None:
    """Call ``function(rank, *arguments)`` in some processes, started by default as in :func:`sharing_imports`."""
    mp.start_processes(function, arguments, nprocs=number, start_method=how or sharing_imports())  # type: ignore[no-untyped-call]
