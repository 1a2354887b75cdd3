"""A CSV logger that a resumed run continues, where Lightning's would delete the file."""

from __future__ import annotations

import csv
from pathlib import Path

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.utilities import rank_zero_only

__all__ = ["RunCSVLogger", "run_loggers"]


class _Continued(ExperimentWriter):
    """Writes ``metrics.csv`` after what is there already."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.is_file():
            with path.open(newline="") as file:
                self.metrics_keys = list(next(csv.reader(file), []))


class RunCSVLogger(CSVLogger):
    """Log metrics to ``metrics.csv`` in the run folder; an existing file is continued.

    Args:
        folder: the run folder.
        resumed_step: rows at or after this step are dropped: the killed run logged them after its last checkpoint.
    """

    def __init__(self, folder: str, resumed_step: int | None = None) -> None:
        super().__init__(save_dir=folder, name="", version="", flush_logs_every_n_steps=50)
        self._resumed_step = resumed_step

    @property
    def experiment(self) -> ExperimentWriter:
        """The writer, on the first process; Lightning gives the others a dummy."""
        return self._writer() or _DUMMY  # type: ignore[return-value]

    @rank_zero_only
    def _writer(self) -> ExperimentWriter:
        if self._experiment is None:
            path = Path(self.log_dir) / ExperimentWriter.NAME_METRICS_FILE
            if self._resumed_step is not None and path.is_file():
                _drop_from(path, self._resumed_step)
            self._experiment = _Continued(log_dir=self.log_dir)
        return self._experiment  # type: ignore[return-value]


def _drop_from(path: Path, step: int) -> None:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if row.get("step") and int(row["step"]) < step]
        fields = list(reader.fieldnames or [])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=fields)
        writer.writeheader()
        writer.writerows(rows)


class _Dummy:
    def __getattr__(self, name: str) -> object:
        return lambda *args, **kwargs: None


_DUMMY = _Dummy()


def run_loggers(folder: Path, resumed_step: int | None, *, board: bool) -> list[Logger]:
    """Return what writes a run's metrics.

    Args:
        folder: of the run.
        resumed_step: step from which the run goes on; what was written after it is dropped. None for a new one.
        board: whether to write TensorBoard's events too.
    """
    csv = RunCSVLogger(str(folder), resumed_step=resumed_step)
    if not board:
        return [csv]
    return [TensorBoardLogger(str(folder), name="", version="", default_hp_metric=False, purge_step=resumed_step), csv]
