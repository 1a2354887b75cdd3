"""``lit-sparse select``: coresets of any data, with or without a model, killed, and on several processes."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_sparse.cli import main, select
from lit_sparse.coresets import AcceleratedIHT, Coreset, FileVectors, NonnegativeOMP
from lit_sparse.runs.status import read_status
from tests.conftest import ROOT

REGRESSION = ("-c", "coreset/gaussian")
DIGITS = ("--data=DigitsDataModule", "--data.labelled=1.0", "--data.binarize=false")
FUNCTION = '''
import torch
def pixels(examples):
    """The pixels of all images."""
    return examples[torch.arange(len(examples))]["pixels"].double()
'''


@pytest.fixture(autouse=True)
def _own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_vectors.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_vectors", raising=False)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "objective.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.gate
def test_a_config_of_a_coreset(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["select", *REGRESSION, "--sizes=[5,10]"]) == 0
    folder = tmp_path / "runs" / "coreset" / "gaussian" / "select" / "0"
    rows = table(folder)
    assert [row["k"] for row in rows] == ["5", "10", "20"]
    objectives = [float(row["objective"]) for row in rows]
    assert objectives == sorted(objectives, reverse=True)
    assert all(float(row["relative"]) < float(row["uniform"]) for row in rows)
    coreset = Coreset.load(folder / "coreset.npz")
    assert len(coreset) <= 20
    assert coreset.size == 800
    assert coreset.objective == pytest.approx(objectives[-1])
    assert (folder / "objective.png").read_bytes().startswith(b"\x89PNG")
    text = capsys.readouterr().out
    assert f"run folder: {folder.relative_to(tmp_path)}" in text
    assert "Selection pays off if training on the other 780 examples takes more than" in text
    assert "saves more than it costs" in text or "costs more than it saves" in text
    assert not list((folder / "states").glob("*"))


@pytest.mark.gate
def test_the_selected_coreset_is_that_of_a_training(tmp_path: Path) -> None:
    assert main(["select", *REGRESSION, "--sizes=[20]"]) == 0
    assert (
        main(
            [
                "fit",
                *REGRESSION,
                "--trainer.max_epochs=1",
                "--trainer.check_val_every_n_epoch=1",
                "--trainer.log_every_n_steps=1",
            ]
        )
        == 0
    )
    runs = tmp_path / "runs" / "coreset" / "gaussian"
    one, two = Coreset.load(runs / "select" / "0" / "coreset.npz"), Coreset.load(runs / "0" / "coreset.npz")
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.weights, two.weights)


@pytest.mark.gate
def test_any_data_without_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--selector=NonnegativeOMP", "--k=0.02", "--vectors=own_vectors.pixels", "--stratify=label", "--name=mine")
    assert main(["select", *DIGITS, *options]) == 0
    folder = tmp_path / "runs" / "mine" / "select" / "0"
    assert len(Coreset.load(folder / "coreset.npz")) <= 25
    text = capsys.readouterr().out
    assert "Selection pays off" in text
    assert "Training" not in text
    assert main(["select", *DIGITS, *options, "--resume=true"]) == 0


def test_a_selector_may_have_untyped_arguments(tmp_path: Path) -> None:
    source = "from lit_sparse.coresets import Uniform\nclass Own(Uniform):\n    def __init__(self, kept):\n"
    (tmp_path / "own_selector.py").write_text(f"{source}        super().__init__()\n        assert kept == 'some'\n")
    own = ("--selector=own_selector.Own", "--selector.kept=some", "--vectors=own_vectors.pixels")
    assert main(["select", *DIGITS, *own, "--k=5"]) == 0


def test_vectors_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = torch.randn(1257, 9, generator=torch.Generator().manual_seed(0)) + 0.2
    FileVectors.save(given, tmp_path / "vectors.npy")
    vectors = ("--vectors=FileVectors", f"--vectors.path={tmp_path / 'vectors.npy'}")
    assert main(["select", *DIGITS, "--selector=NonnegativeOMP", "--k=9", *vectors, "--name=mine"]) == 0
    found = Coreset.load(tmp_path / "runs" / "mine" / "select" / "0" / "coreset.npz")
    assert torch.equal(found.indices, NonnegativeOMP()(FileVectors(tmp_path / "vectors.npy"), 9).indices)
    command = ["select", *DIGITS, "--selector=NonnegativeOMP", "--k=9", *vectors, "--name=mine", "--resume=true"]
    stored = tmp_path / "runs" / "mine" / "select" / "0" / "objective.csv"
    before = stored.read_text()
    bad = [("k\n9\n", "Expected the columns k, "), (before + "x,1,1,1,1,1\n", "in column 'k'")]
    bad.append((before + before.splitlines()[-1] + "\n", "Expected one row for each k in"))
    for text, message in (*bad, (before.replace("\n9,", "\n9,-"), "Expected the row of k = 9 in")):
        stored.write_text(text)
        assert main(command) == 2
        assert message in capsys.readouterr().err
    stored.write_text(before)
    path = stored.parent / "coresets" / "9.npz"
    same = Coreset.load(path)
    replace(same, weights=same.weights.flip(0)).save(path)  # with the objective of other weights
    assert main(command) == 2
    assert "Expected the row of k = 9 in" in capsys.readouterr().err
    same.save(path)
    assert main(command) == 0
    (stored.parent / "config.yaml").write_bytes(b"\xff")
    assert main(command) == 2
    assert "Expected text in UTF-8" in capsys.readouterr().err


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(("seconds", "words"), [(0.0, "saves more than it costs"), (1e6, "costs more than it saves")])
def test_a_selection_that_costs_more_than_it_saves_is_reported(
    seconds: float, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = select.SelectCLI([*REGRESSION])
    data = cli.data_module()
    data.setup("fit")
    select._weigh(data, cli.model, data.coreset, 2 * seconds, 3)
    text = capsys.readouterr().out
    assert "Training 3 epochs" in text
    assert words in text


@pytest.mark.cases(quick=4, gate=99)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([*DIGITS, "--k=5"], "--selector, --vectors is missing"),
        ([*REGRESSION, "--k=5"], "Write --data.k instead"),
        ([*REGRESSION, "--sizes=[21]"], "at most k = 20"),
        ([*REGRESSION, "--sizes=[0]"], "`sizes`"),
        ([*REGRESSION, "--every=0"], "`every`"),
        ([*REGRESSION, "--resume=true"], "to resume but got none"),
        ([*REGRESSION, "--data.k=801"], "at most 800"),
        ([*DIGITS, "--selector=NonnegativeOPM"], "NonnegativeOMP"),
        (
            [*DIGITS, "--selector=NonnegativeOMP", "--k=5", "--vectors=FileVectors", "--vectors.path=none.npy"],
            "to read the vectors 'none.npy' but got: No such file",
        ),
        (
            [*REGRESSION, "--data.selector=null", "--data.k=null", "--data.vectors=null", "--data.coreset=x.npz"],
            "already selected",
        ),
        ([], "data"),
    ],
)
def test_bad_options_are_refused(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", *options]) == 2
    assert words in capsys.readouterr().err


KILLED = """
import os, signal, sys
from lit_sparse import cli
from lit_sparse.coresets import SelectionState
keep = SelectionState.keep
def killed(self, step, here):
    keep(self, step, here)
    if self.path.name == "100.pt" and step == 12:
        os.kill(os.getpid(), signal.SIGKILL)
SelectionState.keep = killed
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_selection_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["select", "-c", "coreset/logistic", "--model=lit_sparse.cli.select.NoModel", "--sizes=[10]", "--every=5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = ["--data.selector=AcceleratedIHT", "--data.selector.tol=0"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command, *options], env=environment, capture_output=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    folder = tmp_path / "runs" / "coreset" / "logistic" / "select" / "0"
    assert [path.name for path in (folder / "states").iterdir()] == ["100.pt"]
    (first,) = table(folder)
    assert main([*command, *options, "--resume=true", "--data.seed=7"]) == 2
    assert "data.init_args.seed 7, was 0" in capsys.readouterr().err
    assert main([*command, *options, "--data.k=1000000"]) == 2  # a refused command leaves no folder
    assert [path.name for path in folder.parent.iterdir()] == ["0"]
    part = folder / "states" / f".100.pt.{'0a' * 8}.part"
    part.write_text("half a state")
    assert main([*command, *options, "--resume=true"]) == 0
    assert not part.exists()
    assert read_status(folder)["state"] == "finished"  # type: ignore[index]
    rows = table(folder)
    assert [row["k"] for row in rows] == ["10", "100"]
    assert rows[0] == first, "the size that was finished is not selected again"
    assert main([*command, *options]) == 0
    found, expected = (Coreset.load(folder.parent / name / "coreset.npz") for name in ("0", "1"))
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.trace, expected.trace)


@pytest.mark.slow
def test_processes_of_a_launcher_select_what_one_does(tmp_path: Path) -> None:
    given = np.random.default_rng(0).normal(size=(1257, 30)).astype(np.float32) + 0.1
    np.save(tmp_path / "vectors.npy", given)
    options = [*DIGITS, "--selector=AcceleratedIHT", "--selector.max_iter=20", "--k=25", "--sizes=[25]", "--name=mine"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "lit_sparse"]
    done = subprocess.run(
        [*launcher, "select", *options, "--vectors=FileVectors", "--vectors.path=vectors.npy"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("run folder:") == 1
    found = Coreset.load(tmp_path / "runs" / "mine" / "select" / "0" / "coreset.npz")
    expected = AcceleratedIHT(max_iter=20)(FileVectors(tmp_path / "vectors.npy"), 25)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.weights, expected.weights)
