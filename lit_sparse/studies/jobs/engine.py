"""The runs of a study: each cell once with each seed, continued where it was killed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lit_sparse.errors import LitSparseError
from lit_sparse.runs.status import check_plain
from lit_sparse.studies.jobs.cell_run import RunOf
from lit_sparse.studies.jobs.processes import locked, naming_failure, run_all, say, try_lock
from lit_sparse.studies.jobs.program import ProgramRun
from lit_sparse.studies.jobs.rows import Workspace
from lit_sparse.studies.plan.load import check_names, load_study
from lit_sparse.studies.plan.study import changes, digest, written

__all__ = ["Runner", "call_in_process"]


@dataclass
class Runner(Workspace):
    """Runs the unfinished runs of a study, several at a time.

    Args:
        jobs: number of runs at a time.
    """

    jobs: int = 1

    def of(self, name: str, seed: int) -> RunOf:
        """Return the run of a cell with a seed."""
        return (ProgramRun if self.study.program else RunOf)(self, name, seed)

    def run(self, cells: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[str]:
        """Run all unfinished runs; return the messages of those that failed.

        Args:
            cells: names of cells; by default all. The name of a cell with a grid stands for all points of the grid.
            seeds: seeds to use in place of the study's.
        """
        known = dict.fromkeys(part for name in self.study.cells for part in (written(name), name))
        check_names(cells or (), known, f"--cells of {self.study.path}")
        chosen = self.study.schedules[self.schedule].cells if self.schedule in self.study.schedules else []
        visible = [name for name, cell in self.study.cells.items() if not cell.hidden and written(name) in (chosen or known)]
        asked = visible if not cells else [name for name in self.study.cells if {name, written(name)} & set(cells)]
        runs = [self.of(name, seed) for name in asked for seed in seeds or self.study.cells[name].seeds or ()]
        runs.sort(key=lambda run: run.seed)  # all cells with the first seed come first
        pending = [run for run in runs if not run.finished]
        if changed := self.changed(asked):
            return changed
        check_plain(self.folder, self.output)
        levels = [pending]  # before it, the runs whose checkpoints others need
        while above := {run.place: run for below in levels[0] for run in below.sources()}:
            levels.insert(0, [*above.values()])
        for run in {run.name: run for level in levels for run in level}.values():
            run.check_options()
        if len(pending) < len(runs):
            say(f"{len(runs) - len(pending)} of {len(runs)} runs have rows in {self.rows.path}")
        if not pending:
            say("Give --results and --output with other folders to run them again.")
        failed: list[str] = []
        for level in levels[:-1]:
            failed += self._run_each(level, source=True)
        lost = {run.place: run.sources() for run in pending if not all(source.usable for source in run.sources())}
        failed += [f"{place}: needs a checkpoint of {', '.join(one.name for one in some)}" for place, some in lost.items()]
        return failed + self._run_each([run for run in pending if run.place not in lost and not run.finished])

    def _run_each(self, runs: Sequence[RunOf], *, source: bool = False) -> list[str]:
        """Run cells, first those that no other process runs."""
        held: list[RunOf] = []
        failed = run_all([partial(self.run_cell, run, source=source, held=held) for run in runs], self.jobs)
        return failed + run_all([partial(self.run_cell, run, source=source) for run in held], self.jobs)

    def run_cell(self, run: RunOf, threads: int, *, source: bool = False, held: list[RunOf] | None = None) -> None:
        """Run a cell with one seed, unless that is finished.

        Args:
            run: the cell with its seed.
            threads: number of threads of its commands.
            source: whether other runs need its checkpoint, so that it is trained again if its run folder is gone.
            held: list that receives the run if another process works on it; None to wait for that process.

        Raises:
            JobFailedError: if the run fails.
            ConfigurationError: if it was started with other settings.
        """
        path = self.folder / f"{run.place}.lock"
        if held is not None:
            file = try_lock(path)
            if file is None:
                held.append(run)
                return
            file.close()
        waits = f"{run.place}: another process is running it, or a killed one left its training running; waiting"
        with locked(path, partial(say, waits)) as descriptors:
            finished = run.finished
            if finished and not run.cell.hidden and (not source or run.trained):
                return
            with naming_failure(run.place):
                run.begin()
                if finished and run.trained:
                    return
                say(f"{run.place}: running; output in {run.log}")
                began = time.monotonic()
                run.run(threads, descriptors)
            say(f"{run.place}: finished, {(time.monotonic() - began) / 60:.1f} min")

    def changed(self, cells: Iterable[str] | None = None) -> list[str]:
        """Return a message for each cell whose rows were made with other settings than the present ones."""
        rows, found = self.rows.read(), []
        for name in self.study.cells if cells is None else cells:
            asked = self.of(name, 0).settings
            made = {row["settings"]: int(row["seed"]) for row in rows if row["cell"] == name and row["settings"]}
            seed = next((seed for settings, seed in made.items() if settings != digest(asked)), None)
            if seed is not None:
                begun = self.of(name, seed).begun
                which = f": {'; '.join(changes(begun, asked))}" if begun and begun != asked else ""
                found.append(
                    f"{self.rows.path} has rows of cell {name!r} that were made with other settings{which}. Remove these rows"
                    f" and {self.folder / name} to run it again, or give other folders with --results and --output."
                )
        return found

    def settings_of(self, name: str, rows: Iterable[Mapping[str, str]]) -> dict[str, Any]:
        """Return the settings with which rows of a cell were made; empty if they are no longer known."""
        made = {row["settings"]: self.of(name, int(row["seed"])) for row in rows}
        found = [self.of(name, 0).settings, *(run.begun for run in made.values())]
        return next((settings for settings in found if settings and digest(settings) in made), {})


def call_in_process(described: str, name: str, seed: int, tested: str = "{}") -> None:
    """Call the functions of a cell in this process, which ends with a message if one fails.

    Raises:
        SystemExit: with the message of an error of this package.
    """
    given = json.loads(described)
    try:
        given |= {"study": load_study(given["study"]), "output": Path(given["output"]), "results": Path(given["results"])}
        Runner(**given).of(name, seed).call_functions(json.loads(tested))
    except LitSparseError as error:
        sys.exit(f"lit-sparse: error: {error}")


if __name__ == "__main__":
    call_in_process(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
