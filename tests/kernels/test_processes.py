"""Kernels in forked workers, in several threads, on read-only installations, and without bounds checks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lit_sparse.mappings import functional as F

FIRST_CALL = """
import time
import torch
from lit_sparse.mappings import functional as F
start = time.perf_counter()
assert F.sparsemax(torch.zeros(4)).tolist() == [0.25] * 4
print(time.perf_counter() - start)
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.fuzz
@pytest.mark.process
@pytest.mark.timeout(900)
def test_hostile_rows_under_bounds_checks(tmp_path: Path) -> None:
    """20,000 rows through each kernel, in an empty cache: one compiled without bounds checks would be used again."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("hostile.py"))],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = dict(line.split() for line in done.stdout.splitlines())
    assert set(seen) == {"simplex", "entmax", "pnorm", "capped", "fused", "oscar", "hoyer", "hard"}
    assert all(int(rows) >= 20_000 for rows in seen.values())


REFUSE_TO_CACHE = """
import numba.core.caching as caching
def refuse(self):
    raise OSError("read-only file system")
for locator in list(vars(caching).values()):
    if isinstance(locator, type) and hasattr(locator, "ensure_cache_path"):
        locator.ensure_cache_path = refuse
"""


@pytest.mark.process
def test_no_folder_can_be_written() -> None:
    """As in a container with a read-only installation and home: compiled anew in each process."""
    run(REFUSE_TO_CACHE + FIRST_CALL)


@pytest.mark.process
def test_second_process_starts_from_the_cache(tmp_path: Path) -> None:
    first = float(run(FIRST_CALL, NUMBA_CACHE_DIR=str(tmp_path)))
    second = float(run(FIRST_CALL, NUMBA_CACHE_DIR=str(tmp_path)))
    assert list(tmp_path.rglob("*.nbi"))
    assert second < min(first, 1.5)


class _Mapped(Dataset):
    """A data set whose items are made by a kernel, in a worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.randn(4096, 256, generator=torch.Generator().manual_seed(index))
        return F.sparsemax(x).sum(-1)


def test_forked_data_loader_workers() -> None:
    torch.set_num_threads(max(2, torch.get_num_threads()))
    F.sparsemax(torch.randn(4096, 256))  # the pool of this process exists before the fork
    for batch in DataLoader(_Mapped(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        torch.testing.assert_close(batch, torch.ones_like(batch))


@pytest.mark.process
def test_a_fork_may_use_many_threads() -> None:
    code = (
        "import os, threading, torch\n"
        "from lit_sparse.mappings import functional as F\n"
        "torch.set_num_threads(2)\n"
        "x = torch.randn(4096, 256)\n"
        "y = F.sparsemax(x)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = torch.equal(F.sparsemax(x), y)\n"
        "    helping = any(thread.name.startswith('lit_sparse') for thread in threading.enumerate())\n"
        "    os._exit(0 if same and helping else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    run(code)


def test_two_threads_at_once() -> None:
    x = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))
    expected = F.sparsemax(x)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            leaf = x.clone().requires_grad_()
            y = F.sparsemax(leaf)
            y.square().sum().backward()
            if not torch.equal(y, expected):
                wrong.append("different")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_in_a_block_reaches_the_caller() -> None:
    from lit_sparse.kernels.threads import over_rows

    def block(start: int, stop: int) -> None:
        if start > 0:
            raise ValueError("from a block")

    torch.set_num_threads(max(2, torch.get_num_threads()))
    with pytest.raises(ValueError, match="from a block"):
        over_rows(block, (100, 100), 1.0)
