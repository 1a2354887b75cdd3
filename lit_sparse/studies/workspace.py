"""Where the runs and rows of a study are, and each run: a cell with a seed that is trained, tested and stored, or called."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import reprlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from lit_sparse.errors import ConfigurationError
from lit_sparse.run_status import logged
from lit_sparse.runs import CHECKPOINTS, numbered, replaced
from lit_sparse.stored import read_json, read_lines
from lit_sparse.studies.cluster import Cluster, forget_job
from lit_sparse.studies.jobs import JobFailedError, call
from lit_sparse.studies.load import check_names
from lit_sparse.studies.rows import Row, Rows, provenance
from lit_sparse.studies.study import Cell, Change, Study, changes, digest

__all__ = ["SUMMARY", "RunOf", "Workspace", "logged_by_program", "summarized"]

#: ``sum(train/NAME)`` and its like.
SUMMARY = re.compile(r"(first|last|sum|min|max|count|argmax|argmin)\((.+)\)")


@dataclass
class Workspace:
    """A study with a schedule, and where its runs and rows are.

    Args:
        study: the study.
        schedule: name of the schedule; None for a study without schedules.
        output: folder of all runs.
        results: folder of rows and tables.
        inputs: name -> path.
        extra: options of every ``lit-sparse`` command.
        cluster: cluster that runs the commands; None for this machine.
    """

    study: Study
    schedule: str | None = None
    output: Path = Path("runs/studies")
    results: Path = Path("results")
    inputs: dict[str, str] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if self.schedule is None and self.study.schedules:
            self.schedule = next(iter(self.study.schedules))
        if self.schedule is not None:
            check_names([self.schedule], self.study.schedules, f"--schedule of {self.study.path}")
        check_names(self.inputs, self.study.inputs, f"--input of {self.study.path}")
        self.study = self.study.scheduled(self.schedule)
        suffix = f"_{self.schedule}" if self.schedule and len(self.study.schedules) > 1 else ""
        self.name = f"{self.study.path.stem}{suffix}"
        self.folder = self.output / self.name
        lock = self.results / f".{self.name}.lock"
        cells, numbers = self.study.cells, self.study.numbers
        self.rows = Rows(self.results / f"{self.name}.csv", lock, cells, numbers=numbers, unique=self.study.row_keys)
        names = ("cell", "seed", "name")
        self.samples = Rows(
            self.results / f"{self.name}_samples.csv", lock, cells, last=("name",), lists=("values",), unique=names
        )
        points = ("cell", "seed", "epoch", "step")
        self.curves = Rows(self.results / f"{self.name}_curves.csv", lock, cells, last=(), numbers=numbers, unique=points)

    def stored(self) -> tuple[list[Row], list[Row], list[Row]]:
        """Return the rows of the study's cells, and the curves and samples of their runs.

        Raises:
            ConfigurationError: if a file is damaged.
        """
        rows = [row for row in self.rows.read() if row["cell"] in self.study.cells]
        runs = {(row["cell"], row["seed"]) for row in rows}
        curves, samples = (
            [row for row in some.read() if (row["cell"], row["seed"]) in runs] for some in (self.curves, self.samples)
        )
        return rows, curves, samples

    def of(self, name: str, seed: int) -> RunOf:
        """Return the run of a cell with a seed."""
        return (ProgramRun if self.study.program else RunOf)(self, name, seed)


@dataclass(frozen=True)
class RunOf:
    """A cell of a study with a seed. Its configs are read once, when its settings are asked for.

    Attributes:
        workspace: the study with its schedule and folders.
        name: name of the cell.
        seed: the seed.
    """

    workspace: Workspace
    name: str
    seed: int

    @property
    def place(self) -> str:
        """The run in messages, and its path in the study's folder."""
        return f"{self.name}/seed_{self.seed}"

    @property
    def log(self) -> Path:
        """File with the output of its commands."""
        return self.workspace.folder / f"{self.place}.log"

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.workspace.folder / self.place / "0"

    @property
    def cell(self) -> Cell:
        """Its cell."""
        return self.workspace.study.cells[self.name]

    @cached_property
    def change(self) -> Change:
        """What the study, the cell and the schedule change."""
        return self.workspace.study.change_of(self.name, self.workspace.schedule)

    @cached_property
    def settings(self) -> Any:
        """What decides its numbers, as JSON has it."""
        workspace = self.workspace
        return json.loads(json.dumps(workspace.study.settings(self.name, workspace.schedule, workspace.extra), default=str))

    @property
    def begun(self) -> Any:
        """The settings that it was begun with, or None."""
        return read_json(self._begun, self.workspace.output)

    @property
    def _begun(self) -> Path:
        return self.workspace.folder / f"{self.place}.json"

    def checkpoint(self, which: str = "last") -> Path:
        """Return a checkpoint."""
        return self.folder / CHECKPOINTS / f"{which}.ckpt"

    def continued(self) -> list[str]:
        """Return the options that continue a killed training, none if it begins anew."""
        return ["--ckpt_path", "last"] if self.checkpoint().is_file() else []

    def logged(self, folder: Path | None = None) -> list[dict[str, float]]:
        """Return what its training logged, or a test in a folder of its own."""
        return logged(folder or self.folder)

    @property
    def trained(self) -> bool:
        """Whether it was trained to its end."""
        return self.checkpoint().is_file() and (self.folder / "finished").is_file()

    @property
    def usable(self) -> bool:
        """Whether it was trained to its end with the settings of now."""
        return self.trained and self.begun in (None, self.settings)

    @property
    def finished(self) -> bool:
        """Whether all its rows are stored, or it is trained and hidden."""
        return self.trained if self.cell.hidden else not self.missing()

    def missing(self) -> list[dict[str, Any]]:
        """Return the points of the cell's grid that have no row."""
        rows = self.workspace.rows.read()
        stored = [row for row in rows if row["cell"] == self.name and row["seed"] == str(self.seed)]
        return [
            point
            for point in self.cell.points
            if not any(all(row.get(k) == str(v) for k, v in point.items()) for row in stored)
        ]

    def sources(self) -> list[RunOf]:
        """Return the runs whose checkpoints it needs."""
        return [self.workspace.of(other, self.seed) for other in dict.fromkeys(self.cell.checkpoints.values())]

    def begin(self) -> None:
        """Store the settings that it begins with.

        Raises:
            JobFailedError: if it was begun with others.
        """
        begun = self.begun
        if begun is not None and begun != self.settings and (self.trained or self.checkpoint().is_file()):
            raise JobFailedError(
                f"{self.folder.parent} was begun with other settings: {'; '.join(changes(begun, self.settings))}."
                f" Choose another --output, or remove it with {self._begun}."
            )
        if begun != self.settings:
            with replaced(self._begun, "w") as file:
                json.dump(self.settings, file)

    def run(self, threads: int, held: Sequence[int]) -> None:
        """Train and test it, or call its function, as far as this is not done."""
        if self.cell.function is not None:
            self._call(threads, held)
            return
        finished = self.finished
        self.train(threads, held)
        if not finished and not self.cell.hidden:
            self._store(threads, held)

    def train(self, threads: int, held: Sequence[int], stops: Callable[[], bool] | None = None) -> None:
        """Train it to its end, from its last checkpoint if there is one, or until ``stops`` returns True.

        Raises:
            JobFailedError: if it fails.
        """
        folder = self.folder
        forget_job(self.log)
        if (folder / "finished").is_file():
            return
        continued = self.continued()
        if folder.is_dir() and not continued:  # killed before there was anything to continue
            names = (folder.parent / f"killed_{number}" for number in itertools.count())
            folder.rename(next(path for path in names if not os.path.lexists(path)))
        self._run_command([*self.command("fit"), *continued], threads, held, stops)
        self._check_end()
        with replaced(folder / "finished", "w"):
            pass

    def _check_end(self) -> None:
        """Check that a training left its last checkpoint.

        Raises:
            JobFailedError: if it did not.
        """
        if not self.checkpoint().is_file():
            raise JobFailedError(f"{self.folder} has no last checkpoint at its end; see {self.log}")

    def command(self, command: str) -> list[str]:
        """Return a command with the config and options of the cell: the study's, not those that a run folder holds."""
        program = [sys.executable, "-m", "lit_sparse"]
        return [*program, command, *self._options(), "--output_dir", str(self.workspace.folder), "--name", self.place]

    def printing(self) -> list[str]:
        """Return the command that prints its config."""
        return [*self.command("fit"), "--print_config"]

    def _options(self) -> list[str]:
        study, change = self.workspace.study, self.change
        options = {option: self.filled(value) for option, value in change.options.items()}
        options |= {
            option: str(self.workspace.of(other, self.seed).checkpoint().resolve())
            for option, other in self.cell.checkpoints.items()
        }
        options |= dict.fromkeys(study.seed_options, str(self.seed))
        words = [word for path in (change.config, *change.overlays) if path is not None for word in ("-c", path)]
        words += [word for option, value in options.items() for word in (f"--{option}", value)]
        return [*words, "--trainer.enable_progress_bar", "false", *self.workspace.extra]

    def filled(self, value: Any) -> str:
        """Return an option's value as a word of a command, with the paths of inputs.

        Raises:
            ConfigurationError: if an input is missing.
        """
        text = value if isinstance(value, str) else json.dumps(value)
        inputs = self.workspace.inputs
        for name in re.findall(r"\{(\w+)\}", text):
            if name in self.workspace.study.inputs and name not in inputs:
                raise ConfigurationError(f"Give --input {name}=PATH: {self.workspace.study.inputs[name]}.")
            text = text.replace(f"{{{name}}}", inputs.get(name, f"{{{name}}}"))
        return text

    def check_options(self) -> None:
        """Refuse options that cannot be given to it.

        Raises:
            ConfigurationError: if an input is missing, or a function would get options of a training.
        """
        study = self.workspace.study
        tested = [value for options in study.tests.values() for value in options.values()]
        for value in (*self.change.options.values(), *self.change.arguments.values(), *tested):
            self.filled(value)
        if self.workspace.extra and self.cell.function is not None:
            raise ConfigurationError(
                f"Options after -- are for trainings, but cell {self.name!r} of {study.path} calls a function. Change its"
                " `arguments` in a copy of the study file."
            )

    def _store(self, threads: int, held: Sequence[int]) -> None:
        """Test what is trained, and store its numbers and curves."""
        workspace, study = self.workspace, self.workspace.study
        key = {"cell": self.name, "seed": self.seed}
        numbers: dict[str, Any] = {}
        for test, options in study.tests.items():
            words = [word for option, value in options.items() for word in (f"--{option}", self.filled(value))]
            words += ["--ckpt_path", str(self.checkpoint(study.checkpoint))]
            self._run_command([*self.command("test"), *words], threads, held)
            found = self.logged([self.folder / "test", *numbered(self.folder / "test")][-1])
            numbers |= {name if test == "test" else f"{test}/{name}": line[name] for line in found for name in line}
        numbers = {name: value for name, value in numbers.items() if self.measures(name)}
        if study.scores:
            self._call(threads, held)
            numbers |= self.read_scores()
        lines = self.logged()
        for column in study.columns.values():
            if column.value not in numbers and (value := summarized(lines, column.value)) is not None:
                numbers[column.value] = value
        panels = [panel for figure in study.figures for panel in figure.panels if study.over_training(panel)]
        shown = {name for panel in panels for name in (panel.value, panel.cumulative, *panel.band_keys)}
        axis = "step" if any(panel.x == "step" for panel in panels) else "epoch"
        points: dict[float, dict[str, Any]] = {}
        for line in lines:
            kept = {name: line[name] for name in sorted(shown) if name in line}
            if kept and axis in line:
                epoch = int(line.get("epoch", 0)) + 1
                at = {"epoch": epoch, axis: epoch if axis == "epoch" else int(line[axis])}
                points.setdefault(at[axis], key | at).update(kept)
        workspace.curves.append(list(points.values()), ["cell", "seed"], replace=True)
        lists = {name: numbers.pop(name) for name in list(numbers) if isinstance(numbers[name], list)}
        texts = {name: " ".join(format(value, ".6g") for value in values) for name, values in lists.items()}
        workspace.samples.append(
            [{**key, "name": name, "values": text} for name, text in texts.items()], ["cell", "seed"], replace=True
        )
        labels = {name: str(value) for name, value in self.cell.labels.items()}
        self._append([{**key, **labels, **numbers}], summarized(lines, "train/seconds"))

    @staticmethod
    def measures(name: str) -> bool:
        """Return whether a number that a test logged belongs to the row."""
        return "test/" in name

    def _append(self, rows: Sequence[Mapping[str, Any]], seconds: float | None) -> None:
        made = provenance(digest(self.begun or self.settings), seconds)  # a config may have changed since
        study = self.workspace.study
        keys = study.row_keys
        if len({tuple(str(row.get(key)) for key in keys) for row in rows}) < len(rows):
            raise ConfigurationError(
                f"Expected {self.cell.function} to return rows that differ in {', '.join(keys)} but got two with the same."
                f" Name what tells them apart in `series` of {study.path}."
            )
        self.workspace.rows.append([{**row, **made} for row in rows], keys)

    def _call(self, threads: int, held: Sequence[int]) -> None:
        """Call :meth:`call_functions` in a process of its own."""
        workspace = self.workspace
        job = {
            "study": str(workspace.study.path.absolute()),
            "schedule": workspace.schedule,
            "output": str(workspace.output),
            "results": str(workspace.results),
            "inputs": workspace.inputs,
            "extra": workspace.extra,
        }
        command = [sys.executable, "-m", "lit_sparse.studies.workspace", json.dumps(job), self.name, str(self.seed)]
        self._run_command(command, threads, held)

    def _run_command(
        self, command: Sequence[str], threads: int, held: Sequence[int], stops: Callable[[], bool] | None = None
    ) -> None:
        cluster = self.workspace.cluster
        call(command, self.log, threads, held, stops, None if cluster is None else cluster.start)

    @property
    def _scores(self) -> Path:
        return self.folder / "scores.json"

    def read_scores(self) -> dict[str, Any]:
        """Return the numbers that :meth:`call_functions` stored.

        Raises:
            ConfigurationError: if the file has no such numbers.
        """
        scores = self.workspace.study.scores
        found = read_json(self._scores, self.workspace.output) or {}
        for key, value in found.items():
            values = value if isinstance(value, list) else [value]
            if key.split("/")[0] not in scores or not {*map(type, values)} <= {int, float}:
                raise ConfigurationError(
                    f"Expected numbers of the scores {', '.join(scores)} in {str(self._scores)!r} but got {key!r}:"
                    f" {reprlib.repr(value)}. Remove the file with its run, or let the functions return numbers."
                )
        return found

    def call_functions(self) -> None:
        """Call the function of the cell at each point of its grid that has no row, and store what it returns; or its scores."""
        if self.cell.function is None:
            checkpoint = self.checkpoint(self.workspace.study.checkpoint)
            found = {score: _function(path)(checkpoint) for score, path in self.workspace.study.scores.items()}
            numbers = {f"{score}/{key}": value for score, values in found.items() for key, value in values.items()}
            with replaced(self._scores, "w") as file:
                json.dump(numbers, file)
            return
        function = _function(self.cell.function)
        given = self.change.arguments
        filled = {key: self.filled(value) if isinstance(value, str) else value for key, value in given.items()}
        for point in self.missing():
            began = time.monotonic()
            found = function(seed=self.seed, **filled, **point)
            several = [found] if isinstance(found, Mapping) else list(found)
            if not several:
                raise ConfigurationError(f"{self.cell.function} returned no numbers for {point}.")
            labels = {key: str(value) for key, value in (self.cell.labels | point).items()}
            keys = {"cell": self.name, "seed": self.seed} | labels
            self._append([keys | numbers | keys for numbers in several], time.monotonic() - began)


class ProgramRun(RunOf):
    """A run of a LightningCLI of the user. Training writes to ``fit``, tests to ``test/NUMBER``."""

    def checkpoint(self, which: str = "last") -> Path:
        """Return the newest checkpoint, or the newest that matches a pattern."""
        pattern = self.workspace.study.checkpoint_files if which == "last" else which
        return _newest(self.folder / "fit", pattern) or self.folder / "fit" / str(pattern)

    def continued(self) -> list[str]:
        """Return the options that continue a killed training from a checkpoint before which everything was logged."""
        checkpoint, metrics = self.checkpoint(), _newest(self.folder / "fit", self.workspace.study.metric_files)
        if metrics is None or not checkpoint.is_file():
            return []
        names: dict[float, set[str]] = {}
        for line in self.logged():
            names.setdefault(line.get("epoch", 0.0), set()).update(line)
        before, last = [set(), *names.values()][-2:]
        # A logger may write what an epoch has logged only after the checkpoint of the epoch.
        whole = checkpoint.stat().st_mtime_ns <= metrics.stat().st_mtime_ns or (before and before <= last)
        return ["--ckpt_path", str(checkpoint.resolve())] if whole else []

    def logged(self, folder: Path | None = None) -> list[dict[str, float]]:
        """Return what was logged; see :func:`logged_by_program`."""
        return logged_by_program(folder or self.folder / "fit", self.workspace.study.metric_files)

    @property
    def trained(self) -> bool:
        """Whether it was trained to its end."""
        return (self.folder / "finished").is_file()

    def _check_end(self) -> None:
        study = self.workspace.study
        tested = self.checkpoint(study.checkpoint)
        if study.tests and not tested.is_file():
            raise JobFailedError(
                f"{tested} does not exist at the end of the training. Give {study.path} `tests: {{}}`, or another `checkpoint`;"
                f" see {self.log}"
            )
        if not _by_age(self.folder / "fit", study.metric_files):
            raise JobFailedError(
                f"{self.folder / 'fit'} has no {study.metric_files} at the end of the training. Give the program a CSVLogger"
                f" with save_dir {{folder}}, or {study.path} another `metric_files`; see {self.log}"
            )

    def command(self, command: str) -> list[str]:
        """Return a command with the config and options of the cell, by which the program writes into the run's folder."""
        study, folder = self.workspace.study, self.folder / command
        folder = folder / str(len(numbered(folder))) if command == "test" else folder
        options = ["--trainer.default_root_dir", "{folder}"]
        if not any(option.startswith("trainer.logger") for option in self.change.options):
            options += ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "{folder}"]
        words = [word.replace("{folder}", str(folder)) for word in [*options, *self._options()]]
        return [*study.command, command, *words]

    def printing(self) -> list[str]:
        """Return the command that prints its config, without its folder."""
        return [*self.workspace.study.command, "fit", *self._options(), "--print_config"]

    @staticmethod
    def measures(name: str) -> bool:
        """Return whether a number that a test logged belongs to the row."""
        return name.rpartition("/")[2] not in ("epoch", "step")


def logged_by_program(folder: Path, pattern: str = Study.metric_files, within: Path | None = None) -> list[dict[str, float]]:
    """Return what a program logged: each process has a file, and repeats the steps after the checkpoint it continued from."""
    found: list[dict[str, float]] = []
    for path in _by_age(folder, pattern):
        lines = read_lines(path, within or folder)
        first = min((line.get("step", 0.0) for line in lines), default=math.inf)
        found = [line for line in found if line.get("step", 0.0) < first] + lines
    return found


def _by_age(folder: Path, pattern: str | None) -> list[Path]:
    """Return the files of a folder that match a pattern, the newest last."""
    found = [path for path in folder.glob(pattern) if path.is_file()] if pattern else []
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path))


def _newest(folder: Path, pattern: str | None) -> Path | None:
    return next(reversed(_by_age(folder, pattern)), None)


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"Expected `function` to be the path of a function but got {path!r}: {error}") from error
    return function


def summarized(lines: Sequence[Mapping[str, float]], value: str) -> float | None:
    """Return the last logged value of a name, or a summary of all of them; None if nothing was logged."""
    given = SUMMARY.fullmatch(value)
    kind, name = (given[1], given[2]) if given else ("last", value)
    found = [(line.get("epoch", 0.0) + 1, line[name]) for line in lines if name in line]
    if not found:
        return None
    values = pd.Series([number for _, number in found], [epoch for epoch, _ in found])
    if kind in ("first", "last"):
        return float(values.iloc[0 if kind == "first" else -1])
    if kind in ("sum", "count"):
        return float(values.sum(skipna=False) if kind == "sum" else len(values))
    known = values.dropna()
    return float(known.agg(kind.replace("arg", "idx"))) if len(known) else math.nan


if __name__ == "__main__":
    from lit_sparse.studies.load import load_study

    given = json.loads(sys.argv[1])
    given |= {"study": load_study(given["study"]), "output": Path(given["output"]), "results": Path(given["results"])}
    Workspace(**given).of(sys.argv[2], int(sys.argv[3])).call_functions()
