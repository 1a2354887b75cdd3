"""Python in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, timeout: int = 280, **environment: str) -> str:
    """Return what ``python ARGUMENTS`` prints, started at the root of the repository; it has to succeed."""
    command, variables = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
