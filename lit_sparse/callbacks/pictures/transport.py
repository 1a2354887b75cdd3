"""Pictures of a transport plan: the measures, the potentials, and the images of points."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.callbacks.pictures.base import Picture, new_figure
from lit_sparse.checks import check_count
from lit_sparse.lightning import pl

__all__ = ["TransportPlot"]

#: Points at which functions on the line are drawn.
GRID = 300
#: At most so many points are the pool that plans are drawn from.
POOL = 2000


@runtime_checkable
class Transports(Protocol):
    """Interface of models whose transport plan can be drawn; on the line they also have ``potentials``."""

    held_out: tuple[Tensor, Tensor] | None

    def sample_plan(self, x: Tensor, pool: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a target point (B, d) for each source point (B, d)."""
        ...

    def barycentric_map(self, x: Tensor, pool: Tensor) -> Tensor:
        """Return the mean target point (B, d) of each source point (B, d)."""
        ...


class TransportPlot(Picture):
    """Draw the plan of a model such as ``EntropicTransport`` at the end of each validation and test.

    In one dimension it draws the histograms of held-out points, with the densities of the data module's measures if they have
    them. It also draws the potentials, pairs sampled from the plan, and the barycentric map.

    In two dimensions it draws the points with arrows along the barycentric map. Next to the target points it draws samples of
    the plan for the source points.
    Other models, and points in more dimensions, are ignored.

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

    def __init__(self, points: int = 300, folder: str | None = None) -> None:
        super().__init__(folder)
        self.points = check_count("points", points)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._draw(trainer, pl_module)

    @override
    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._draw(trainer, pl_module)

    @torch.no_grad()
    def _draw(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not isinstance(module, Transports) or module.held_out is None or not trainer.is_global_zero:
            return
        source, target = module.held_out
        if source.shape[1] > 2:
            return
        moved = source[: self.points]
        drawn = module.sample_plan(moved, target[:POOL], torch.Generator(device=moved.device).manual_seed(0))
        mapped = module.barycentric_map(moved, target[:POOL])
        if source.shape[1] == 1:
            self.save(trainer, _line(module, getattr(trainer, "datamodule", None), source, target, drawn))
        else:
            self.save(trainer, _plane(*(points.float().cpu() for points in (moved, target, drawn, mapped))))


def _line(module: Any, data: Any, source: Tensor, target: Tensor, drawn: Tensor) -> Any:
    """Draw measures on the line, their potentials and pairs of the plan."""
    figure, axes = new_figure(1, 3, width=12.0, height=3.4)
    for points, name, color in ((source, "source", "C0"), (target, "target", "C1")):
        low, high = points.min(), points.max()
        grid = torch.linspace(float(low), float(high), GRID, device=points.device, dtype=points.dtype).unsqueeze(1)
        axes[0].hist(points.flatten().tolist(), bins=40, density=True, alpha=0.4, color=color, label=name)
        log_prob = getattr(getattr(data, name, None), "log_prob", None)
        known = log_prob(grid.cpu().double()) if callable(log_prob) else None
        if known is not None:
            axes[0].plot(grid.flatten().tolist(), known.exp().tolist(), color=color)
        potential = getattr(module.potentials, f"{name}_potential")(grid)
        axes[1].plot(grid.flatten().tolist(), potential.tolist(), color=color, label=f"of the {name}")
    across = torch.linspace(float(source.min()), float(source.max()), GRID).to(source).unsqueeze(1)
    mapped = module.barycentric_map(across, target[:POOL])
    moved = source[: len(drawn)].flatten().tolist()
    axes[2].scatter(moved, drawn.flatten().tolist(), s=6, alpha=0.5, label="drawn from the plan")
    axes[2].plot(across.flatten().tolist(), mapped.flatten().tolist(), color="C3", label="barycentric map")
    for axis, x, y in zip(axes, ("point", "point", "source"), ("density", "potential", "target"), strict=True):
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.legend(fontsize=8, loc="upper right")
    figure.tight_layout()
    return figure


def _plane(source: Tensor, target: Tensor, drawn: Tensor, mapped: Tensor) -> Any:
    """Draw points of a plane and their images."""
    figure, axes = new_figure(1, 2, width=9.0, height=4.2)
    for axis, title in zip(axes, ("barycentric map", "drawn from the plan"), strict=True):
        axis.scatter(*target.mT.tolist(), s=5, alpha=0.4, color="C1", label="target")
        axis.set_title(title)
        axis.set_aspect("equal")
    axes[0].scatter(*source.mT.tolist(), s=5, alpha=0.6, color="C0", label="source")
    shifts = (mapped - source).mT.tolist()
    axes[0].quiver(*source.mT.tolist(), *shifts, angles="xy", scale_units="xy", scale=1.0, width=0.002, alpha=0.5, color="C3")
    axes[1].scatter(*drawn.mT.tolist(), s=5, alpha=0.6, color="C2", label="drawn for source points")
    for axis in axes:
        axis.legend(fontsize=8, loc="upper right")
    figure.tight_layout()
    return figure
