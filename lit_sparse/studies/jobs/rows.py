"""Rows of results: a CSV file to which each finished cell is appended at once, and which is never written twice."""

from __future__ import annotations

import csv
import math
import os
import platform
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import read_table
from lit_sparse.studies.jobs.processes import locked
from lit_sparse.studies.plan.study import PROVENANCE
from lit_sparse.version import __version__

__all__ = ["Row", "Rows", "provenance"]

Row = dict[str, str]


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

    def __init__(
        self,
        path: Path,
        lock: Path,
        cells: Iterable[str] = (),
        last: Sequence[str] = PROVENANCE,
        numbers: Collection[str] = (),
        lists: Collection[str] = (),
        unique: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.lock = lock
        self.order = {name: place for place, name in enumerate(cells)}
        self.last, self.numbers, self.lists, self.unique = last, numbers, lists, unique

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
            first = kept.setdefault(_key(row, self.unique), row) if self.unique and row["cell"] in self.order else row
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
                _write(self.path, sorted([*before, *new], key=self._place), [*names, *self.last])

    def _place(self, row: Row) -> tuple[int, int]:
        return self.order.get(row["cell"], len(self.order)), int(row["seed"])


def _key(row: Row, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.get(key, "") for key in keys)


def _write(path: Path, rows: Iterable[Row], names: Sequence[str]) -> None:
    with replaced(path, "w") as file:  # a reader sees the old file or the new one
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


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
