"""Pictures of a layer of bases, and of the number of active units."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.callbacks.base import Stage
from lit_sparse.callbacks.pictures.base import Picture, new_figure
from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning import pl
from lit_sparse.metrics import SupportSize
from lit_sparse.state_checks import OneOf

__all__ = ["ActivityHistogram", "BasesPlot"]


class BasesPlot(Picture):
    """Draw the bases of a model as images at the end of training: blue is negative, red positive, white zero.

    It asks for ``bases`` (n, D), D a square, such as those of :class:`lit_sparse.models.SupervisedOnlineAutoencoder`; other
    models are left alone.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks:
            - class_path: BasesPlot
              init_args: {count: 100}

    Args:
        count: number of bases, the first ones.
        shape: height and width of an image; None for a square.
        folder: folder of the pictures; None for the logger's folder.
    """

    name = "bases"

    def __init__(self, count: int = 100, shape: tuple[int, int] | None = None, folder: str | None = None) -> None:
        super().__init__(folder)
        self.count = check_count("count", count)
        for side in shape or ():
            check_count("shape", side)
        self.shape = shape

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        bases = _bases_of(pl_module)
        if bases is None or not trainer.is_global_zero:
            return
        side = math.isqrt(bases.shape[1])
        if self.shape is not None and math.prod(self.shape) != bases.shape[1]:
            raise ConfigurationError(f"Expected argument `shape` to be of {bases.shape[1]} pixels but got {self.shape}.")
        if self.shape is not None or side * side == bases.shape[1]:
            self.save(trainer, _sheet(bases.detach()[: self.count].float().cpu(), self.shape or (side, side)))


class ActivityHistogram(Picture):
    """Draw a histogram of the number of active units per example, for the last validation or test.

    It counts ``support_size`` of each step's output, over all processes. Models without ``bases`` are ignored.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [ActivityHistogram]

    Args:
        max_count: largest count; larger ones are counted as this.
        folder: folder of the pictures; None for the logger's folder.
    """

    name = "activity"
    shown = ("_kept",)

    def __init__(self, max_count: int = 4096, folder: str | None = None) -> None:
        super().__init__(folder)
        self._counts = SupportSize(max_count)
        self._kept: Tensor | None = None

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        return {"_kept": OneOf(self._counts.counts)}

    @override
    def on_stage_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        if stage != "train":
            self._counts.reset()
            self._counts.to(pl_module.device)

    @override
    def on_stage_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, stage: Stage, dataloader_idx: int = 0
    ) -> None:
        sizes = outputs.get("support_size") if isinstance(outputs, dict) else None
        if stage != "train" and sizes is not None and _bases_of(pl_module) is not None:
            self._counts.update(sizes)

    @override
    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        if stage != "train":
            with self._counts.sync_context():
                self._kept = self._counts.counts.cpu().clone()

    @override
    def on_finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._kept is None or not bool(self._kept.any()) or not trainer.is_global_zero:
            return
        shares = self._kept.double() / self._kept.sum()
        there = shares.nonzero().squeeze(1)
        low, high = int(there[0]), int(there[-1])
        width = max(1, math.ceil((high - low + 1) / 60))
        bins = torch.arange(low, high + width + 1, width)
        figure, axes = new_figure(1, 1, width=5.0, height=3.2)
        axes[0].hist(there.numpy(), bins=(bins - 0.5).tolist(), weights=shares[there].numpy())
        axes[0].set_xlabel("active units")
        axes[0].set_ylabel("share of examples")
        axes[0].xaxis.get_major_locator().set_params(integer=True)
        self.save(trainer, figure)


def _bases_of(module: pl.LightningModule) -> Tensor | None:
    """Return the bases (n, D) of a model, or None."""
    bases = getattr(module, "bases", None)
    return bases if isinstance(bases, Tensor) and bases.dim() == 2 else None


def _sheet(bases: Tensor, shape: tuple[int, int]) -> Any:
    """Draw bases (n, D), each by its own largest magnitude."""
    high, wide = shape
    columns = math.ceil(math.sqrt(len(bases) * high / wide))
    rows = math.ceil(len(bases) / columns)
    scaled = bases / bases.abs().amax(1, keepdim=True).clamp_min(torch.finfo(bases.dtype).tiny)
    tiles = torch.nn.functional.pad(scaled.view(-1, high, wide), (1, 1, 1, 1), value=torch.nan)
    tiles = torch.nn.functional.pad(tiles, (0, 0, 0, 0, 0, rows * columns - len(tiles)), value=torch.nan)
    sheet = tiles.view(rows, columns, high + 2, wide + 2).transpose(1, 2).reshape(rows * (high + 2), columns * (wide + 2))
    figure, axes = new_figure(1, 1, width=0.5 * columns, height=0.5 * rows * high / wide)
    axes[0].imshow(sheet.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes[0].set_axis_off()
    return figure
