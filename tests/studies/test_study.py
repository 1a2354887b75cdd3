"""Grids and published values of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lit_sparse.errors import ConfigurationError
from lit_sparse.studies.jobs.cell_run import RunOf
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.pages.figures import svg_of
from lit_sparse.studies.pages.tables import page
from lit_sparse.studies.plan.load import load_study

RATE, EPOCHS = "model.init_args.optimizer.init_args.lr", "trainer.max_epochs"
CELLS = {
    "slow": {"title": "small step", "published": {"nelbo": 1.5}, "schedules": {"smoke": {"published": {"nelbo": 2.5}}}},
    "long": {
        "grid": {EPOCHS: [7, 8]},
        "checkpoints": {"model.init_args.initial_weights": "warm"},
        "schedules": {"smoke": {"options": {EPOCHS: 5}}},
    },
    "warm": {"hidden": True},
}
SCHEDULES = {"full": {"grid": {RATE: [0.1, 0.2]}}, "smoke": {"options": {RATE: 9.0, EPOCHS: 1}, "grid": {RATE: [0.3]}}}


@pytest.fixture
def grids(write_study: Callable[..., Path]) -> Path:
    figures = [{"alt": "NELBO", "least": "nelbo", "panels": [{"value": "val/nelbo"}]}]
    return write_study(cells=CELLS, schedules=SCHEDULES, tables=[{"least": "nelbo"}], figures=figures)


def test_a_cell_is_repeated_at_each_point_of_its_grid(grids: Path) -> None:
    full = load_study(grids).scheduled("full")
    points = [f"long/max_epochs={epochs},lr={rate}" for epochs in (7, 8) for rate in (0.1, 0.2)]
    assert list(full.cells) == ["slow/lr=0.1", "slow/lr=0.2", *points, "warm"]
    assert {full.title_of(name) for name in full.cells} == {"small step", "long", "warm"}
    assert full.cells[points[2]].labels == {"max_epochs": 8, "lr": 0.1}
    options = full.cells[points[2]].options
    assert (options[EPOCHS], options[RATE]) == (8, 0.1)
    assert full.cells["warm"].options[EPOCHS] == 2, "a hidden cell is trained once"
    smoke = load_study(grids).scheduled("smoke")
    assert list(smoke.cells)[:2] == ["slow/lr=0.3", "long/max_epochs=7,lr=0.3"]
    options = smoke.cells["long/max_epochs=7,lr=0.3"].options
    assert (options[EPOCHS], options[RATE]) == (7, 0.3), "the grid comes after the options of the schedule"


def test_options_of_one_name_have_labels_of_their_own(write_study: Callable[..., Path]) -> None:
    study = load_study(write_study(cells={"a": {"grid": {"model.d": [1], "data.d": [2], "data.k": [3]}}})).scheduled(None)
    assert study.cells["a/model.d=1,data.d=2,k=3"].labels == {"model.d": 1, "data.d": 2, "k": 3}
    study = load_study(write_study(cells={"a": {"grid": {"data.init_args.seed": [5]}}})).scheduled(None)
    assert study.cells["a/data.init_args.seed=5"].labels == {"data.init_args.seed": 5}, "each row has a column `seed`"


PANEL = {"value": "val/nelbo"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cells": {"..": {}}}, "part of the name of a file"),
        ({"cells": {"": {}}}, "part of the name of a file"),
        ({"cells": {"a/b": {}}}, "part of the name of a file"),
        ({"cells": {5: {}}}, r"Expected text in .* at `cells.5`"),
        ({"tests": {"../t": {}}}, "part of the name of a file"),
        ({"figures": [{"panels": [PANEL], "suffix": "/../x"}]}, "part of the name of a file"),
        ({"cells": {"a": {"labels": {"seed": 9}}}}, "names other than cell, seed"),
        ({"cells": {"a": {"function": "m.f", "grid": {"seed": [1]}}}}, "names other than cell, seed"),
        ({"seeds": []}, "`seeds`"),
        ({"seeds": [2**70]}, "64 bits"),
        ({"columns": True}, "a dict in .* at `columns`"),
        ({"tests": 3}, "a dict in .* at `tests`"),
        ({"tables": "nelbo"}, "a list in .* at `tables`"),
        ({"cells": {"a": {"grid": {"x": []}}}}, "`grid`"),
        ({"columns": {"nelbo": {"value": "v", "form": "q"}}}, "`form` of column 'nelbo'"),
        ({"columns": {"nelbo": {"value": ""}}}, "`value` of column 'nelbo'"),
        ({"columns": {"nelbo": {"value": "max("}}}, r"`value` of column 'nelbo' .* but got 'max\('"),
        ({"columns": {"nelbo": {"value": "median(v)"}}}, "such as max"),
        ({"columns": {"nelbo": {"value": "v", "show": "above"}}}, "`show`"),
        ({"columns": {"nelbo": {"value": "v", "show": "above x"}}}, "`show`"),
        ({"ranks": {"column": "nelbo", "trim": -1}}, "`ranks.trim`"),
        ({"ranks": {"column": "nelbo", "level": 2}}, "`ranks.level`"),
        ({"tables": [{"lines": "seed"}]}, "both `value` and `lines`"),
        ({"tables": [{"value": ["nelbo"]}]}, "both `value` and `lines`"),
        ({"figures": [{"panels": []}]}, "`panels`"),
        ({"figures": [{"panels": [PANEL | {"band": [0, 0.5, 1]}]}]}, "`band`"),
        ({"figures": [{"panels": [PANEL | {"band": [0.9, 0.1]}]}]}, "`band`"),
        ({"figures": [{"panels": [PANEL | {"limits": [1]}]}]}, "`limits`"),
        ({"figures": [{"panels": [PANEL | {"log": "y"}]}]}, "`log`"),
    ],
)
def test_what_would_fail_after_all_runs_is_refused_before(
    changes: dict[str, Any], words: str, write_study: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_study(write_study(**changes))


def test_checkpoints_come_from_one_run(write_study: Callable[..., Path]) -> None:
    cells = {"a": {"checkpoints": {"model.init_args.initial_weights": "b"}}, "b": {"grid": {RATE: [0.1]}}}
    with pytest.raises(ConfigurationError, match=r"`checkpoints` of cell 'a'.* to be among a, b/lr=0.1 but got 'b'"):
        load_study(write_study(cells=cells))


def test_a_schedule_has_its_published_values(grids: Path, write_study: Callable[..., Path]) -> None:
    for schedule, value in (("full", "1.5"), ("smoke", "2.5")):
        study = load_study(grids).scheduled(schedule)
        assert study.published_value(next(iter(study.cells)), "nelbo") == value
    with pytest.raises(ConfigurationError, match="Did you mean 'nelbo'"):
        load_study(write_study(cells={"a": {"schedules": {"smoke": {"published": {"nelb": 1}}}}}, schedules={"smoke": {}}))
    with pytest.raises(ConfigurationError, match="Did you mean 'nelbo'"):
        load_study(write_study(schedules={"smoke": {"published": {"nelb": "x"}}}))
    (Path(grids).parent / "table.csv").write_text("key,slow\nx,3.5\ny,4.5\n")
    columns = {"nelbo": {"value": "test/nelbo", "published": "x"}}
    cells = {"slow": {"grid": {RATE: [0.1]}}}
    schedules: dict[str, Any] = {"full": {}, "other": {"published": {"nelbo": "y"}}}
    study = load_study(write_study(published="table.csv", columns=columns, cells=cells, schedules=schedules))
    for schedule, value in ((None, "3.5"), ("full", "3.5"), ("other", "4.5")):
        assert study.scheduled(schedule).published_value("slow/lr=0.1", "nelbo") == value


@pytest.mark.parametrize(("value", "x"), [("inf", "1"), ("1", "inf"), ("nan", "1")])
def test_infinite_values_are_drawn_on_logarithmic_axes(
    value: str, x: str, write_study: Callable[..., Path], runner: Callable[..., Runner]
) -> None:
    panel = {"value": "test/nelbo", "x": "test/examples", "log": "both"}
    study = runner(write_study(figures=[{"alt": "Values.", "panels": [panel]}])).study
    rows = [{"cell": "slow", "seed": "0", "test/nelbo": value, "test/examples": x}]
    assert svg_of(study, study.figures[0], rows, [])


def test_the_best_points_are_shown(grids: Path, runner: Callable[..., Runner]) -> None:
    study = runner(grids, schedule="full").study
    values = {"slow/lr=0.1": 4, "slow/lr=0.2": 3, "long/max_epochs=7,lr=0.1": 1, "long/max_epochs=8,lr=0.2": 2}
    rows = [{"cell": cell, "seed": "0", "test/nelbo": str(value)} for cell, value in values.items()]
    assert page(study, rows)[2:] == [
        "| | lr | max_epochs | seeds | nelbo | nelbo, published |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| small step | 0.2 | | 1 | 3.00 | 1.5 |",
        "| long | 0.1 | 7 | 1 | **1.00** | - |",
    ]
    curves = [{"cell": cell, "seed": "0", "epoch": str(epoch), "val/nelbo": "1"} for cell in values for epoch in (1, 2)]
    best = [row for row in curves if row["cell"] in ("slow/lr=0.2", "long/max_epochs=7,lr=0.1")]
    (figure,) = study.figures
    for row in curves:
        row["val/nelbo"] = str(values[row["cell"]])
    assert svg_of(study, figure, rows, curves) == svg_of(study, figure, rows, best)
    assert svg_of(study, figure, rows, curves) != svg_of(study, figure, rows, curves[:2])
    unknown = [{"cell": "slow/lr=0.1", "seed": "0", "test/nelbo": ""}]
    assert page(study, unknown)[4] == "| small step | 0.1 | 1 |", "a point without the number is shown if it is alone"


def test_files_of_a_schedule_without_a_name_have_no_suffix(
    write_study: Callable[..., Path], runner: Callable[..., Runner]
) -> None:
    path = write_study(schedules={"": {}, "smoke": {}})
    names = {schedule: runner(path, schedule=schedule).name for schedule in (None, "", "smoke")}
    assert names == {None: "toy", "": "toy", "smoke": "toy_smoke"}


def test_the_name_of_a_cell_stands_for_all_points(
    grids: Path, runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = runner(grids, schedule="full")
    ran: list[str] = []
    study.run_cell = lambda run, *_, **__: ran.append(run.name)  # type: ignore[method-assign]
    monkeypatch.setattr(RunOf, "usable", True)
    study.run(cells=["slow", "long/max_epochs=8,lr=0.1"])
    assert [name for name in ran if name != "warm"] == ["slow/lr=0.1", "slow/lr=0.2", "long/max_epochs=8,lr=0.1"]
    with pytest.raises(ConfigurationError, match="Did you mean 'slow'"):
        study.run(cells=["slw"])
