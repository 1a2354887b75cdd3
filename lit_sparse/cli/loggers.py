"""Loggers that write their rows to disk before each checkpoint, and that a resumed run continues."""

from __future__ import annotations

import csv
import os
import re
import time
from pathlib import Path
from typing import Any

from lit_sparse.cli.callbacks import as_list
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import open_to_append, replaced
from lit_sparse.ground.stored import read_table
from lit_sparse.lightning.choice import (
    CSVLogger,
    ExperimentWriter,
    Logger,
    TensorBoardLogger,
    pl,
    rank_zero_info,
    rank_zero_only,
)
from lit_sparse.lightning.internals import next_row
from lit_sparse.runs.checkpoint_files import LOGGED_STEP, ROWS, leaves

__all__ = ["ROWS", "RowsBeforeCheckpoint", "RunBoard", "RunCSVLogger", "kept_by", "run_loggers"]

Row = dict[str, Any]
#: Number of rows of ``metrics.csv`` at a checkpoint, and the step of Lightning's last ones; None where it is not known.
Kept = tuple[int | None, int | None]


class _RowAhead(Logger):
    """Logger that can write a row early; Lightning's later call with the same row has no effect."""

    _ahead: tuple[int | None, frozenset[str]] = (None, frozenset())

    def log_ahead(self, metrics: Row, step: int) -> None:
        """Log a row that Lightning is about to log."""
        self.log_metrics(metrics, step)
        self._ahead = (step, frozenset(metrics))

    @rank_zero_only
    def log_metrics(self, metrics: Row, step: int | None = None) -> None:
        """Log a row without the metrics that were logged ahead."""
        (ahead, names), self._ahead = self._ahead, (None, frozenset())
        if step is None or step != ahead:
            super().log_metrics(metrics, step)  # type: ignore[safe-super]
        elif not names.issuperset(metrics):
            rest = {name: value for name, value in metrics.items() if name == "epoch" or name not in names}
            super().log_metrics(rest, step)  # type: ignore[safe-super]


class _Continued(ExperimentWriter):
    """Append to ``metrics.csv``; a kill or a full disk never removes rows that were written.

    Args:
        log_dir: folder of the file.
        kept: number of rows of an existing file to keep; None to keep the rows before the step ``before``.
        before: step before which rows are kept.
        step: step of Lightning's rows at the checkpoint; None if it is not known.

    Raises:
        ConfigurationError: if the file has fewer rows than are to be kept.
    """

    def __init__(self, log_dir: str, kept: int | None, before: int | None, step: int | None = None) -> None:
        super().__init__(log_dir)
        self.path = Path(self.metrics_file_path)
        self.rows = 0
        if not self.path.is_file():
            return
        rows = self._read() if kept != 0 or step is not None else []
        self.metrics_keys = sorted(rows[0]) if rows else []  # the order in which Lightning appends
        if len(rows) < (kept or 0):
            raise ConfigurationError(
                f"Expected {kept} rows in {str(self.path)!r}, as when the checkpoint was written, but got {len(rows)}. Restore"
                " the file, or remove it to log anew."
            )
        if kept is not None and step is not None and any(_is_before(row, step) for row in rows[kept:]):
            whole = self.path.with_name(f"metrics_{len(rows)}.csv")
            with replaced(whole, "wb") as file:
                file.write(self.path.read_bytes())
            rank_zero_info(
                f"note: the checkpoint has {kept} rows of {self.path.name}, fewer than its step; all are in {whole.name}"
            )
        if kept is None and before is not None:
            rows = [row for row in rows if row.get("step") and float(row["step"]) < before]
        self._rewrite(rows[:kept])

    def save(self) -> None:
        """Append the rows that were logged since the last call."""
        if not self.metrics:
            return
        if self._record_new_keys() or not self.path.is_file():
            self._rewrite(self._read())
        rows, self.metrics = self.metrics, []
        with open_to_append(self.path) as file:
            csv.DictWriter(file, fieldnames=self.metrics_keys).writerows(rows)
        self.rows += len(rows)

    def sync(self) -> int:
        """Write all rows and synchronize the file to the disk; return their number."""
        self.save()
        if self.path.is_file():
            with open_to_append(self.path) as file:
                os.fsync(file.fileno())
        return self.rows

    def _check_log_dir_exists(self) -> None:
        """Do nothing: Lightning would delete the file."""

    def _read(self) -> list[Row]:
        """Return the rows of the file; none if there is no file."""
        return [*read_table(self.path, self.path.parent, numbers=("step",))]

    def _rewrite(self, rows: list[Row]) -> None:
        with replaced(self.path, "w") as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys)
            writer.writeheader()
            writer.writerows(rows)
        self.rows = len(rows)


def _is_before(row: Row, step: int) -> bool:
    """Return whether Lightning logged a row at an earlier step; a row without an epoch has a step of the user's."""
    return bool(row.get("epoch") and row.get("step")) and float(row["step"]) < step


class RunCSVLogger(_RowAhead, CSVLogger):
    """Logger that writes metrics to ``metrics.csv``, by default in the run folder, and appends to an existing file.

    Args:
        folder: the run folder.
        kept: number of rows of an existing file to keep, from the checkpoint of a resumed run.
        resumed_step: step before which rows are kept, for a checkpoint without a number of rows.
        logged_step: step of the rows that Lightning logged last before the checkpoint.
    """

    _continued: tuple[int | None, int | None, int | None] = (None, None, None)  # the user's logger keeps all rows

    def __init__(
        self, folder: str, kept: int | None = None, resumed_step: int | None = None, logged_step: int | None = None
    ) -> None:
        super().__init__(save_dir=folder, name="", version="", flush_logs_every_n_steps=50)
        self._continued = kept, resumed_step, logged_step

    @property
    def experiment(self) -> Any:
        """The writer of the CSV file on the first process; Lightning's dummy, whose methods do nothing, on the others."""
        if self._experiment is None and not getattr(rank_zero_only, "rank", 0):
            self._experiment = _Continued(self.log_dir, *self._continued)
        return super().experiment

    def sync(self) -> int:
        """Write all rows and flush the file to disk; return the number of rows, 0 on processes after the first."""
        return self.experiment.sync() or 0


class RunBoard(_RowAhead, TensorBoardLogger):  # type: ignore[misc]
    """Logger that writes TensorBoard events to the run folder.

    Args:
        folder: the run folder.
        resumed_step: step from which a resumed run replaces logged values.

    Raises:
        ConfigurationError: if the path of the folder cannot be encoded in UTF-8, as TensorBoard does.
    """

    def __init__(self, folder: str, resumed_step: int | None = None) -> None:
        try:
            folder.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"Expected a run folder with a name in UTF-8 but got {folder!r}. Rename it, or choose another --output_dir."
            ) from error
        super().__init__(folder, name="", version="", default_hp_metric=False, purge_step=resumed_step)

    @property
    def experiment(self) -> Any:
        """The writer of the events on the first process; Lightning's dummy, whose methods do nothing, on the others."""
        if self._experiment is None and not getattr(rank_zero_only, "rank", 0) and self._kwargs.get("purge_step") is not None:
            events = sorted(Path(self.log_dir).glob("events.out.tfevents.*"))
            if events and events[-1].name > f"events.out.tfevents.{int(time.time())}":  # a clock was set back, or is behind
                for number, path in enumerate(events):  # TensorBoard reads files in the order of their names
                    path.rename(path.with_name(re.sub(r"\d+", f"{number:010}", path.name, count=1)))
        return super().experiment


#: Lightning's loggers -> the kinds that the user's own become, so that they lose no row at a kill.
OWN_KINDS: dict[type, type] = {CSVLogger: RunCSVLogger, TensorBoardLogger: RunBoard}


class RowsBeforeCheckpoint(pl.Callback):
    """Callback that writes all rows up to a checkpoint before the checkpoint itself, which stores their number.

    Lightning logs the rows of a step and of an epoch after the hooks that write checkpoints.
    """

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write all rows so far, and store their number in the checkpoint."""
        row = next_row(trainer)
        for logger in trainer.loggers:
            if row is not None and isinstance(logger, _RowAhead):
                logger.log_ahead(*row)
            if isinstance(logger, RunCSVLogger):
                checkpoint.setdefault(ROWS, logger.sync())  # the run's own logger comes first
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.flush()


def kept_by(checkpoint: dict[str, Any]) -> Kept:
    """Return how many rows a run keeps that continues from a checkpoint, and their last step; its counters were checked."""
    steps = [value for place, value in leaves("", checkpoint.get("loops"), "") if place.endswith(LOGGED_STEP)]
    return checkpoint.get(ROWS), min(steps, default=None)


def run_loggers(folder: Path, asked: Any, kept: Kept, resumed_step: int | None, board: bool) -> list[Logger]:
    """Return the loggers of a run; the logger of ``metrics.csv`` comes first.

    Args:
        folder: the run folder.
        asked: the user's loggers, which replace TensorBoard's; None or True for none.
        kept: number of rows of ``metrics.csv`` that a resumed run keeps, and their last step; see :func:`kept_by`.
        resumed_step: step at which a resumed run continues; None for a new run.
        board: whether to also write TensorBoard events.
    """
    own = RunCSVLogger(str(folder), kept[0], resumed_step, kept[1])
    if asked is None or asked is True:
        return [own, RunBoard(str(folder), resumed_step)] if board else [own]
    for logger in (others := as_list(asked)):
        if type(logger) in OWN_KINDS and logger._experiment is None and "://" not in str(logger.save_dir):
            logger.__class__ = OWN_KINDS[type(logger)]
            if isinstance(logger, RunCSVLogger) and board and resumed_step is None:
                logger._continued = 0, None, None  # a new run replaces the rows of its version, as in Lightning
    return [own, *others]
