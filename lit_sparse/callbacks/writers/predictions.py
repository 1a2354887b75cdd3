"""Writes predictions to a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from itertools import chain
from typing import Any

from typing_extensions import override

from lit_sparse.callbacks.writers.outputs import Writer, gather_in_order
from lit_sparse.errors import DataError
from lit_sparse.ground.distributed import world_size

__all__ = ["PredictionWriter"]


class PredictionWriter(Writer):
    """Write the output of ``predict_step`` to ``predictions.csv``, one line per example, in the order of the index.

    The output is a dict of tensors whose first dimension is the batch, including ``index`` (B,). The first process writes
    the examples of all processes to one file, completely or not at all.

    Args:
        folder: folder of the file; None for the logger's folder, or without one the trainer's root folder.
        write_interval: ``"epoch"``, or ``"batch"`` to write each batch at once, in the order of prediction; on several
            processes to ``predictions_0.csv`` and so on.
    """

    @override
    def rows_of(self, outputs: Any) -> Iterable[dict[str, Any]]:
        if not isinstance(outputs, dict) or "lines" in outputs:  # text: TextPredictionWriter's
            return []
        columns: dict[str, list[Any]] = {}
        for name, values in outputs.items():
            flat = values.detach().float() if values.is_floating_point() else values.detach()
            if flat.dim() == 1:
                columns[name] = flat.tolist()
            else:
                for i, column in enumerate(flat.reshape(len(flat), -1).unbind(-1)):
                    columns[f"{name}_{i}"] = column.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @override
    def ordered(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        numbered = all("index" in row for row in rows)
        if not numbered and world_size() > 1:
            raise DataError(
                "Expected `index` (B,), the numbers of the examples, in the output of predict_step but got none. Add it, or"
                " predict in one process: --trainer.devices 1."
            )
        return gather_in_order(rows, [row["index"] if numbered else place for place, row in enumerate(rows)], complete=False)

    @override
    def files_of(self, rows: list[dict[str, Any]], begun: bool) -> dict[str, Iterable[str]]:
        header = [] if begun else [list(rows[0])]
        return {"predictions.csv": map(_line, chain(header, (list(row.values()) for row in rows)))}


def _line(values: Iterable[Any]) -> str:
    """Return a line of csv without a line feed at its end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r").writerow(values)
    return buffer.getvalue()
