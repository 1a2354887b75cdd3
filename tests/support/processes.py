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
#: How processes start that share what one process has imported for them: that takes many times as long as a test.
SHARING = "forkserver"
multiprocessing.set_forkserver_preload(["pytest", "lit_sparse.callbacks", "lit_sparse.data", "lit_sparse.models"])


def run_python(*arguments: str, timeout: int = 280, **environment: str) -> str:
    """Return what ``python ARGUMENTS`` prints, started at the root of the repository; it has to succeed."""
    command, variables = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_processes(function: Callable[..., None], arguments: tuple[Any, ...], number: int) -> None:
    """Call ``function(rank, *arguments)`` in some processes at a time; each has to succeed."""
    mp.start_processes(function, arguments, nprocs=number, start_method=SHARING)  # type: ignore[no-untyped-call]
