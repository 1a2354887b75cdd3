"""The pictures: functions of matplotlib axes and of an artifact, a dict of what a picture shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch

from lit_sparse.ground.figure_text import literal, new_figure

__all__ = ["LINE", "POINTS", "add_scale", "draw"]

Artifact: TypeAlias = dict[str, Any]
Axes: TypeAlias = list[Any]

#: Points of text, and inches between two lines of it.
POINTS, LINE = 9, 0.18
#: Largest width and height of a heat map, in inches; names that do not fit are left out.
LARGEST = 10.0
#: A curve of fewer points has a marker at each.
FEW = 20


def _counts(axes: Axes, artifact: Artifact) -> None:
    """Draw the median of a count over epochs, with the band from the 10th to the 90th percentile, and the mean.

    Args:
        axes: one axis.
        artifact: ``rows`` with ``epoch`` and the four ``metrics``: 10th percentile, median, 90th percentile, mean; and the
            ``label`` of the count.
    """
    epochs, low, median, high, mean = ([row[key] for row in artifact["rows"]] for key in ("epoch", *artifact["metrics"]))
    axes[0].fill_between(epochs, low, high, alpha=0.25, label="10th to 90th percentile")
    axes[0].plot(epochs, median, label="median", marker="." if len(epochs) < FEW else None)
    axes[0].plot(epochs, mean, label="mean", linestyle="--", linewidth=1)
    axes[0].set_ylim(bottom=0)
    _describe(axes[0], "epoch", artifact["label"], whole=True)


def _validation(axes: Axes, artifact: Artifact, limits: tuple[float | None, float | None] = (None, None)) -> None:
    """Draw a validation metric over epochs, and over their cost in decoder calls.

    Args:
        axes: two axes.
        artifact: ``rows`` with ``epoch``, ``calls`` and the last one of ``metrics``, and its ``label``.
        limits: limits of the axis.
    """
    values = [row[artifact["metrics"][-1]] for row in artifact["rows"]]
    labels = {"epoch": "epoch", "calls": "cumulative median decoder calls per example"}
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        axis.plot([row[key] for row in artifact["rows"]], values, marker="." if len(values) < FEW else None)
        axis.set_xlim(left=0)
        axis.set_ylim(*limits)
        _describe(axis, label, artifact["label"] if axis is axes[0] else "", whole=True)


def _images(axes: Axes, artifact: Artifact) -> None:
    """Draw rows of images.

    Args:
        axes: one axis.
        artifact: ``images`` (rows, columns, D) with D = side * side or, in color, 3 * side * side, and one of ``labels`` a row.
    """
    images = artifact["images"].float()  # numpy has no bfloat16
    rows, columns, pixels = images.shape
    planes = 3 if math.isqrt(pixels) ** 2 != pixels == 3 * math.isqrt(pixels // 3) ** 2 else 1
    side = math.isqrt(pixels // planes)
    if planes * side * side != pixels:
        images, side = torch.nn.functional.pad(images, (0, (side + 1) ** 2 - pixels)), side + 1
    framed = torch.nn.functional.pad(images.reshape(rows, columns, planes, side, side), (0, 1, 0, 1), value=0.3)
    side += 1
    sheet = framed.permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, planes)
    sheet = sheet.clamp(0, 1) if planes == 3 else sheet.squeeze(-1)
    axes[0].imshow(sheet.numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes[0].set_xticks([])
    axes[0].set_yticks([side * (row + 0.5) for row in range(rows)], artifact["labels"])
    _describe(axes[0], artifact.get("x", ""), artifact.get("y", ""))


def _bases(axes: Axes, artifact: Artifact) -> None:
    """Draw bases as images, each scaled by its largest magnitude.

    Args:
        axes: one axis.
        artifact: ``bases`` (n, D), and the ``shape`` (height, width) of an image.
    """
    bases, (high, wide) = artifact["bases"], artifact["shape"]
    columns = math.ceil(math.sqrt(len(bases) * high / wide))
    rows = math.ceil(len(bases) / columns)
    scaled = bases / bases.abs().amax(1, keepdim=True).clamp_min(torch.finfo(bases.dtype).tiny)
    tiles = torch.nn.functional.pad(scaled.view(-1, high, wide), (1, 1, 1, 1), value=torch.nan)
    tiles = torch.nn.functional.pad(tiles, (0, 0, 0, 0, 0, rows * columns - len(tiles)), value=torch.nan)
    sheet = tiles.view(rows, columns, high + 2, wide + 2).transpose(1, 2).reshape(rows * (high + 2), columns * (wide + 2))
    image = axes[0].imshow(sheet.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes[0].set_axis_off()
    add_scale(axes[0].figure, image, "weight / largest magnitude of its basis", ax=axes[0], fraction=0.05, pad=0.02)


def _activity(axes: Axes, artifact: Artifact) -> None:
    """Draw a histogram of the number of active units.

    Args:
        axes: one axis.
        artifact: ``counts`` (n,) of the examples with 0, 1, ... active units.
    """
    shares = artifact["counts"].double() / artifact["counts"].sum()
    there = shares.nonzero().squeeze(1)
    low, high = int(there[0]), int(there[-1])
    width = max(1, math.ceil((high - low + 1) / 60))
    bins = torch.arange(low, high + width + 1, width)
    axes[0].hist(there.numpy(), bins=(bins - 0.5).tolist(), weights=shares[there].numpy())
    _describe(axes[0], "active units", "share of examples", whole=True)


def _messages(axes: Axes, artifact: Artifact) -> None:
    """Draw how often each symbol is sent for each class.

    Args:
        axes: one axis.
        artifact: ``shares`` (classes, used symbols) of a class's messages, names of ``classes`` and ``symbols``, and the size
            of the ``vocabulary``.
    """
    axis, shares = axes[0], artifact["shares"]
    image = axis.imshow(shares.numpy(), cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for ticks, names in ((axis.set_yticks, artifact["classes"]), (axis.set_xticks, artifact["symbols"])):
        places = range(0, len(names), math.ceil(len(names) * LINE / LARGEST))
        ticks(places, [literal(str(names[place])) for place in places])
    axis.tick_params(axis="x", rotation=90)
    _describe(axis, f"symbol ({shares.shape[1]} of {artifact['vocabulary']} in use)", "class")
    add_scale(axis.figure, image, "share of the class's messages", ax=axis, fraction=0.05, pad=0.02)


def _line(axes: Axes, artifact: Artifact) -> None:
    """Draw measures on the line, their potentials, and pairs of the plan.

    Args:
        axes: three axes.
        artifact: ``points``, ``potentials`` and, where they are known, ``densities`` of the ``source`` and the ``target``; the
            ``grid`` of the latter two and of the barycentric map ``mapped``; pairs ``drawn`` (2, n) of the plan.
    """
    grid, points = artifact["grid"].tolist(), artifact["points"]
    for color, name in (("C0", "source"), ("C1", "target")):
        axes[0].hist(points[name].tolist(), bins=40, density=True, alpha=0.4, color=color, label=name)
        axes[1].plot(grid, artifact["potentials"][name].tolist(), color=color, label=f"of the {name}")
        if name in artifact["densities"]:
            axes[0].plot(grid, artifact["densities"][name].tolist(), color=color)
    axes[2].scatter(*artifact["drawn"].tolist(), s=6, alpha=0.5, label="drawn from the plan")
    axes[2].plot(grid, artifact["mapped"].tolist(), color="C3", label="barycentric map")
    axes[2].set_xlim(float(points["source"].min()), float(points["source"].max()))
    for axis, x, y in zip(axes, ("point", "point", "source"), ("density", "potential", "target"), strict=True):
        _describe(axis, x, y)


def _plane(axes: Axes, artifact: Artifact) -> None:
    """Draw points of a plane and their images.

    Args:
        axes: two axes.
        artifact: ``source``, ``target``, the images ``mapped`` of the source by the barycentric map, and the points ``drawn``
            for it from the plan, each (n, 2).
    """
    source, target, drawn = (artifact[name].mT.tolist() for name in ("source", "target", "drawn"))
    shifts = (artifact["mapped"] - artifact["source"]).mT.tolist()
    for axis in axes:
        axis.scatter(*target, s=5, alpha=0.4, color="C1", label="target")
        axis.set_aspect("equal")
    axes[0].scatter(*source, s=5, alpha=0.6, color="C0", label="source")
    arrows = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.002, "alpha": 0.5, "color": "C3"}
    axes[0].quiver(*source, *shifts, **arrows, label="barycentric map")
    axes[1].scatter(*drawn, s=5, alpha=0.6, color="C2", label="drawn for source points")
    for axis in axes:
        _describe(axis, "first coordinate", "second coordinate")


def _top_tokens(axes: Axes, artifact: Artifact) -> None:
    """List the tokens of units, each in the text around it.

    Args:
        axes: one axis.
        artifact: ``rows``, each a unit and its tokens: activity, the text before, the token, and the text after.
    """
    lines = []
    for unit, tokens in artifact["rows"]:
        lines.append((f"unit {unit}" + ("" if tokens else ": never active"), "", ""))
        for value, before, token, after in tokens:
            lines.append((f"{value:6.2f}   {literal(before)}", literal(f"[{token}]"), literal(after)))
    axes[0].set_axis_off()
    axes[0].set_ylim(len(lines), 0)
    for number, parts in enumerate(lines, 1):
        axes[0].text(0, number, "  ".join(part for part in parts if part), fontsize=POINTS, va="bottom")


def _describe(axis: Any, x: str, y: str, *, whole: bool = False) -> None:
    """Label the axes, and put a legend above, where it covers nothing.

    Args:
        axis: a matplotlib axis.
        x: name of the x axis.
        y: name of the y axis.
        whole: whether numbers along x are whole.
    """
    axis.set_xlabel(x, fontsize=POINTS)
    axis.set_ylabel(y, fontsize=POINTS)
    axis.tick_params(labelsize=POINTS)
    if whole:
        axis.xaxis.get_major_locator().set_params(integer=True)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=POINTS, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), borderaxespad=0.2)


def add_scale(figure: Any, image: Any, label: str, **place: Any) -> None:
    """Add a color bar with a label for an image."""
    scale = figure.colorbar(image, **place)
    scale.set_label(label, fontsize=POINTS)
    scale.ax.tick_params(labelsize=POINTS)


#: Name of a picture -> function that draws an artifact on axes, and the number of axes.
DRAWINGS: dict[str, tuple[Callable[[Axes, Artifact], None], int]] = {
    "decoder_calls": (_counts, 1),
    "support_size": (_counts, 1),
    "negative_elbo": (_validation, 2),
    "success": (partial(_validation, limits=(0.0, 1.0)), 2),
    "reconstructions": (_images, 1),
    "samples_by_class": (_images, 1),
    "bases": (_bases, 1),
    "activity": (_activity, 1),
    "messages_by_class": (_messages, 1),
    "top_tokens": (_top_tokens, 1),
    "transport_line": (_line, 3),
    "transport_plane": (_plane, 2),
}


def draw(name: str, artifact: Artifact) -> Any:
    """Return a matplotlib figure with the drawing of a given name.

    Args:
        name: a key of :data:`DRAWINGS`.
        artifact: what the picture shows; with ``cells``, the number of columns and rows and the inches of each.
    """
    function, panels = DRAWINGS[name]
    columns, rows, side = artifact.get("cells", (panels, 1, 3.5))
    width, height = 1.4 + min(LARGEST, side * columns), 0.8 + min(LARGEST, side * rows)
    figure, axes = new_figure(1, panels, width, height, constrained=True)
    function(axes, artifact)
    return figure
