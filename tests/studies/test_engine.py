"""Studies run each cell once, continue killed ones, and store what they measure at once."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from lit_sparse.runs.result_files import read_metrics
from lit_sparse.studies.jobs import cell_run
from lit_sparse.studies.jobs.engine import Runner, call_in_process
from lit_sparse.studies.jobs.logged import summarized
from lit_sparse.studies.jobs.processes import JobFailedError, call, locked, run_all
from lit_sparse.studies.jobs.rows import Row, Rows, provenance
from lit_sparse.studies.pages.tables import page
from lit_sparse.studies.plan.load import load_study
from lit_sparse.studies.plan.study import PROVENANCE, digest
from tests.conftest import CONFIGS, ROOT
from tests.data.images.test_mnist import idx

Make = Callable[..., Runner]
HEAD = f"cell,seed,test/nelbo,{','.join(PROVENANCE)}\n".encode()


def measured(rows: list[Row]) -> list[Row]:
    """Return rows without their origin."""
    return [{key: value for key, value in row.items() if key not in PROVENANCE} for row in rows]


@pytest.mark.gate
def test_a_cell_is_trained_and_tested_in_processes(write_study: Callable[..., Path], runner: Make) -> None:
    cells = {"short": {"options": {"trainer.max_epochs": 1}}}
    study = runner(write_study(cells=cells))
    assert study.run() == []
    (row,) = study.rows.read()
    assert (row["cell"], float(row["test/nelbo"]) > 0) == ("short", True)


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_cells_are_run_once_and_stored(
    write_study: Callable[..., Path], runner: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    study = runner(write_study())
    assert study.run() == []
    rows = study.rows.read()
    assert [(row["cell"], row["seed"]) for row in rows] == [("slow", "0"), ("fast", "0")]
    assert float(rows[1]["test/nelbo"]) < float(rows[0]["test/nelbo"])
    assert float(rows[0]["sum(train/decoder_calls_total)"]) > 1000
    assert all(row["settings"] and "torch=" in row["versions"] and float(row["seconds"]) > 0 for row in rows)
    last = summarized(read_metrics(study.of("slow", 0).folder), "train/seconds")
    assert last is not None
    assert rows[0]["seconds"] == f"{last:.1f}"
    assert [row["epoch"] for row in study.curves.read()] == ["1", "2"] * 2
    capfd.readouterr()
    assert study.run() == []
    printed = capfd.readouterr().out
    assert "running;" not in printed, "nothing is run again"
    assert f"2 of 2 runs have rows in {study.rows.path}\nGive --results and --output with other folders" in printed
    assert study.rows.read() == rows
    # A row that is removed is made again from the finished run: it is tested, not trained, by the study's config.
    (study.of("fast", 0).folder / "config.yaml").write_text("trust: [own]\nmodel: {class_path: own.Model}\n")
    before = study.of("fast", 0).checkpoint().stat().st_mtime_ns
    study.rows.path.write_text("\n".join(study.rows.path.read_text().splitlines()[:-1]) + "\n")
    assert study.run() == []
    assert measured(study.rows.read()) == measured(rows)
    assert study.of("fast", 0).checkpoint().stat().st_mtime_ns == before


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_what_is_trained_first_gives_its_checkpoint(write_study: Callable[..., Path], runner: Make) -> None:
    cells = {
        "broken": {"hidden": True, "options": {"model.init_args.bites": 3}},
        "lost": {"checkpoints": {"model.init_args.initial_weights": "broken"}},
        "warm": {"hidden": True},
        "second": {"checkpoints": {"model.init_args.initial_weights": "warm"}, "options": {"trainer.max_epochs": 1}},
    }
    study = runner(write_study(cells=cells))
    broken, lost = study.run()
    assert "bites" in broken
    assert lost == "lost/seed_0: needs a checkpoint of broken"
    assert [row["cell"] for row in study.rows.read()] == ["second"], "what does not depend on it is run"
    config = yaml.safe_load((study.of("second", 0).folder / "config.yaml").read_text())
    assert config["model"]["init_args"]["initial_weights"] == str(study.of("warm", 0).checkpoint())


def test_no_study_is_behind_a_link(write_study: Callable[..., Path], runner: Make, tmp_path: Path) -> None:
    study = runner(write_study())
    study.output.mkdir()
    (tmp_path / "other").mkdir()
    study.folder.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"is a link\. Make .* the link"):
        study.run()
    assert not [*(tmp_path / "other").iterdir()]


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_other_settings_are_refused(write_study: Callable[..., Path], runner: Make) -> None:
    cells = {"slow": {"options": {"trainer.max_epochs": 1}}}
    assert runner(write_study(cells=cells)).run() == []
    cells["slow"]["options"]["trainer.max_epochs"] = 3
    (message,) = runner(write_study(cells=cells)).run()
    assert "made with other settings: options.trainer.max_epochs: 1, now 3. Remove these rows" in message
    runner(write_study()).rows.path.unlink()
    (message,) = runner(write_study(cells=cells)).run()
    assert "started with different settings: options.trainer.max_epochs: 1, now 3. Choose another --output" in message


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_a_checkpoint_of_other_settings_or_of_a_killed_training_is_not_used(
    write_study: Callable[..., Path], runner: Make
) -> None:
    cells = {
        "warm": {"hidden": True, "options": {"trainer.max_epochs": 1}},
        "first": {"checkpoints": {"model.init_args.initial_weights": "warm"}, "options": {"trainer.max_epochs": 1}},
    }
    assert runner(write_study(cells=cells)).run() == []
    cells["second"] = cells["first"]
    cells["warm"] = {"hidden": True, "options": {"trainer.max_epochs": 2}}
    study = runner(write_study(cells=cells))
    (message,) = study.run(cells=["first"])
    assert "checkpoints.model.init_args.initial_weights.options.trainer.max_epochs: 1, now 2" in message
    messages = study.run(cells=["second"])
    assert "warm/seed_0 was started with different settings: options.trainer.max_epochs: 1, now 2" in messages[0]
    assert messages[1] == "second/seed_0: needs a checkpoint of warm"
    cells["warm"]["options"] = {"trainer.max_epochs": 1}
    study = runner(write_study(cells=cells))
    (study.of("warm", 0).folder / "finished").unlink()  # as a killed training leaves it
    assert not study.of("warm", 0).finished
    assert study.run(cells=["second"]) == []
    assert study.of("warm", 0).finished, "it was trained to its end first"


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_curves_are_those_of_the_newest_run(write_study: Callable[..., Path], runner: Make) -> None:
    cells = {"slow": {"options": {"trainer.max_epochs": 2}}}
    study = runner(write_study(cells=cells))
    assert study.run() == []
    study.rows.path.unlink()
    shutil.rmtree(study.folder)
    cells["slow"]["options"]["trainer.max_epochs"] = 1
    study = runner(write_study(cells=cells))
    assert study.run() == []
    assert [row["epoch"] for row in study.curves.read()] == ["1"]


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_a_failed_cell_is_named_at_once_and_leaves_the_others(
    write_study: Callable[..., Path], runner: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = {"wrong": {"options": {"model.init_args.bites": 3}}, "right": {"options": {"trainer.max_epochs": 1}}}
    study = runner(write_study(cells=cells))
    (message,) = study.run()
    assert "bites" in message
    assert "did you mean" in message.lower()
    assert [row["cell"] for row in study.rows.read()] == ["right"]
    printed = [line.split(";")[0].split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["wrong/seed_0: running", "wrong/seed_0: failed", "right/seed_0: running", "right/seed_0: finished"]


@pytest.mark.gate
def test_a_function_is_called_at_each_point_once(function_study: Path, runner: Make, tmp_path: Path) -> None:
    study = runner(function_study, jobs=2)
    assert study.run(cells=["square"]) == []
    assert [(row["seed"], row["x"], row["y"]) for row in study.rows.read()] == [
        *(("0", "2", "4"), ("0", "3", "9")),
        *(("1", "2", "5"), ("1", "3", "10")),
    ]
    study.study.cells["square"].grid["x"].append(13)
    function_study.write_text(function_study.read_text().replace("- 3\n", "- 3\n      - 13\n"))
    (first, second) = study.run(cells=["square"])
    assert "unlucky" in first
    assert "unlucky" in second
    calls = (tmp_path / "calls").read_text().split("\n")
    assert sorted(calls) == sorted(["", "0 2", "0 3", "1 2", "1 3", "0 13", "1 13"])


@pytest.mark.gate
def test_a_function_may_return_a_series(write_study: Callable[..., Path], function_study: Path, runner: Make) -> None:
    cells = {"series": {"function": "own_functions.series", "arguments": {"n": 3}}}
    study = runner(write_study("several", config=None, options={}, cells=cells, series=["k"], columns={"y": {"value": "y"}}))
    assert study.run() == []
    assert [row["k"] for row in study.rows.read()] == ["1", "2", "3"]
    before = study.rows.path.stat().st_mtime_ns
    assert study.run() == []
    assert study.rows.path.stat().st_mtime_ns == before


def test_rows_of_a_function_differ(write_study: Callable[..., Path], function_study: Path, runner: Make) -> None:
    cells = {"twice": {"function": "own_functions.twice"}}
    study = runner(write_study("twice", config=None, options={}, cells=cells, columns={"y": {"value": "y"}}))
    (message,) = study.run()
    assert "rows that differ in cell, seed but got two with the same" in message
    assert study.rows.read() == []


def test_a_closed_terminal_is_printed_to_no_more() -> None:
    program = "from lit_sparse.studies.jobs.processes import say; import time; time.sleep(0.2); [say('x') for _ in range(3)]"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": ""}
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=50) == 0


def test_options_that_cannot_be_given_are_refused_before_anything_runs(
    write_study: Callable[..., Path], function_study: Path, runner: Make
) -> None:
    with pytest.raises(ConfigurationError, match="after -- are for trainings, but cell 'square'"):
        runner(function_study, extra=["--trainer.max_epochs", "3"]).run(cells=["square"])
    path = write_study(inputs={"images": "folder of the images"}, options={"data.init_args.path": "{images}"})
    with pytest.raises(ConfigurationError, match="Give --input images=PATH: folder of the images"):
        runner(path).run()
    with pytest.raises(ConfigurationError, match="Give --input images=PATH"):
        runner(write_study(inputs={"images": "images"}, tests={"test": {"data.init_args.path": "{images}"}})).run()
    with pytest.raises(ConfigurationError, match=r"toy.yaml names 'lost.yaml', but there is no such file or config"):
        runner(write_study(config="lost.yaml")).run()
    (path.parent / "wrong.yaml").write_text("a: [")
    with pytest.raises(ConfigurationError, match=r"Expected YAML in .*wrong.yaml' but got in line 1"):
        runner(write_study(config="wrong.yaml")).run()


@pytest.mark.usefixtures("in_this_process")
def test_a_schedule_names_its_cells(write_study: Callable[..., Path], runner: Make) -> None:
    one = {"options": {"trainer.max_epochs": 1}, "cells": ["fast"]}
    study = runner(write_study(schedules={"full": {}, "one": one}), schedule="one")
    assert study.run() == []
    assert [row["cell"] for row in study.rows.read()] == ["fast"]
    with pytest.raises(ConfigurationError, match="Did you mean 'fast'"):
        runner(write_study(schedules={"one": {"cells": ["fest"]}}))


@pytest.mark.gate
def test_rows_of_other_settings_are_named_and_not_drawn_or_reported(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn: list[list[Row]] = []
    monkeypatch.setattr("lit_sparse.studies.command.draw", lambda *parts: drawn.append(parts[3]))
    path = write_study(figures=[{"panels": [{"value": "val/nelbo"}]}])
    study = Runner(load_study(path))
    made = provenance(digest(study.study.settings("slow", [])), 1.0)
    study.rows.append([{"cell": "slow", "seed": 0, "test/nelbo": 2, **made}], ["cell", "seed"])
    lines = [{"cell": cell, "seed": seed, "epoch": 1, "val/nelbo": 3} for cell, seed in (("slow", 0), ("slow", 1), ("fast", 0))]
    study.curves.append(lines, ["cell", "seed", "epoch"])
    assert main(["study", str(path), "--tables"]) == 0
    output, printed = capsys.readouterr()
    assert output.splitlines()[-5:] == [
        "",
        "|            | seeds | nelbo | nelbo, published |",
        "| ---------- | ----: | ----: | ---------------: |",
        "| small step |     1 |  2.00 |              1.5 |",
        f"see all cells side by side with: lit-sparse report {path}",
    ]
    assert "different settings" not in printed
    assert "no row has a value for them: calls (sum(train/decoder_calls_total))" in printed
    assert [(row["cell"], row["seed"]) for row in drawn[0]] == [("slow", "0")], "a curve without a row is not drawn"
    path = write_study(options={"trainer.max_epochs": 7}, figures=[])
    assert main(["study", str(path), "--tables"]) == 0
    assert "rows of cell 'slow' that were made with other settings" in capsys.readouterr().err
    assert main(["report", str(path), "-o", "page.html"]) == 0
    text = Path("page.html").read_text()
    assert "Not known: the rows have other settings" in text
    assert "max_epochs: 7" not in text
    begun = Path("runs/studies/toy/slow/seed_0.json")
    begun.parent.mkdir(parents=True)
    begun.write_text(json.dumps(study.study.settings("slow", [])))
    assert main(["report", str(path), "-o", "page.html"]) == 0
    text = Path("page.html").read_text()
    assert "max_epochs: 2" in text, "the settings of the run"
    assert "max_epochs: 7" not in text


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results/toy.csv", b"cell,seed\n", "Expected the columns cell, seed, settings"),
        ("results/toy.csv", HEAD + b"slow,../x,1,x,c,1.0,m,v\n", "Expected an integer as `seed` in line 2"),
        ("results/toy.csv", HEAD + b"slow,0,abc,x,c,1.0,m,v\n", "column 'test/nelbo' in line 2"),
        ("results/toy.csv", HEAD + b"slow,0,1,x,c,long,m,v\n", "column 'seconds' in line 2"),
        ("results/toy.csv", HEAD + b"slow,0,1,x,c,-1,m,v\n", "a finite number of `seconds` >= 0"),
        ("results/toy.csv", HEAD + b"slow,0,1,x,c,nan,m,v\n", "but got 'nan' for cell 'slow'"),
        ("results/toy.csv", b"\xff", "Expected text in UTF-8"),
        ("results/toy_curves.csv", b"cell,seed,val/nelbo\nslow,0,x\n", "column 'val/nelbo' in line 2"),
        ("results/toy_samples.csv", b"cell,seed,name,values\nslow,0,b,1 x\n", "column 'values' in line 2"),
        ("runs/toy/slow/seed_0.json", b"{broken", "Expected JSON"),
        ("runs/toy/slow/seed_0.json", b"[]", "Expected keys and values"),
        ("runs/toy/slow/seed_0.json", b"[" * 100_000, "Expected JSON"),
    ],
)
def test_damaged_results_are_one_message(
    file: str,
    content: bytes,
    message: str,
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_study()
    for name, text in (("results/toy.csv", HEAD + b"slow,0,1,x,c,1.0,m,v\nother,0,1,x,c,1.0,m,v\n"), (file, content)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text)
    assert main(["study", str(path), "--tables", "--output", "runs"]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert f"'{file}'" in error


def test_scores_are_stored_with_what_was_tested(
    write_study: Callable[..., Path], runner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_scores.py").write_text("found = {}\ndef scores(checkpoint):\n    return found\n")
    run = runner(write_study(scores={"own": "own_scores.scores"})).of("slow", 0)
    found = import_module("own_scores").found
    values: tuple[Any, ...] = ("text", [1, "2"], {}, True, None)
    for value in values:
        found["x"] = value
        with pytest.raises(ConfigurationError, match=r"Expected own_scores.scores to return numbers but got 'x'"):
            run.call_functions()
    found |= {"x": [1, float("nan")], "y": np.float64(2)}
    run.call_functions({"test/nelbo": 3.0})
    (row,), (sample,) = run.workspace.rows.read(), run.workspace.samples.read()
    assert (row["test/nelbo"], row["own/y"], sample["name"], sample["values"]) == ("3", "2", "own/x", "1 nan")


def test_the_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("ssvae "))
    assert "Semi-supervised VAE on MNIST (schedules full, search, " in line
    assert line.endswith("inputs mnist, labelled, validation)")
    assert len(lines) == 2 + len(list((CONFIGS / "studies").glob("*.yaml")))


def test_names_that_are_unknown_are_explained(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_study(inputs={"images": "folder of the images"}, schedules={"full": {}, "smoke": {}})
    for words, text in (
        (["--cells", "fest"], "got 'fest'. Did you mean 'fast'?"),
        (["--schedule", "smokke"], "Did you mean 'smoke'?"),
        (["--input", "image=x"], "Did you mean 'images'?"),
        (["--input", "images"], "Expected --input NAME=PATH"),
        (["--tables"], "nothing is finished yet"),
        (["--tables", "--cells", "fast"], "Expected --tables, which runs nothing, without --cells"),
        (["--jobs", "0"], "`--jobs` to be an integer of at least 1"),
    ):
        assert main(["study", str(path), *words]) == 2
        assert text in capsys.readouterr().err
    assert main(["study", "--tables"]) == 2
    assert "Expected the name of a study with --tables." in capsys.readouterr().err
    for keys, text in (
        ({"cels": {"a": {"title": "x"}}}, "has no argument 'cels'. Did you mean 'cells'?"),
        ({"cells": {"a": {"tilte": "x"}}}, "Did you mean 'title'?"),
        ({"cells": {"a": {"seeds": ["x"]}}}, "Expected an integer in"),
        ({"cells": {"a": {"opts": {}}}}, "has no argument 'opts'. Did you mean 'options'?"),
        (
            {"cells": {"a": {"options": {"x": "{image}"}}}, "inputs": {"images": "a folder"}},
            "got '{image}'. Did you mean 'images'?",
        ),
        ({"cells": {}}, "at least one entry in `cells`"),
        ({"config": None}, "needs a `config` or a `function`"),
        ({"cells": {"a": {"checkpoints": {"x": "b"}}}}, "got 'b'"),
        (
            {"cells": {"a": {"checkpoints": {"x": "b"}}, "b": {"checkpoints": {"x": "a"}}}},
            "the checkpoints that cell 'a' needs depend on its own",
        ),
        (
            {
                "cells": {f"c{i}": {"checkpoints": {"x": f"c{i + 1}", "y": f"c{i + 1}"}} for i in range(30)}
                | {"c30": {"checkpoints": {"x": "c0"}}}
            },
            "the checkpoints that cell 'c0' needs depend on its own",
        ),
        ({"checkpoint": "lost"}, "Did you mean 'last'?"),
        ({"columns": {"a": {"value": "v", "show": "medain"}}, "cells": {"a": {}}}, "Did you mean 'median'?"),
        ({"cells": {"a": {"published": {"nelb": 1}}}}, "Did you mean 'nelbo'?"),
        ({"tables": [{"columns": ["call"]}]}, "Did you mean 'calls'?"),
    ):
        assert main(["study", str(write_study(**keys))]) == 2
        said = capsys.readouterr().err
        assert text in said and "class '" not in said and "Parser key" not in said, keys
    (tmp_path / "bad.yaml").write_text("a: [")
    assert main(["study", "bad.yaml"]) == 2
    assert "Expected YAML in 'bad.yaml' but got in line 1" in capsys.readouterr().err
    assert main(["study", "nothing"]) == 2
    assert "Expected a file or the name of a study but got 'nothing'. Choose from: bitvector, " in capsys.readouterr().err


def test_a_function_that_is_missing_is_one_message(write_study: Callable[..., Path], tmp_path: Path) -> None:
    path = write_study(cells={"a": {"function": "math.nothing"}}, schedules={})
    given = json.dumps({"study": str(path), "output": str(tmp_path), "results": str(tmp_path)})
    with pytest.raises(SystemExit, match=r"^lit-sparse: error: Expected `function` to be the path of a function but got 'math"):
        call_in_process(given, "a", 0)


def test_rows_are_stored_whole(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "r.csv", tmp_path / "lock", ["b", "a"])
    made = {**dict.fromkeys(PROVENANCE, "x"), "seconds": "1.0"}
    rows.append([{"cell": "a", "seed": 1, "v": 1 / 3, **made}], ["cell", "seed"])
    rows.append([{"cell": "b", "seed": 0, "w": None, **made}, {"cell": "a", "seed": 1, "v": 2.0}], ["cell", "seed"])
    assert [(row["cell"], row["v"], row["w"]) for row in rows.read()] == [("b", "", ""), ("a", "0.333333333", "")]
    assert rows.path.read_text().splitlines()[0] == f"cell,seed,v,w,{','.join(PROVENANCE)}"
    with rows.path.open("a") as file:
        file.write("a,2,0.")  # of a killed process
    assert len(rows.read()) == 2
    assert set(provenance("abc", 1.0)) == set(PROVENANCE)


def test_a_cell_has_one_row_for_each_point(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "r.csv", tmp_path / "lock", ["a"], (), unique=["cell", "seed", "k"])
    rows.path.write_text("cell,seed,k,v\na,0,1,2\na,0,2,2\nb,0,1,2\nb,0,1,3\n")
    with rows.path.open("a") as file:
        file.write("a,0,2,2\n")  # the same once more
    assert len(rows.read()) == 4, "another cell is not of the study"
    with rows.path.open("a") as file:
        file.write("a,0,1,3\n")
    with pytest.raises(ConfigurationError, match=r"one row with cell a, seed 0, k 1 in .* but got two different ones"):
        rows.read()


def test_a_value_is_summarized() -> None:
    lines = [{"epoch": 0.0, "v": 3.0}, {"epoch": 1.0, "w": 1.0}, {"epoch": 2.0, "v": 5.0}]
    found = {kind: summarized(lines, f"{kind}(v)") for kind in ("first", "last", "sum", "min", "max", "count", "argmax")}
    assert found == {"first": 3, "last": 5, "sum": 8, "min": 3, "max": 5, "count": 2, "argmax": 3}
    assert summarized(lines, "v") == 5
    assert summarized(lines, "max(u)") is None


@pytest.mark.gate
def test_a_lock_is_held_by_the_command_that_inherits_it(tmp_path: Path) -> None:
    """A training whose study was killed holds its cell until it ends."""
    path, waited = tmp_path / "lock", []
    with locked(path) as held:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"], pass_fds=held)
    began = time.monotonic()
    with locked(path, lambda: waited.append(True)):
        assert child.poll() is not None
    assert waited
    assert time.monotonic() - began > 0.3


def _start(path: Path, folder: Path) -> subprocess.Popen[bytes]:
    words = ["study", str(path), "--jobs", "2", "--output", str(folder / "runs"), "--results", str(folder / "results")]
    return subprocess.Popen([sys.executable, "-m", "lit_sparse", *words], cwd=ROOT, start_new_session=True)


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.timeout(900)
def test_a_study_that_is_killed_ends_with_the_rows_of_one_that_is_not(
    write_study: Callable[..., Path], runner: Make, run_with_kills: Callable[..., None], tmp_path: Path
) -> None:
    """Six cells, two seeds, two jobs, five kills at random moments."""
    rates = (0.001, 0.002, 0.003, 0.005, 0.008, 0.013)
    cells = {f"lr{number}": {"options": {"model.init_args.optimizer.init_args.lr": rate}} for number, rate in enumerate(rates)}
    path = write_study(cells=cells, seeds=[0, 1])
    whole = tmp_path / "whole"
    run_with_kills(lambda: _start(path, tmp_path), 0)
    run_with_kills(lambda: _start(path, whole), 0, kills=0)
    rows = runner(path).rows.read()
    assert sorted((row["cell"], row["seed"]) for row in rows) == sorted((cell, seed) for cell in cells for seed in "01")
    assert measured(rows) == measured(Rows(whole / "results" / "toy.csv", tmp_path / "lock").read())


@pytest.mark.slow
@pytest.mark.gate
def test_a_smoke_run_of_a_study_of_the_package(runner: Make, tmp_path: Path) -> None:
    """Warm starts, trainings, exact scores."""
    rng = np.random.default_rng(0)
    for prefix, size in (("train", 200), ("t10k", 50)):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (size, 28, 28))))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(rng.integers(0, 10, size)))
    extra = ["--data.init_args.val_size=50", "--data.init_args.labelled=0.3", "--trainer.accelerator=cpu"]
    inputs = {"mnist": str(tmp_path)}
    study = runner(CONFIGS / "studies" / "ssvae.yaml", schedule="smoke", inputs=inputs, extra=extra, jobs=2)
    assert study.run(cells=["sparse", "nvil"]) == []
    row = {row["cell"]: row for row in study.rows.read()}["nvil"]
    assert float(row["train/decoder_calls_mean"]) == 1.0
    assert float(row["marginalized/decoder_calls_mean"]) == 10.0, "scored exactly"
    warm = torch.load(study.of("warm_softmax", 0).checkpoint(), weights_only=True)
    assert warm["global_step"] > 0


@pytest.mark.gate
@pytest.mark.usefixtures("in_this_process")
def test_step_sizes_are_compared_by_the_median_of_both_halves(runner: Make) -> None:
    study = runner(CONFIGS / "studies" / "soae_step_size.yaml", schedule="smoke")
    cells = [f"lr0_3_half{half}" for half in (1, 2)]
    assert study.run(cells=cells, seeds=[0]) == []
    errors = [100 - 100 * float(row["val/accuracy"]) for row in study.rows.read()]
    assert len(errors) == 2
    assert errors[0] != errors[1]
    assert not any(name.startswith("test/") for row in study.rows.read() for name in row), "no test image is used"
    line = next(line for line in page(study.study, study.rows.read()) if line.startswith("| 0.3 |"))
    assert float(line.split()[3]) == pytest.approx(sum(errors) / 2, abs=0.01)
    sizes = [summarized(read_metrics(study.of(cell, 0).folder), "val/examples") for cell in cells]
    assert sizes == [719, 718], "each image but those of the test is validated once"


@pytest.mark.slow
@pytest.mark.gate
def test_the_studies_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new user would: the files of the page in an empty folder, and the commands of the page."""
    text = (ROOT / "docs" / "how_to" / "studies.md").read_text()
    fitted, called = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    command, report, *_ = re.findall(r"```bash\nlit-sparse (.*?)\n", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    (tmp_path / "mappings.yaml").write_text(fitted)
    (tmp_path / "support.yaml").write_text(called)
    (tmp_path / "my_functions.py").write_text(program)
    assert main([*command.split(), "--seeds", "0", "--", "--trainer.limit_train_batches=2"]) == 0
    assert "| sparsemax, a tenth of the learning rate | 1 |" in (tmp_path / "results" / "mappings.md").read_text()
    assert (tmp_path / "results" / "mappings.png").is_file()
    assert main(report.split()) == 0
    assert "sparsemax, a tenth of the learning rate" in (tmp_path / "mappings.html").read_text()
    assert main(["study", "support.yaml"]) == 0
    before = Path("results/support.csv").stat().st_mtime_ns
    assert main(["study", "support.yaml"]) == 0
    assert Path("results/support.csv").stat().st_mtime_ns == before, "points that are floating-point numbers are found again"
    lines = (tmp_path / "results" / "support.md").read_text().splitlines()
    assert lines[4] == "| gamma | sparsemax | entmax |"
    assert [line.split(" | ")[0] for line in lines[6:]] == [
        "| 0.5",
        "| 1.0",
        "| 2.0",
        "",
        "± is the standard deviation over the seeds.",
    ]


@pytest.mark.parametrize("name", ["math.squareroot", "math.pi"])
def test_unknown_functions_are_explained(name: str, write_study: Callable[..., Path], runner: Make) -> None:
    study = runner(write_study(config=None, cells={"a": {"function": name}}, columns={}))
    with pytest.raises(ConfigurationError, match=f"path of a function but got '{name}'"):
        study.of("a", 0).call_functions()


@pytest.mark.parametrize("found", ["3", "[1]", "[]", "{'y': 'big'}"])
def test_results_of_functions_are_checked(
    found: str, write_study: Callable[..., Path], runner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "returning", types.SimpleNamespace(returned=lambda seed: ast.literal_eval(found)))
    cells = {"a": {"function": "returning.returned"}}
    study = runner(write_study(config=None, cells=cells, columns={"y": {"value": "y"}}))
    with pytest.raises(ConfigurationError, match=r"returning.returned to return a dict of numbers, or a list"):
        study.of("a", 0).call_functions()


def test_commands_end_with_the_study_that_is_terminated(tmp_path: Path) -> None:
    """Each takes a minute: one that runs, and one that starts later. The task after them is not begun."""
    begun, log = tmp_path / "begun", tmp_path / "log"
    command = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    program = f"""
import sys
from pathlib import Path
from lit_sparse.studies.jobs.processes import call, run_all

def task(threads):
    try:
        call([sys.executable, "-c", {command!r}], Path({str(log)!r}), threads)
    finally:
        call([sys.executable, "-c", "import time; time.sleep(60)"], Path({str(log)!r}), threads)

try:
    run_all([task, task], 1)
except KeyboardInterrupt as stop:
    sys.exit(stop.status)
"""
    arguments = [sys.executable, "-c", program]
    with subprocess.Popen(arguments, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE) as study:
        while not begun.exists():
            time.sleep(0.05)
        begun.unlink()
        assert study.stderr is not None
        study.stderr.close()  # as a terminal that is closed
        asked = time.monotonic()
        study.send_signal(signal.SIGTERM)
        assert study.wait(timeout=50) == 143
    assert time.monotonic() - asked < 50
    assert not begun.exists()


def test_nothing_more_is_begun_on_a_read_only_disk() -> None:
    def task(threads: int) -> None:
        begun.append(threads)
        raise OSError(errno.EROFS, "Read-only file system", "runs/a.lock")

    begun: list[int] = []
    text = "Expected to use 'runs/a.lock' but got: Read-only file system. Choose another place, or free space."
    assert run_all([task] * 3, 1) == [text]
    assert len(begun) == 1


def test_the_end_of_a_long_log_is_shown(tmp_path: Path) -> None:
    """A log may be of holes, and larger than the memory."""
    log = tmp_path / "some.log"
    log.touch()
    os.truncate(log, 2**40)
    with pytest.raises(JobFailedError, match=r"failed; the end of .*\n.*it broke") as caught:
        call([sys.executable, "-c", "exit('it broke')"], log, 1)
    assert len(str(caught.value)) < 50_000


def test_a_killed_training_is_put_beside_those_before(
    write_study: Callable[..., Path], runner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_run, "call", lambda *_: None)
    study = runner(write_study())
    name = next(iter(study.study.cells))
    folder = study.of(name, 0).folder
    for path in (folder, folder.with_name("killed_1")):
        (path / "some").mkdir(parents=True)
    for number in (0, 2):
        folder.mkdir(exist_ok=True)
        with pytest.raises(JobFailedError, match="no last checkpoint"):
            study.of(name, 0).train(1, ())
        assert folder.with_name(f"killed_{number}").is_dir()
