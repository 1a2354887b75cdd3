"""Sweeps: trials are run once, continued where they were killed, and the best is named."""

from __future__ import annotations

import csv
import errno
import functools
import json
import math
import os
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from tests.conftest import CONFIGS, ROOT

optuna = pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")

from lit_sparse.runs.result_files import read_metrics  # noqa: E402
from lit_sparse.studies.jobs.cell_run import RunOf  # noqa: E402
from lit_sparse.studies.jobs.logged import check_logged, directions_of, summarized  # noqa: E402
from lit_sparse.studies.jobs.processes import JobFailedError, call  # noqa: E402
from lit_sparse.studies.search.space import distribution_of, matching  # noqa: E402
from lit_sparse.studies.search.storage import _limited  # noqa: E402
from lit_sparse.studies.search.sweep import Sweep  # noqa: E402

RATE, K = "model.init_args.optimizer.init_args.lr", "model.init_args.estimator.init_args.k"
CONFIG = str(ROOT / "tests" / "support" / "bits.yaml")
EXTRA = ["--checkpoint_every_n_steps=3"]
COMPLETE = optuna.trial.TrialState.COMPLETE


def space(folder: Path, **values: object) -> str:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({RATE: [0.001, 0.01], K: [2], **values}))
    return str(path)


def sweep_of(folder: Path) -> Sweep:
    return Sweep([CONFIG], {RATE: [0.001, 0.01], K: [2]}, ["val/nelbo"], ["minimize"], folder)


def test_no_sweep_is_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "sweep").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"sweep' is a link\. Make .* the link"):
        _ = sweep_of(tmp_path / "sweep").study
    assert not [*(tmp_path / "other").iterdir()]


@pytest.mark.gate
def test_a_grid_is_searched_once_and_the_best_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "-c", CONFIG, "-s", space(tmp_path), "--metric", "val/nelbo", "--sampler", "grid"]
    words += ["--jobs", "2", "--output", str(tmp_path)]
    assert main([*words, "--", "--trainer.max_epochs=1"]) == 0
    rows = list(csv.DictReader((tmp_path / "bits" / "sweep.csv").read_text().splitlines()))
    assert [row[RATE] for row in rows] == ["0.01", "0.001"], "the best comes first"
    best = yaml.safe_load((tmp_path / "bits" / "best.yaml").read_text())
    assert best["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.01
    assert best["model"]["init_args"]["estimator"]["init_args"]["k"] == 2
    assert "; 2 of 2 trials have ended\n" in capsys.readouterr().out
    assert main([*words, "--", "--trainer.max_epochs=1"]) == 0
    printed = capsys.readouterr()
    assert "running with" not in printed.out, "no trial is run again"
    assert "| **" in printed.out
    table = [line.split() for line in printed.out.splitlines() if line.startswith("|")]
    assert table[0] == ["|", "trial", "|", "k", "|", "lr", "|", "val/nelbo", "|"], "short names of options"
    assert f"best trial: trial_{table[2][1]}, with the least val/nelbo\n" in printed.out
    (command,) = (line.partition(": lit-sparse ")[2] for line in printed.out.splitlines() if line.startswith("test with"))
    assert main(command.split()) == 0
    assert main([*words, "--", "--trainer.max_epochs=2"]) == 2
    assert "was started with different extra" in capsys.readouterr().err


EVIL = {"class_path": "torch.fx.graph_module.reduce_graph_module", "init_args": {"body": {"_code": "pass"}}}


def take(sweep: Sweep) -> None:
    taken = sweep._take(1)
    assert taken is not None
    taken[1].close()


@pytest.mark.filterwarnings("ignore:Fixed parameter:UserWarning")
@pytest.mark.parametrize(
    ("state", "storage", "key", "value"),
    [
        ("RUNNING", "file", "model.init_args.mapping", str(EVIL)),
        ("RUNNING", "database", "model.init_args.mapping", str(EVIL)),
        ("RUNNING", "file", "c", "other.yaml"),
        ("RUNNING", "file", RATE, 0.02),
        ("RUNNING", "file", RATE, "0.01"),
        ("RUNNING", "file", K, 99),
        ("RUNNING", "file", K, 2.5),
        ("RUNNING", "file", K, True),
        ("WAITING", "file", "trust", "os.system"),
        ("WAITING", "file", RATE, "--config=other.yaml"),
        ("WAITING", "file", K, 99),
        ("COMPLETE", "file", RATE, "**bold**"),
        ("FAIL", "database", "c", "other.yaml"),
    ],
)
def test_stored_values_lie_in_the_declared_space(state: str, storage: str, key: str, value: object, tmp_path: Path) -> None:
    declared = {RATE: [0.001, 0.01], K: {"low": 1, "high": 9}}
    url = f"sqlite:///{tmp_path / 'trials.db'}" if storage == "database" else None
    options = ([CONFIG], declared, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    study = Sweep(*options, storage=url).study
    if state == "WAITING":
        study.enqueue_trial({RATE: 0.01, K: 2, key: value})
    else:
        categories = {
            name: optuna.distributions.CategoricalDistribution([one]) for name, one in ((RATE, 0.01), (K, 2), (key, value))
        }
        frozen = optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            params={RATE: 0.01, K: 2, key: value},
            distributions=categories,
            value=1.0 if state == "COMPLETE" else None,
        )
        study.add_trial(frozen)
    if state == "WAITING" and key not in declared:  # only the options of the space are drawn
        again = Sweep(*options, storage=url)
        take(again)
        assert again.runner(0).study.cells["trial_0"].options == {RATE: 0.01, K: 2}
        return
    with pytest.raises(ConfigurationError, match=r"trial 0 .* to have values of the space but got|with different values"):
        again = Sweep(*options, storage=url)
        take(again)
        again.runner(0)


def test_a_database_that_is_read_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that names a page twice can, over some levels, name it a billion times."""
    options = ([CONFIG], {RATE: [0.001, 0.01]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    path = tmp_path / "trials.db"
    _ = Sweep(*options, storage=f"sqlite:///{path}").study
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("select rootpage from sqlite_master where name = 'trial_values'").fetchone()
        (size,) = database.execute("pragma page_size").fetchone()
    content = bytearray(path.read_bytes())
    new = len(content) // size + 1
    inner = struct.pack(">BHHHBIH", 5, 0, 1, size - 5, 0, new, size - 5).ljust(size - 5, b"\0") + struct.pack(">IB", new, 1)
    content[(root - 1) * size : root * size] = inner
    content[28:32] = struct.pack(">I", new)
    path.write_bytes(content + struct.pack(">BHHHB", 13, 0, 0, size, 0).ljust(size, b"\0"))
    with pytest.raises(ConfigurationError, match="2nd reference to page"):
        _ = Sweep(*options, storage=f"sqlite:///{path}").study
    monkeypatch.setattr("lit_sparse.studies.search.storage.LONGEST_CHECK", 0.1)
    endless = "with recursive a(x) as (select 1 union all select x from a) select count(*) from a"
    database = sqlite3.connect(":memory:")
    with closing(database), pytest.raises(ConfigurationError, match="checked within"), _limited(database):
        database.execute(endless)


WRITING = """
import os, signal, sys
from pathlib import Path
from lit_sparse.studies.search.sweep import Sweep
sweep = Sweep([sys.argv[1]], {sys.argv[2]: [2]}, ["val/nelbo"], ["minimize"], Path("sweep"))
sweep.study
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
sweep.study.set_user_attr("name", 1)
"""


def test_a_sweep_that_was_killed_while_it_wrote_its_journal_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", WRITING, CONFIG, K], env=environment).returncode == -signal.SIGKILL
    assert Sweep([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], Path("sweep")).study.user_attrs["name"] == 1


def test_a_continued_sweep_whose_sampler_has_a_seed_draws_new_values(tmp_path: Path) -> None:
    sampler = {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": 1}}
    drawn = []
    for _ in range(2):
        sweep = Sweep([CONFIG], {RATE: {"low": 0.0, "high": 1.0}}, ["val/nelbo"], ["minimize"], tmp_path, sampler=sampler)
        drawn += [sweep.study.ask(sweep.distributions).params[RATE] for _ in range(2)]
    assert len({*drawn}) == 4


KILLED = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.executescript("pragma cache_size = 1; pragma synchronous = full;" + sys.argv[2])
database.execute("begin")
database.execute("update trials set state = 'FAIL'")
database.execute("with recursive n(i) as (select 9 union all select i + 1 from n where i < 5000)"
                 " insert into trial_values (trial_id, objective, value, value_type) select 1, i, 0, 'FINITE' from n")
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path, mode: str = "delete") -> tuple[Any, ...]:
    """Return the arguments of a sweep whose database a killed process has left within a transaction."""
    path = folder / "trials.db"
    arguments = [CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], folder / "sweep"
    study = Sweep(*arguments, storage=f"sqlite:///{path}").study
    study.tell(study.ask({K: optuna.distributions.CategoricalDistribution([2])}), 1.0)
    study._storage._backend.remove_session()
    subprocess.run([sys.executable, "-c", KILLED, str(path), f"pragma journal_mode = {mode}"])
    return arguments


@pytest.mark.parametrize(("mode", "ending"), [("delete", "journal"), ("wal", "wal")])
def test_a_sweep_continues_after_a_killed_transaction(mode: str, ending: str, tmp_path: Path) -> None:
    arguments = killed(tmp_path, mode)
    assert (tmp_path / f"trials.db-{ending}").stat().st_size > 0
    (trial,) = Sweep(*arguments, storage=f"sqlite:///{tmp_path / 'trials.db'}").study.trials
    assert trial.values == [1.0]


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder", "naming another file", "large"])
@pytest.mark.parametrize("ending", ["journal", "wal", "shm"])
def test_files_beside_a_database_name_no_other_file(kind: str, ending: str, tmp_path: Path) -> None:
    arguments = killed(tmp_path, "delete" if ending == "journal" else "wal")
    other, beside = tmp_path / "other", tmp_path / f"trials.db-{ending}"
    content = beside.read_bytes()
    beside.unlink()
    other.write_bytes(content)
    if kind == "link":
        beside.symlink_to(other)
    elif kind == "second name":
        beside.hardlink_to(other)
    elif kind == "pipe":
        os.mkfifo(beside)
    elif kind == "folder":
        beside.mkdir()
    elif kind == "large":
        with beside.open("wb") as file:
            file.truncate(2**40)
    else:
        name = str(other).encode()
        tail = struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
        beside.write_bytes(content + struct.pack(">I", 2**30 // 4096 + 1) + name + tail)
    with pytest.raises(ConfigurationError, match=rf"trials\.db-{ending}' but got"):
        _ = Sweep(*arguments, storage=f"sqlite:///{tmp_path / 'trials.db'}").study
    assert other.read_bytes() == content


def test_a_journal_that_makes_a_database_large_is_refused(tmp_path: Path) -> None:
    arguments = killed(tmp_path)
    journal = tmp_path / "trials.db-journal"
    content = bytearray(journal.read_bytes())
    content[16:20] = struct.pack(">I", 2**28)
    journal.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"at most .* bytes|are holes"):
        _ = Sweep(*arguments, storage=f"sqlite:///{tmp_path / 'trials.db'}").study


@pytest.mark.parametrize(
    "values", [[0.001, 0.01], {"low": 0.001, "high": 0.01, "log": True}, {"low": 0.0, "high": 1.0, "step": 0.25}]
)
def test_a_trial_that_was_killed_while_its_values_were_drawn_gets_the_rest(values: object, tmp_path: Path) -> None:
    declared = {K: {"low": 1, "high": 9}, RATE: values}
    sweep = Sweep([CONFIG], declared, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    sweep.study.ask({K: sweep.distributions[K]})
    take(sweep)
    assert set(sweep.params(sweep.study.trials[0])) == {K, RATE}
    assert sweep.runner(0).study.cells["trial_0"].options.keys() == {K, RATE}


def test_no_more_trials_are_continued_than_asked_for(tmp_path: Path) -> None:
    """Whoever can write to the storage could begin thousands."""
    sweep = sweep_of(tmp_path / "sweep")
    for _ in range(3):
        sweep.study.ask(sweep.distributions)
    sweep.study.tell(0, 1.0)
    assert sweep._take(1) is None
    taken = sweep._take(2)
    assert taken is not None and taken[0] == 1
    taken[1].close()


@pytest.mark.slow
def test_two_metrics_give_a_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {K: [1, 4], RATE: [0.01]}
    words = ["sweep", "-c", CONFIG, "-s", space(tmp_path, **values), "--metric", "val/nelbo", "--sampler", "grid"]
    words += ["--metric", "train/decoder_calls_mean", "--output", str(tmp_path)]
    assert main([*words, "--", "--trainer.max_epochs=1"]) == 0
    assert (tmp_path / "bits" / "front.png").stat().st_size > 5000
    assert capsys.readouterr().out.count("**") == 8, "both values of both trials: neither is better in both"


@pytest.mark.slow
def test_folds_give_the_mean_of_their_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({RATE: [0.003]}))
    words = ["sweep", "-c", str(CONFIGS / "ssvae" / "digits.yaml"), "-s", str(tmp_path / "space.yaml")]
    words += ["--metric", "val/nelbo", "--folds", "2", "--sampler", "grid", "--output", str(tmp_path)]
    once = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.check_val_every_n_epoch=1"]
    assert main([*words, "--", *once]) == 0
    folder = tmp_path / "ssvae" / "digits"
    (row,) = csv.DictReader((folder / "sweep.csv").read_text().splitlines())
    runs = [folder / "trial_0" / f"fold_{fold}" / "seed_0" / "0" for fold in range(2)]
    values = [summarized(read_metrics(run), "val/nelbo") for run in runs]
    assert values[0] != values[1]
    assert float(row["val/nelbo"]) == pytest.approx(sum(values) / 2, rel=1e-5)
    assert yaml.safe_load((folder / "best.yaml").read_text())["data"]["init_args"]["fold"] is None
    capsys.readouterr()
    assert main([*words, "--prune"]) == 2
    assert "either --prune or --folds" in capsys.readouterr().err
    assert main([*words, "--folds", "0"]) == 2
    assert "--folds to be at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "prune",
    ["median", {"class_path": "optuna.pruners.ThresholdPruner", "init_args": {"upper": 1.5}}],
    ids=["median", "class"],
)
def test_bad_trials_are_pruned(prune: object, tmp_path: Path) -> None:
    sweep = Sweep([CONFIG], {RATE: [1e-7]}, ["val/nelbo"], ["minimize"], tmp_path / "bits", prune=prune)
    for _ in range(5):  # what others reached
        trial = optuna.create_trial(
            params={RATE: 1e-7}, distributions=sweep.distributions, value=1.0, intermediate_values=dict.fromkeys(range(60), 1.0)
        )
        sweep.study.add_trial(trial)
    sweep.extra = ["--trainer.max_epochs=60"]
    assert sweep.run(6) == []
    assert sweep.study.trials[-1].state == optuna.trial.TrialState.PRUNED
    assert len(sweep.study.trials[-1].intermediate_values) < 60, "it was stopped before its end"


@pytest.mark.parametrize("metric", ["val/nelbo", "min(val/nelbo)", "last(val/nelbo)"])
def test_a_metric_and_its_summaries_prune(metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep([CONFIG], {K: [2]}, [metric], ["minimize"], tmp_path / "bits", prune="median")
    for _ in range(5):
        done = {"value": 1.0, "intermediate_values": dict.fromkeys(range(4), 1.0)}
        sweep.study.add_trial(optuna.create_trial(params={K: 2}, distributions=sweep.distributions, **done))
    number = sweep.study.ask(sweep.distributions).number
    lines = [{"epoch": float(epoch), name: 9.0 - epoch} for epoch in range(4) for name in ("train/loss", "val/nelbo")]
    run = SimpleNamespace(log="log", begin=lambda: None, train=lambda _threads, _held, stops: stops(), logged=lambda: lines)
    cells = SimpleNamespace(cells=["trial"])
    monkeypatch.setattr(sweep, "runner", lambda _number: SimpleNamespace(study=cells, of=lambda _cell, _seed: run))
    with (tmp_path / "lock").open("w") as lock:
        sweep._finish(number, 1, lock)
    assert sweep.study.trials[number].state == optuna.trial.TrialState.PRUNED
    assert sweep.study.trials[number].intermediate_values == {0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0}


def test_hyperband_stops_trials(tmp_path: Path) -> None:
    sweep, stopped = Sweep([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "bits", prune="hyperband"), 0
    for number in range(12):  # each worse than all before
        trial = sweep.study.ask(sweep.distributions)
        for step in range(9):
            trial.report(float(number), step)
        stopped += trial.should_prune()
        sweep.study.tell(trial, float(number))
    assert stopped > 3


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_folder_that_cannot_be_made_is_one_message(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(self))

    words = ["sweep", "-c", CONFIG, "-s", space(tmp_path), "--output", str(tmp_path), "--metric", "val/nelbo"]
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(words) == 2
    assert f"lit-sparse: error: Expected to use '{tmp_path / 'bits'}' but got: {os.strerror(code)}." in capsys.readouterr().err


def test_a_killed_training_is_left_for_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: RunOf, *_: Any) -> None:
        begun.append(self.folder.parent.parent.name)
        if len(begun) == 1:
            call([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path / "log", 1)

    begun: list[str] = []
    monkeypatch.setattr(RunOf, "train", train)
    monkeypatch.setattr(RunOf, "logged", lambda _: [{"val/nelbo": 1.0}])
    assert len(sweep_of(tmp_path / "sweep").run(2)) == 1
    assert begun == ["trial_0", "trial_1"]
    again = sweep_of(tmp_path / "sweep")
    assert again.run(2) == []
    assert begun[2:] == ["trial_0"]
    assert [trial.state for trial in again.study.trials] == [COMPLETE] * 2


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit('OSError: [Errno 28] No space left on device')",
        "sys.exit('lit-sparse: error: Expected to write to the run folder but got: Input/output error.')",
        "import os; os.kill(os.getpid(), 7)",  # a mapped file that the disk did not hold
    ],
)
def test_a_trial_that_the_machine_ended_is_run_again(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        call([sys.executable, "-c", f"import sys; {ending}"], tmp_path / "log", 1)

    monkeypatch.setattr(RunOf, "logged", lambda _: [{"val/nelbo": 1.0}])
    monkeypatch.setattr(RunOf, "train", fail)
    (tmp_path / "log").write_text("No space left on device\n" * bool("kill" in ending))  # of an earlier command
    assert sweep_of(tmp_path / "sweep").run(2)
    monkeypatch.setattr(RunOf, "train", lambda *_: None)
    again = sweep_of(tmp_path / "sweep")
    assert again.run(2) == []
    assert [trial.state for trial in again.study.trials] == [COMPLETE, COMPLETE]


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
@pytest.mark.parametrize("space", [{3: [1]}, {None: [1]}, {K: [date(2020, 1, 1)]}, {K: [1, math.nan]}, {K: [[{1}]]}])
def test_a_space_holds_what_json_stores(space: dict[Any, list[object]], sampler: str, tmp_path: Path) -> None:
    sweep = Sweep([CONFIG], space, ["val/nelbo"], ["minimize"], tmp_path / "bits", sampler=sampler)
    with pytest.raises(ConfigurationError, match=r"as JSON stores them, for the option .* of the space but got"):
        sweep.study.tell(0)


@pytest.mark.parametrize("said", ["skipped a.png: File too large", "cache: Permission denied", "x: No space left on device"])
def test_a_failure_is_of_the_machine_only_if_its_last_words_say_so(said: str, tmp_path: Path) -> None:
    with pytest.raises(JobFailedError) as caught:
        call([sys.executable, "-c", f"print({said!r}, flush=True); raise ValueError('k')"], tmp_path / "log", 1)
    assert type(caught.value) is JobFailedError


def test_a_failure_is_of_the_disk_only_if_the_command_itself_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("No space left on device\n")
    with pytest.raises(JobFailedError, match="k must be positive") as caught:
        call([sys.executable, "-c", "import sys; sys.exit('k must be positive')"], tmp_path / "log", 1)
    assert type(caught.value) is JobFailedError
    assert (tmp_path / "log").read_text().endswith("k must be positive\nexit status 1\n")


def test_a_sweep_of_which_all_trials_had_failed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep([CONFIG], {K: [2, 3]}, ["val/nelbo"], ["minimize"], tmp_path / "bits")
    sweep.study.tell(sweep.study.ask(sweep.distributions), state=optuna.trial.TrialState.FAIL)
    words = ["sweep", "-c", CONFIG, "-s", space(tmp_path, **{K: [2, 3]}), "--output", str(tmp_path), "--metric", "val/nelbo"]
    assert main([*words, "--trials", "1"]) == 1
    assert "No trial has a value" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_trial_is_named_at_once_and_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep([CONFIG], {K: [2, -1]}, ["val/nelbo"], ["minimize"], tmp_path / "bits", sampler="grid")
    sweep.extra = ["--trainer.max_epochs=1"]
    (message,) = sweep.run(2)
    assert "`k`" in message
    (failed,) = [trial.number for trial in sweep.study.trials if trial.params[K] == -1]
    assert f"trial_{failed}: failed\n" in capsys.readouterr().out
    assert sorted(trial.state.name for trial in sweep.study.trials) == ["COMPLETE", "FAIL"]


@pytest.mark.cases(quick=1, gate=99)
@pytest.mark.parametrize(
    ("values", "words", "text"),
    [
        ({}, ["-c", "missing.yaml", "--metric", "val/nelbo"], "the name of a config but got 'missing.yaml'"),
        ({}, ["-c", CONFIG, "--metric", "val/entropy"], "--mode min or --mode max"),
        ({}, ["-c", CONFIG, "--metric", "val/hit_rate"], "--mode min or --mode max"),
        ({}, ["-c", CONFIG, "--metric", "val/nelbo", "--storage", "nosql://x"], "cannot be used"),
        ({}, ["-c", CONFIG, "--metric", "val/nelbo", "--storage", "sqlite:////nowhere/x.db"], "cannot be used"),
        ({K: 3}, ["-c", CONFIG, "--metric", "val/nelbo"], "Expected a list of values, or numbers low and high"),
        ({K: {"low": float("nan"), "high": 1}}, ["-c", CONFIG, "--metric", "val/nelbo"], "numbers low and high"),
        ({K: {"low": True, "high": 5}}, ["-c", CONFIG, "--metric", "val/nelbo"], "numbers low and high"),
        ({K: {"low": 1, "high": 5, "log": "no"}}, ["-c", CONFIG, "--metric", "val/nelbo"], "numbers low and high"),
        ({K: [1]}, ["-c", CONFIG, "--metric", "val/loss", "--mode", "min", "--mode", "max"], "but got 2 modes"),
        ({K: {"low": 5, "high": 1}}, ["-c", CONFIG, "--metric", "val/nelbo"], "is wrong"),
        ({K: {"low": 1, "high": 5}}, ["-c", CONFIG, "--metric", "val/loss", "--sampler", "grid"], "list of values for each"),
        ({K: [1]}, ["-c", CONFIG, "--metric", "val/loss", "--jobs", "0"], "argument `--jobs` to be an integer"),
        ({K: [1]}, ["-c", CONFIG, "--metric", "val/loss", "--trials", "0"], "argument `--trials` to be an integer"),
    ],
)
def test_mistakes_are_explained(
    values: dict[str, object], words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *words, "-s", space(tmp_path, **values), "--output", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err


def test_a_space_may_have_infinite_values_and_the_text_nan() -> None:
    assert distribution_of("k", [1.0, math.inf, "NaN"]).choices == (1.0, math.inf, "NaN")


def test_whole_ends_may_have_a_step_that_is_not() -> None:
    values = {"low": 1, "high": 6, "step": 2.5}
    assert distribution_of("k", values).step == 2.5
    assert matching(values, 3.5) == [3.5]
    assert type(distribution_of("k", {**values, "step": 1.0})).__name__ == "IntDistribution"


@pytest.mark.parametrize("other", [1.0, True])
def test_values_that_the_storage_does_not_distinguish_are_refused(other: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"different values of 'k' .* got {other!r}, which equals 1\."):
        distribution_of("k", [2, 1, 1, other])


def test_a_word_beside_the_name_of_a_metric_may_turn_its_direction() -> None:
    known = [directions_of(f"val/{name}") for name in ("accuracy_group_0", "bleu_precision1", "worst_group_loss")]
    assert known == [["maximize"], ["maximize"], ["minimize"]]
    assert not any(directions_of(f"val/{name}") for name in ("bleu_ratio", "loss_recovered", "accuracy_gap", "neg_loss"))
    assert directions_of("val/gap/accuracy") == ["maximize"]


@pytest.mark.parametrize("option", ["--sampler", "--prune"])
def test_a_part_that_is_no_yaml_is_explained(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "-c", CONFIG, "-s", space(tmp_path), "--metric", "val/loss", option, "{a: "])
    assert f"argument {option}: expected a name, or YAML, but got '{{a: '" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sampler_that_unpickles_from_the_storage_is_refused(wrapped: bool, tmp_path: Path) -> None:
    sampler: dict[str, Any] = {"class_path": "optuna.samplers.CmaEsSampler"}
    if wrapped:
        options = {"fixed_params": {}, "base_sampler": sampler}
        sampler = {"class_path": "optuna.samplers.PartialFixedSampler", "init_args": options}
    with pytest.raises(ConfigurationError, match="CmaEsSampler, which unpickles its state from the storage"):
        _ = Sweep([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "bits", sampler=sampler).study


def test_trials_without_the_settings_of_their_sweep_are_refused(tmp_path: Path) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "bits")
    study = Sweep(*options).study
    study.set_user_attr("settings", None)
    assert Sweep(*options).study.user_attrs["settings"]
    study.set_user_attr("settings", None)
    study.ask()
    with pytest.raises(ConfigurationError, match="was started with different configs"):
        _ = Sweep(*options).study


@pytest.mark.filterwarnings("ignore:Fixed parameter:UserWarning")
def test_a_trial_that_others_enqueued_outside_of_the_space_ends_the_sweep(tmp_path: Path) -> None:
    sweep = Sweep([CONFIG], {K: {"low": 1, "high": 9}}, ["val/nelbo"], ["minimize"], tmp_path / "bits")
    sweep.study.enqueue_trial({K: 99})
    (message,) = sweep.run(2)
    assert "values of the space but got" in message


def test_a_sweep_killed_while_values_were_drawn_is_not_continued_with_another_space(tmp_path: Path) -> None:
    begun = Sweep([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "bits")
    begun.study.ask()  # without values
    begun._lock(0).parent.mkdir()
    begun._lock(0).touch()
    begun.study.ask(begun.distributions)
    with pytest.raises(ConfigurationError, match=r"different values|values of the space"):
        Sweep([CONFIG], {K: {"low": 1, "high": 5}}, ["val/nelbo"], ["minimize"], tmp_path / "bits")._take(5)


@pytest.mark.slow
def test_a_metric_that_was_not_logged_is_explained(tmp_path: Path) -> None:
    sweep = Sweep([CONFIG], {RATE: [0.01]}, ["val/nelbow"], ["minimize"], tmp_path / "bits", extra=["--trainer.max_epochs=1"])
    (message,) = sweep.run(1)
    assert "Did you mean 'val/nelbo'?" in message


def test_a_storage_with_other_metrics_is_refused(tmp_path: Path) -> None:
    assert sweep_of(tmp_path / "bits").study.directions
    with pytest.raises(ConfigurationError, match="different metrics"):
        assert Sweep([CONFIG], {RATE: [0.01]}, ["val/nelbo", "val/loss"], ["minimize", "minimize"], tmp_path / "bits").study


@pytest.mark.slow
def test_the_sweep_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "how_to" / "sweeps.md").read_text()
    (values,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"```bash\nlit-sparse (.*?)\n```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(values)
    words = command.replace("\\\n", "").replace("--trials 12", "--trials 2").split()
    assert main([*words, "--trainer.limit_train_batches=2"]) == 0
    assert len((tmp_path / "runs/sweep/ssvae/digits/sweep.csv").read_text().splitlines()) == 3


@pytest.mark.gate
def test_a_trial_that_another_process_holds_is_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Otherwise the training that a killed sweep leaves would end without a value."""
    first = Sweep([CONFIG], {RATE: [0.01], K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "bits", sampler="grid", extra=EXTRA)
    taken = first._take(1)
    assert taken is not None
    second = Sweep(
        [CONFIG], {RATE: [0.01], K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "bits", sampler="grid", extra=EXTRA
    )
    waiting = threading.Thread(target=second.run, args=(1,))
    waiting.start()
    time.sleep(2)
    assert waiting.is_alive()
    taken[1].close()
    waiting.join()
    assert [trial.state for trial in second.study.trials] == [COMPLETE]
    assert "trial_0: another process is running it" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.timeout(900)
def test_killed_workers_leave_no_trial_twice_or_lost(run_with_kills: Callable[..., None], tmp_path: Path) -> None:
    """Twelve trials, three workers, five kills at random moments."""
    rates = [0.001 * (number + 1) for number in range(12)]
    words = ["sweep", "-c", CONFIG, "-s", space(tmp_path, **{RATE: rates}), "--metric", "val/nelbo", "--sampler", "grid"]

    def start(folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "lit_sparse", *words, "--jobs", "3", "--output", str(folder), "--", *EXTRA]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    run_with_kills(lambda: start(tmp_path), 1)
    assert start(tmp_path / "whole").wait() == 0
    found = []
    for folder in (tmp_path, tmp_path / "whole"):
        sweep = Sweep([CONFIG], {RATE: rates, K: [2]}, ["val/nelbo"], ["minimize"], folder / "bits", extra=EXTRA)
        assert [trial.state for trial in sweep.study.trials] == [COMPLETE] * 12
        found.append({trial.params[RATE]: trial.value for trial in sweep.study.trials})
    assert found[0] == found[1]
    assert len(found[0]) == 12


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a PostgreSQL server; return the URL of a database."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs psycopg")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL server is installed (Debian's package postgresql)")
    folder, port = Path(tempfile.mkdtemp(prefix="postgres", dir="/tmp")), free_port()  # the server's user must reach it
    user = "postgres" if os.getuid() == 0 else None  # the server refuses to run as root
    if user is not None:
        shutil.chown(folder, user)
    run = functools.partial(subprocess.run, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)
    run([programs[-1], "-D", folder / "data", "--auth=trust", "--username=optuna"])
    control = [programs[-1].with_name("pg_ctl"), "-D", folder / "data", "-l", folder / "log", "-w"]
    run([*control, "-o", f"-p {port} -k {folder} -c listen_addresses=127.0.0.1", "start"])
    try:
        yield f"postgresql+psycopg://optuna@127.0.0.1:{port}/postgres"
    finally:
        run([*control, "-m", "immediate", "stop"])
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.timeout(600)
def test_two_machines_share_a_server(server: str, tmp_path: Path) -> None:
    """Two commands with folders of their own; one is killed and started again."""
    rates = [0.001 * (number + 1) for number in range(6)]
    words = ["sweep", "-c", CONFIG, "-s", space(tmp_path, **{RATE: rates}), "--metric", "val/nelbo", "--sampler", "grid"]

    def start(name: str) -> subprocess.Popen[bytes]:
        places = ["--storage", server, "--output", str(tmp_path / name)]
        return subprocess.Popen([sys.executable, "-m", "lit_sparse", *words, *places, "--", *EXTRA], start_new_session=True)

    first, second = start("one"), start("two")
    while not list(tmp_path.glob("one/bits/trial_*/seed_0/0/checkpoints/last.ckpt")):
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert start("one").wait() == 0
    assert second.wait() == 0
    storage = optuna.storages.RDBStorage(server)
    trials = optuna.load_study(study_name="bits", storage=storage).trials
    storage.remove_session()
    storage.engine.dispose()
    assert [trial.state for trial in trials] == [COMPLETE] * 6
    assert sorted(trial.params[RATE] for trial in trials) == rates
    folders = {name: {path.name for path in (tmp_path / name / "bits").glob("trial_*")} for name in ("one", "two")}
    assert folders["one"]
    assert folders["two"]
    assert not folders["one"] & folders["two"], "no trial ran on both"
    assert len((tmp_path / "two" / "bits" / "sweep.csv").read_text().splitlines()) > 1


@pytest.mark.parametrize(
    "made",
    [
        "create view endless as with recursive n(i) as (select 1 union all select i + 1 from n) select i from n",
        "create trigger act after insert on trials begin select 1; end",
        "create index slow on trials (length(state))",
        "drop table trial_heartbeats; create table trial_heartbeats (trial_id integer check (length(randomblob(9)) > 0))",
    ],
)
def test_a_database_that_computes_is_refused(made: str, tmp_path: Path) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    path = tmp_path / "trials.db"
    found = Sweep(*options, storage=f"sqlite:///{path}").study
    found._storage._backend.remove_session()
    with closing(sqlite3.connect(path)) as database:
        database.executescript(made)
    for url in (f"sqlite:///{path}", f"sqlite+pysqlite:///{path}", f"sqlite:///file:{path}?uri=true", "sqlite://"):
        with pytest.raises(ConfigurationError, match=r"which Optuna never creates|Expected the path of a database"):
            assert Sweep(*options, storage=url).study


COUNTED = "with recursive n(i) as (select 9 union all select i + 1 from n where i < 100020)"
CHANGES = {
    "attribute": ("update study_user_attributes set value_json = '{bad'", "cannot be used"),
    "deep attribute": (
        "update study_user_attributes set value_json = replace(hex(zeroblob(50000)), '0', '[')",
        "cannot be used",
    ),
    "enqueued": (
        "insert into study_user_attributes (study_id, key, value_json) values (1, 'enqueued', '{bad')",
        "cannot be used",
    ),
    "number": ("update trials set number = 7 + number", "to be one of a sweep but got number 7"),
    "twice": (
        "insert into trials (number, study_id, state) values (0, 1, 'FAIL')",
        r"at most 1 trial of each number in .*trials\.db' but got 2",
    ),
    "constraints": (
        "insert into trial_system_attributes (trial_id, key, value_json) values (1, 'constraints:a', '5')",
        "to be one of a sweep",
    ),
    "fixed": (
        "insert into trial_system_attributes (trial_id, key, value_json) values (1, 'fixed_params', '5')",
        "to be one of a sweep",
    ),
    "infinity": (
        "update trial_values set value_type = 'INF_POS'",
        "cannot be used: AssertionError",
    ),
    "reported": (
        "insert into trial_intermediate_values values (null, 1, 0, 'x', 'FINITE')",
        "to be one of a sweep",
    ),
    "rows": (
        f"{COUNTED} insert into trials (trial_id, number, study_id, state) select i, i, 1, 'FAIL' from n",
        "at most 100,000",
    ),
    "unfinished": (
        f"{COUNTED} insert into trials (trial_id, number, study_id, state) select i, i, 1, 'RUNNING' from n where i < 6000",
        "at most 5,000 unfinished trials",
    ),
    "choices": (
        "update trial_params set distribution_json = hex(zeroblob(600000))",
        r"at most 1,048,576 characters for the choices",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_database_is_refused(name: str, tmp_path: Path) -> None:
    change, message = CHANGES[name]
    path = tmp_path / "trials.db"
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    sweep = Sweep(*options, storage=f"sqlite:///{path}")
    sweep.study.tell(sweep.study.ask(sweep.distributions), 1.0)
    sweep.study._storage._backend.remove_session()
    assert len(Sweep(*options, storage=f"sqlite:///{path}").study.trials) == 1
    with closing(sqlite3.connect(path)) as database:
        database.executescript(change)
    with pytest.raises(ConfigurationError, match=message):
        assert Sweep(*options, storage=f"sqlite:///{path}").study


def test_a_stored_value_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    study = sweep_of(tmp_path / "sweep").study
    study.tell(study.ask(sweep_of(tmp_path / "sweep").distributions), 1.0)
    journal = tmp_path / "sweep" / "journal.log"
    journal.write_text(journal.read_text().replace('"values":[1.0]', f'"values":[1{"0" * 400}]'))
    with pytest.raises(ConfigurationError, match="to have 1 numbers but got"):
        assert sweep_of(tmp_path / "sweep").study


@pytest.mark.parametrize("values", ["[1.0,2.0]", "[NaN]"])
def test_a_stored_trial_has_a_value_for_each_metric(values: str, tmp_path: Path) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    study = Sweep(*options).study
    choices = {K: optuna.distributions.CategoricalDistribution([2])}
    study.add_trial(optuna.trial.create_trial(params={K: 2}, distributions=choices, value=1.0))
    journal = tmp_path / "sweep" / "journal.log"
    text = journal.read_text()
    changed = re.sub(r'"values?":(\[1\.0\]|1\.0)', f'"values":{values}', text)
    assert changed != text
    journal.write_text(changed)
    with pytest.raises(ConfigurationError, match=r"to have 1 numbers but got|cannot be used"):
        assert Sweep(*options).study


@pytest.mark.parametrize("ending", [{"state": 1, "values": [7.0]}, {"state": 3, "values": None}, {"op_code": 8}])
def test_a_journal_that_changes_a_finished_trial_is_refused(ending: dict[str, Any], tmp_path: Path) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    sweep = Sweep(*options)
    for value in (1.0, 2.0):
        sweep.study.tell(sweep.study.ask(sweep.distributions), value)
    assert len(Sweep(*options).study.trials) == 2
    journal = tmp_path / "sweep" / "journal.log"
    *_, last = (entry for entry in map(json.loads, journal.read_text().splitlines()) if "values" in entry)
    with journal.open("a") as file:
        file.write(json.dumps(last | ending) + "\n")
    with pytest.raises(ConfigurationError, match=r"no change of the finished trial 1 in .*journal\.log' but got one in line"):
        assert Sweep(*options).study


def test_a_trial_that_is_lost_while_a_sweep_runs_is_one_error(tmp_path: Path) -> None:
    sweep = Sweep([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    with pytest.raises(ConfigurationError, match=r"Expected trial 3 in .*sweep' but it has 0 trials"):
        sweep.runner(3)


def test_a_missing_value_is_not_the_value_none(tmp_path: Path) -> None:
    sweep = Sweep([CONFIG], {RATE: [0.01, 0.001], K: [None, 2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    sweep.study.ask({RATE: sweep.distributions[RATE]})
    with pytest.raises(ConfigurationError, match=r"estimator\.init_args\.k' = 'nothing'"):
        sweep.params(sweep.study.trials[0])
    assert list(sweep.params(sweep.study.trials[0], whole=False)) == [RATE]
    take(sweep)
    assert list(sweep.params(sweep.study.trials[0])) == [RATE, K], "in the order of the space"


def test_a_journal_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    assert Sweep(*options).study.trials == []
    os.truncate(tmp_path / "sweep" / "journal.log", 2**33)
    with pytest.raises(ConfigurationError, match="nearly all of its 8,589,934,592 bytes"):
        assert Sweep(*options).study


def test_a_journal_whose_last_line_is_cut_off_is_refused(tmp_path: Path) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    assert Sweep(*options).study.trials == []
    journal = tmp_path / "sweep" / "journal.log"
    os.truncate(journal, journal.stat().st_size - 3)
    with pytest.raises(ConfigurationError, match="the last one is cut off"):
        assert Sweep(*options).study


def test_a_journal_that_would_be_copied_many_times_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ([CONFIG], {K: [2]}, ["val/nelbo"], ["minimize"], tmp_path / "sweep")
    trial = Sweep(*options).study.ask()
    for step in range(5):
        trial.report(1.0, step)
    assert len(Sweep(*options).study.trials) == 1
    monkeypatch.setattr("lit_sparse.studies.search.storage.MOST_COPIED", 25)
    with pytest.raises(ConfigurationError, match=r"fewer entries of one kind for a trial in .* but got up to 5"):
        assert Sweep(*options).study


def test_a_metric_that_was_not_logged_is_named() -> None:
    lines = [{"val/nelbo": 1.0, "train/nelbo": 2.0}]
    check_logged(["val/nelbo"], [1.0], lines)
    with pytest.raises(ConfigurationError, match=r"what was logged, val/nelbo, but got 'val/nelb'\. Did you mean 'val/nelbo'"):
        check_logged(["val/nelbo", "val/nelb"], [1.0, None], lines)
    with pytest.raises(ConfigurationError, match="nothing by validation, but got 'x'"):
        check_logged(["x"], [None], [])
