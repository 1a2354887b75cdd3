"""Pictures of a training, a validation or a test: what each keeps until it is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_sparse.callbacks.base import Stage, artifacts_of
from lit_sparse.callbacks.pictures.base import Picture
from lit_sparse.callbacks.pictures.drawings import LINE
from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import gather_objects
from lit_sparse.ground.state_checks import NUMBER, Kind, ListOf, OneOf
from lit_sparse.lightning.choice import pl
from lit_sparse.metrics import SupportSize

__all__ = [
    "ActivityHistogram",
    "BasesPlot",
    "ClassSamplesPlot",
    "DecoderCallsPlot",
    "NegativeELBOPlot",
    "ReconstructionPlot",
    "SuccessPlot",
    "SupportSizePlot",
    "TopTokensPlot",
    "TransportPlot",
]

#: Statistics of a count over the examples of an epoch.
KEYS = ("p10", "median", "p90", "mean")
#: Logged value whose sum is the cost of a training.
CALLS = "train/decoder_calls_median"
#: Example of a value that may be NaN.
FLOAT = Kind("a float", lambda value: isinstance(value, float))
#: Points at which functions on the line are drawn, and the most points of the pool that plans are drawn from.
GRID, POOL = 300, 2000
#: Largest number of units, and of tokens of each, that are listed.
MOST_SHOWN = 50
#: Inches of a list of tokens.
WIDTH = 6


class CurvePlot(Picture):
    """Base of pictures of logged values over training; a run that is continued adds to its own epochs.

    It reads the values that ``CountLogger`` logs, so it must come after it in the list.
    """

    shown = ("history", "validated")
    #: Logged values of an epoch, and what the picture calls them.
    metrics: ClassVar[tuple[str, ...]] = ()
    label = ""

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, Any]] = []
        self.validated = dict.fromkeys(name for name in self.metrics if name.startswith("val/"))

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        row = {"epoch": NUMBER, **dict.fromkeys(self.metrics, OneOf(FLOAT))}
        return {"history": ListOf(row), "validated": dict.fromkeys(self.validated, OneOf(FLOAT))}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.validated = _logged(trainer, self.validated)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add a row for this epoch; an epoch without validation has None for its values."""
        row = {**_logged(trainer, self.metrics), **self.validated}
        if any(value is not None for value in row.values()):
            self.history = [*self.history, {"epoch": float(trainer.current_epoch + 1), **row}]
        self.validated = dict.fromkeys(self.validated)

    @property
    def rows(self) -> list[dict[str, float]]:
        """Rows with all values, and with the sum of the median decoder calls up to them."""
        calls = accumulate(row.get(CALLS) or 0.0 for row in self.history)
        return [{**row, "calls": total} for row, total in zip(self.history, calls, strict=True) if None not in row.values()]

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return the rows, with the names of all that have equal ones; the first of these pictures shows them."""
        curves = [plot for plot in trainer.callbacks if isinstance(plot, CurvePlot)]  # type: ignore[attr-defined]
        mine = [[*row.values()] for row in self.history]
        equal = [plot for plot in curves if plot.folder == self.folder and [[*row.values()] for row in plot.history] == mine]
        if not self.rows or self is not equal[0]:
            return None
        return {"rows": self.rows, "metrics": self.metrics, "label": "\n= ".join(plot.label for plot in equal)}


class DecoderCallsPlot(CurvePlot):
    """Plot decoder calls per example over training: median with the band from the 10th to the 90th percentile.

    Where the support sizes are equal to them, one picture shows both. To use it in a config (the command line adds it by
    itself)::

        trainer:
          callbacks: [CountLogger, DecoderCallsPlot]
    """

    name = "decoder_calls"
    metrics = tuple(f"train/decoder_calls_{key}" for key in KEYS)
    label = "decoder calls per example"


class SupportSizePlot(CurvePlot):
    """Plot support sizes over training, as :class:`DecoderCallsPlot` plots decoder calls.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SupportSizePlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 4.
    """

    name = "support_size"
    metrics = tuple(f"train/support_size_{key}" for key in KEYS)
    label = "support size per example"


class NegativeELBOPlot(CurvePlot):
    """Plot the validation negative ELBO against epochs, and against the cumulative median of decoder calls.

    The cost of an epoch is the median over its examples. An epoch without validation adds its cost and no point. To use it in a
    config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, NegativeELBOPlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 5.
    """

    name = "negative_elbo"
    metrics = (CALLS, "val/nelbo")
    label = "validation negative ELBO, nats"


class SuccessPlot(CurvePlot):
    """Plot the validation success of a game against epochs and cost, as :class:`NegativeELBOPlot` does.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SuccessPlot]
    """

    name = "success"
    metrics = (CALLS, "val/success")
    label = "validation success"


class ReconstructionPlot(Picture):
    """Draw images of the last validation or test epoch above their reconstructions.

    The artifacts of a step must hold ``images`` and ``reconstructions``, (N, D) with D a square.
    """

    name = "reconstructions"
    shown = ("_last",)
    stages = ("train", "test")

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self._last: Tensor | None = None

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        pairs = Kind("floats (2, N, D)", lambda it: isinstance(it, Tensor) and it.is_floating_point() and it.shape[:-2] == (2,))
        return {"_last": OneOf(pairs)}

    def begin(self, module: pl.LightningModule) -> None:
        """Forget the last validation or test."""
        self._last = None

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Keep what is drawn of a batch."""
        found = artifacts_of(outputs)
        if {"images", "reconstructions"} <= found.keys():
            self._last = torch.stack([found["images"], found["reconstructions"]]).detach().float().cpu()

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return what there is to draw, or None."""
        return None if self._last is None or not self._last.numel() else _sheet(self._last, ["image", "reconstruction"])


class ClassSamplesPlot(Picture):
    """Draw images generated by a model such as ``SemiSupervisedVAE``: one row per class, one column per style.

    A model needs ``generate``, a function of styles (B, style_features) and classes (B,) that returns images (B, D), and the
    numbers ``style_features`` and ``classes``; other models are ignored.

    Args:
        columns: number of styles.
        folder: folder of the pictures; None for the logger's folder.
    """

    name = "samples_by_class"
    uses_weights = True

    def __init__(self, columns: int = 10, folder: str | None = None) -> None:
        super().__init__(folder)
        self.columns = check_count("columns", columns)

    @torch.no_grad()
    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return what there is to draw, or None."""
        if not all(hasattr(module, name) for name in ("generate", "style_features", "classes")):
            return None
        styles = torch.randn(self.columns, module.style_features, generator=torch.Generator().manual_seed(0)).to(module.device)
        classes = torch.arange(module.classes, device=module.device)
        images = torch.stack([module.generate(styles, number.expand(self.columns)) for number in classes]).cpu()
        return {**_sheet(images, [str(number) for number in range(module.classes)]), "x": "style", "y": "class"}


class BasesPlot(Picture):
    """Draw the bases of a model as images at the end of training: blue is negative, red positive, white zero.

    It asks for ``bases`` (n, D), D a square, as :class:`lit_sparse.models.SupervisedOnlineAutoencoder` has them; other
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
    uses_weights = True

    def __init__(self, count: int = 100, shape: tuple[int, int] | None = None, folder: str | None = None) -> None:
        super().__init__(folder)
        self.count = check_count("count", count)
        for side in shape or ():
            check_count("shape", side)
        self.shape = shape

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return what there is to draw, or None."""
        bases = _bases_of(module)
        if bases is None:
            return None
        pixels = bases.shape[1]
        if self.shape is not None and math.prod(self.shape) != pixels:
            raise ConfigurationError(f"Expected argument `shape` to be of {pixels} pixels but got {self.shape}.")
        shape = self.shape or (math.isqrt(pixels), math.isqrt(pixels))
        shown = {"bases": bases.detach()[: self.count].float().cpu(), "shape": shape, "cells": (1, 1, 5.0)}
        return shown if math.prod(shape) == pixels else None


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
    stages = ("train", "test")

    def __init__(self, max_count: int = 4096, folder: str | None = None) -> None:
        super().__init__(folder)
        self._counts = SupportSize(max_count)
        self._kept: Tensor | None = None

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        return {"_kept": OneOf(self._counts.counts)}

    def begin(self, module: pl.LightningModule) -> None:
        """Forget the last validation or test."""
        self._counts.reset()
        self._counts.to(module.device)

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Keep what is drawn of a batch."""
        if isinstance(outputs, dict) and "support_size" in outputs and _bases_of(module) is not None:
            self._counts.update(outputs["support_size"])

    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Add up the counts of all processes."""
        if stage != "train":
            with self._counts.sync_context():
                self._kept = self._counts.counts.cpu().clone()

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return what there is to draw, or None."""
        return None if self._kept is None or not bool(self._kept.any()) else {"counts": self._kept}


class TopTokensPlot(Picture):
    """List the tokens for which units of a sparse auto-encoder are most active, of the last validation or test.

    The artifacts of a step must hold ``activity`` (B, width) and ``index`` (B,), and the data module must have ``token_text``
    of :class:`lit_sparse.data.ActivationDataModule`. Other runs are left alone.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks:
            - class_path: TopTokensPlot
              init_args: {units: 8}

    Args:
        units: number of units, the first ones.
        tokens: number of tokens of each.
        folder: folder of the pictures; None for the logger's folder.

    Raises:
        ConfigurationError: for a number below 1.
    """

    name = "top_tokens"
    shown = ("_top",)
    stages = ("train", "test")

    def __init__(self, units: int = 8, tokens: int = 5, folder: str | None = None) -> None:
        super().__init__(folder)
        self.units = check_count("units", units, most=MOST_SHOWN)
        self.tokens = check_count("tokens", tokens, most=MOST_SHOWN)
        #: Values and indices (2, units, tokens) of the most active tokens so far.
        self._top: Tensor | None = None

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        pairs = Kind(
            "numbers (2, units, tokens)",
            lambda it: isinstance(it, Tensor) and it.dtype == torch.float64 and it.shape[:-2] == (2,),
        )
        return {"_top": OneOf(pairs)}

    def begin(self, module: pl.LightningModule) -> None:
        """Forget the last validation or test."""
        self._top = None

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Keep the most active tokens of a batch and those before."""
        found = artifacts_of(outputs)
        if {"activity", "index"} <= found.keys():
            values = found["activity"][:, : self.units].mT.double()
            both = torch.stack([values, found["index"].to(values).expand_as(values)])
            self._top = self._largest([both] if self._top is None else [self._top, both])

    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Take the most active tokens of all processes."""
        if stage != "train":
            there = [top for top in gather_objects(None if self._top is None else self._top.cpu()) if top is not None]
            self._top = self._largest(there) if there else None

    def _largest(self, parts: list[Tensor]) -> Tensor:
        both = torch.cat(parts, -1)
        places = both[0].argsort(dim=-1, descending=True, stable=True)[:, : self.tokens]
        return both.gather(-1, places.expand(2, *places.shape))

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return what there is to draw, or None."""
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


class TransportPlot(Picture):
    """Draw the plan of a model such as ``EntropicTransport`` at the end of each validation and test.

    In one dimension it draws the histograms of held-out points, with the densities of the data module's measures if they have
    them. It also draws the potentials, pairs sampled from the plan, and the barycentric map.

    In two dimensions it draws the points with arrows along the barycentric map. Next to the target points it draws samples of
    the plan for the source points.
    A model needs ``held_out``, source and target points or None, and the methods ``sample_plan`` and ``barycentric_map`` of
    ``EntropicTransport``; on the line also ``potentials``. Other models, and points in more dimensions, are ignored.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks:
            - class_path: TransportPlot
              init_args: {points: 300}

    Args:
        points: number of source points, the first ones.
        folder: folder of the pictures; None for the logger's folder.
    """

    name = "transport"
    uses_weights = True
    stages = ("val", "test")

    def __init__(self, points: int = 300, folder: str | None = None) -> None:
        super().__init__(folder)
        self.points = check_count("points", points)

    @torch.no_grad()
    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return what there is to draw, or None."""
        if getattr(module, "held_out", None) is None or module.held_out[0].shape[1] > 2:
            return None
        source, target = module.held_out
        moved, pool = source[: self.points], target[:POOL]
        drawn = module.sample_plan(moved, pool, torch.Generator(device=moved.device).manual_seed(0))
        if source.shape[1] == 2:
            mapped = module.barycentric_map(moved, pool)
            points = {"source": moved, "target": target, "mapped": mapped, "drawn": drawn}
            return {"picture": "transport_plane", **{name: some.float().cpu() for name, some in points.items()}}
        ends = {"source": source.flatten(), "target": target.flatten()}
        both = torch.cat([*ends.values()])
        grid = torch.linspace(float(both.min()), float(both.max()), GRID).to(both).unsqueeze(1)
        data, line = getattr(trainer, "datamodule", None), grid.flatten()
        known: dict[str, Any] = {name: getattr(getattr(data, name, None), "log_prob", None) for name in ends}
        logs = {name: log_prob(grid.cpu().double()) for name, log_prob in known.items() if callable(log_prob)}
        return {
            "picture": "transport_line",
            "points": ends,
            "grid": line,
            "potentials": {name: getattr(module.potentials, f"{name}_potential")(grid).flatten() for name in ends},
            "densities": {name: log.exp().flatten() for name, log in logs.items() if log is not None},
            "drawn": torch.cat([moved, drawn], 1).mT,
            "mapped": module.barycentric_map(grid, pool).flatten(),
        }


def _logged(trainer: pl.Trainer, names: Iterable[str]) -> dict[str, float | None]:
    found = {name: trainer.callback_metrics.get(name) for name in names}
    return {name: None if value is None else float(value) for name, value in found.items()}


def _sheet(images: Tensor, labels: list[str]) -> dict[str, Any]:
    return {"images": images, "labels": labels, "cells": (images.shape[1], images.shape[0], 0.5)}


def _bases_of(module: pl.LightningModule) -> Tensor | None:
    """Return the bases (n, D) of a model, or None."""
    bases = getattr(module, "bases", None)
    return bases if isinstance(bases, Tensor) and bases.dim() == 2 else None
