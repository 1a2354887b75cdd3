"""Pictures of the units of auto-encoders: their directions, how many are active, and for which tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lit_sparse.callbacks.base import Stage, artifacts_of
from lit_sparse.callbacks.pictures.base import Picture
from lit_sparse.callbacks.pictures.drawings import LINE
from lit_sparse.checks import Count, check_widths, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import gather_objects
from lit_sparse.ground.state_checks import Kind, OneOf
from lit_sparse.lightning.choice import pl
from lit_sparse.metrics import SupportSize

__all__ = [
    "ActivityHistogram",
    "BasesPlot",
    "TopTokensPlot",
]

#: Largest number of units, and of tokens of each, that are listed.
MOST_SHOWN = 50
#: Inches of a list of tokens.
WIDTH = 6


@ranges(count=Count())
class BasesPlot(Picture):
    """Draw a model's bases as images at the end of training: blue is negative, red positive, white zero.

    The model needs an attribute ``bases`` (n, D), D a square, as in :class:`lit_sparse.models.SupervisedOnlineAutoencoder`;
    other models are ignored.

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
    uses_weights = True

    def __init__(self, count: int = 100, shape: tuple[int, int] | None = None, folder: str | None = None) -> None:
        super().__init__(folder)
        self.count = count
        if shape is not None and len(check_widths("shape", shape)) != 2:
            raise ConfigurationError(f"Expected argument `shape` to be a height and a width but got {shape!r}.")
        self.shape = shape

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return the bases to draw, or None for a model without bases.

        Raises:
            ConfigurationError: if ``shape`` does not have as many pixels as a basis has entries.
        """
        bases = _bases_of(module)
        if bases is None:
            return None
        pixels = bases.shape[1]
        if self.shape is not None and math.prod(self.shape) != pixels:
            raise ConfigurationError(f"Expected argument `shape` to have {pixels} pixels but got {self.shape}.")
        shape = self.shape or (math.isqrt(pixels), math.isqrt(pixels))
        shown = {"bases": bases.detach()[: self.count].float().cpu(), "shape": shape, "cells": (1, 1, 5.0)}
        return shown if math.prod(shape) == pixels else None


class ActivityHistogram(Picture):
    """Draw a histogram of the number of active units per example in the last validation or test.

    It counts ``support_size`` of each step's output, over all processes. Models without ``bases`` are ignored.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [ActivityHistogram]

    Args:
        max_count: largest count; larger ones count as this.
        folder: folder of the pictures; None for the logger's folder.
    """

    name = "activity"
    shown = ("_kept",)
    stages = ("train", "test")

    def __init__(self, max_count: int = 4096, folder: str | None = None) -> None:
        super().__init__(folder)
        self._counts = SupportSize(max_count)
        self._kept: Tensor | None = None

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        return {"_kept": OneOf(self._counts.counts)}

    def begin(self, module: pl.LightningModule) -> None:
        """Discard the counts of the last validation or test."""
        self._counts.reset()
        self._counts.to(module.device)

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Add the counts of a batch."""
        if isinstance(outputs, dict) and "support_size" in outputs and _bases_of(module) is not None:
            self._counts.update(outputs["support_size"])

    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Sum the counts over all processes."""
        if stage != "train":
            with self._counts.sync_context():
                self._kept = self._counts.counts.cpu().clone()

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return the histogram to draw, or None if nothing was counted."""
        return None if self._kept is None or not bool(self._kept.any()) else {"counts": self._kept}


@ranges(units=Count(most=MOST_SHOWN), tokens=Count(most=MOST_SHOWN))
class TopTokensPlot(Picture):
    """List the tokens for which units of a sparse auto-encoder are most active in the last validation or test.

    The artifacts of a step must hold ``activity`` (B, width) and ``index`` (B,), and the data module must have
    ``token_text`` of :class:`lit_sparse.data.ActivationDataModule`. Other runs are ignored.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks:
            - class_path: TopTokensPlot
              init_args: {units: 8}

    Args:
        units: number of units, the first ones.
        tokens: number of tokens listed for each unit.
        folder: folder of the pictures; None for the logger's folder.

    Raises:
        ConfigurationError: for a number below 1.
    """

    name = "top_tokens"
    shown = ("_top",)
    stages = ("train", "test")

    def __init__(self, units: int = 8, tokens: int = 5, folder: str | None = None) -> None:
        super().__init__(folder)
        self.units, self.tokens = units, tokens
        #: Values and indices (2, units, tokens) of the most active tokens so far.
        self._top: Tensor | None = None

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        pairs = Kind(
            "numbers (2, units, tokens)",
            lambda it: isinstance(it, Tensor) and it.dtype == torch.float64 and it.shape[:-2] == (2,),
        )
        return {"_top": OneOf(pairs)}

    def begin(self, module: pl.LightningModule) -> None:
        """Discard the tokens of the last validation or test."""
        self._top = None

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Store the most active tokens of this batch and the earlier ones."""
        found = artifacts_of(outputs)
        if {"activity", "index"} <= found.keys():
            values = found["activity"][:, : self.units].mT.double()
            both = torch.stack([values, found["index"].to(values).expand_as(values)])
            self._top = self._largest([both] if self._top is None else [self._top, both])

    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Select the most active tokens over all processes."""
        if stage != "train":
            there = [top for top in gather_objects(None if self._top is None else self._top.cpu()) if top is not None]
            self._top = self._largest(there) if there else None

    def _largest(self, parts: list[Tensor]) -> Tensor:
        both = torch.cat(parts, -1)
        places = both[0].argsort(dim=-1, descending=True, stable=True)[:, : self.tokens]
        return both.gather(-1, places.expand(2, *places.shape))

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return the tokens to list, with their context, or None if there are none."""
        data: Any = getattr(trainer, "datamodule", None)
        if self._top is None or not hasattr(data, "token_text"):
            return None
        split = "test" if trainer.state.fn == "test" else "val"
        size, rows = data.size(split), []
        for unit, (values, indices) in enumerate(zip(*self._top.tolist(), strict=True)):
            active = [
                (value, int(index)) for value, index in zip(values, indices, strict=True) if value > 0 and 0 <= index < size
            ]
            rows.append((unit, [(value, *data.token_text(split, index)) for value, index in active]))
        return {"rows": rows, "cells": (WIDTH / LINE, sum(len(tokens) + 1 for _, tokens in rows), LINE)}


def _bases_of(module: pl.LightningModule) -> Tensor | None:
    """Return the bases (n, D) of a model, or None."""
    bases = getattr(module, "bases", None)
    return bases if isinstance(bases, Tensor) and bases.dim() == 2 else None
