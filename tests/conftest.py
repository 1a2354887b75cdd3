"""Fixtures shared by all tests."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; set before torch reads it
    _share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _share)))

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with reference answers and real data that travels with CI."""
    folder = Path(os.environ.get("LIT_SPARSE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no folder with reference answers and data; LIT_SPARSE_SHARED names one")
    return folder


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def lit_sparse(tmp_path: Path) -> Command:
    """Run the command line in a process of its own, in a folder of its own."""

    def run(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", "lit_sparse", *args],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            **options,  # type: ignore[call-overload]
        )

    return run


def metrics_of(folder: Path) -> dict[str, list[float]]:
    """Read a run's metrics: name -> its values in order."""
    found: dict[str, list[float]] = {}
    with (folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:
                    found.setdefault(name, []).append(float(value))
    return found
