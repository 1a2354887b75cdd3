"""Pictures of a run: decoder calls and negative ELBO over training, reconstructions, samples of each class."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor
from typing_extensions import override

from lit_sparse.callbacks.base import Stage, StageCallback, artifacts_of

__all__ = ["ClassSamplesPlot", "DecoderCallsPlot", "NegativeELBOPlot", "ReconstructionPlot", "SuccessPlot", "SupportSizePlot"]


class Picture(StageCallback):
    """Base of callbacks that draw: saves a figure in the run folder and shows it in TensorBoard.

    Args:
        folder: where pictures go; the logger's folder by default.
    """

    #: File name without its ending, and tag in TensorBoard.
    name = "picture"

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.folder = folder
        self._log_dir: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Ask for the logger's folder here, where all processes are: the answer is broadcast."""
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


class CountPlot(Picture):
    """Base of pictures of a count over training: median with the band from the 10th to the 90th percentile, and mean."""

    #: The name of the counts in a step's output, and how they are called.
    count = "decoder_calls"
    label = "decoder calls an example"

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        logged = {key: trainer.callback_metrics.get(f"train/{self.count}_{key}") for key in ("p10", "median", "p90", "mean")}
        if any(value is None for value in logged.values()):
            return
        self.history.append(
            {
                "epoch": float(trainer.current_epoch + 1),
                **{key: float(value) for key, value in logged.items() if value is not None},
            }
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.history or not trainer.is_global_zero:
            return
        figure, axes = new_figure(1, 1, width=5.0, height=3.2)
        axis = axes[0]
        epochs = [row["epoch"] for row in self.history]
        axis.fill_between(
            epochs,
            [row["p10"] for row in self.history],
            [row["p90"] for row in self.history],
            alpha=0.25,
            label="10th to 90th percentile",
        )
        axis.plot(epochs, [row["median"] for row in self.history], label="median", marker="." if len(epochs) < 20 else None)
        axis.plot(epochs, [row["mean"] for row in self.history], label="mean", linestyle="--", linewidth=1)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel(self.label)
        axis.set_ylim(bottom=0)
        axis.legend()
        self.save(trainer, figure)

    def state_dict(self) -> dict[str, Any]:
        """Return the epochs drawn so far."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the curve of a resumed run."""
        self.history = list(state_dict["history"])


class DecoderCallsPlot(CountPlot):
    """Draw decoder calls a decision over training: median with the band from the 10th to the 90th percentile.

    Reads what ``CountLogger`` logs, so it must stand after it. To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, DecoderCallsPlot]
    """

    name = "decoder_calls"


class SupportSizePlot(CountPlot):
    """Draw the sizes of supports over training, as :class:`DecoderCallsPlot` draws decoder calls.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SupportSizePlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 4.
    """

    name = "support_size"
    count = "support_size"
    label = "values with probability above zero"


class ValidationPlot(Picture):
    """Base of pictures of a mean of validation, against epochs and against what they cost: cumulative median decoder calls.

    The cost of an epoch is the median over its decisions; an epoch without validation adds its cost and no point. Reads
    what ``CountLogger`` logs, so it must stand after it.
    """

    #: The name under which the mean is logged, ``val/{metric}``, how it is called, and the ends of its axis.
    metric = "loss"
    label = "loss of validation"
    limits: tuple[float | None, float | None] = (None, None)

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, float]] = []
        self.calls = 0.0
        self._validated: float | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        value = trainer.callback_metrics.get(f"val/{self.metric}")
        if value is not None and not trainer.sanity_checking:
            self._validated = float(value)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        median = trainer.callback_metrics.get("train/decoder_calls_median")
        if median is None:
            return
        self.calls += float(median)
        if self._validated is not None:
            self.history.append(
                {"epoch": float(trainer.current_epoch + 1), "decoder_calls": self.calls, self.metric: self._validated}
            )
        self._validated = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.history or not trainer.is_global_zero:
            return
        figure, axes = new_figure(1, 2, width=8.0, height=3.2)
        marker = "." if len(self.history) < 20 else None
        for axis, key, label in zip(
            axes, ("epoch", "decoder_calls"), ("epoch", "cumulative median decoder calls an example"), strict=True
        ):
            axis.plot([row[key] for row in self.history], [row[self.metric] for row in self.history], marker=marker)
            axis.set_xlabel(label)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.set_xlim(left=0)
            axis.set_ylim(*self.limits)
        axes[0].set_ylabel(self.label)
        self.save(trainer, figure)

    def state_dict(self) -> dict[str, Any]:
        """Return the epochs drawn so far, and what they cost."""
        return {"history": self.history, "calls": self.calls, "validated": self._validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the curves of a resumed run."""
        self.history = list(state_dict["history"])
        self.calls, self._validated = state_dict["calls"], state_dict["validated"]


class NegativeELBOPlot(ValidationPlot):
    """Draw the negative ELBO of validation against epochs, and against what they cost: cumulative median decoder calls.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, NegativeELBOPlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 5.
    """

    name = "negative_elbo"
    metric = "nelbo"
    label = "negative ELBO of validation, nats"


class SuccessPlot(ValidationPlot):
    """Draw the success of a game in validation against epochs, and against what they cost, as :class:`NegativeELBOPlot`.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SuccessPlot]
    """

    name = "success"
    metric = "success"
    label = "success in validation"
    limits = (0.0, 1.0)


class ReconstructionPlot(Picture):
    """Draw images of the last validation or test epoch above what the model makes of them.

    Reads ``images`` and ``reconstructions``, (N, D) with D a square, of a step's artifacts.
    """

    name = "reconstructions"

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self._last: dict[str, Tensor] = {}

    @override
    def on_stage_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, stage: Stage, dataloader_idx: int = 0
    ) -> None:
        artifacts = artifacts_of(outputs)
        if stage != "train" and {"images", "reconstructions"} <= set(artifacts):
            self._last = {name: artifacts[name].detach().float().cpu() for name in ("images", "reconstructions")}

    @override
    def on_finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._last and trainer.is_global_zero:
            self.save(
                trainer, _image_grid(torch.stack([self._last["images"], self._last["reconstructions"]]), ["image", "made"])
            )


@runtime_checkable
class GeneratesByClass(Protocol):
    """What a model needs for its samples to be drawn."""

    classes: int
    style_features: int

    def generate(self, styles: Tensor, classes: Tensor) -> Tensor:
        """Return images (B, D) of styles (B, style_features) and classes (B,)."""
        ...


class ClassSamplesPlot(Picture):
    """Draw what a model such as ``SemiSupervisedVAE`` generates: one row a class, one style of handwriting a column.

    Other models are left alone: it asks for ``generate(styles, classes)``, ``style_features`` and ``classes``.

    Args:
        columns: how many styles are drawn.
        folder: where pictures go; the logger's folder by default.
    """

    name = "samples_by_class"

    def __init__(self, columns: int = 10, folder: str | None = None) -> None:
        super().__init__(folder)
        self.columns = columns

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not isinstance(pl_module, GeneratesByClass) or not trainer.is_global_zero:
            return
        generator = torch.Generator().manual_seed(0)
        device = pl_module.device
        styles = torch.randn(self.columns, pl_module.style_features, generator=generator).to(device)
        classes = torch.arange(pl_module.classes, device=device)
        with torch.no_grad():
            made = [pl_module.generate(styles, number.expand(self.columns)) for number in classes]
        self.save(trainer, _image_grid(torch.stack(made).cpu(), [str(int(number)) for number in classes]))


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure and its axes, without touching pyplot's state or needing a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _image_grid(images: Tensor, labels: list[str]) -> Any:
    """Draw images (rows, columns, D), D = side * side or, in color, 3 * side * side, one label a row."""
    images = images.float()  # numpy has no bfloat16
    rows, columns, pixels = images.shape
    planes = 3 if math.isqrt(pixels) ** 2 != pixels == 3 * math.isqrt(pixels // 3) ** 2 else 1
    side = math.isqrt(pixels // planes)
    if planes * side * side != pixels:
        images, side = torch.nn.functional.pad(images, (0, (side + 1) ** 2 - pixels)), side + 1
    figure, axes = new_figure(1, 1, width=0.5 * columns, height=0.5 * rows)
    framed = torch.nn.functional.pad(images.reshape(rows, columns, planes, side, side), (0, 1, 0, 1), value=0.3)
    side += 1
    sheet = framed.permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, planes)
    sheet = sheet.clamp(0, 1) if planes == 3 else sheet.squeeze(-1)
    axis = axes[0]
    axis.imshow(sheet.numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axis.set_yticks([side * (row + 0.5) for row in range(rows)], labels)
    axis.set_xticks([])
    return figure
