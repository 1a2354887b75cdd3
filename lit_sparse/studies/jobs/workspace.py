"""Where the runs and rows of a study are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lit_sparse.studies.jobs.cluster import Cluster
from lit_sparse.studies.jobs.rows import Row, Rows
from lit_sparse.studies.plan.load import check_names
from lit_sparse.studies.plan.study import Study

__all__ = ["Workspace"]


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
