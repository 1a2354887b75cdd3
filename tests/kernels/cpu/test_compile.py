"""Kernels are compiled once, and say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
NOTICE = "Compiling kernels for this processor"


def run(program: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose compiled kernels are kept in a folder of its own."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)


def test_a_compilation_says_so_once_and_what_is_cached_does_not(tmp_path: Path) -> None:
    program = "import torch\nfrom lit_sparse.mappings import Sparsemax\nfor _ in range(2): Sparsemax()(torch.zeros(2, 3))"
    assert run(program, tmp_path).stderr.count(NOTICE) == 1
    assert NOTICE not in run(program, tmp_path).stderr
