"""Base of callbacks that draw."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from typing_extensions import override

from lit_sparse.arguments import constructor_parameters
from lit_sparse.callbacks.base import StageCallback
from lit_sparse.lightning import TensorBoardLogger, pl
from lit_sparse.runs import replaced

__all__ = ["Format", "Picture", "new_figure"]

Format: TypeAlias = Literal["png", "svg", "json"]


class Picture(StageCallback):
    """Base of callbacks that draw: saves a figure in the run folder and shows it in TensorBoard.

    Args:
        folder: folder of the pictures; None for the logger's folder.
    """

    #: File name without its ending, and tag in TensorBoard.
    name = "picture"
    #: File formats; ``save`` leaves ``"json"`` to the callback.
    formats: tuple[Format, ...] = ("png",)
    #: Attributes with what the picture shows of the last validation; a checkpoint keeps them, since a run that is continued at
    #: its end does not validate again. On the first process they hold what all processes have seen.
    shown: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.folder = folder
        self._log_dir: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Read the logger's folder, which is broadcast and therefore read on all processes."""
        self._log_dir = trainer.log_dir

    @property
    @override
    def state_key(self) -> str:
        """Name of the state: two pictures of a class differ in their arguments."""
        names = [name for name in constructor_parameters(type(self)) if name != "folder"]
        return self._generate_state_key(**{name: getattr(self, name, None) for name in names})

    def state_dict(self) -> dict[str, Any]:
        """Return what the picture shows of the last validation."""
        return {name: getattr(self, name) for name in self.shown}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what the picture shows."""
        for name in self.shown:
            setattr(self, name, state_dict[name])

    def save(self, trainer: pl.Trainer, figure: Any, name: str | None = None) -> None:
        """Write a figure in every format, and as PNG to every TensorBoard logger; the same figure makes the same files.

        Args:
            trainer: its loggers show the figure.
            figure: a matplotlib figure.
            name: file name without its ending, and tag in TensorBoard; the callback's own by default.
        """
        from matplotlib import rc_context
        from matplotlib.image import imread

        name = name or self.name
        folder = self.folder or self._log_dir
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        written = [ending for ending in self.formats if ending != "json"] if folder is not None else []
        for ending in dict.fromkeys([*written, "png"] if boards else written):
            buffer = io.BytesIO()  # drawn once for the file and TensorBoard: drawing takes most of the time
            with rc_context({"svg.hashsalt": name}):
                metadata = {"Date": None} if ending == "svg" else None
                figure.savefig(buffer, format=ending, dpi=120, bbox_inches="tight", metadata=metadata)
            if folder is not None and ending in written:
                with replaced(Path(folder) / "pictures" / f"{name}.{ending}", "wb") as file:
                    file.write(buffer.getvalue())
            if ending == "png" and boards:
                buffer.seek(0)
                pixels = imread(buffer, format="png")[..., :3]  # without opacity
                for logger in boards:
                    logger.experiment.add_image(name, pixels, global_step=trainer.global_step, dataformats="HWC")


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure and its axes, without touching pyplot's state or needing a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
