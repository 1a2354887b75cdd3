"""Rows of results, in CSV files to which each finished run is appended at once, and where the runs and rows of a study are."""

from __future__ import annotations

import csv
import math
import os
import platform
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import read_table
from lit_sparse.studies.jobs.cluster import Cluster
from lit_sparse.studies.jobs.processes import locked
from lit_sparse.studies.plan.load import check_names
from lit_sparse.studies.plan.study import PROVENANCE, Study
from lit_sparse.version import __version__

__all__ = ["Row", "Rows", "Workspace", "provenance"]

Row = dict[str, str]


@dataclass
class Rows:
    """Rows of a study's results in a CSV file, to which each finished run is appended.

    Args:
        path: path of the CSV file.
        lock: path of a lock file that a process holds while it writes.
        cells: names of cells, which determine the order of rows.
        last: names of the last columns.
        numbers: names of columns that hold numbers.
        lists: names of columns whose cells hold several numbers.
        unique: names of columns that together identify a row of a cell.
    """

    path: Path
    lock: Path
    cells: Collection[str] = ()
    last: Sequence[str] = PROVENANCE
    numbers: Collection[str] = ()
    lists: Collection[str] = ()
    unique: Sequence[str] = ()

    def read(self) -> list[Row]:
        """Return all rows without repetition, except a last line that an interrupted process left unfinished.

        Raises:
            ConfigurationError: if the file is not such a table, or holds contradicting rows.
        """
        needed, numbers = ("cell", "seed", *self.last, *self.lists), (*self.numbers, "seconds")
        rows = read_table(self.path, self.path.parent, needed=needed, integers=["seed"], numbers=numbers, lists=self.lists)
        kept: dict[tuple[str, ...], Row] = {}
        found = []
        for row in rows:
            if not 0 <= float(row.get("seconds") or 0) < math.inf:
                raise ConfigurationError(
                    f"Expected a finite number of `seconds` >= 0 in {str(self.path)!r} but got {row['seconds']!r} for cell"
                    f" {row['cell']!r:.80}, seed {row['seed']}. Correct the row."
                )
            first = kept.setdefault(_key(row, self.unique), row) if self.unique and row["cell"] in self.cells else row
            if first != row:
                which = ", ".join(f"{name} {row.get(name, '')}" for name in self.unique)
                raise ConfigurationError(
                    f"Expected one row with {which} in {str(self.path)!r} but got two different ones. Remove the wrong one."
                )
            if first is row:
                found.append(row)
        return found

    def append(self, rows: Sequence[Mapping[str, object]], keys: Sequence[str], *, replace: bool = False) -> None:
        """Add rows to the file, except rows whose ``keys`` already exist, and sort all by cell and seed.

        Args:
            rows: rows as dicts, column -> value.
            keys: columns that identify a row.
            replace: whether existing rows with the same keys are replaced.
        """
        with locked(self.lock):
            before, texts = self.read(), [{name: shown(value) for name, value in row.items()} for row in rows]
            made = {_key(row, keys) for row in texts}
            before = [row for row in before if not replace or _key(row, keys) not in made]
            seen = {_key(row, keys) for row in before}
            new = [row for row in texts if _key(row, keys) not in seen]
            if new:
                names = dict.fromkeys(name for row in (*before[:1], *new) for name in row if name not in self.last)
                order = {name: place for place, name in enumerate(self.cells)}
                ordered = sorted([*before, *new], key=lambda row: (order.get(row["cell"], len(order)), int(row["seed"])))
                with replaced(self.path, "w") as file:  # a reader sees the old file or the new one
                    writer = csv.DictWriter(file, [*names, *self.last], restval="", lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(ordered)


@dataclass
class Workspace:
    """Places and options with which a study is run: its schedule, folders, inputs and cluster.

    Args:
        study: the study.
        schedule: name of the schedule; None for a study without schedules.
        output: folder of all runs.
        results: folder of the rows and tables of results.
        inputs: name -> path of each input.
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
        """Return the study's stored rows of results, the curves of its runs, and their scores on resampled test inputs.

        Raises:
            ConfigurationError: if a file is damaged.
        """
        rows = [row for row in self.rows.read() if row["cell"] in self.study.cells]
        runs = {(row["cell"], row["seed"]) for row in rows}
        curves, samples = (
            [row for row in some.read() if (row["cell"], row["seed"]) in runs] for some in (self.curves, self.samples)
        )
        return rows, curves, samples


def _key(row: Row, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.get(key, "") for key in keys)


def shown(value: object) -> str:
    """Return a value as text for the CSV file; numbers have nine digits."""
    return format(value, ".9g") if isinstance(value, float) else "" if value is None else str(value)


def provenance(settings: str, seconds: float | None) -> dict[str, str]:
    """Return the values of the columns on a row's origin: settings, versions, machine, and seconds, or None if not measured."""
    packages = {"lit-sparse": __version__, **{name: _version(name) for name in ("torch", "pytorch-lightning")}}
    return {
        "settings": settings,
        "commit": _commit(),
        "seconds": "" if seconds is None else f"{seconds:.1f}",
        "machine": f"{platform.machine()} {os.cpu_count()} cores",
        "versions": " ".join(f"{name}={number}" for name, number in packages.items()),
    }


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # an installed package has no history
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
