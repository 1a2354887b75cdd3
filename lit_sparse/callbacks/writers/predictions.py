"""Writes predictions to a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from typing_extensions import override

from lit_sparse.callbacks.writers.outputs import Writer, gather_in_order, write_files
from lit_sparse.errors import DataError
from lit_sparse.lightning.choice import pl

__all__ = ["PredictionWriter"]


class PredictionWriter(Writer):
    """Write the output of ``predict_step`` to ``predictions.csv``, one line per example, in the order of the index.

    The output is a dict of tensors whose first dimension is the batch, including ``index`` (B,). The first process writes the
    examples of all processes to one file, completely or not at all.

    Args:
        folder: folder of the file; None for the logger's folder.
    """

    @override
    def on_predict_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        if not isinstance(outputs, dict) or "lines" in outputs:  # text: TextPredictionWriter's
            return
        columns: dict[str, list[Any]] = {}
        for name, values in outputs.items():
            flat = values.detach().float() if values.is_floating_point() else values.detach()
            if flat.dim() == 1:
                columns[name] = flat.tolist()
            else:
                for i, column in enumerate(flat.reshape(len(flat), -1).unbind(-1)):
                    columns[f"{name}_{i}"] = column.tolist()
        self._rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the file, on the first process.

        Raises:
            DataError: if an example was predicted twice, or if several processes predict examples without an index.
        """
        rows, self._rows = self._rows, []
        numbered = all("index" in row for row in rows)
        if not numbered and trainer.world_size > 1:
            raise DataError(
                "Expected `index` (B,), the numbers of the examples, in the output of predict_step but got none. Add it, or"
                " predict in one process: --trainer.devices 1."
            )
        rows = gather_in_order(rows, [row["index"] if numbered else place for place, row in enumerate(rows)], complete=False)
        folder = self.folder or self._log_dir
        if rows and folder is not None:
            write_files(
                {Path(folder) / "predictions.csv": map(_line, chain([list(rows[0])], (list(row.values()) for row in rows)))}
            )


def _line(values: Iterable[Any]) -> str:
    """Return a line of csv without a line feed at its end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r").writerow(values)
    return buffer.getvalue()
