"""Base of callbacks that draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lit_sparse.callbacks.base import StageCallback
from lit_sparse.lightning import TensorBoardLogger, pl

__all__ = ["Picture", "new_figure"]


class Picture(StageCallback):
    """Base of callbacks that draw: saves a figure in the run folder and shows it in TensorBoard.

    Args:
        folder: folder of the pictures; None for the logger's folder.
    """

    #: File name without its ending, and tag in TensorBoard.
    name = "picture"

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.folder = folder
        self._log_dir: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the logger's folder, which is broadcast and therefore read on all processes."""
        self._log_dir = trainer.log_dir

    def save(self, trainer: pl.Trainer, figure: Any) -> None:
        """Write a matplotlib figure as PNG, and to every TensorBoard logger."""
        folder = self.folder or self._log_dir
        if folder is not None:
            path = Path(folder) / "pictures" / f"{self.name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120, bbox_inches="tight")
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure(self.name, figure, global_step=trainer.global_step)


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure and its axes, without touching pyplot's state or needing a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
