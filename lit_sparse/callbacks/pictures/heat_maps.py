"""Heat maps of attention weights, which show exact zeros and equal weights."""

from __future__ import annotations

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_sparse.callbacks.pictures.drawings import POINTS, add_scale
from lit_sparse.checks import check_choice
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.figure_text import literal, new_figure

__all__ = ["Attention", "Groups", "draw_attention", "figure_of"]

Groups: TypeAlias = Literal["none", "neighbours", "tied"]

#: Colours: of a weight that is exactly zero, of lines between cells and rows, and of the other weights.
GREY, BORDER, COLOURS = "0.8", "0.35", "Blues"
#: Markers of a row's groups in the order in which they appear; then the same ones again, hollow.
MARKERS = "o^sDvP*X"
#: Inches: a cell's side, the space between the panels of heads, the width that panels fill, and the largest side of a grid.
CELL, GAP, PAGE, LARGEST = 0.26, 0.35, 14.0, 40.0
#: Characters of a token that are shown.
LONGEST = 24


@dataclass(frozen=True)
class Attention:
    """Attention weights and tokens of one example, without padding.

    Args:
        weights: (T, S) or (heads, T, S), on the CPU, not a view.
        source: S source tokens.
        output: T output tokens.
        title: title of the picture.
    """

    weights: Tensor
    source: list[str]
    output: list[str]
    title: str = ""

    def __post_init__(self) -> None:
        shape = len(self.output), len(self.source)
        if self.weights.dim() not in (2, 3) or self.weights.shape[-2:] != shape:
            raise DataError(
                f"Expected attention of an example with {shape[0]} output tokens and {shape[1]} source tokens to have shape"
                f" {shape}, or one such matrix per head, but got {tuple(self.weights.shape)}."
            )

    @classmethod
    def cut(cls, batch: Mapping[str, Any], place: int) -> Attention:
        """Return the attention of one example of a batch.

        Args:
            batch: ``attention`` (B, T, S) or (B, heads, T, S), ``source_tokens`` and ``output_tokens``, B lists each, and
                optionally ``title``, B strings.
            place: position of the example in the batch.

        Raises:
            DataError: if there are more tokens than weights.
        """
        source, output = list(batch["source_tokens"][place]), list(batch["output_tokens"][place])
        weights = batch["attention"][place].detach()[..., : len(output), : len(source)].to("cpu", copy=True).contiguous()
        return cls(weights, source, output, str(batch["title"][place]) if batch.get("title") else "")

    def numbers(self) -> dict[str, Any]:
        """Return the tokens, and each head's weights rounded to four decimals, in which only exact zeros are the integer 0."""
        heads = self.weights if self.weights.dim() == 3 else self.weights.unsqueeze(0)
        rounded = [[[0 if one == 0 else round(one, 4) for one in row] for row in head] for head in heads.tolist()]
        return {"title": self.title, "source": self.source, "output": self.output, "heads": rounded}


@checked
def draw_attention(
    axis: Any, weights: Tensor | npt.ArrayLike, source: Sequence[str], output: Sequence[str], *, groups: Groups = "neighbours"
) -> None:
    """Draw attention weights as a heat map, with source tokens along x and output tokens from top to bottom.

    Exact zeros are grey. Other weights are darker the closer they are to the largest weight of their row. A border
    separates neighbours in a row unless their weights are exactly equal. NaN and negative numbers are shown as crosses on
    white. All artists are vector graphics. The size of the axis at the time of the call determines the size of the
    markers, and how many tokens are labelled. Tokens are shown literally, including dollar signs. Long tokens are
    truncated, line breaks are escaped, and characters that no font in matplotlib's ``font.family`` has are replaced.

    The artists have names (``get_gid``): ``zeros`` and ``weights`` hold one polygon for each run of cells without a border,
    ``borders`` and ``rows`` one line each, and ``group_0``, ``group_1``, ... one marker per cell.

    Args:
        axis: a matplotlib axis.
        weights: (T, S), one row per output token.
        source: S tokens.
        output: T tokens.
        groups: display of equal weights. ``"neighbours"``: no borders within runs of equal weights, the groups of fusedmax.
            ``"tied"``: also one marker per group of equal positive weights in a row, adjacent or not, the groups of
            oscarmax. ``"none"``: borders around all positive weights.

    Raises:
        ConfigurationError: if ``axis`` is none of matplotlib, ``weights`` is not numbers (T, S), or ``groups`` is unknown.

    Example:
        >>> from matplotlib.figure import Figure
        >>> axis = Figure().subplots()
        >>> draw_attention(
        ...     axis,
        ...     [[0.5, 0.5, 0.0], [0.4, 0.2, 0.4]],
        ...     ["a", "b", "c"],
        ...     ["x", "y"],
        ...     groups="tied",
        ... )
        >>> count = {
        ...     artist.get_gid(): len(artist.get_paths()) for artist in axis.collections
        ... }
        >>> count["zeros"], count["weights"], count["borders"]  # 0.5, 0.5 is one run
        (1, 4, 3)

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, figures 1, 4 and
    7.
    """
    import matplotlib
    from matplotlib.collections import LineCollection, PolyCollection

    check_choice("groups", groups, ("none", "neighbours", "tied"))
    if not hasattr(axis, "add_collection"):
        raise ConfigurationError(f"Expected a matplotlib axis but got {full_name(axis)}. Create one with plt.subplots().")
    given = weights.detach().to("cpu", torch.float64) if isinstance(weights, Tensor) else weights
    try:
        table = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected argument `weights` to hold numbers but got: {error}") from error
    rows, columns = len(output), len(source)
    if table.shape != (rows, columns):
        raise ConfigurationError(
            f"Expected argument `weights` to have shape {(rows, columns)}, one row per output token and one"
            f" column per source token, but got {table.shape}."
        )
    weight = np.isfinite(table) & (table >= 0)
    largest = np.where(weight, table, 0).max(axis=1, initial=0, keepdims=True)
    shares = np.divide(table, largest, out=np.zeros_like(table), where=weight & (largest > 0))

    same = (table[:, :-1] == table[:, 1:]) & ((groups != "none") | (table[:, 1:] == 0))
    edges = np.pad(~same, ((0, 0), (1, 1)), constant_values=True) if columns else np.zeros((rows, 1), dtype=bool)
    row, start = np.nonzero(edges[:, :-1])
    stop = np.nonzero(edges[:, 1:])[1] + 1
    corners = [(start, row), (stop, row), (stop, row + 1), (start, row + 1)]
    runs: Any = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1).astype(np.float64)
    first = table[row, start]
    zero, positive = first == 0, weight[row, start] & (first > 0)
    colours = matplotlib.colormaps[COLOURS](shares[row, start])
    thin: dict[str, Any] = {"colors": BORDER, "linewidths": 0.4}
    crosses = [((x, y), (x + 1, y + d)) for y, x in np.argwhere(~weight) for y, d in ((y, 1), (y + 1, -1))]
    for artist in (
        PolyCollection(runs[zero], facecolors=GREY, edgecolors="none", gid="zeros"),
        PolyCollection(runs[positive], facecolors=colours[positive], edgecolors="none", gid="weights"),
        LineCollection(runs[start > 0][:, [0, 3]], gid="borders", **thin),
        LineCollection([((0, y), (columns, y)) for y in range(1, rows)], gid="rows", **thin),
        LineCollection(crosses, gid="crosses", **thin),
    ):
        axis.add_collection(artist, autolim=False)

    axis.set_xlim(0, max(columns, 1))
    axis.set_ylim(max(rows, 1), 0)
    box, points = axis.get_window_extent(), 72 / axis.get_figure().dpi
    wide, high = (max(1.0, points * size / max(cells, 1)) for size, cells in ((box.width, columns), (box.height, rows)))
    slanted = {"rotation": 45, "ha": "right", "va": "center", "rotation_mode": "anchor"}
    for ticks, tokens, room, look in ((axis.set_xticks, source, wide, slanted), (axis.set_yticks, output, high, {})):
        named = range(0, len(tokens), math.ceil(POINTS / room))  # as many as fit
        ticks([place + 0.5 for place in named], [literal(tokens[place], LONGEST) for place in named], usetex=False, **look)
    axis.tick_params(length=0, pad=3, labelsize=POINTS)
    axis.spines[:].set(color=BORDER, linewidth=0.6)
    if groups == "tied":
        for number, cells in enumerate(_tied(table)):
            marker, hollow = MARKERS[number % len(MARKERS)], number // len(MARKERS) % 2
            ink = np.where(shares[tuple(cells.T)] > 0.5, "white", "black")
            look = {"facecolors": ink, "edgecolors": "none", "linewidths": 0}
            look = {"facecolors": "none", "edgecolors": ink, "linewidths": 0.6} if hollow else look
            size = min(7.0, 0.33 * wide, 0.33 * high) ** 2
            axis.scatter(*(cells[:, ::-1].T + 0.5), s=size, marker=marker, gid=f"group_{number}", **look)


def _tied(table: npt.NDArray[np.float64]) -> list[npt.NDArray[np.intp]]:
    """Return the cells (N, 2) of the first groups of all rows, of the second ones, and so on.

    A group is a set of exactly equal positive weights. The groups of a row are in the order of their first cells.

    Example:
        >>> [
        ...     cells.tolist()
        ...     for cells in _tied(np.array([[0.2, 0.3, 0.2, 0.3], [0.0, 0.5, 0.0, 0.5]]))
        ... ]
        [[[0, 0], [0, 2], [1, 1], [1, 3]], [[0, 1], [0, 3]]]
    """
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(table):
        shared = [value for value, count in Counter(row.tolist()).items() if 0 < value < math.inf and count > 1]
        for number, value in enumerate(shared):
            found[number] += [(i, int(k)) for k in np.flatnonzero(row == value)]
    return [np.array(cells, dtype=np.intp) for cells in found.values()]


def figure_of(example: Attention, groups: Groups) -> Any:
    """Return a figure of an example's attention, one panel per head, with cells of equal size."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    heads = example.weights if example.weights.dim() == 3 else example.weights.unsqueeze(0)
    count, (height, width) = len(heads), (max(1, size) for size in heads.shape[1:])
    columns = min(count, max(1, int(PAGE / (width * CELL + GAP))))
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    cell = min(CELL, LARGEST / (columns * width), LARGEST / (rows * height))
    across = columns * width * cell + (columns - 1) * GAP
    down = rows * height * cell + (rows - 1) * GAP
    figure, axes = new_figure(rows, columns, width=across, height=down)
    figure.subplots_adjust(0, 0, 1, 1, wspace=GAP / (width * cell), hspace=GAP / (height * cell))
    for axis in axes[count:]:
        axis.set_axis_off()
    for number, (axis, head) in enumerate(zip(axes, heads, strict=False)):
        draw_attention(axis, head, example.source, example.output, groups=groups)
        first, last = number % columns == 0, number + columns >= count
        axis.tick_params(labelleft=first, labelbottom=last)
        axis.set_xlabel("source" if last else "", fontsize=POINTS)
        axis.set_ylabel("output" if first else "", fontsize=POINTS)
        if count > 1:
            axis.set_title(f"head {number + 1}", fontsize=POINTS, pad=3)
    if example.title:
        lines = textwrap.wrap(literal(example.title, 400), max(40, int(13 * across)))
        place = {"xycoords": "axes fraction", "xytext": (0, 18 if count > 1 else 5), "textcoords": "offset points"}
        axes[0].annotate("\n".join(lines), (0, 1), **place, va="bottom", fontsize=POINTS, usetex=False)
    long = min(2.0, max(1.0, height * cell)) / (height * cell)
    beside = axes[columns - 1].inset_axes((1 + 0.12 / (width * cell), 1 - long, 0.12 / (width * cell), long))
    colours = ScalarMappable(Normalize(0, 1), matplotlib.colormaps[COLOURS].with_extremes(under=GREY))
    label = "weight / largest\nof its row (grey: 0)"
    add_scale(figure, colours, label, cax=beside, extend="min", extendrect=True, ticks=[0, 1])
    return figure
