"""Fixtures shared by all tests."""

from __future__ import annotations

import csv
import functools
import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; set before torch reads it
    _share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _share)))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads would spin while processes that tests start run
settings.register_profile("lit_sparse", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("lit_sparse")

#: Names of variables that Lightning and the command line leave for the processes that they start.
LEFT = ("MASTER_", "LIT_SPARSE_RUN_FOLDER", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "PL_")
collect_ignore = ["support/either_lightning.py", "support/writes.py"]  # a program, and a module for programs
ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "lit_sparse" / "configs"


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their lanes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put as many cases of a test into the quick tests and the gate as its mark says; the others are slow.

    Cases that have the mark ``slow`` stay slow. The first of the others is chosen, and the rest by a hash of their names.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("cases") and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for first, *others in tests.values():
        mark = first.get_closest_marker("cases")
        assert mark is not None
        quick, gate = _numbers(*mark.args, **mark.kwargs)
        for place, item in enumerate([first, *sorted(others, key=lambda item: zlib.crc32(item.nodeid.encode()))]):
            if place >= quick:
                item.add_marker(pytest.mark.gate if place < quick + gate else pytest.mark.slow)


def _numbers(*, quick: int = 0, gate: int = 0) -> tuple[int, int]:
    """Return the arguments of a mark; others are refused."""
    return quick, gate


def pytest_collection_finish() -> None:
    """Leave what exists before the tests, hundreds of thousands of objects, out of each garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Let no run in the process of one test tell the runs of a later test where to meet, and where to write."""
    before, level = _taken(), logging.getLogger("pytorch_lightning").level
    yield
    _taken()
    os.environ.update(before)
    logging.getLogger("pytorch_lightning").setLevel(level)  # which benchmarks change


def _taken() -> dict[str, str]:
    return {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(LEFT)}


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with reference answers and real data that travels with CI."""
    folder = Path(os.environ.get("LIT_SPARSE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no folder with reference answers and data; LIT_SPARSE_SHARED names one")
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tables, and of idx files with a few images of noise."""
    from tests.support.stand_ins import make_images

    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a few short feature vectors."""
    from tests.support.stand_ins import make_features

    return make_features(tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a few sentence pairs, articles and entailments, and word vectors."""
    from tests.support.stand_ins import make_texts

    return make_texts(tmp_path_factory.mktemp("texts"))


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def command_line() -> Iterator[Command]:
    """Run the command line in a process of its own, in a given folder."""
    support = ROOT / "tests" / "support"
    with subprocess.Popen(
        [sys.executable, str(support / "fork_server.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
            with tempfile.TemporaryDirectory() as place:
                streams = {name: Path(place) / name for name in ("stdout", "stderr")}
                environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{support}", "COLUMNS": "200"}
                request = {"args": args, "cwd": str(folder), "environment": environment, "timeout": 250}
                print(json.dumps({**request, **{name: str(path) for name, path in streams.items()}}), file=requests, flush=True)
                status = int(answers.readline())
                return subprocess.CompletedProcess(args, status, *(path.read_text() for path in streams.values()))

        yield run
        requests.close()


@pytest.fixture
def lit_sparse(tmp_path: Path, command_line: Command) -> Command:
    """Run the command line in a process of its own, in the folder of the test."""
    return functools.partial(command_line, tmp_path)


def metrics_of(folder: Path) -> dict[str, list[float]]:
    """Read a run's metrics: name -> its values in order."""
    found: dict[str, list[float]] = {}
    with (folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value:
                    found.setdefault(name, []).append(float(value))
    return found


@pytest.fixture
def browser() -> Iterator[Any]:
    """A browser without a window, with logs of its console and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and its driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()
