"""A small study: two bit-vector auto-encoders on digits, and a function."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from lit_sparse.cli import main
from lit_sparse.studies.jobs import cell_run
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.jobs.processes import JobFailedError
from lit_sparse.studies.plan.load import load_study
from tests.conftest import ROOT

TOY = {
    "title": "Toy",
    "config": str(ROOT / "tests" / "support" / "bits.yaml"),
    "options": {"trainer.max_epochs": 2, "checkpoint_every_n_steps": 3},
    "cells": {
        "slow": {"title": "small step", "published": {"nelbo": "1.5"}},
        "fast": {"options": {"model.init_args.optimizer.init_args.lr": 0.005}},
    },
    "columns": {
        "nelbo": {"value": "test/nelbo", "best": "min"},
        "calls": {"value": "sum(train/decoder_calls_total)", "form": "g"},
    },
    "figures": [{"alt": "NELBO", "panels": [{"value": "val/nelbo"}]}],
}

FUNCTION = '''
"""A function whose calls are counted."""
from pathlib import Path

def square(seed, *, x, folder, plus=0):
    with (Path(folder) / "calls").open("a") as file:
        file.write(f"{seed} {x}\\n")
    if x == 13:
        raise ValueError("unlucky")
    return {"y": x * x + plus + seed}

def series(seed, *, n):
    return [{"k": k, "y": 1.0 / k} for k in range(1, n + 1)]

def twice(seed):
    return [{"y": 1.0}, {"y": 2.0}]
'''


@pytest.fixture
def write_study(tmp_path: Path) -> Callable[..., Path]:
    """Write a study file with some keys replaced."""

    def write(name: str = "toy", **keys: object) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**TOY, **keys}, sort_keys=False))
        return path

    return write


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., Runner]:
    """Return the runner of a study file, with runs and results in the test's folder."""

    def make(path: Path, **options: object) -> Runner:
        return Runner(load_study(path), output=tmp_path / "runs", results=tmp_path / "results", **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runners call what they would start in processes, which have tests of their own."""

    def call(command: Sequence[str], log: Path, *_: object) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as output, redirect_stdout(output), redirect_stderr(output):
            status = main(list(command[3:]))
        if status:
            raise JobFailedError(log.read_text())

    monkeypatch.setattr(cell_run, "call", call)
    monkeypatch.setattr(cell_run.RunOf, "_call", lambda self, _threads, _held, *tested: self.call_functions(*tested))


@pytest.fixture
def function_study(write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a study of a function in a module of the user's."""
    (tmp_path / "own_functions.py").write_text(FUNCTION)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    cell = {"function": "own_functions.square", "arguments": {"folder": str(tmp_path)}, "grid": {"x": [2, 3]}}
    return write_study(
        config=None,
        options={},
        seeds=[0, 1],
        cells={"square": cell, "more": {**cell, "arguments": {"folder": str(tmp_path), "plus": 10}}},
        columns={"y": {"value": "y", "form": "g", "show": "median"}},
        tables=[{"lines": "x", "value": ["y"]}],
        figures=[{"panels": [{"value": "y", "x": "x"}]}],
    )


@pytest.fixture
def run_with_kills() -> Iterator[Callable[..., None]]:
    """Start a command in a session of its own, kill it at random moments, and then let it end; nothing outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(start: Callable[[], subprocess.Popen[bytes]], seed: int, kills: int = 5) -> None:
        moments = random.Random(seed)
        for kill in range(kills):
            started.append(process := start())
            time.sleep(moments.uniform(5, 25))
            if kill % 2:
                os.killpg(process.pid, signal.SIGKILL)  # with its trainings
            else:
                process.kill()  # its trainings go on, and hold their locks
            process.wait()
        started.append(start())
        assert started[-1].wait() == 0

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
