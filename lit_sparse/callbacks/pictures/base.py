"""Base of callbacks that draw."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from lit_sparse.callbacks.base import Stage, StageCallback, check_folder
from lit_sparse.callbacks.pictures.drawings import draw
from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.ground.figure_text import new_figure
from lit_sparse.ground.files import replaced
from lit_sparse.lightning.choice import TensorBoardLogger, pl
from lit_sparse.lightning.internals import logged_step

__all__ = ["Format", "Picture", "new_figure"]

Format: TypeAlias = Literal["png", "svg", "json"]


class Picture(StageCallback):
    """Base class of callbacks that draw a figure, save it in the run folder and show it in TensorBoard.

    Args:
        folder: folder of the pictures; None for the logger's folder.

    Raises:
        ConfigurationError: if the folder is not a path.
    """

    #: File name without its ending, tag in TensorBoard, and by default the name in the table of drawings.
    name = "picture"
    #: File formats; ``save`` leaves ``"json"`` to the callback.
    formats: tuple[Format, ...] = ("png",)
    #: Attributes with what the picture shows of the last validation; a checkpoint keeps them, since a run that is continued at
    #: its end does not validate again. On the first process they hold what all processes have seen.
    shown: ClassVar[tuple[str, ...]] = ()
    #: Stages at whose end it is drawn: ``"train"``, ``"test"``, and ``"val"`` for each validation.
    stages: ClassVar[tuple[Stage, ...]] = ("train",)
    #: Whether it computes with the weights; then none is drawn of a model whose weights are divided over processes.
    uses_weights: ClassVar[bool] = False

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.folder = check_folder(folder)
        self._log_dir: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the folder to write to, by default the logger's, on all processes, because the first one broadcasts it."""
        self._log_dir = trainer.log_dir

    @property
    def state_key(self) -> str:
        """Key of this callback's state in a checkpoint, which depends on its arguments."""
        names = [name for name in constructor_parameters(type(self)) if name != "folder"]
        return self._generate_state_key(**{name: getattr(self, name, None) for name in names})

    def state_dict(self) -> dict[str, Any]:
        """Return the data that the picture shows of the last validation."""
        return {name: getattr(self, name) for name in self.shown}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the data that the picture shows."""
        for name in self.shown:
            setattr(self, name, state_dict[name])

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return the data to draw, a dict, or None if there is nothing to draw."""
        return None

    def begin(self, module: pl.LightningModule) -> None:
        """Discard collected data; called at the start of each validation and test."""

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Store what the picture needs of a batch of the first data loader of a validation or test."""

    def on_stage_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Discard the data of an earlier validation or test."""
        if stage != "train":
            self.begin(pl_module)

    def on_stage_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, stage: Stage, dataloader_idx: int = 0
    ) -> None:
        """Store what the picture needs of a batch, except in training and in Lightning's sanity check."""
        if stage != "train" and not dataloader_idx and not (stage == "val" and trainer.sanity_checking):
            self.see(pl_module, outputs)

    def on_finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Draw and save the picture at the end of a stage, if there is anything to draw."""
        if self.uses_weights and getattr(pl_module, "device_mesh", None) is not None:
            return  # each process holds a part of them
        if stage in self.stages and trainer.is_global_zero and (artifact := self.artifact(trainer, pl_module)) is not None:
            self.save(trainer, draw(artifact.get("picture", self.name), artifact))

    def save(self, trainer: pl.Trainer, figure: Any, name: str | None = None) -> None:
        """Save a figure in every format, and as PNG to every TensorBoard logger.

        The same figure gives identical files.

        Args:
            trainer: trainer whose loggers show the figure.
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
                look = {"dpi": 120, "bbox_inches": "tight", "metadata": {"Date": None} if ending == "svg" else None}
                figure.savefig(buffer, format=ending, **look)
            if folder is not None and ending in written:
                with replaced(Path(folder) / "pictures" / f"{name}.{ending}", "wb") as file:
                    file.write(buffer.getvalue())
            if ending == "png" and boards:
                pixels = imread(io.BytesIO(buffer.getvalue()), format="png")[..., :3]  # without opacity
                for logger in boards:
                    logger.experiment.add_image(name, pixels, global_step=logged_step(trainer), dataformats="HWC")
