"""The runs of a study whose program is a LightningCLI of the user."""

from __future__ import annotations

import math
import os
import stat
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lit_sparse.ground.files import below
from lit_sparse.runs.folders import numbered
from lit_sparse.studies.jobs.cell_run import RunOf
from lit_sparse.studies.jobs.logged import by_age, logged_by_program
from lit_sparse.studies.jobs.processes import JobFailedError

__all__ = ["ProgramRun"]


class ProgramRun(RunOf):
    """Run of a study whose program is a user's LightningCLI; it trains in ``fit`` and tests in ``test/NUMBER``."""

    def checkpoint(self, which: str = "last") -> Path:
        """Return the path of the newest checkpoint, or of the newest one that matches a pattern."""
        pattern = self.workspace.study.checkpoint_files if which == "last" else which
        return _newest(self.folder / "fit", pattern) or self.folder / "fit" / str(pattern)

    def train(self, threads: int, held: Sequence[int], stops: Callable[[], bool] | None = None) -> None:
        """Train to the end; see :meth:`RunOf.train`.

        Existing files are given earlier times of change than now, and than the files that this training writes, so that the
        newest file is found even if a clock was set back.
        """
        before = self._times()
        _move_before(before, time.time_ns())
        before = self._times()
        try:
            super().train(threads, held, stops)
        finally:
            after = self._times()
            written = {path: changed for path, changed in after.items() if before.get(path) != changed}
            _move_before({path: after[path] for path in after.keys() - written}, min(written.values(), default=math.inf))

    def _times(self) -> dict[Path, int]:
        """Return the times of change of all files of the run."""
        found = {}
        for path in below(self.folder):
            with suppress(FileNotFoundError):  # a training that goes on may remove it
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    found[path] = status.st_mtime_ns
        return found

    def continued(self) -> list[str]:
        """Return the options that resume an interrupted training from a checkpoint before which everything was logged."""
        checkpoint, metrics = self.checkpoint(), _newest(self.folder / "fit", self.workspace.study.metric_files)
        if metrics is None or not checkpoint.is_file():
            return []
        with checkpoint.open("rb") as file:
            if file.read(2) in (b"", b"PK") and not zipfile.is_zipfile(file):  # a full disk or a kill has cut it off
                return []
        names: dict[float, set[str]] = {}
        for line in self.logged():
            names.setdefault(line.get("epoch", 0.0), set()).update(line)
        before, last = [set(), set(), *names.values()][-2:]
        # A logger may write what an epoch has logged only after the checkpoint of the epoch.
        whole = checkpoint.stat().st_mtime_ns <= metrics.stat().st_mtime_ns or (before and before <= last)
        return ["--ckpt_path", str(checkpoint.resolve())] if last and whole else []

    def logged(self, folder: Path | None = None) -> list[dict[str, float]]:
        """Return the logged values of the training, or of a test in a folder of its own; see :func:`logged_by_program`."""
        return logged_by_program(folder or self.folder / "fit", self.workspace.study.metric_files)

    @property
    def trained(self) -> bool:
        """Whether training was completed."""
        return (self.folder / "finished").is_file()

    def _check_end(self) -> None:
        study = self.workspace.study
        tested = self.checkpoint(study.checkpoint)
        if study.tests and not tested.is_file():
            raise JobFailedError(
                f"{tested} does not exist at the end of the training. Give {study.path} `tests: {{}}`, or another `checkpoint`;"
                f" see {self.log}"
            )
        if not by_age(self.folder / "fit", study.metric_files):
            raise JobFailedError(
                f"{self.folder / 'fit'} has no {study.metric_files} at the end of the training. Give the program a CSVLogger"
                f" with save_dir {{folder}}, or {study.path} another `metric_files`; see {self.log}"
            )

    def command(self, command: str) -> list[str]:
        """Return a command of the program with the config and options of the cell, which writes to the run's folder."""
        study, folder = self.workspace.study, self.folder / command
        folder = folder / str(len(numbered(folder))) if command == "test" else folder
        options = ["--trainer.default_root_dir", "{folder}"]
        if not any(option.startswith("trainer.logger") for option in self.cell.options):
            options += ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "{folder}"]
        words = [word.replace("{folder}", str(folder)) for word in [*options, *self._options()]]
        return [*study.command, command, *words]

    def printing(self) -> list[str]:
        """Return the command that prints the run's config, without its folder."""
        return [*self.workspace.study.command, "fit", *self._options(), "--print_config"]

    @staticmethod
    def measures(name: str) -> bool:
        """Return whether a value that a test logged belongs to the row of results."""
        return name.rpartition("/")[2] not in ("epoch", "step")


def _move_before(times: dict[Path, int], moment: float) -> None:
    """Give files earlier times of change, all by the same amount, unless they are before a moment."""
    ahead = max(times.values(), default=0) - moment
    for path, changed in times.items() if ahead >= 0 else ():
        with suppress(FileNotFoundError):
            os.utime(path, ns=(changed - int(ahead) - 1,) * 2, follow_symlinks=False)


def _newest(folder: Path, pattern: str | None) -> Path | None:
    return next(reversed(by_age(folder, pattern)), None)
