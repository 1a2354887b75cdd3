"""A run that has ended does nothing when it is continued, until a limit is raised; two processes never train one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lit_sparse.cli import main
from lit_sparse.ground.files import STATUS
from lit_sparse.runs.status import read_status

from .conftest import ROOT, Command
from .test_kills import assert_same

pytestmark = pytest.mark.gate
SOAE = ("-c", str(ROOT / "tests" / "support" / "soae.yaml"), "--trainer.enable_model_summary=false")
#: Stops at the second check, since no improvement is this large.
STOPPING = (
    *("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"),
    *("--trainer.callbacks.patience=1", "--trainer.callbacks.min_delta=100"),
)
EARLY = ("fit", *SOAE, "--name=x", "--trainer.max_epochs=9", *STOPPING)
KILL = "--trainer.callbacks+=interruptions.KillAtMoment"


def last(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return loaded


def state_of(run: Path) -> dict[str, Any]:
    status = read_status(run)
    assert status is not None
    return status


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x" / "0"


def test_a_run_that_early_stopping_ended_is_not_trained_on_until_a_limit_is_raised(lit_sparse: Command, run: Path) -> None:
    assert lit_sparse(*EARLY, KILL, "--trainer.callbacks.moment=train_end 40").returncode == -9  # before its pictures
    status = state_of(run)
    assert (status["state"], status["why"]) == ("interrupted", f"process {status['process']} was killed")
    (run / STATUS).unlink()  # the checkpoint alone says that the run had ended
    checkpoint, rows = (run / "checkpoints" / "last.ckpt").read_bytes(), (run / "metrics.csv").read_bytes()
    assert not (run / "pictures").exists()
    for _ in range(2):
        done = lit_sparse(*EARLY, "--ckpt_path=last")
        assert done.returncode == 0, done.stderr
        assert "note: this run has ended: EarlyStopping: val/loss did not improve in the last 1 records" in done.stderr
        assert "Raise the limits of EarlyStopping to continue." in done.stderr
        assert (run / "checkpoints" / "last.ckpt").read_bytes() == checkpoint
        assert (run / "metrics.csv").read_bytes() == rows
    drawn = {path.name for path in (run / "pictures").iterdir()}
    assert drawn == {"activity.png", "bases.png", "reconstructions.png", "support_size.png"}
    status = state_of(run)
    assert (status["state"], status["epoch"], status["step"]) == ("finished", 2, 40)
    assert status["why"].startswith("EarlyStopping: val/loss did not improve")
    assert status["limits"]["callbacks"][0]["patience"] == 1
    done = lit_sparse(*EARLY, "--ckpt_path=last", "--trainer.callbacks.patience=3")
    assert done.returncode == 0, done.stderr
    assert "has ended" not in done.stderr
    assert last(run)["global_step"] == 80, "the patience is that of the command, not that of the checkpoint"
    assert "3 records" in state_of(run)["why"]


def test_the_best_checkpoint_of_an_earlier_epoch_has_not_ended(lit_sparse: Command, run: Path) -> None:
    constant = (*EARLY, "--model.init_args.optimizer.init_args.lr=0")  # so the first epoch is the best
    assert lit_sparse(*constant).returncode == 0
    assert last(run)["global_step"] == 40
    done = lit_sparse(*constant, "--ckpt_path=best")
    assert done.returncode == 0, done.stderr
    assert "has ended" not in done.stderr
    assert last(run.with_name("1"))["global_step"] == 40
    assert torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["global_step"] == 20


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(
    ("limit", "raised", "why"),
    [
        ("max_epochs=1", "max_epochs=2", "max_epochs = 1 was reached. Raise --trainer.max_epochs"),
        ("max_steps=23", "max_steps=25", "max_steps = 23 was reached. Raise --trainer.max_steps"),
        ("max_time=00:00:00:01", "max_time=00:00:00:02", "max_time = 0:00:01 was reached. Raise --trainer.max_time"),
    ],
)
def test_other_limits(
    limit: str, raised: str, why: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    fit = ["fit", *SOAE, "--name=x", "--trainer.max_epochs=1000", "--checkpoint_every_n_steps=1"]
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "support"))
    assert main([*fit, f"--trainer.{limit}"]) == 0
    steps, rows = last(run)["global_step"], (run / "metrics.csv").read_bytes()
    assert main([*fit, f"--trainer.{limit}", "--ckpt_path=last"]) == 0
    assert f"note: this run has ended: {why} to continue" in capsys.readouterr().err
    assert last(run)["global_step"] == steps
    assert (run / "metrics.csv").read_bytes() == rows
    assert state_of(run)["why"] == why.partition(". ")[0]
    assert main([*fit, f"--trainer.{raised}", "--ckpt_path=last"]) == 0
    assert "has ended" not in capsys.readouterr().err
    assert last(run)["global_step"] > steps


def test_an_epoch_that_averaging_adds_is_no_limit(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "support"))
    fit = ["fit", "-c", str(ROOT / "tests" / "support" / "features.yaml"), "--name=x", "--trainer.max_epochs=2"]
    fit += [
        "--trainer.callbacks+=StochasticWeightAveraging",
        "--trainer.callbacks.swa_lrs=0.1",
        "--trainer.limit_train_batches=4",
    ]
    assert main(fit) == 0  # the third epoch updates the batch normalization
    assert main([*fit, "--ckpt_path=last"]) == 0
    assert "note: this run has ended: max_epochs = 2 was reached." in capsys.readouterr().err
    assert state_of(run)["why"] == "max_epochs = 2 was reached"


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("moments", [("batch_end 22", "epoch_end 24"), ("saved 24", "train_end 24")], ids=str)
def test_a_run_that_is_killed_twice_at_its_last_step_draws_all_pictures(
    moments: tuple[str, str], lit_sparse: Command, run: Path
) -> None:
    fit = ("fit", *SOAE, "--name=x", "--trainer.max_epochs=-1", "--trainer.max_steps=24", "--checkpoint_every_n_steps=4")
    for place, moment in enumerate(moments):
        killed = lit_sparse(*fit, KILL, f"--trainer.callbacks.moment={moment}", *(["--ckpt_path=last"] if place else []))
        assert killed.returncode == -9
    assert lit_sparse(*fit, "--ckpt_path=last").returncode == 0
    assert (state_of(run)["epoch"], state_of(run)["step"]) == (2, 24)
    drawn = {path.name for path in (run / "pictures").iterdir()}
    assert drawn == {"activity.png", "bases.png", "reconstructions.png", "support_size.png"}


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(
    "limit",
    [
        ("--trainer.max_epochs=-1", "--trainer.max_steps=24"),
        ("--trainer.callbacks+=interruptions.StopAtStep", "--trainer.callbacks.step=24"),
    ],
    ids=["max_steps", "should_stop"],
)
def test_the_end_of_an_epoch_that_a_limit_cuts_comes_after_a_kill(
    limit: tuple[str, ...], lit_sparse: Command, run: Path
) -> None:
    fit = ("fit", *SOAE, *limit, "--checkpoint_every_n_steps=4", KILL)
    assert lit_sparse(*fit, "--trainer.callbacks.moment=none", "--name=whole").returncode == 0
    assert lit_sparse(*fit, "--trainer.callbacks.moment=saved 24", "--name=x").returncode == -9
    assert last(run)["end"]["pending"]
    done = lit_sparse(*fit, "--trainer.callbacks.moment=none", "--name=x", "--ckpt_path=last")
    assert done.returncode == 0, done.stderr
    assert not last(run)["end"]["pending"]
    assert_same(run, run.parents[1] / "whole" / "0")


def test_two_commands_that_continue_one_run(lit_sparse: Command, run: Path, tmp_path: Path) -> None:
    fit = ["fit", *SOAE, "--name=x", "--checkpoint_every_n_steps=2"]
    assert lit_sparse(*fit, "--trainer.max_epochs=1").returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lit_sparse", *fit, "--trainer.max_epochs=3", "--ckpt_path=last"]
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 2], errors
    refused = next(error for process, error in zip(started, errors, strict=True) if process.returncode)
    assert "another process is running it" in refused or "another process has changed it" in refused
    assert "Traceback" not in refused
    assert last(run)["global_step"] == 60
    assert state_of(run)["state"] == "finished"


def test_what_ended_a_run(lit_sparse: Command, run: Path) -> None:
    fit = ("fit", *SOAE, "--name=x", KILL, "--trainer.callbacks.moment=batch_end 27", "--checkpoint_every_n_steps=4")
    for number, why in ((15, "SIGTERM"), (2, "Ctrl-C")):
        lit_sparse(*fit, f"--trainer.callbacks.send={number}", *(["--ckpt_path=last"] if number == 2 else []))
        status = state_of(run)
        assert (status["state"], status["why"]) == ("interrupted", why)
        assert status["step"] >= 20
    config = (run / "config.yaml").read_bytes()
    failed = lit_sparse(*fit, "--ckpt_path=last", "--model.init_args.optimizer=torch.optim.Adam")
    assert failed.returncode == 2
    assert (run / "config.yaml").read_bytes() == config
    assert state_of(run)["why"] == "Ctrl-C"


def test_a_run_beside_a_running_training_is_not_refused_but_a_link_is(lit_sparse: Command, run: Path, tmp_path: Path) -> None:
    assert lit_sparse("fit", *SOAE, "--name=x", "--trainer.max_epochs=1").returncode == 0
    here = json.loads((run / STATUS).read_text())
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    (run / STATUS).write_text(json.dumps(here | {"state": "running", "process": os.getpid(), "started": started}))
    test = ("test", *SOAE, "--name=x", "--ckpt_path=last")
    assert lit_sparse(*test).returncode == 0
    assert state_of(run / "test" / "0")["state"] == "finished"
    assert lit_sparse("fit", *SOAE, "--name=x", "--trainer.max_epochs=2", "--ckpt_path=last").returncode == 2
    (run / STATUS).write_text(json.dumps(here))
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (run / "checkpoints" / f".last.ckpt{'.part'}").symlink_to(precious)
    for command in (test, ("fit", *SOAE, "--name=x", "--trainer.max_epochs=2", "--ckpt_path=last")):
        done = lit_sparse(*command)
        assert done.returncode == 2
        assert "'checkpoints/.last.ckpt.part' is a link to" in done.stderr
    assert precious.read_text() == "precious"
    assert [path.name for path in (run / "test").iterdir()] == ["0"]


def test_a_checkpoint_of_an_older_run_is_named(lit_sparse: Command, tmp_path: Path) -> None:
    fit = ("fit", *SOAE, "--name=x", "--trainer.max_epochs=1")
    assert lit_sparse(*fit).returncode == 0
    assert lit_sparse(*fit, KILL, "--trainer.callbacks.moment=batch_end 2").returncode == -9
    note = "note: the newest run, runs/x/1, has no {} checkpoint; the older run runs/x/0 is used"
    for command, which in (("test", "best"), ("validate", "last"), ("predict", "best"), ("fit", "last")):
        done = lit_sparse(command, *SOAE, "--name=x", f"--ckpt_path={which}", "--trainer.max_epochs=1")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(note.format(which)) == 1
    done = lit_sparse("test", "-c", "runs/x/0/config.yaml", "--ckpt_path=best")
    assert done.returncode == 0
    assert "newest" not in done.stderr


@pytest.mark.slow
def test_the_config_is_the_present_one_and_former_ones_are_kept(lit_sparse: Command, run: Path) -> None:
    fit = ("fit", *SOAE, "--name=x", "--trainer.max_epochs=2")
    assert lit_sparse(*fit).returncode == 0
    first = (run / "config.yaml").read_bytes()
    assert lit_sparse(*fit, "--ckpt_path=last").returncode == 0
    assert sorted(path.name for path in run.glob("config*")) == ["config.yaml"]
    (run / "config_0.yaml").write_bytes(first)  # as after a kill between the two files
    for place, epochs in enumerate((3, 4)):
        done = lit_sparse(*fit[:-1], f"--trainer.max_epochs={epochs}", "--ckpt_path=last")
        assert "-c runs/x/0/config.yaml --ckpt_path best" in done.stdout
        assert sorted(path.name for path in run.glob("config_*")) == [f"config_{number}.yaml" for number in range(place + 1)]
        assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["max_epochs"] == epochs
    assert (run / "config_0.yaml").read_bytes() == first
    assert yaml.safe_load((run / "config_1.yaml").read_text())["trainer"]["max_epochs"] == 3
    assert yaml.safe_load((run / "config.yaml").read_text())["ckpt_path"] is None


@pytest.mark.slow
def test_two_processes_of_one_run(lit_sparse: Command, run: Path) -> None:
    """The first takes the folder for both; a run of both that had ended draws its pictures."""
    fit = (*EARLY, "--trainer.devices=2", "--trainer.strategy=ddp", "--data.init_args.val_size=100")
    done = lit_sparse(*fit)
    assert done.returncode == 0, done.stderr
    ended, rows = state_of(run), (run / "metrics.csv").read_bytes()
    assert (ended["state"], ended["why"].partition(":")[0]) == ("finished", "EarlyStopping")
    drawn = {path.name for path in (run / "pictures").iterdir()}
    for path in (run / "pictures").iterdir():
        path.unlink()
    done = lit_sparse(*fit, "--ckpt_path=last")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("note: this run has ended: EarlyStopping") == 1
    again = state_of(run)
    assert {name: again[name] for name in ("state", "why", "step")} == {name: ended[name] for name in ("state", "why", "step")}
    assert (run / "metrics.csv").read_bytes() == rows
    assert {path.name for path in (run / "pictures").iterdir()} == drawn
