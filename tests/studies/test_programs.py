"""Studies and sweeps of a LightningCLI of the user, here also of a stand-in that starts at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.jobs.processes import JobInterruptedError, run_all
from lit_sparse.studies.jobs.program import ProgramRun
from lit_sparse.studies.plan.load import load_study
from tests.conftest import ROOT
from tests.studies.test_engine import measured

#: Writes what a LightningCLI does, a checkpoint of each epoch before its row; a file `kill` names a moment at which it dies,
#: and with a file `back` a clock was set back by a day before its first epoch.
STAND_IN = """
import json, os, sys
from pathlib import Path

command, *words = sys.argv[1:]
options = dict(zip(words[::2], words[1::2]))
folder = Path(options["--trainer.logger.save_dir"]) / "lightning_logs"
version = folder / f"version_{len(list(folder.glob('*')))}"
kill, metrics = Path("kill"), version / "metrics.csv"
begun = int(Path(options["--ckpt_path"]).read_text()) + 1 if "--ckpt_path" in options else 0
rate = float(options["--lr"]) + int(options["--seed_everything"])

def reached(moment):
    if kill.is_file() and kill.read_text() == moment:
        kill.unlink()
        set_back()
        os._exit(137)

def set_back():
    for path in version.iterdir() if Path("back").is_file() else ():
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 86_400 * 10**9))

version.mkdir(parents=True)
if command == "test":
    metrics.write_text(f"epoch,step,test_loss\\n0,0,{rate * begun}\\n")
    sys.exit()
metrics.write_text("epoch,step,val_loss,train_loss\\n")
for epoch in range(begun, 4):
    with metrics.open("a") as file:
        file.write(f"{epoch},{epoch * 10 + 9},{rate / (epoch + 1)},\\n")
    reached(f"validated {epoch}")
    for old in version.glob("*.ckpt"):
        old.unlink()
    (version / f"epoch={epoch}.ckpt").write_text(str(epoch))
    reached(f"saved {epoch}")
    with metrics.open("a") as file:
        file.write(f"{epoch},{epoch * 10 + 9},,{rate / (epoch + 2)}\\n")
    reached(f"logged {epoch}")
set_back()
"""
STUDY: dict[str, Any] = {
    "program": ["python", "train.py"],
    "cells": {"line": {"grid": {"lr": [0.1, 0.2]}}},
    "columns": {
        "test": {"value": "test_loss"},
        "train": {"value": "sum(train_loss)"},
        "count": {"value": "count(train_loss)"},
        "val": {"value": "min(val_loss)"},
    },
    "figures": [{"alt": "Validation.", "panels": [{"value": "val_loss"}]}],
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the stand-in, and a study of it with some keys replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STAND_IN)

    def write(**keys: Any) -> Path:
        path = tmp_path / "lines.yaml"
        path.write_text(yaml.safe_dump(STUDY | keys, sort_keys=False))
        return path

    return write


def runner_in(path: Path, folder: str) -> Runner:
    return Runner(load_study(path), output=Path(folder) / "runs", results=Path(folder) / "results")


@pytest.mark.parametrize("back", [0, 86_400])
@pytest.mark.parametrize(
    ("moments", "continued"),
    [
        (("validated 0", "saved 0"), 0),  # a value of an epoch would be lost: the training begins anew
        (("logged 0", "logged 2"), 2),
        (("logged 1", "validated 2"), 2),
        (("logged 2", "saved 3"), 0),
    ],
)
def test_a_killed_program_ends_with_the_rows_of_one_that_is_not(
    program: Callable[..., Path], moments: tuple[str, ...], continued: int, back: int
) -> None:
    path = program(seeds=[0, 1])
    whole, killed = runner_in(path, "whole"), runner_in(path, "killed")
    assert whole.run() == []
    for moment in moments:
        Path("kill").write_text(moment)
        (message,) = killed.run(seeds=[0], cells=["line/lr=0.1"])
        assert "failed; the end of" in message
        for file in killed.of("line/lr=0.1", 0).folder.glob("fit/**/*.*"):  # as if the clock were set back by so many seconds
            os.utime(file, ns=(0, file.stat().st_mtime_ns + back * 10**9))
    assert killed.run() == []
    rows = measured(killed.rows.read())
    assert rows == measured(whole.rows.read())
    assert len(rows) == 4
    assert (rows[0]["count(train_loss)"], rows[0]["min(val_loss)"]) == ("4", "0.025")
    assert killed.curves.read() == whole.curves.read()
    assert len(list(killed.of("line/lr=0.1", 0).folder.glob("fit/lightning_logs/*"))) == 1 + continued


def test_a_clock_may_be_set_back_while_a_training_continues(program: Callable[..., Path]) -> None:
    path = program(seeds=[0], cells={"line": {"options": {"lr": 0.1}}})
    whole, killed = runner_in(path, "whole"), runner_in(path, "killed")
    assert whole.run() == []
    Path("kill").write_text("logged 1")
    assert len(killed.run()) == 1
    Path("back").touch()
    assert killed.run() == []
    assert measured(killed.rows.read()) == measured(whole.rows.read())


def test_a_program_without_a_pattern_of_checkpoints_begins_anew(program: Callable[..., Path]) -> None:
    study = runner_in(program(checkpoint_files=None, tests={}, cells={"line": {"options": {"lr": 0.1}}}), "some")
    Path("kill").write_text("logged 2")
    assert len(study.run()) == 1
    assert study.run() == []
    assert len(list(study.of("line", 0).folder.glob("fit/lightning_logs/*"))) == 1
    assert [row["count(train_loss)"] for row in study.rows.read()] == ["4"]
    study.rows.path.unlink()
    again = runner_in(program(checkpoint_files=None, tests={}, cells={"line": {"options": {"lr": 0.2}}}), "some")
    (message,) = again.run()
    assert "was started with different settings: options.lr: 0.1, now 0.2" in message


def test_commands_are_those_of_a_lightning_cli(program: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("{}")
    options = {"trainer.logger": "[CSVLogger]", "trainer.logger.save_dir": "{folder}", "data.out": "{folder}/x"}
    path = program(config="base.yaml", cells={"a": {"options": options}, "b": {}}, seeds=[3])
    study = runner_in(path, "some")
    folder = "some/runs/lines/a/seed_3/0/fit"
    assert study.of("a", 3).command("fit") == [
        *(sys.executable, str(tmp_path / "train.py"), "fit", "--trainer.default_root_dir", folder),
        *("-c", str(tmp_path / "base.yaml"), "--trainer.logger", "[CSVLogger]", "--trainer.logger.save_dir", folder),
        *("--data.out", f"{folder}/x", "--seed_everything", "3", "--trainer.enable_progress_bar", "false"),
    ]
    assert "CSVLogger" in study.of("b", 3).command("fit")
    assert study.of("b", 3).settings["program"] == ["python", "train.py"]
    (tmp_path / "own").symlink_to(sys.executable)  # a virtual environment is found by the link to its interpreter
    assert replace(study.study, program=["own", "train.py"]).command[0] == str(tmp_path / "own")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"metric_files": "../*.csv"}, "`metric_files` of .* to be a pattern within a run's folder"),
        ({"checkpoint_files": "/tmp/*.ckpt"}, "`checkpoint_files` of .* to be a pattern within a run's folder"),
        ({"program": []}, "needs a `config` or a `function`, or the study a `program`"),
        ({"program": "python train.py"}, "is not a study file"),
    ],
)
def test_programs_that_cannot_run_are_refused(program: Callable[..., Path], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_study(program(**keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"metric_files": "*.txt"}, r"has no \*.txt at the end of the training"),
        ({"checkpoint_files": "*.pt"}, r"\*.pt does not exist at the end of the training"),
        ({"checkpoint": "**/best*.ckpt"}, r"best\*.ckpt does not exist at the end of the training"),
        ({"program": ["no_python", "train.py"]}, "^The command cannot be run: No such file or directory: 'no_python'"),
    ],
)
def test_files_that_a_program_does_not_write_are_named(
    program: Callable[..., Path], keys: dict[str, Any], message: str
) -> None:
    (found,) = runner_in(program(cells={"a": {"options": {"lr": 1.0}}}, **keys), "some").run()
    assert re.search(message, found)


@pytest.mark.parametrize("sampler", ["grid", "tpe", "{class_path: optuna.samplers.RandomSampler, init_args: {seed: 1}}"])
def test_a_sweep_of_a_program(sampler: str, program: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")
    program()
    content = {"program": ["python", "train.py"], "options": {"seed_everything": 0}, "space": {"lr": [0.1, 0.2, 0.3]}}
    Path("rates.yaml").write_text(yaml.safe_dump(content))
    words = [
        "sweep",
        "-s",
        "rates.yaml",
        "--output",
        "runs/sw;eep",
        "--metric",
        "val_loss",
        "--sampler",
        sampler,
        "--trials",
        "4" if sampler == "grid" else "3",
    ]
    Path("kill").write_text("logged 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_sparse.studies.search.sweep.Sweep.config", lambda *_: "")  # the stand-in prints none
        patch.setattr("lit_sparse.studies.jobs.processes._INTERRUPTED.is_set", lambda: True)
        assert main(words) == 0
        assert main(words) == 0
    assert capsys.readouterr().out.endswith("lit-sparse report 'runs/sw;eep/rates'\n")
    values = [line.split(",")[1:] for line in Path("runs/sw;eep/rates/sweep.csv").read_text().splitlines()[1:]]
    assert len(values) == 3
    assert all(float(value) == pytest.approx(float(rate) / 4) for rate, value in values)
    if sampler == "grid":
        assert [rate for rate, _ in values] == ["0.1", "0.2", "0.3"]
    Path("rates.yaml").write_text(yaml.safe_dump(content | {"options": {"seed_everything": 1}}))
    assert main(words) == 2
    assert "was started with different options" in capsys.readouterr().err


@pytest.mark.parametrize(("metric", "best"), [("min(val_loss)", "2"), ("max(val_loss)", "1")])
def test_a_trial_that_diverged_is_not_the_best(
    metric: str, best: str, program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")
    program()
    Path("rates.yaml").write_text(
        "program: [python, train.py]\noptions: {seed_everything: 0}\nspace: {lr: [.inf, -.inf, 2, 1]}"
    )
    script = Path("train.py").read_text().replace("rate / (epoch + 1)", "1 / rate if rate in (1, 2) else rate")
    Path("train.py").write_text(script)
    monkeypatch.setattr("lit_sparse.studies.search.sweep.Sweep.config", lambda *_: "")
    mode = metric[:3]
    words = ["sweep", "-s", "rates.yaml", "--metric", metric, "--mode", mode, "--sampler", "grid"]
    assert main(words) == 0
    rows = [line.split(",") for line in Path("runs/sweep/rates/sweep.csv").read_text().splitlines()[1:]]
    assert rows[0][1] == best
    assert len(rows) == 3


def test_a_program_that_prints_no_config_is_named(program: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")
    program()
    Path("rates.yaml").write_text("program: [python, train.py]\noptions: {seed_everything: 0}\nspace: {lr: [0.1]}")
    assert main(["sweep", "-s", "rates.yaml", "--metric", "val_loss", "--sampler", "grid"]) == 2
    message = capsys.readouterr().err
    assert "Expected the config of trial_0 from " in message
    assert "but got: KeyError: '--trainer.logger.save_dir'. The trials are stored" in message
    assert "Traceback" not in message
    assert Path("runs/sweep/rates/sweep.csv").is_file()


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ({"program": ["python"], "space": 3}, [], "Expected `space` of"),
        ({"program": ["python"], "spaces": {"lr": [1]}}, [], "Expected the keys of rates.yaml besides `space`"),
        ({"lr": [1]}, [], "Expected a config with -c, or a `program`"),
        ({"program": ["python"], "space": {"lr": [1]}}, ["--folds", "2"], "either a program or --folds"),
        ({"program": ["python"], "space": {"lr": [1]}}, ["--sampler", "tpee"], "Expected --sampler to be tpe, random"),
        (
            {"program": ["python"], "space": {"lr": [1]}},
            ["--prune", "{class_path: optuna.samplers.TPESampler}"],
            "Expected --prune to be median",
        ),
    ],
)
def test_sweeps_that_cannot_run_are_refused(
    content: dict[str, Any],
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")
    monkeypatch.chdir(tmp_path)
    Path("rates.yaml").write_text(yaml.safe_dump(content))
    assert main(["sweep", "-s", "rates.yaml", "--metric", "val_loss", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_command_that_ends_while_the_tasks_are_interrupted_is_not_a_failed_one(tmp_path: Path) -> None:
    """A LightningCLI exits with the status 1 after Ctrl-C."""
    from lit_sparse.studies.jobs.processes import call

    caught: list[type[BaseException]] = []
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

    def task(threads: int) -> None:
        try:
            call([sys.executable, "-c", "import time; time.sleep(2); exit(1)"], tmp_path / "log", threads)
        except Exception as error:
            caught.append(type(error))

    def interrupt(threads: int) -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([task, interrupt], 2)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert caught == [JobInterruptedError]


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.timeout(3600)
def test_the_program_of_the_documentation_is_killed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script, study and sweep of the page; eight runs."""
    text = (ROOT / "docs" / "how_to" / "any_lightning_cli.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    study, sweep, _ = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"^lit-sparse (.*?)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for name, content in (("train.py", script), ("sine.yaml", study), ("rates.yaml", sweep)):
        Path(name).write_text(content)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [*commands[0].split(), "--output", "killed/runs", "--results", "killed/results"]
    for rows in (1, 4):
        process = subprocess.Popen([sys.executable, "-m", "lit_sparse", *words], env=environment, start_new_session=True)
        while len(list(Path("killed").glob("runs/sine/*/*/*/*/fit/lightning_logs/*/checkpoints/*.ckpt"))) < rows:
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert main(words) == 0
    assert main(commands[0].split()) == 0
    rows_of = [runner_in(Path("sine.yaml"), folder).rows.read() for folder in ("killed", ".")]
    assert len(rows_of[0]) == 8
    assert measured(rows_of[0]) == measured(rows_of[1])
    assert main(commands[1].split()) == 0
    assert "model:" in next(Path("runs/sweep").glob("*/best.yaml")).read_text()


def test_a_program_begins_again_if_its_newest_checkpoint_is_cut_off(tmp_path: Path) -> None:
    study = SimpleNamespace(checkpoint_files="**/*.ckpt", metric_files="**/metrics.csv")
    run: Any = SimpleNamespace(folder=tmp_path, workspace=SimpleNamespace(study=study), logged=lambda: [{"loss": 1.0}])
    checkpoint = tmp_path / "fit" / "a.ckpt"
    run.checkpoint = lambda: checkpoint
    checkpoint.parent.mkdir()
    torch.save({}, checkpoint)
    whole, go_on = checkpoint.read_bytes(), ["--ckpt_path", str(checkpoint.resolve())]
    for content, options in ((whole, go_on), (whole[:-50], []), (b"", []), (b"of another kind", go_on)):
        checkpoint.write_bytes(content)
        (tmp_path / "fit" / "metrics.csv").write_text("epoch\n")
        assert ProgramRun.continued(run) == options
    run.logged = list  # the file of rows was cut off too
    assert ProgramRun.continued(run) == []
