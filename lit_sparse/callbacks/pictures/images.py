"""Images that a model makes: reconstructions, and samples of each class."""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.callbacks.base import Stage, artifacts_of
from lit_sparse.callbacks.pictures.base import Picture, new_figure

__all__ = ["ClassSamplesPlot", "ReconstructionPlot"]


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
