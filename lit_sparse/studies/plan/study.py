"""Studies: grids of runs as data. A study file names configs, options, seeds, columns, figures and published values."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.stored import read_table, read_yaml
from lit_sparse.runs.config_files import find_config
from lit_sparse.runs.folders import differences
from lit_sparse.studies.plan.presentation import Column, Compare, Figure, Panel, Ranks, Scalar, Table

__all__ = ["PROVENANCE", "RESERVED", "Cell", "CellChange", "Change", "Study", "changes", "digest", "written"]

#: Columns with the origin of a row: hash of its settings, commit, duration in seconds, machine, versions.
PROVENANCE = ("settings", "commit", "seconds", "machine", "versions")
#: Columns of all rows, whose names no label can have.
RESERVED = ("cell", "seed", *PROVENANCE)


@dataclass(frozen=True)
class Change:
    """Config of a study's runs, and changes of it: overlays, options, arguments and grids.

    Attributes:
        config: path of a config, relative to the study file, or name of a config of the package.
        overlays: paths or names of configs that are applied after it.
        options: command-line option -> value, such as ``trainer.max_epochs: 2``.
        arguments: arguments of the cell's function.
        grid: option, or argument of a function -> values; a cell is run at each combination of values.
        seeds: seeds to use in place of the study's.
    """

    config: str | None = None
    overlays: list[str] = field(default_factory=list)
    options: dict[str, Scalar] = field(default_factory=dict)
    arguments: dict[str, Scalar | list[Scalar]] = field(default_factory=dict)
    grid: dict[str, list[Scalar]] = field(default_factory=dict)
    seeds: list[int] | None = None


@dataclass(frozen=True)
class Schedule(Change):
    """Variant of a study that changes all its runs, such as a shorter training.

    Attributes:
        published: column -> key of the published values to use in place of the column's own.
        cells: names of the cells to run by default; all if not given.
    """

    published: dict[str, str] = field(default_factory=dict)
    cells: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CellChange(Change):
    """Config and changes of a cell, and the published values for them.

    Attributes:
        published: column -> published value.
    """

    published: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell(CellChange):
    """Cell of a study, one line of its table: a config with changes, or a function, run with each seed.

    Attributes:
        title: text in tables and figures; by default the cell's name.
        function: path of a function ``f(seed, **arguments)`` that returns a dict of numbers or a list of such dicts, used
            in place of a config.
        checkpoints: option -> name of the cell whose last checkpoint with the same seed becomes the option's value.
        schedules: name of a schedule -> changes of this cell.
        hidden: whether the cell is only trained, to give other cells its checkpoints.
        labels: column -> text or number; further columns of tables, which are also keys of the rows.
    """

    title: str = ""
    function: str | None = None
    checkpoints: dict[str, str] = field(default_factory=dict)
    schedules: dict[str, CellChange] = field(default_factory=dict)
    hidden: bool = False
    labels: dict[str, Scalar] = field(default_factory=dict)

    @property
    def points(self) -> list[dict[str, Scalar]]:
        """All combinations of the values of the cell's grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


@dataclass(frozen=True)
class Study(Change):
    """A study: a grid of runs as data, with its configs, options, seeds, columns, figures and published values.

    Changes are applied in this order: the study's, the cell's, the schedule's, and the cell's for the schedule.

    Attributes:
        title: heading of its tables.
        cells: name -> cell.
        source: source of the published values.
        program: command of a LightningCLI that is run in place of ``lit-sparse``, such as ``[python, -m, torchgeo]``; files
            are relative to the study file.
        metric_files: pattern of the ``metrics.csv`` files in a program's folder.
        checkpoint_files: pattern of the checkpoints in a program's folder, from whose newest file an interrupted training
            is resumed; None to start again.
        seed_options: options that are set to the seed; for a program, by default ``seed_everything`` alone.
        schedules: schedule -> changes of all runs; the first one is the default. Files for the schedule "" have no suffix.
        inputs: name -> description of a path that ``--input NAME=PATH`` gives; options refer to it as ``{NAME}``.
        published: path of a CSV file of published values, relative to the study file: a column ``key`` and one for each
            cell.
        tests: name -> options of ``lit-sparse test``; the numbers of a test with another name than ``test`` get that name
            as a prefix. A column or table with ``{test}`` in it is repeated for each test.
        scores: name -> path of a function ``f(checkpoint)`` that returns a dict of numbers, which get the name as a prefix.
        checkpoint: which checkpoint is tested, ``best`` or ``last``; for a program ``last``, or a pattern.
        columns: name -> column.
        tables: tables; by default one with a line for each cell.
        figures: figures.
        series: further keys of rows, where a function returns several rows, such as ``iterations``.
        ranks: comparison of the cells by ranks.
        compare: comparison with the best cell by a paired bootstrap.
        notes: sentences below the tables.
    """

    title: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    source: str = ""
    program: list[str] = field(default_factory=list)
    metric_files: str = "**/metrics.csv"
    checkpoint_files: str | None = "**/*.ckpt"
    seed_options: list[str] = field(default_factory=lambda: ["seed_everything", "data.init_args.seed"])
    schedules: dict[str, Schedule] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    published: str | None = None
    tests: dict[str, dict[str, Scalar]] = field(default_factory=lambda: {"test": {}})
    scores: dict[str, str] = field(default_factory=dict)
    checkpoint: str = "last"
    columns: dict[str, Column] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=lambda: [Table()])
    figures: list[Figure] = field(default_factory=list)
    series: list[str] = field(default_factory=list)
    ranks: Ranks | None = None
    compare: Compare | None = None
    notes: list[str] = field(default_factory=list)
    path: Path = Path()

    def file(self, path: str) -> str:
        """Return the path of a file relative to the study file, or of a config of the package.

        Raises:
            ConfigurationError: if there is no such file.
        """
        try:
            return str(find_config(path, folder=self.path.parent, kind="studies").absolute())
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path} names {path!r}, but there is no such file or config.") from error

    @property
    def command(self) -> list[str]:
        """Words of the program's command, with paths resolved relative to the study file.

        Links are not followed, since a virtual environment begins at one.
        """
        folder = self.path.parent
        words = [str((folder / word).absolute()) if (folder / word).is_file() else word for word in self.program]
        return [sys.executable if words[0] == "python" else words[0], *words[1:]]

    def change_of(self, name: str, schedule: str | None) -> Change:
        """Return all changes of a cell: the study's, the cell's, the schedule's, and the cell's for this schedule."""
        cell, key = self.cells[name], schedule or ""
        found = [self, cell, self.schedules.get(key, Change()), cell.schedules.get(key, Change())]
        return Change(
            config=next((self.file(change.config) for change in reversed(found) if change.config), None),
            overlays=[self.file(path) for change in found for path in change.overlays],
            options={key: value for change in found for key, value in change.options.items()},
            arguments={key: value for change in found for key, value in change.arguments.items()},
            grid={key: values for change in found for key, values in change.grid.items()},
            seeds=next((change.seeds for change in reversed(found) if change.seeds is not None), [0]),
        )

    def scheduled(self, schedule: str | None) -> Study:
        """Return the study with the published values of a schedule, whose cells have all changes, one for each point of a grid.

        A cell with a config becomes one cell per point of its grid, with the point's values as labels. Hidden cells have no
        grid.
        """
        cells: dict[str, Cell] = {}
        for name, cell in self.cells.items():
            changes = vars(self.change_of(name, schedule)) | ({"grid": {}} if cell.hidden else {})
            published = cell.published | cell.schedules.get(schedule or "", CellChange()).published
            cell = replace(cell, **changes, published=published, schedules={})
            if cell.function is not None or not cell.grid:
                cells[name] = cell
                continue
            for point in cell.points:
                labels = _short(point)
                cells[f"{name}/{','.join(f'{key}={value}' for key, value in labels.items())}"] = replace(
                    cell, title=cell.title or name, grid={}, options=cell.options | point, labels=cell.labels | labels
                )
        keys = self.schedules.get(schedule or "", Schedule()).published
        columns = {name: replace(self.columns[name], published=key) for name, key in keys.items()}
        return replace(self, cells=cells, columns=self.columns | columns)

    def published_value(self, cell: str, column: str) -> str | None:
        """Return the published value of a cell in a column, or None if there is none."""
        if column in self.cells[cell].published:
            return str(self.cells[cell].published[column])
        key = self.columns[column].published
        if self.published is None or key is None:
            return None
        lines = read_table(Path(self.file(self.published)), needed=["key"])
        return next((line.get(written(cell)) or None for line in lines if line["key"] == key), None)

    @property
    def row_keys(self) -> list[str]:
        """Columns that identify a row: cell, seed, arguments in grids, and the keys of series."""
        return ["cell", "seed", *dict.fromkeys(key for cell in self.cells.values() for key in cell.grid), *self.series]

    def stores(self, key: str) -> bool:
        """Return whether a column of the rows is a key rather than a measured number."""
        return key in self.row_keys or any(key in cell.labels for cell in self.cells.values())

    def over_training(self, panel: Panel) -> bool:
        """Return whether a panel draws logged values over training, which are stored separately from the rows."""
        return not self.stores(panel.x) and (panel.x in ("epoch", "step") or bool(panel.cumulative))

    @property
    def numbers(self) -> set[str]:
        """Names of the columns of rows and curves that hold numbers."""
        panels = [panel for figure in self.figures for panel in figure.panels]
        drawn = {key for panel in panels for key in (panel.value, panel.cumulative or panel.x, *panel.band_keys)}
        return {"seconds", "epoch", "step"} | drawn | {column.value for column in self.columns.values()}

    def title_of(self, name: str) -> str:
        """Return the title of a cell in tables and figures."""
        return self.cells[name].title or name

    def settings(self, name: str, extra: list[str]) -> dict[str, Any]:
        """Return all settings that determine the numbers of a cell of a scheduled study besides the seed."""
        cell = self.cells[name]
        if cell.function is not None:
            return {"function": cell.function, "arguments": cell.arguments}
        files = [Path(path) for path in (cell.config, *cell.overlays) if path is not None]
        settings = {
            "configs": {f"{place}. {path.name}": read_yaml(path) for place, path in enumerate(files, 1)},
            "options": cell.options,
            "checkpoints": {option: self.settings(other, extra) for option, other in cell.checkpoints.items()},
            "seed_options": self.seed_options,
            "extra": extra,
        }
        if self.program:
            settings["program"] = self.program
        if not cell.hidden:
            settings |= {"tests": self.tests, "scores": self.scores, "checkpoint": self.checkpoint}
        return settings


def written(name: str) -> str:
    """Return the name that a cell has in the study file, given the name of a point of its grid."""
    return name.partition("/")[0]


def _short(point: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the values of a point by the last parts of their options, or by the whole options where these are taken."""
    last = [key.rpartition(".")[2] for key in point]
    return {
        (end if last.count(end) == 1 and end not in RESERVED else key): value
        for end, (key, value) in zip(last, point.items(), strict=True)
    }


def changes(begun: Any, asked: Any) -> list[str]:
    """Return the keys in which two settings differ, with both values, as text."""
    return [f"{key}: {old}, now {new}" for key, old, new in differences(begun, asked)]


def digest(settings: Mapping[str, Any]) -> str:
    """Return a hash of settings, ten characters long."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]
