"""Writing of predictions: one file for all processes, in the order of the inputs, or batch by batch."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain, filterfalse, islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from lit_sparse.callbacks.base import check_folder
from lit_sparse.errors import DataError, full_name
from lit_sparse.ground.distributed import gather_objects, gather_to_first, world_size
from lit_sparse.ground.files import open_to_append, replaced
from lit_sparse.ground.tensors import shown
from lit_sparse.lightning.choice import BasePredictionWriter, pl, rank_zero_warn

__all__ = ["PredictionWriter", "Writer", "check_indices", "write_files"]

#: Indices that a message names.
NAMED = 5


class Writer(BasePredictionWriter):
    """Base class of callbacks that write the predictions of all processes to files.

    Args:
        folder: folder of the files; None for the logger's folder, or without one the trainer's root folder.
        write_interval: ``"epoch"`` for files of all processes in the order of the inputs, written when all inputs are
            predicted; ``"batch"`` for one file per process, to which each batch is appended, without using memory.
    """

    #: Whether each input up to the last one must be predicted.
    complete: ClassVar[bool] = True

    def __init__(self, folder: str | None = None, write_interval: Literal["batch", "epoch"] = "epoch") -> None:
        super().__init__("batch")  # with "epoch", Lightning would keep the whole outputs in memory
        self.folder = check_folder(folder)
        self.write_interval = write_interval
        self._rows: list[dict[str, Any]] = []
        self._begun = False
        self._log_dir: str | None = None

    def rows_of(self, outputs: Any) -> Iterable[dict[str, Any]]:
        """Return the row to write for each input of a batch, with its ``index``; nothing for outputs of another kind."""
        raise NotImplementedError

    def files_of(self, rows: list[dict[str, Any]], begun: bool) -> dict[str, Iterable[str]]:
        """Return a dict from file names to the lines for some rows; without a header if the files are ``begun``."""
        raise NotImplementedError

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the folder to write to, by default the logger's, on all processes, because the first one broadcasts it."""
        super().setup(trainer, pl_module, stage)
        self._log_dir = trainer.log_dir

    @override
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._rows, self._begun = [], False

    @override
    def write_on_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, prediction: Any, *_: Any) -> None:
        self._rows += self.rows_of(prediction)
        if self.write_interval == "batch" and self._rows:
            rows, self._rows = self._rows, []
            for name, lines in self.files_of(rows, self._begun).items():
                path = self._place(trainer) / name
                if trainer.world_size > 1:
                    path = path.with_stem(f"{path.stem}_{trainer.global_rank}")
                path.parent.mkdir(parents=True, exist_ok=True)
                if not self._begun:
                    path.unlink(missing_ok=True)
                with open_to_append(path) as file:
                    file.writelines(f"{line}\n" for line in lines)
            self._begun = True

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the predictions of all processes, on the first process, unless each batch was written already.

        Raises:
            DataError: on every process, if an input was predicted twice, or an index is required and missing.
        """
        rows, self._rows = self._rows, []
        if self.write_interval == "epoch" and (ordered := self._ordered(rows)):
            files = self.files_of(ordered, False)
            write_files({self._place(trainer) / name: lines for name, lines in files.items()})

    def _ordered(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of all processes in the order of their inputs, on the first process."""
        numbered = all("index" in row for row in rows)
        if not numbered and world_size() > 1:
            raise DataError(
                "Expected `index` (B,), the numbers of the examples, in the output of predict_step but got none. Add it, or"
                " predict in one process: --trainer.devices 1."
            )
        indices = [row["index"] if numbered else place for place, row in enumerate(rows)]
        check_indices(chain.from_iterable(gather_objects(indices)), complete=self.complete)
        pairs = chain.from_iterable(gather_to_first(list(zip(indices, rows, strict=True))))
        return [row for _, row in sorted(pairs, key=lambda pair: pair[0])]

    def _place(self, trainer: pl.Trainer) -> Path:
        return Path(self.folder or self._log_dir or trainer.default_root_dir)


class PredictionWriter(Writer):
    """Write the output of ``predict_step`` to ``predictions.csv``, one line per example, in the order of the index.

    The output is a dict of tensors whose first dimension is the batch, including ``index`` (B,). The first process writes
    the examples of all processes to one file, completely or not at all.

    Args:
        folder: folder of the file; None for the logger's folder, or without one the trainer's root folder.
        write_interval: ``"epoch"``, or ``"batch"`` to write each batch at once, in the order of prediction; on several
            processes to ``predictions_0.csv`` and so on.
    """

    complete: ClassVar[bool] = False

    @override
    def rows_of(self, outputs: Any) -> Iterable[dict[str, Any]]:
        if not isinstance(outputs, dict | None):
            rank_zero_warn(
                f"PredictionWriter writes nothing: it expects a dict of tensors from predict_step but got {full_name(outputs)}."
            )
        if not isinstance(outputs, dict) or "lines" in outputs:  # text: TextPredictionWriter's
            return []
        columns: list[tuple[str, list[Any]]] = []
        tensors = all(isinstance(values, Tensor) and values.dim() for values in outputs.values())
        if not tensors or len({len(values) for values in outputs.values()}) > 1:
            got = ", ".join(f"{name} {shown(values)}" for name, values in outputs.items())
            raise DataError(f"Expected tensors (B, ...) from predict_step but got {got}.")
        for name, values in outputs.items():
            if values.dim() == 1:
                columns.append((name, values.tolist()))
            else:
                columns += [(f"{name}_{i}", column.tolist()) for i, column in enumerate(values.flatten(1).unbind(1))]
        if len(found := dict(columns)) < len(columns):
            names = ", ".join(name for name, _ in columns)
            raise DataError(
                f"Expected columns of different names from predict_step but got {names}. Rename one of the tensors."
            )
        return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]

    @override
    def files_of(self, rows: list[dict[str, Any]], begun: bool) -> dict[str, Iterable[str]]:
        if not begun:
            self._columns = list(rows[0])
        for row in rows:
            if list(row) != self._columns:
                raise DataError(
                    f"Expected the same columns in each batch of predict_step but got {', '.join(row)} after"
                    f" {', '.join(self._columns)}. Pad the tensors to one width, or leave them out."
                )
        header = [] if begun else [self._columns]
        return {"predictions.csv": map(_line, chain(header, (list(row.values()) for row in rows)))}


def _line(values: Iterable[Any]) -> str:
    """Return a line of csv without a line feed at its end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r").writerow(values)
    return buffer.getvalue()


def check_indices(indices: Iterable[int], *, complete: bool = True) -> None:
    """Check that inputs are numbered from 0 without repetition.

    Args:
        indices: indices of the inputs that were predicted.
        complete: whether each index up to the largest must occur.

    Raises:
        DataError: for a negative, repeated or missing index.

    Example:
        >>> check_indices([2, 0, 1])
        >>> check_indices([0, 3])
        Traceback (most recent call last):
        lit_sparse.errors.DataError: Nothing was predicted for input 1, 2 (numbered from 0). ...
    """
    counts = Counter(indices)
    if counts and min(counts) < 0:
        raise DataError(f"Expected inputs to be numbered from 0 but got index {min(counts)}.")
    if twice := sorted(index for index, count in counts.items() if count > 1):
        raise DataError(
            f"There is more than one prediction for input {_some(twice, len(twice))} (numbered from 0). Each input must"
            " occur once: use one data loader and, with several processes, a sampler that does not repeat examples."
        )
    if complete and (missing := max(counts, default=-1) + 1 - len(counts)):
        gaps = islice(filterfalse(counts.__contains__, range(max(counts))), NAMED)
        raise DataError(
            f"Nothing was predicted for input {_some([*gaps], missing)} (numbered from 0). Predict"
            " all inputs, without `limit_predict_batches`."
        )


def _some(indices: list[int], count: int) -> str:
    named = ", ".join(str(index) for index in indices[:NAMED])
    return named if count <= NAMED else f"{named}, ... ({count} in all)"


def write_files(files: dict[Path, Iterable[str]]) -> None:
    """Write lines to files, which get their final names only when all are complete."""
    with ExitStack() as parts:
        for path, lines in files.items():
            parts.enter_context(replaced(path, "w")).writelines(f"{line}\n" for line in lines)
