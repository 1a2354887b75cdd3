"""Tables and figures of studies from their rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Canvas

from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.pages.figures import canvas_of, series
from lit_sparse.studies.pages.tables import cell_text, condensed, markdown, page
from lit_sparse.studies.plan.load import load_study
from lit_sparse.studies.plan.presentation import Column, Panel
from lit_sparse.studies.plan.study import digest
from tests.conftest import CONFIGS, ROOT
from tests.support.studies import STUDIES, packaged, schedules_of


def test_diverged_seeds_are_shown_and_are_not_the_best(write_study: Callable[..., Path]) -> None:
    nan, inf = float("nan"), float("inf")
    assert cell_text([1.0, inf], Column("v")) == "inf"
    assert cell_text([0.5, nan, 0.6], Column("v", show="max", best="max")) == "0.60"
    columns = {"v": {"value": "v", "best": "max"}}
    study = load_study(write_study(columns=columns, cells={name: {} for name in "abc"}, figures=[]))
    numbers = {"a": ("90", "90", "0"), "b": ("89", "89", "89"), "c": ("nan",)}
    rows = [{"cell": cell, "seed": str(i), "v": v} for cell, values in numbers.items() for i, v in enumerate(values)]
    assert page(study, rows)[4:] == [
        "| a | 3 | 60 ± 52 |",
        "| b | 3 | **89.00 ± 0.00** |",
        "| c | 1 | nan |",
        "",
        "± is the standard deviation over the seeds.",
    ]
    points = [{"cell": "a", "seed": str(i), "epoch": "1", "v": str(v)} for i, v in enumerate((1, 2, 3, 4, inf))]
    assert series(points, Panel("v", band=[0.25, 0.75]))[1.0] == (3.0, 2.0, 4.0)
    assert series([*points[:2], {**points[2], "v": "nan"}], Panel("v"))[1.0] == (2.0, 1.0, inf)


@pytest.mark.parametrize(
    ("show", "text"),
    [
        ("mean", "2.0 ± 1.0"),
        ("median", "2.00"),
        ("min", "1.00"),
        ("max", "3.00"),
        ("range", "2.00 (1.00 to 3.00)"),
        ("above 1.5", "2"),
    ],
)
def test_the_seeds_are_summarized(show: str, text: str) -> None:
    assert cell_text([1.0, 3.0, 2.0], Column("v", show=show)) == text
    assert cell_text([], Column("v", show=show)) == "-"


@pytest.mark.parametrize(
    ("values", "form", "show", "text"),
    [
        ([27.3, 27.4], ".4g", "mean", "27.350 ± 0.071"),
        ([27.3, 27.32, 27.38], ".4g", "range", "27.32 (27.30 to 27.38)"),
        ([0.9, 0.91], ".1f", "mean", "0.9 ± 0.0"),
        ([1.0, 1.2], ".3f", "mean", "1.10 ± 0.14"),
        ([1.0, 1.1399], ".4f", "mean", "1.070 ± 0.099"),
        ([1234.0, 5678.0], ".2f", "mean", "3500 ± 3100"),
        ([2.0, 2.0], "g", "mean", "2 ± 0"),
        ([1e-9, 2e-9], ".1e", "mean", "1.5e-09 ± 7.1e-10"),
    ],
)
def test_a_deviation_has_two_digits_and_the_decimals_of_its_mean(values: list[float], form: str, show: str, text: str) -> None:
    assert cell_text(values, Column("v", form=form, show=show)) == text


def test_numbers_that_are_not_finite_are_the_largest() -> None:
    assert cell_text([1.0, float("nan"), float("inf")], Column("v", show="max")) == "inf"
    assert cell_text([1.0, float("nan"), 2.0], Column("v", show="median")) == "2.00"


@pytest.mark.parametrize("table", [{"where": {"lr": [1]}}, {"keys": ["lr"]}, {"value": ["nelbo"], "lines": "lr"}])
def test_a_table_over_what_no_row_has_is_refused(write_study: Callable[..., Path], table: dict[str, object]) -> None:
    study = load_study(write_study(tables=[table]))
    with pytest.raises(ConfigurationError, match=r"keys of the rows in a table .* but got 'lr'"):
        page(study, [{"cell": "slow", "seed": "0", "test/nelbo": "3.0"}])


def test_a_line_for_each_cell(write_study: Callable[..., Path]) -> None:
    study = load_study(write_study(notes=["A note."], source="somewhere"))
    rows = [{"cell": name, "seed": seed, "test/nelbo": value} for name, seed, value in
            (("slow", "0", "3.0"), ("slow", "1", "5.0"), ("fast", "0", "2.5"))]  # fmt: skip
    assert page(study, rows) == [
        "# Toy",
        "",
        "| | seeds | nelbo | nelbo, published |",  # no row has calls
        "| --- | ---: | ---: | ---: |",
        "| small step | 2 | 4.0 ± 1.4 | 1.5 |",
        "| fast | 1 | **2.50** | - |",
        "",
        "± is the standard deviation over the seeds.",
        "",
        "A note.",
        "",
        "Published values: somewhere.",
    ]


def test_a_value_over_two_keys(function_study: Path) -> None:
    study = load_study(function_study)
    rows = [{"cell": cell, "seed": "0", "x": x, "y": y} for cell, x, y in
            (("square", "10", "100"), ("square", "2", "4"), ("more", "2", "14"))]  # fmt: skip
    assert page(study, rows)[4:] == [
        "| x | square | more |",
        "| ---: | ---: | ---: |",
        "| 2 | 4 | 14 |",
        "| 10 | 100 | - |",
    ]


def test_cells_and_points_with_fewer_seeds_say_so(function_study: Path) -> None:
    values = [("square", "0", "2", "4"), ("square", "1", "2", "6"), ("square", "1", "10", "100"), ("more", "0", "2", "14")]
    rows = [dict(zip(("cell", "seed", "x", "y"), value, strict=True)) for value in values]
    assert page(load_study(function_study), rows)[4:] == [
        "| x | square | more (1 seed) |",
        "| ---: | ---: | ---: |",
        "| 2 | 5 | 14 |",
        "| 10 (1 seed) | 100 | - |",
    ]


def test_a_cell_over_other_numbers_of_values_than_seeds_says_so(write_study: Callable[..., Path]) -> None:
    study = load_study(write_study(columns={"v": {"value": "v"}}, cells={"a": {}, "b": {"grid": {"x": [1, 2]}}}, figures=[]))
    values = [("a", "0", "1", "1"), ("a", "1", "1", ""), ("b", "0", "1", "1"), ("b", "0", "2", "3")]
    rows = [dict(zip(("cell", "seed", "x", "v"), value, strict=True)) for value in values]
    assert page(study, rows)[4:6] == ["| a | 2 | 1.00 (over 1 value) |", "| b | 1 | 2.0 ± 1.4 (over 2 values) |"]


def test_the_point_of_least_value_is_not_asked_of_a_column_whose_largest_is_best(write_study: Callable[..., Path]) -> None:
    columns = {"v": {"value": "v", "best": "max"}}
    with pytest.raises(ConfigurationError, match=r"`least`, a column without `best: max`, .* to be among none but got 'v'"):
        load_study(write_study(columns=columns, cells={"a": {}}, tables=[{"least": "v"}], figures=[]))


def test_the_point_of_least_median_is_shown(write_study: Callable[..., Path], function_study: Path) -> None:
    text = function_study.read_text()
    path = write_study("best", **{**_keys(text), "tables": [{"least": "y", "keys": ["x"]}]})
    rows = [{"cell": "square", "seed": seed, "x": x, "y": y} for seed, x, y in
            (("0", "2", "9"), ("1", "2", "1"), ("0", "3", "4"), ("1", "3", "5"))]  # fmt: skip
    assert page(load_study(path), rows)[-1] == "| square | 3 | 2 | 4.5 |"


@pytest.mark.parametrize("diverged", [("nan", "nan", "nan"), ("nan", "1", "2"), ("1", "nan", "nan")])
def test_points_that_diverged_are_the_largest(
    diverged: tuple[str, ...], write_study: Callable[..., Path], function_study: Path
) -> None:
    path = write_study("best", **{**_keys(function_study.read_text()), "tables": [{"least": "y", "keys": ["x"]}]})
    rows = [{"cell": "square", "seed": f"{seed}", "x": x, "y": y} for x, values in
            (("2", diverged), ("3", ("1.5", "1.6", "1.7"))) for seed, y in enumerate(values)]  # fmt: skip
    assert "| square | 3 | 3 | 1.6 |" in page(load_study(path), rows)


def test_the_line_with_the_most_seeds_above_is_bold(write_study: Callable[..., Path]) -> None:
    columns = {"y": {"value": "test/y", "show": "above 0.5", "best": "max"}}
    study = load_study(write_study(columns=columns, figures=[], cells={"a": {}, "b": {}}))
    scores = {"a": (0.4, 0.4, 0.4, 0.9, 0.9), "b": (0.3, 0.45, 0.45, 0.45, 0.6)}  # the median of b is larger
    rows = [{"cell": name, "seed": f"{i}", "test/y": f"{y}"} for name, some in scores.items() for i, y in enumerate(some)]
    assert page(study, rows)[-2:] == ["| a | 5 | **2** |", "| b | 5 | 1 |"]


def _keys(text: str) -> dict[str, object]:
    import yaml

    found: dict[str, object] = yaml.safe_load(text)
    return found


def test_cells_are_compared_with_the_best(write_study: Callable[..., Path]) -> None:
    columns = {"bleu": {"value": "test/bleu"}}
    compare = {"column": "bleu", "samples": "paired/bleu"}
    study = load_study(write_study(compare=compare, columns=columns, figures=[], cells={"slow": {}, "fast": {}}))
    rows, samples = [], []
    for name, score in (("slow", 30), ("fast", 31)):
        values = [score, *([score - 1, score + 1] * 50)]
        rows.append({"cell": name, "seed": "0", "test/bleu": str(score)})
        samples.append({"cell": name, "seed": "0", "name": "paired/bleu", "values": " ".join(map(str, values))})
    lines = page(study, rows, samples)
    assert "| slow | -1.00 | -1.00 to -1.00 | 0.010 |" in lines
    assert "| fast | best | - | - |" in lines
    broken = [row | {"test/bleu": "nan"} if row["cell"] == "slow" else row for row in rows]
    nothing = [row | {"values": row["values"].replace("30", "nan", 1)} if row["cell"] == "slow" else row for row in samples]
    assert "| fast | best | - | - |" in page(study, broken, nothing), "without a direction, too, a broken one is not"
    study.columns["bleu"] = replace(study.columns["bleu"], best="min")
    assert "| slow | best | - | - |" in page(study, rows, samples)


def test_cells_of_other_machines_are_not_compared(write_study: Callable[..., Path]) -> None:
    columns = {"bleu": {"value": "test/bleu", "best": "max"}}
    keys = {"compare": {"column": "bleu", "samples": "s"}, "columns": columns, "cells": {name: {} for name in "abc"}}
    versions = {"a": "lit-sparse=1 torch=2.13.0", "b": "lit-sparse=2 torch=2.13.0", "c": "lit-sparse=1 torch=2.11.0"}
    study, scores = load_study(write_study(figures=[], **keys)), {"a": 30.0, "b": 31.0, "c": 32.0}
    rows = [{"cell": name, "seed": "0", "test/bleu": f"{scores[name]}", "versions": versions[name]} for name in "abc"]
    samples = [
        {"cell": name, "seed": "0", "name": "s", "values": f"{scores[name]} " + " ".join([f"{29 + i % 2}" for i in range(40)])}
        for name in "abc"
    ]
    lines = page(study, rows, samples)
    assert "| b | best | - | - |" in lines
    assert not any("**" in line for line in lines)
    assert not [line for line in lines if line.startswith("| c | -")]
    assert any("another machine or version of torch: c." in line for line in lines)
    assert any("**31.00**" in line for line in page(study, rows[:2], samples[:2]))


def test_bands_and_costs_of_curves() -> None:
    rows = [
        {"cell": "a", "seed": seed, "epoch": str(epoch), "v": str(epoch + int(seed)), "c": "2"}
        for seed in "012"
        for epoch in (1, 2)
    ]
    assert series(rows, Panel("v")) == {1.0: (2.0, 1.0, 3.0), 2.0: (3.0, 2.0, 4.0)}
    assert series(rows, Panel("v", band=[0.5, 0.75])) == {1.0: (2.0, 2.0, 2.5), 2.0: (3.0, 3.0, 3.5)}
    assert list(series(rows[:2], Panel("v", x="cumulative c"))) == [2.0, 4.0]
    assert series(rows[:2], Panel("v", factor=-100, offset=100, band=["c", "c"]))[1.0] == (0.0, -100.0, -100.0)


def test_measured_numbers_may_be_the_axis(write_study: Callable[..., Path]) -> None:
    cells = {name: {"labels": {"kind": kind}} for name, kind in (("a", "one"), ("b", "one"), ("c", "two"))}
    figure = {"lines": "kind", "panels": [{"value": "y", "x": "size"}]}
    study = load_study(write_study(cells=cells, figures=[figure]))
    sizes = {"a": (1, 2, 6), "b": (7, 9, 8), "c": (3, 3, 3)}
    rows = [
        {"cell": cell, "seed": str(seed), "size": str(size), "y": str(seed)}
        for cell, several in sizes.items()
        for seed, size in enumerate(several)
    ]
    canvas = canvas_of(study, study.figures[0], rows, [])
    assert canvas is not None
    assert [list(line.get_xdata()) for line in canvas.axes[0].lines] == [[2.0, 8.0], [3.0]]
    assert [list(line.get_ydata()) for line in canvas.axes[0].lines] == [[1.0, 1.0], [1.0]]


def test_each_point_of_a_grid_has_a_measured_number_of_its_own(write_study: Callable[..., Path]) -> None:
    cells = {"a": {"function": "some.function", "grid": {"kind": ["one", "two"], "k": [1, 2]}}}
    study = load_study(write_study(cells=cells, figures=[{"lines": "kind", "panels": [{"value": "y", "x": "size"}]}]))
    sizes = {("one", "1"): (1, 3), ("one", "2"): (5, 7), ("two", "1"): (4, 4), ("two", "2"): (9, 11)}
    rows = [
        {"cell": "a", "seed": str(seed), "kind": kind, "k": k, "size": str(size), "y": k}
        for (kind, k), several in sizes.items()
        for seed, size in enumerate(several)
    ]
    canvas = canvas_of(study, study.figures[0], rows, [])
    assert canvas is not None
    assert [list(line.get_xdata()) for line in canvas.axes[0].lines] == [[2.0, 6.0], [4.0, 10.0]]


@pytest.mark.parametrize(
    ("log", "scales"),
    [(False, ("linear", "linear")), (True, ("linear", "log")), ("x", ("log", "linear")), ("both", ("log", "log"))],
)
def test_the_axes_of_a_panel_are_logarithmic_as_asked(
    log: bool | str, scales: tuple[str, str], write_study: Callable[..., Path]
) -> None:
    study = load_study(write_study(cells={"a": {}}, figures=[{"panels": [{"value": "y", "x": "size", "log": log}]}]))
    canvas = canvas_of(study, study.figures[0], [{"cell": "a", "seed": "0", "size": "1", "y": "2"}], [])
    assert canvas is not None
    assert (canvas.axes[0].get_xscale(), canvas.axes[0].get_yscale()) == scales


def test_panels_without_values_are_left_out(write_study: Callable[..., Path]) -> None:
    figure = {"lines": "title", "panels": [{"value": "y", "x": "size"}, {"value": "z", "x": "size", "label": "z"}]}
    study = load_study(write_study(cells={"a": {}}, figures=[figure]))
    row = {"cell": "a", "seed": "0", "size": "1"}
    canvas = canvas_of(study, study.figures[0], [row | {"z": "2"}], [])
    assert canvas is not None
    assert [axis.get_ylabel() for axis in canvas.axes] == ["z"]
    assert canvas_of(study, study.figures[0], [row], []) is None


def test_parts_of_a_figure_have_their_own_rows_and_stand_side_by_side(write_study: Callable[..., Path]) -> None:
    panels = [{"value": "y", "x": "size"}, {"value": "z", "x": "size"}]
    study = load_study(write_study(cells={"a": {}}, figures=[{"by": "problem", "lines": "title", "panels": panels}]))
    rows = [{"cell": "a", "seed": "0", "size": "1", "problem": name, "y": value} for name, value in (("p", "3"), ("q", "5"))]
    canvas = canvas_of(study, study.figures[0], rows, [])
    assert canvas is not None
    assert [[list(line.get_ydata()) for line in axis.lines] for axis in canvas.axes] == [[[3.0]], [[5.0]]]
    assert [axis.get_subplotspec().rowspan.start for axis in canvas.axes] == [0, 0]


@pytest.mark.cases(quick=6, gate=13)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_of_the_package_names_files_that_exist(path: Path) -> None:
    written = packaged(path)
    for schedule in written.schedules:
        study = written.scheduled(schedule)
        for name in study.cells:
            study.settings(name, [])  # reads all configs
            assert study.cells[name].seeds
    assert all(figure.alt for figure in written.figures), "every figure has a text"
    shown = [column.value for column in written.columns.values()]
    assert not any("seconds" in value and not value.startswith("count") for value in shown), (
        "runs may share a machine: only benchmarks show times"
    )


@pytest.mark.parametrize(
    ("study", "folder"),
    [
        ("ssvae", "ssvae/estimator"),
        ("game", "signaling_game/estimator"),
        ("bitvector", "bitvector_vae/estimator"),
        ("soae", "soae/variants"),
    ],
)
def test_every_overlay_of_a_table_is_in_its_study(study: str, folder: str) -> None:
    cells = packaged(CONFIGS / "studies" / f"{study}.yaml").cells.values()
    named = {path for cell in cells for change in (cell, *cell.schedules.values()) for path in change.overlays}
    used = {Path(path).stem for path in named if Path(path).parent.name == Path(folder).name}
    assert used == {path.stem for path in (CONFIGS / folder).glob("*.yaml")}


RESULTS = ROOT / "results"
PNG = b"\x89PNG\r\n\x1a\n"


def _stored() -> dict[str, tuple[Path, str]]:
    """Return name -> study and schedule of those that have rows in the repository."""
    pairs = [(path, schedule) for path in STUDIES for schedule in schedules_of(path)]
    named = {"_".join(word for word in (path.stem, schedule) if word): (path, schedule) for path, schedule in pairs}
    return {name: pair for name, pair in named.items() if (RESULTS / f"{name}.csv").is_file()}


@pytest.mark.cases(quick=6, gate=99)
@pytest.mark.parametrize("name", _stored())
def test_committed_tables_are_those_of_their_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures, which take most of the time, are drawn for one study, and compared by their names for others."""
    if name != "logsumexp_mnist_full":
        monkeypatch.setattr(Canvas, "savefig", lambda canvas, file, **options: file.write(PNG))
    study, schedule = _stored()[name]
    runner = Runner(packaged(study), schedule)
    assert runner.name == name
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        made_with = {(row["cell"], row["settings"]) for row in csv.DictReader(file)}
    for cell, settings in made_with:
        now = json.loads(json.dumps(runner.study.settings(cell, []), default=str))
        assert settings in ("", digest(now)), "the study file or a config changed since the row was made"
    for path in RESULTS.glob(f"{name}*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    words = ["--schedule", schedule] if schedule else []
    assert main(["study", str(study), *words, "--tables", "--results", str(tmp_path)]) == 0
    assert (tmp_path / f"{name}.md").read_text() == (RESULTS / f"{name}.md").read_text()
    for picture in tmp_path.glob("*.png"):
        assert picture.read_bytes()[:8] == PNG
        assert (RESULTS / picture.name).is_file()


@pytest.mark.parametrize("texts", [("1 2 3", "1 2"), ("", ""), ("1", "1")])
def test_resampled_scores_that_cannot_be_compared_are_refused(texts: tuple[str, str], write_study: Callable[..., Path]) -> None:
    study = load_study(write_study(compare={"column": "nelbo", "samples": "s"}))
    rows = [{"cell": cell, "seed": "0", "test/nelbo": "1"} for cell in study.cells]
    samples = [{"cell": cell, "seed": "0", "name": "s", "values": text} for cell, text in zip(study.cells, texts, strict=True)]
    with pytest.raises(ConfigurationError, match="equally many resampled scores 's' of all cells, two at least, but got"):
        page(study, rows, samples)


def test_names_do_not_end_a_cell() -> None:
    assert markdown([["a", "b | c\nd"]]) == ["| a | b \\| c d |", "| --- | ---: |"]


def test_columns_are_aligned_in_a_terminal() -> None:
    lines = markdown([["trial", "lr"], ["1", "**0.001**"]], aligned=True)
    assert lines == ["| trial |        lr |", "| ----- | --------: |", "| 1     | **0.001** |"]
    assert markdown([["", "a"]], aligned=True) == ["|     |    a |", "| --- | ---: |"]


def test_names_are_no_other_column_and_nothing_is_said_of_missing_values() -> None:
    table = [["", "mapping", "nelbo", "lr"], ["a", "a", "9", "-"], ["b", "b", "8", "-"]]
    assert condensed(table) == ([line[:3] for line in table], [])
