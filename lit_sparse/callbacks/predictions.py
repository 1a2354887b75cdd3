"""Writes predictions to a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

__all__ = ["PredictionWriter"]


class PredictionWriter(pl.Callback):
    """Write what ``predict_step`` returns to ``predictions.csv``, one line an example, in the order of their index.

    Expects dicts of tensors whose first dimension is the batch, ``index`` among them. A process of several writes
    ``predictions_<rank>.csv``.

    Args:
        folder: where the file goes; the logger's folder by default.
    """

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.folder = folder
        self._rows: list[dict[str, Any]] = []
        self._log_dir: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Ask for the logger's folder here, where all processes are: the answer is broadcast."""
        self._log_dir = trainer.log_dir

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: D102
        self._rows = []

    def on_predict_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:  # noqa: D102
        if isinstance(outputs, dict) and "lines" in outputs:  # text: TextPredictionWriter's
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

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: D102
        folder = self.folder or self._log_dir
        if not self._rows or folder is None:
            return
        several = torch.distributed.is_initialized() and trainer.world_size > 1
        path = Path(folder) / (f"predictions_{trainer.global_rank}.csv" if several else "predictions.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(self._rows[0]))
            writer.writeheader()
            writer.writerows(sorted(self._rows, key=lambda row: row.get("index", 0)))
