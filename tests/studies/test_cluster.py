"""Runs that are jobs of a cluster, here processes that submitit's local executor starts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from lit_sparse.studies.jobs.cluster import Cluster
from lit_sparse.studies.jobs.rows import Rows
from tests.conftest import ROOT
from tests.studies.test_engine import measured

pytest.importorskip("submitit", reason="jobs of a cluster need the extra 'slurm'")


@pytest.mark.slow
@pytest.mark.gate
def test_a_killed_study_continues_the_jobs_that_it_left(write_study: Callable[..., Path], tmp_path: Path) -> None:
    """The killed command leaves a running job; the next one waits for it, and submits the others."""
    path = write_study(options={"trainer.max_epochs": 4, "checkpoint_every_n_steps": 3})
    words = ["study", str(path), "--submit", "local,timeout_min=30"]

    def start(folder: Path) -> subprocess.Popen[bytes]:
        places = ["--output", str(folder / "runs"), "--results", str(folder / "results")]
        return subprocess.Popen([sys.executable, "-m", "lit_sparse", *words, *places], cwd=ROOT)

    killed, last = start(tmp_path), tmp_path / "runs/toy/slow/seed_0/0/checkpoints/last.ckpt"
    while not last.is_file():
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert start(tmp_path).wait() == 0
    assert start(tmp_path / "whole").wait() == 0
    rows = [Rows(folder / "results" / "toy.csv", folder / "lock").read() for folder in (tmp_path, tmp_path / "whole")]
    assert [row["cell"] for row in rows[0]] == ["slow", "fast"]
    assert measured(rows[0]) == measured(rows[1])
    assert not list((tmp_path / "runs/toy/slow/seed_0").glob("killed_*")), "the job went on in its folder"


@pytest.mark.parametrize(
    ("text", "message"),
    [("nowhere", "cannot be submitted to 'nowhere'"), ("local,gpus=1", "cannot be submitted"), ("local,x", "KEY=VALUE")],
)
def test_wrong_clusters_are_refused(
    text: str, message: str, write_study: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", str(write_study()), "--submit", text]) == 2
    assert message in capsys.readouterr().err


def test_each_job_has_a_new_folder_that_others_cannot_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders: list[Path] = []
    monkeypatch.setattr("submitit.AutoExecutor.submit", lambda self, *_: folders.append(self._executor.folder))
    for _ in range(2):
        Cluster("local").start(["true"], tmp_path / "a.log")
    assert folders[0] != folders[1]
    assert {folder.parent for folder in folders} == {tmp_path / "cache" / "lit_sparse" / "jobs"}
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    with monkeypatch.context() as relative:
        relative.setenv("XDG_CACHE_HOME", "relative")  # which the specification ignores
        Cluster("local").start(["true"], tmp_path / "a.log")
    assert folders[2].parent == tmp_path / "home" / ".cache" / "lit_sparse" / "jobs"
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigurationError, match="replaceable only by you"):
        Cluster("local").start(["true"], tmp_path / "a.log")
