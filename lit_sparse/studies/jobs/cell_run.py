"""A run of a study: a cell with a seed that is trained, tested and stored, or called."""

from __future__ import annotations

import itertools
import json
import os
import re
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import read_json
from lit_sparse.runs.folders import CHECKPOINTS, numbered
from lit_sparse.runs.status import logged
from lit_sparse.studies.jobs.cluster import forget_job
from lit_sparse.studies.jobs.logged import summarized
from lit_sparse.studies.jobs.processes import JobFailedError, call
from lit_sparse.studies.jobs.rows import Workspace, provenance
from lit_sparse.studies.plan.study import Cell, changes, digest

__all__ = ["RunOf"]


@dataclass(frozen=True)
class RunOf:
    """Run of a study: one cell with one seed, its settings, files and commands.

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
        """Name of the run in messages, which is also its path in the study's folder."""
        return f"{self.name}/seed_{self.seed}"

    @property
    def log(self) -> Path:
        """Path of the log file with the output of the run's commands."""
        return self.workspace.folder / f"{self.place}.log"

    @property
    def folder(self) -> Path:
        """Path of the run folder."""
        return self.workspace.folder / self.place / "0"

    @property
    def cell(self) -> Cell:
        """The cell that this run belongs to."""
        return self.workspace.study.cells[self.name]

    @cached_property
    def settings(self) -> Any:
        """All settings that determine the run's numbers, as JSON data."""
        return json.loads(json.dumps(self.workspace.study.settings(self.name, self.workspace.extra), default=str))

    @property
    def begun(self) -> Any:
        """Settings with which the run was started, or None if it was not."""
        return read_json(self._begun, self.workspace.output)

    @property
    def _begun(self) -> Path:
        return self.workspace.folder / f"{self.place}.json"

    def checkpoint(self, which: str = "last") -> Path:
        """Return the path of the run's best or last checkpoint."""
        return self.folder / CHECKPOINTS / f"{which}.ckpt"

    def continued(self) -> list[str]:
        """Return the command-line options that resume an interrupted training run; none if it starts again."""
        return ["--ckpt_path", "last"] if self.checkpoint().is_file() else []

    def logged(self, folder: Path | None = None) -> list[dict[str, float]]:
        """Return the logged values of the run's training, or of a test in a folder of its own."""
        return logged(folder or self.folder)

    @property
    def trained(self) -> bool:
        """Whether training was completed."""
        return self.checkpoint().is_file() and (self.folder / "finished").is_file()

    @property
    def usable(self) -> bool:
        """Whether training was completed with the present settings."""
        return self.trained and self.begun in (None, self.settings)

    @property
    def finished(self) -> bool:
        """Whether all rows of the run are stored or, for a hidden cell, training was completed."""
        return self.trained if self.cell.hidden else not self.missing()

    def missing(self) -> list[dict[str, Any]]:
        """Return the points of the cell's grid for which no row is stored."""
        rows = self.workspace.rows.read()
        stored = [row for row in rows if row["cell"] == self.name and row["seed"] == str(self.seed)]
        return [
            point
            for point in self.cell.points
            if not any(all(row.get(k) == str(v) for k, v in point.items()) for row in stored)
        ]

    def sources(self) -> list[RunOf]:
        """Return the runs whose checkpoints this run needs."""
        return [replace(self, name=other) for other in dict.fromkeys(self.cell.checkpoints.values())]

    def begin(self) -> None:
        """Store the settings with which the run is started.

        Raises:
            ConfigurationError: if it was started with other settings before.
        """
        begun = self.begun
        if begun is not None and begun != self.settings and (self.trained or self.checkpoint().is_file()):
            raise ConfigurationError(
                f"{self.folder.parent} was started with different settings: {'; '.join(changes(begun, self.settings))}."
                f" Choose another --output, or remove it with {self._begun}."
            )
        if begun != self.settings:
            with replaced(self._begun, "w") as file:
                json.dump(self.settings, file)

    def run(self, threads: int, held: Sequence[int]) -> None:
        """Train and test the run, or call its function, unless that is already done."""
        if self.cell.function is not None:
            self._call(threads, held)
            return
        finished = self.finished
        self.train(threads, held)
        if not finished and not self.cell.hidden:
            self._test(threads, held)

    def train(self, threads: int, held: Sequence[int], stops: Callable[[], bool] | None = None) -> None:
        """Train to the end, from the last checkpoint if there is one, or until ``stops`` returns True.

        Raises:
            JobFailedError: if training fails.
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
        """Return a ``lit-sparse`` command with the config and options of the cell, as the study has them now."""
        program = [sys.executable, "-m", "lit_sparse"]
        return [*program, command, *self._options(), "--output_dir", str(self.workspace.folder), "--name", self.place]

    def printing(self) -> list[str]:
        """Return the command that prints the run's config."""
        return [*self.command("fit"), "--print_config"]

    def _options(self) -> list[str]:
        cell = self.cell
        options = {option: self.filled(value) for option, value in cell.options.items()}
        options |= {option: str(replace(self, name=other).checkpoint().resolve()) for option, other in cell.checkpoints.items()}
        options |= dict.fromkeys(self.workspace.study.seed_options, str(self.seed))
        words = [word for path in (cell.config, *cell.overlays) if path is not None for word in ("-c", path)]
        words += [word for option, value in options.items() for word in (f"--{option}", value)]
        return [*words, "--trainer.enable_progress_bar", "false", *self.workspace.extra]

    def filled(self, value: Any) -> str:
        """Return an option's value as a word of a command, with the paths of the study's inputs filled in.

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
        """Raise an error for options that this run cannot have.

        Raises:
            ConfigurationError: if an input is missing or unknown, or a cell with a function has options of a training run.
        """
        study = self.workspace.study
        known = {*study.inputs, *(["folder"] if study.program else [])}
        several: list[Mapping[str, Any]] = [self.cell.options, self.cell.arguments, *study.tests.values()]
        for options in several:
            for option, value in options.items():
                text = self.filled(value)
                names = [] if text[:1] in ("[", "{") and text[1:2] in ('"', "{") else re.findall(r"\{([^\W\d]\w*)\}", text)
                if wrong := [name for name in names if name not in known and not option.endswith("filename")]:
                    raise ConfigurationError(
                        f"Expected {option} of cell {self.name!r} in {study.path} to refer to the study's inputs,"
                        f" {', '.join(sorted(known)) or 'of which there are none'}, but got '{{{wrong[0]}}}'."
                        f"{did_you_mean(wrong[0], known)}"
                    )
        if self.workspace.extra and self.cell.function is not None:
            raise ConfigurationError(
                f"Options after -- are for trainings, but cell {self.name!r} of {study.path} calls a function. Change its"
                " `arguments` in a copy of the study file."
            )

    def _test(self, threads: int, held: Sequence[int]) -> None:
        """Test what is trained, and store the results."""
        study = self.workspace.study
        numbers: dict[str, Any] = {}
        for test, options in study.tests.items():
            words = [word for option, value in options.items() for word in (f"--{option}", self.filled(value))]
            words += ["--ckpt_path", str(self.checkpoint(study.checkpoint))]
            self._run_command([*self.command("test"), *words], threads, held)
            found = self.logged([self.folder / "test", *numbered(self.folder / "test")][-1])
            numbers |= {name if test == "test" else f"{test}/{name}": line[name] for line in found for name in line}
        numbers = {name: value for name, value in numbers.items() if self.measures(name)}
        if study.scores:
            self._call(threads, held, numbers)
        else:
            self._store(numbers)

    def _store(self, numbers: dict[str, Any]) -> None:
        """Store the numbers of what is trained, and its curves."""
        study, key, lines = self.workspace.study, {"cell": self.name, "seed": self.seed}, self.logged()
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
        self.workspace.curves.append(list(points.values()), ["cell", "seed"], replace=True)
        lists = {name: numbers.pop(name) for name in list(numbers) if isinstance(numbers[name], list)}
        texts = {name: " ".join(format(value, ".6g") for value in values) for name, values in lists.items()}
        samples = [{**key, "name": name, "values": text} for name, text in texts.items()]
        self.workspace.samples.append(samples, ["cell", "seed"], replace=True)
        labels = {name: str(value) for name, value in self.cell.labels.items()}
        self._append([{**key, **labels, **numbers}], summarized(lines, "train/seconds"))

    @staticmethod
    def measures(name: str) -> bool:
        """Return whether a value that a test logged belongs to the row of results."""
        return "test/" in name

    def _append(self, rows: Sequence[Mapping[str, Any]], seconds: float | None) -> None:
        made = provenance(digest(self.begun or self.settings), seconds)  # a config may have changed since
        study = self.workspace.study
        keys = study.row_keys
        if len({tuple(str(row.get(key)) for key in keys) for row in rows}) < len(rows):
            raise ConfigurationError(
                f"Expected {self.cell.function} to return rows that differ in {', '.join(keys)} but got two with the same."
                f" Name what distinguishes them in `series` of {study.path}."
            )
        self.workspace.rows.append([{**row, **made} for row in rows], keys)

    def _call(self, threads: int, held: Sequence[int], tested: Mapping[str, Any] | None = None) -> None:
        """Call :meth:`call_functions` in a process of its own, with what tests have measured."""
        job = {key: getattr(self.workspace, key) for key in ("schedule", "output", "results", "inputs", "extra")}
        job["study"] = self.workspace.study.path.absolute()
        words = [json.dumps(job, default=str), self.name, str(self.seed), json.dumps(tested or {})]
        self._run_command([sys.executable, "-m", "lit_sparse.studies.jobs.engine", *words], threads, held)

    def _run_command(
        self, command: Sequence[str], threads: int, held: Sequence[int], stops: Callable[[], bool] | None = None
    ) -> None:
        cluster = self.workspace.cluster
        call(command, self.log, threads, held, stops, None if cluster is None else cluster.start)

    def call_functions(self, tested: Mapping[str, Any] | None = None) -> None:
        """Call the cell's function at points of its grid without a row, or the study's functions of scores; store the results.

        Args:
            tested: numbers that tests have measured, which are stored with the scores.

        Raises:
            ConfigurationError: if a function returns no numbers, or a name of a label.
        """
        if self.cell.function is None:
            study, numbers = self.workspace.study, dict(tested or {})
            for score, path in study.scores.items():
                found = _function(path)(self.checkpoint(study.checkpoint))
                if not isinstance(found, Mapping):
                    raise ConfigurationError(f"Expected {path} to return a dict of numbers but got {reprlib.repr(found)}.")
                for key, value in found.items():
                    values = value if isinstance(value, list) else [value]
                    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
                        raise ConfigurationError(f"Expected {path} to return numbers but got {key!r}: {reprlib.repr(value)}.")
                    numbers[f"{score}/{key}"] = value
            self._store(numbers)
            return
        function = _function(self.cell.function)
        given = self.cell.arguments
        filled = {key: self.filled(value) if isinstance(value, str) else value for key, value in given.items()}
        for point in self.missing():
            began = time.monotonic()
            found = function(seed=self.seed, **filled, **point)
            several: list[Any] = [found] if isinstance(found, Mapping) else list(found) if isinstance(found, Iterable) else []
            if not several or not all(map(self._is_row, several)):
                raise ConfigurationError(
                    f"Expected {self.cell.function} to return a dict of numbers, or a list of such dicts, but got"
                    f" {reprlib.repr(found)} for {point}."
                )
            labels = {key: str(value) for key, value in (self.cell.labels | point).items()}
            keys = {"cell": self.name, "seed": self.seed} | labels
            if clash := {*keys}.intersection(*several):
                raise ConfigurationError(f"Expected {self.cell.function} to return names other than labels but got {clash}.")
            self._append([keys | numbers | keys for numbers in several], time.monotonic() - began)

    def _is_row(self, found: object) -> bool:
        """Return whether a function's result is a row, with numbers where the study needs them."""
        wanted = self.workspace.study.numbers
        return isinstance(found, Mapping) and all(isinstance(found[name], Real | None) for name in wanted & found.keys())


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"Expected `function` to be the path of a function but got {path!r}: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"Expected `function` to be the path of a function but got {path!r}: {function!r}")
    return function
