"""Every study of the package runs, cut to a smoke run of some seconds, on small stand-ins for its data."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lit_sparse.studies.command import write
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.plan.study import CellChange, Study, written
from tests.support.stand_ins import stand_in
from tests.support.studies import STUDIES, packaged, schedules_of

SMOKE_RUNS = [(path, name) for path in STUDIES for name in schedules_of(path) if name.endswith("smoke")]


@pytest.fixture
def inputs(images: Path, features: Path, texts: Path) -> dict[str, str]:
    """Name -> path of all inputs of the studies."""
    files = {"labels": images / "train-labels-idx1-ubyte", "california": images / "houses.csv", "features": features}
    files["regions"] = images / "regions.csv"
    files |= {name: images / f"{name}.npy" for name in ("labelled", "validation")}
    folders = {"mnist": images, "fashion_mnist": images, "regression": images, "snli": texts, "gigaword": texts}
    others = {"vectors": texts / "vectors.txt", "corpus": texts / "pairs", "minilm": texts / "encoder", "activations": "."}
    return {name: str(path) for name, path in {**files, **folders, **others}.items()}


def with_stand_ins(study: Study, schedule: str, *folders: Path) -> Study:
    """Return a study whose configs take small data."""
    cells = {}
    for name, cell in study.cells.items():
        change, its = study.change_of(name, schedule), cell.schedules.get(schedule, CellChange())
        paths = tuple(Path(path).resolve() for path in (change.config, *change.overlays) if path)
        given = stand_in(paths, *folders) if paths else []
        options = dict(option.removeprefix("--").split("=", 1) for option in given)
        cells[name] = replace(cell, schedules={**cell.schedules, schedule: replace(its, options=its.options | options)})
    return replace(study, cells=cells)


def test_every_study_has_a_smoke_run() -> None:
    assert {path for path, _ in SMOKE_RUNS} == set(STUDIES)


@pytest.mark.gate
def test_folders_of_images_are_read() -> None:
    """The smoke runs take other data, so that they do not show that a config has another source."""
    checked = 0
    for path in STUDIES:
        study = packaged(path)
        for cell, schedule in itertools.product(study.cells, study.schedules):
            change = study.change_of(cell, schedule)
            if change.config is None or "data.init_args.folder" not in change.options:
                continue
            config = yaml.safe_load(Path(change.config).read_text())
            source = config["data"]["init_args"].get("source", "folder")
            assert change.options.get("data.init_args.source", source) == "folder", (path.stem, cell, schedule)
            checked += 1
    assert checked > 30


@pytest.mark.filterwarnings("ignore:.*does not reach its end", "ignore:TemperatureAnnealing")  # the runs are too short
@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("path", "schedule"),
    [pytest.param(*run, marks=pytest.mark.slow if run[1] == "search_smoke" else pytest.mark.gate) for run in SMOKE_RUNS],
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_smoke_run_of_a_study(
    path: Path,
    schedule: str,
    inputs: dict[str, str],
    images: Path,
    features: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first cell of a study of configs, or all cells of a study of functions, with the first seed."""
    monkeypatch.chdir(tmp_path)
    study = with_stand_ins(packaged(path), schedule, images, features, texts)
    quiet = ["--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1"]
    extra = quiet if all(cell.function is None for cell in study.cells.values()) else []  # functions take no options
    runner = Runner(study, schedule, inputs={name: inputs[name] for name in study.inputs}, extra=extra)
    visible = [name for name, cell in study.cells.items() if not cell.hidden]
    cells = visible if all(cell.function for cell in study.cells.values()) else visible[:1]
    assert runner.run(cells, (study.change_of(cells[0], schedule).seeds or [])[:1]) == []
    rows = runner.rows.read()
    assert {written(row["cell"]) for row in rows} == set(cells)
    empty = [column.value for column in study.columns.values() if not all(row.get(column.value) for row in rows)]
    assert empty == (["test/bleu_moses"] if path.stem == "translation" else []), (
        "the network of the smoke run is not the published one"
    )
    suffixes = {file.suffix for file in write(runner)}
    assert suffixes == ({".csv", ".md", ".png"} if study.figures else {".csv", ".md"})
