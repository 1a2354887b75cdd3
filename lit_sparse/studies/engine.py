"""The runs of a study: each cell once with each seed, continued where it was killed, its numbers stored when it ends."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError
from lit_sparse.run_status import check_plain
from lit_sparse.runs import CHECKPOINTS, numbered, replaced
from lit_sparse.stored import read_json, read_metrics
from lit_sparse.studies.cluster import Cluster, forget_job
from lit_sparse.studies.jobs import JobFailedError, call, locked, naming_failure, run_all, try_lock
from lit_sparse.studies.load import check_names
from lit_sparse.studies.rows import Row, Rows, provenance
from lit_sparse.studies.study import Study, changes, digest, written

__all__ = ["Runner", "read_metrics", "summarized"]

#: ``sum(train/NAME)`` and its like.
SUMMARY = re.compile(r"(first|last|sum|min|max|count|argmax|argmin)\((.+)\)")


@dataclass
class Runner:
    """A study with a schedule, and where its runs and rows are.

    Args:
        study: the study.
        schedule: name of the schedule; None for a study without schedules.
        output: folder of all runs.
        results: folder of rows and tables.
        inputs: name -> path.
        extra: options of every ``lit-sparse`` command.
        jobs: number of cells at a time.
        cluster: cluster that runs the commands; None for this machine.
    """

    study: Study
    schedule: str | None = None
    output: Path = Path("runs/studies")
    results: Path = Path("results")
    inputs: dict[str, str] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    jobs: int = 1
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
        keys = [*self.study.keys, *self.study.series]
        self.rows = Rows(self.results / f"{self.name}.csv", lock, cells, numbers=numbers, unique=keys)
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

    def run(self, cells: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[str]:
        """Run what is not finished; return the messages of what failed.

        Args:
            cells: names of cells; by default all. The name of a cell with a grid stands for all points.
            seeds: seeds in place of those of the study.
        """
        known = dict.fromkeys(part for name in self.study.cells for part in (written(name), name))
        check_names(cells or (), known, f"--cells of {self.study.path}")
        chosen = self.study.schedules[self.schedule].cells if self.schedule in self.study.schedules else []
        visible = [name for name, cell in self.study.cells.items() if not cell.hidden and written(name) in (chosen or known)]
        asked = visible if not cells else [name for name in self.study.cells if {name, written(name)} & set(cells)]
        pairs = [(name, seed) for name in asked for seed in seeds or self.study.seeds_of(name, self.schedule)]
        pairs.sort(key=lambda pair: pair[1])  # all cells with the first seed come first
        pending = [pair for pair in pairs if not self.finished(*pair)]
        changed = self.changed(asked)
        if changed:
            return changed
        if self.folder.is_dir():
            check_plain(self.folder)
        levels = self._sources(pending)
        self._check_options(dict.fromkeys(name for level in (*levels, pending) for name, _ in level))
        if len(pending) < len(pairs):
            print(f"{len(pairs) - len(pending)} of {len(pairs)} runs have rows in {self.rows.path}", flush=True)
        if not pending:
            print("Give --results and --output with other folders to run them anew.", flush=True)
        failed: list[str] = []
        for level in levels:
            failed += self._run_each(level, source=True)
        ready = [pair for pair in pending if all(self._usable(other, pair[1]) for other in self._direct(pair[0]))]
        lost = [pair for pair in pending if pair not in ready]
        failed += [f"{name}/seed_{seed}: needs a checkpoint of {', '.join(self._direct(name))}" for name, seed in lost]
        return failed + self._run_each([pair for pair in ready if not self.finished(*pair)])

    def _run_each(self, pairs: Sequence[tuple[str, int]], *, source: bool = False) -> list[str]:
        """Run cells, first those that no other process runs."""
        held: list[tuple[str, int]] = []
        failed = run_all([partial(self.run_cell, *pair, source=source, held_elsewhere=held) for pair in pairs], self.jobs)
        return failed + run_all([partial(self.run_cell, *pair, source=source) for pair in held], self.jobs)

    def _direct(self, name: str) -> list[str]:
        """Return the cells whose checkpoints a cell needs."""
        return list(dict.fromkeys(self.study.cells[name].checkpoints.values()))

    def _sources(self, pending: Sequence[tuple[str, int]]) -> list[list[tuple[str, int]]]:
        """Return the cells whose checkpoints others need, those that need none first."""
        levels: list[list[tuple[str, int]]] = []
        above = list(pending)
        while above := list(dict.fromkeys((other, seed) for name, seed in above for other in self._direct(name))):
            levels.insert(0, above)
        return levels

    def _usable(self, name: str, seed: int) -> bool:
        begun, asked = self._begun(name, seed)
        return self._trained(name, seed) and begun in (None, asked)

    def _trained(self, name: str, seed: int) -> bool:
        return self.checkpoint(name, seed).is_file() and (self.run_folder(name, seed) / "finished").is_file()

    def run_cell(
        self,
        name: str,
        seed: int,
        threads: int,
        *,
        source: bool = False,
        held_elsewhere: list[tuple[str, int]] | None = None,
    ) -> None:
        """Run one cell with one seed, unless it is finished.

        Args:
            name: name of the cell.
            seed: its seed.
            threads: number of threads of its commands.
            source: whether others need its checkpoint: it is trained again if its run is gone.
            held_elsewhere: receives the cell if another process runs it; None to wait for that process.

        Raises:
            JobFailedError: if it fails, or was begun with other settings.
        """
        place, path = f"{name}/seed_{seed}", self.folder / name / f"seed_{seed}.lock"
        if held_elsewhere is not None:
            file = try_lock(path)
            if file is None:
                held_elsewhere.append((name, seed))
                return
            file.close()
        with locked(
            path, partial(print, f"{place}: another process runs it, or a killed one left its training; waiting", flush=True)
        ) as held:
            finished = self.finished(name, seed)
            if finished and not self.study.cells[name].hidden and (not source or self._trained(name, seed)):
                return
            with naming_failure(place):
                self.check_begun(name, seed)
                if finished and self._trained(name, seed):
                    return
                print(f"{place}: runs; output in {self.log(name, seed)}", flush=True)
                began = time.monotonic()
                if self.study.cells[name].function is not None:
                    self._call(name, seed, threads, held)
                else:
                    self.train(name, seed, threads, held)
                    if not finished and not self.study.cells[name].hidden:
                        self._store(name, seed, threads, held)
            print(f"{place}: finished, {(time.monotonic() - began) / 60:.1f} min", flush=True)

    def log(self, name: str, seed: int) -> Path:
        """Return the file with the output of a cell's commands."""
        return self.folder / name / f"seed_{seed}.log"

    def run_folder(self, name: str, seed: int) -> Path:
        """Return the run folder of a cell."""
        return self.folder / name / f"seed_{seed}" / "0"

    def checkpoint(self, name: str, seed: int, which: str = "last") -> Path:
        """Return a checkpoint of a cell."""
        return self.run_folder(name, seed) / CHECKPOINTS / f"{which}.ckpt"

    def finished(self, name: str, seed: int) -> bool:
        """Return whether all rows of a cell are stored, or a hidden cell is trained."""
        if self.study.cells[name].hidden:
            return self._trained(name, seed)
        return not self.missing(name, seed)

    def missing(self, name: str, seed: int) -> list[dict[str, Any]]:
        """Return the points of a cell's grid that have no row."""
        stored = [row for row in self.rows.read() if row["cell"] == name and row["seed"] == str(seed)]
        points = self.study.cells[name].points
        return [point for point in points if not any(all(row.get(k) == str(v) for k, v in point.items()) for row in stored)]

    def changed(self, cells: Iterable[str] | None = None) -> list[str]:
        """Return a message for each cell, by default of all, with rows that were made with other settings."""
        return [text for name in (self.study.cells if cells is None else cells) if (text := self._changed(name))]

    def _check_options(self, cells: Iterable[str]) -> None:
        """Refuse options that cannot be given to a cell.

        Raises:
            ConfigurationError: if an input is missing, or a function would get options of a training.
        """
        tested = [value for options in self.study.tests.values() for value in options.values()]
        for name in cells:
            change = self.study.change_of(name, self.schedule)
            for value in (*change.options.values(), *change.arguments.values(), *tested):
                self._filled(value)
            if self.extra and self.study.cells[name].function is not None:
                raise ConfigurationError(
                    f"Options after -- are for trainings, but cell {name!r} of {self.study.path} calls a function. Change its"
                    " `arguments` in a copy of the study file."
                )

    def settings_of(self, name: str, rows: Iterable[Mapping[str, str]]) -> dict[str, Any]:
        """Return the settings that rows of a cell were made with; empty if neither the study nor a run folder has them now."""
        made = {row["settings"]: row["seed"] for row in rows}
        now = self.study.settings(name, self.schedule, self.extra)
        found = [now, *(self._begun(name, int(seed))[0] for seed in made.values())]
        return next((settings for settings in found if settings and digest(settings) in made), {})

    def _changed(self, name: str) -> str:
        """Return a message if rows of a cell were made with other settings, or an empty string."""
        now = digest(self.study.settings(name, self.schedule, self.extra))
        stored = {row["settings"]: row["seed"] for row in self.rows.read() if row["cell"] == name and row["settings"]}
        other = next((seed for settings, seed in stored.items() if settings != now), None)
        if other is None:
            return ""
        begun, asked = self._begun(name, int(other))
        which = f": {'; '.join(changes(begun, asked))}" if begun and begun != asked else ""
        return (
            f"{self.rows.path} has rows of cell {name!r} that were made with other settings{which}. Remove these rows and"
            f" {self.folder / name} to run it again, or give other folders by --results and --output."
        )

    def _begun(self, name: str, seed: int) -> tuple[Any, Any]:
        """Return the settings that a cell was begun with, or None, and those of now."""
        path = self.folder / name / f"seed_{seed}.json"
        asked = json.loads(json.dumps(self.study.settings(name, self.schedule, self.extra), default=str))
        return read_json(path, self.output), asked

    def check_begun(self, name: str, seed: int) -> None:
        """Store the settings that a cell begins with.

        Raises:
            JobFailedError: if it was begun with others.
        """
        path, (begun, asked) = self.folder / name / f"seed_{seed}.json", self._begun(name, seed)
        if begun is not None and begun != asked and self.checkpoint(name, seed).is_file():
            raise JobFailedError(
                f"{self.folder / name / f'seed_{seed}'} was begun with other settings: {'; '.join(changes(begun, asked))}."
                f" Choose another --output, or remove it with {path}."
            )
        if begun != asked:
            with replaced(path, "w") as file:
                json.dump(asked, file)

    def _filled(self, value: Any) -> str:
        """Return an option's value as a word of a command, with the paths of inputs."""
        text = value if isinstance(value, str) else json.dumps(value)
        for name in re.findall(r"\{(\w+)\}", text):
            if name in self.study.inputs and name not in self.inputs:
                raise ConfigurationError(f"Give --input {name}=PATH: {self.study.inputs[name]}.")
            text = text.replace(f"{{{name}}}", self.inputs.get(name, f"{{{name}}}"))
        return text

    def train(self, name: str, seed: int, threads: int, held: Sequence[int], stops: Callable[[], bool] | None = None) -> None:
        """Train a cell to its end, from its last checkpoint if there is one, or until ``stops`` returns True.

        Raises:
            JobFailedError: if it fails.
        """
        folder, last = self.run_folder(name, seed), self.checkpoint(name, seed)
        forget_job(self.log(name, seed))
        if (folder / "finished").is_file():
            return
        if folder.is_dir() and not last.is_file():  # killed before there was anything to continue
            names = (folder.parent / f"killed_{number}" for number in itertools.count())
            folder.rename(next(path for path in names if not os.path.lexists(path)))
        command = [*self.command("fit", name, seed), *(("--ckpt_path", "last") if last.is_file() else ())]
        self._run_command(command, name, seed, threads, held, stops)
        if not last.is_file():
            raise JobFailedError(f"{folder} has no last checkpoint at its end; see {self.log(name, seed)}")
        with replaced(folder / "finished", "w"):
            pass

    def command(self, command: str, name: str, seed: int) -> list[str]:
        """Return a command with the config and options of a cell: the study's, not those that a run folder holds."""
        cell, change = self.study.cells[name], self.study.change_of(name, self.schedule)
        options = {option: self._filled(value) for option, value in change.options.items()}
        options |= {option: str(self.checkpoint(other, seed).resolve()) for option, other in cell.checkpoints.items()}
        options |= dict.fromkeys(self.study.seed_options, str(seed))
        words = [sys.executable, "-m", "lit_sparse", command, "-c", str(change.config)]
        words += [word for path in change.overlays for word in ("-c", path)]
        words += [word for option, value in options.items() for word in (f"--{option}", value)]
        words += ["--trainer.enable_progress_bar", "false", *self.extra]
        return [*words, "--output_dir", str(self.folder), "--name", f"{name}/seed_{seed}"]

    def _store(self, name: str, seed: int, threads: int, held: Sequence[int]) -> None:
        """Test a trained cell, and store its numbers and curves."""
        folder, cell = self.run_folder(name, seed), self.study.cells[name]
        numbers: dict[str, Any] = {}
        for test, options in self.study.tests.items():
            words = [word for option, value in options.items() for word in (f"--{option}", self._filled(value))]
            words += ["--ckpt_path", str(self.checkpoint(name, seed, self.study.checkpoint))]
            self._run_command([*self.command("test", name, seed), *words], name, seed, threads, held)
            found = read_metrics(numbered(folder / "test")[-1])
            numbers |= {key if test == "test" else f"{test}/{key}": line[key] for line in found for key in line}
        numbers = {key: value for key, value in numbers.items() if "test/" in key}
        if self.study.scores:
            self._call(name, seed, threads, held)
            numbers |= self.read_scores(name, seed)
        lines = read_metrics(folder)
        for column in self.study.columns.values():
            if column.value not in numbers and (value := summarized(lines, column.value)) is not None:
                numbers[column.value] = value
        panels = [panel for figure in self.study.figures for panel in figure.panels if self.study.over_training(panel)]
        logged = {key for panel in panels for key in (panel.value, panel.cumulative, *panel.band_keys)}
        axis = "step" if any(panel.x == "step" for panel in panels) else "epoch"
        points: dict[int, dict[str, Any]] = {}
        for line in lines:
            kept = {key: line[key] for key in sorted(logged) if key in line}
            if kept and axis in line:
                at = int(line[axis]) + (axis == "epoch")
                epoch = int(line.get("epoch", 0)) + 1
                points.setdefault(at, {"cell": name, "seed": seed, "epoch": epoch, axis: at}).update(kept)
        self.curves.append(list(points.values()), ["cell", "seed"], replace=True)
        lists = {key: numbers.pop(key) for key in list(numbers) if isinstance(numbers[key], list)}
        texts = {key: " ".join(format(value, ".6g") for value in values) for key, values in lists.items()}
        several = [{"cell": name, "seed": seed, "name": key, "values": text} for key, text in texts.items()]
        self.samples.append(several, ["cell", "seed"], replace=True)
        row = {"cell": name, "seed": seed, **{key: str(value) for key, value in cell.labels.items()}, **numbers}
        self._append(name, seed, [row], summarized(lines, "train/seconds") or 0.0)

    def _append(self, name: str, seed: int, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
        begun, asked = self._begun(name, seed)  # a config may have changed since
        made = provenance(digest(begun or asked), seconds)
        keys = [*self.study.keys, *(key for key in rows[0] if key in self.study.series)]
        self.rows.append([{**row, **made} for row in rows], keys)

    def _call(self, name: str, seed: int, threads: int, held: Sequence[int]) -> None:
        """Call the function of a cell for all points of its grid, or the scores of a trained cell, in a process of its own."""
        job = {
            "study": str(self.study.path.absolute()),
            "schedule": self.schedule,
            "output": str(self.output),
            "results": str(self.results),
            "inputs": self.inputs,
            "extra": self.extra,
        }
        command = [sys.executable, "-m", "lit_sparse.studies.engine", json.dumps(job), name, str(seed)]
        self._run_command(command, name, seed, threads, held)

    def _run_command(
        self,
        command: Sequence[str],
        name: str,
        seed: int,
        threads: int,
        held: Sequence[int],
        stops: Callable[[], bool] | None = None,
    ) -> None:
        start = None if self.cluster is None else self.cluster.start
        call(command, self.log(name, seed), threads, held, stops, start)

    def _scores(self, name: str, seed: int) -> Path:
        return self.run_folder(name, seed) / "scores.json"

    def read_scores(self, name: str, seed: int) -> dict[str, Any]:
        """Return the numbers that :meth:`call_functions` stored.

        Raises:
            ConfigurationError: if the file has no such numbers.
        """
        path = self._scores(name, seed)
        found = read_json(path, self.output) or {}
        for key, value in found.items():
            values = value if isinstance(value, list) else [value]
            if key.split("/")[0] not in self.study.scores or not {*map(type, values)} <= {int, float}:
                raise ConfigurationError(
                    f"Expected numbers of the scores {', '.join(self.study.scores)} in {str(path)!r} but got {key!r}:"
                    f" {reprlib.repr(value)}. Remove the file with its run, or let the functions return numbers."
                )
        return found

    def call_functions(self, name: str, seed: int) -> None:
        """Call the function of a cell at each point of its grid that has no row, and store what it returns; or its scores."""
        if self.study.cells[name].function is None:
            checkpoint = self.checkpoint(name, seed, self.study.checkpoint)
            found = {score: _function(path)(checkpoint) for score, path in self.study.scores.items()}
            numbers = {f"{score}/{key}": value for score, values in found.items() for key, value in values.items()}
            with replaced(self._scores(name, seed), "w") as file:
                json.dump(numbers, file)
            return
        cell, change = self.study.cells[name], self.study.change_of(name, self.schedule)
        function = _function(str(cell.function))
        filled = {key: self._filled(value) if isinstance(value, str) else value for key, value in change.arguments.items()}
        for point in self.missing(name, seed):
            began = time.monotonic()
            found = function(seed=seed, **filled, **point)
            several = [found] if isinstance(found, Mapping) else list(found)
            if not several:
                raise ConfigurationError(f"{cell.function} returned no numbers for {point}.")
            keys = {"cell": name, "seed": seed} | {key: str(value) for key, value in (cell.labels | point).items()}
            rows = [keys | numbers | keys for numbers in several]
            self._append(name, seed, rows, time.monotonic() - began)


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
    found = [(line[name], line.get("epoch", 0.0) + 1) for line in lines if name in line]
    if not found:
        return None
    values = [number for number, _ in found]
    if kind in ("min", "max", "argmin", "argmax"):
        found = [(number, epoch) for number, epoch in found if not math.isnan(number)]
        if not found:
            return math.nan
        best, epoch = (min if kind.endswith("min") else max)(found, key=lambda pair: pair[0])
        return epoch if kind.startswith("arg") else best
    if kind in ("first", "last"):
        return values[0 if kind == "first" else -1]
    return float(sum(values) if kind == "sum" else len(values))


if __name__ == "__main__":
    from lit_sparse.studies.load import load_study

    given = json.loads(sys.argv[1])
    given |= {"study": load_study(given["study"]), "output": Path(given["output"]), "results": Path(given["results"])}
    Runner(**given).call_functions(sys.argv[2], int(sys.argv[3]))
