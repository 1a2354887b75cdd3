"""Figures of a study from its rows and curves."""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, product
from pathlib import Path
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib import rc_context

from lit_sparse.ground.figure_text import literal, new_figure
from lit_sparse.ground.files import result_file
from lit_sparse.studies.jobs.rows import Row
from lit_sparse.studies.pages.tables import head, least, median, selected
from lit_sparse.studies.plan.presentation import Figure, Panel
from lit_sparse.studies.plan.study import Study

__all__ = ["COLORS", "STYLES", "draw", "draw_front", "history_svg", "svg_of", "write_png"]

#: Okabe and Ito's palette, whose colours are distinct for colour-blind readers.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":")
#: Inches of a wide figure, whose text is as large on a page of the documentation as it is drawn.
WIDEST = 7.3
#: x -> middle, low and high.
Points = dict[float, tuple[float, float, float]]
#: Number of points below which each is marked.
FEW = 20


def draw(study: Study, figure: Figure, rows: Sequence[Row], curves: Sequence[Row], path: Path) -> bool:
    """Draw a figure of a study to a PNG file; return False if there is nothing to draw.

    Args:
        study: the study.
        figure: the figure.
        rows: rows of the study.
        curves: logged values of its runs, one row per epoch.
        path: path of the file.
    """
    with rc_context({"font.size": 9, "axes.titlesize": 10}):
        canvas = canvas_of(study, figure, rows, curves)
    if canvas is not None:
        write_png(canvas, path, description=figure.alt or study.title)
    return canvas is not None


def write_png(canvas: Any, path: Path, description: str | None = None, **look: Any) -> None:
    """Write a matplotlib figure to a PNG file, which is identical for the same figure."""
    with result_file(path, "wb") as file:
        canvas.savefig(file, format="png", dpi=140, metadata={"Software": None, "Description": description}, **look)


def svg_of(
    study: Study, figure: Figure, rows: Sequence[Row], curves: Sequence[Row], looks: dict[str, int] | None = None
) -> str:
    """Return a figure of a study as an SVG element, identical for the same rows; empty if there is nothing to draw.

    Args:
        study: the study.
        figure: the figure.
        rows: rows of the study.
        curves: logged values of its runs, one row per epoch.
        looks: see :func:`canvas_of`.
    """
    canvas = canvas_of(study, figure, rows, curves, looks)
    return "" if canvas is None else _svg(canvas)


def _svg(canvas: Any) -> str:
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lit_sparse"}):
        canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def canvas_of(
    study: Study, figure: Figure, rows: Sequence[Row], curves: Sequence[Row], looks: dict[str, int] | None = None
) -> Any:
    """Return the matplotlib figure of the panels that have values, or None if none has.

    Args:
        study: the study.
        figure: the figure.
        rows: rows of the study.
        curves: logged values of its runs, one row per epoch.
        looks: title of a line -> index of its color and style, to which new titles are added. Such a figure has no legend,
            and the elements of line N have ids that begin with ``runN-``. None for a legend.
    """
    if figure.least is not None:
        rows = least(study, rows, study.columns[figure.least])
        curves = selected(curves, {"cell": [row["cell"] for row in rows]})
    labels = {name: {key: str(value) for key, value in cell.labels.items()} for name, cell in study.cells.items()}
    rows, curves = (selected([labels[row["cell"]] | row for row in some], figure.where) for some in (rows, curves))
    parts = list(dict.fromkeys(row[figure.by] for row in rows if row.get(figure.by))) if figure.by else [None]
    found = []
    for panel in figure.panels:
        some = curves if study.over_training(panel) else _placed(study, rows, panel.x)
        pieces = [selected(some, {} if part is None else {str(figure.by): [part]}) for part in parts]
        each = [_lines(study, figure, piece, panel) for piece in pieces]
        if any(each):
            found.append((panel, each))
    if not found:
        return None
    shape = (1, len(parts)) if len(found) == 1 else (len(parts), len(found))
    legend, looks = looks is None, {} if looks is None else looks
    width = min(4.4 * shape[1], WIDEST)
    canvas, axes = new_figure(*shape, width, (3.4 if shape[1] == 1 else 2.6) * shape[0], constrained=True)
    drawn: dict[str, Any] = {}
    for axis, ((place, part), (panel, each)) in zip(axes, product(enumerate(parts), found), strict=True):
        _describe(axis, panel, head(str(figure.by), part) if part else "")  # first: no limits fit infinite points alone
        for title, points in each[place].items():
            drawn[title] = _plot(axis, points, panel, looks.setdefault(title, len(looks)))
    if legend and len(drawn) > 1:
        columns = max(1, int(width / (0.7 + 0.07 * max(map(len, drawn)))))
        canvas.set_figheight(canvas.get_figheight() + 0.25 * math.ceil(len(drawn) / columns))
        canvas.legend([*drawn.values()], map(literal, drawn), loc="outside lower center", ncols=columns, frameon=False)
    return canvas


def draw_front(points: Sequence[Sequence[float]], best: Sequence[bool], labels: Sequence[str], path: Path) -> None:
    """Draw two values of each trial of a sweep, and the Pareto front of trials that no other trial dominates.

    Args:
        points: two values of each trial.
        best: whether a trial is on the front.
        labels: labels of the axes.
        path: path of the picture.
    """
    canvas, (axis,) = new_figure(1, 1, 5.0, 4.0, constrained=True)
    front = sorted(tuple(point) for point, on_front in zip(points, best, strict=True) if on_front)
    axis.scatter(*zip(*points, strict=True), color="0.6", label="trials")
    axis.plot(*zip(*front, strict=True), color=COLORS[0], marker="o", label="front")
    axis.set(xlabel=literal(labels[0]), ylabel=literal(labels[1]))
    axis.legend(frameon=False)
    write_png(canvas, path)


def history_svg(values: Sequence[tuple[int, float]], metric: str, mode: str) -> str:
    """Return an SVG element that shows the value of each trial of a sweep, and the best value so far.

    Args:
        values: index and value of each trial.
        metric: name of the value.
        mode: ``"min"`` or ``"max"``.
    """
    canvas, (axis,) = new_figure(1, 1, 4.4, 3.4, constrained=True)
    numbers, found = zip(*values, strict=True)
    axis.plot(numbers, found, "o", color="0.6", label="trials")
    so_far = [*accumulate(found, min if mode == "min" else max)]
    axis.step(numbers, so_far, where="post", color=COLORS[0], label="best so far")
    _describe(axis, Panel(metric, x_label="trial"), "")
    axis.legend(frameon=False)
    return _svg(canvas)


def _lines(study: Study, figure: Figure, rows: Sequence[Row], panel: Panel) -> dict[str, Points]:
    """Return the points of each line of a panel that has any, by the line's title."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        title = study.title_of(row["cell"]) if figure.lines == "title" else row.get(figure.lines or "", "")
        lines.setdefault(title, []).append(row)
    return {title: points for title, some in lines.items() if (points := series(some, panel))}


def _placed(study: Study, rows: Sequence[Row], x: str) -> Sequence[Row]:
    """Return rows whose measured number x is its median over the seeds, so that a point of a grid is one point."""
    if study.stores(x):
        return rows
    keys = [key for key in study.row_keys if key != "seed"]
    there, found = [row for row in rows if row.get(x)], defaultdict(list)
    for row in there:
        found[tuple(map(row.get, keys))].append(float(row[x]))
    return [row | {x: str(median(found[tuple(map(row.get, keys))]))} for row in there]


def series(rows: Sequence[Row], panel: Panel) -> Points:
    """Return a dict from x to the middle, low and high of a cell's values there, summarized over its seeds, in a panel."""
    if panel.cumulative:  # each seed has costs of its own: the first is drawn
        rows = [row for row in rows if row["seed"] == rows[0]["seed"]]
    keys, places, values, total = [panel.value, *panel.band_keys], [], [], 0.0
    for row in rows:
        total += float(row.get(panel.cumulative) or 0.0)
        if all(row.get(key) for key in (*keys, *([] if panel.cumulative else [panel.x]))):
            places.append(total if panel.cumulative else float(row[panel.x]))
            values.append([panel.factor * float(row[key]) + panel.offset for key in keys])
    if not values:
        return {}
    table = pd.DataFrame(values, places).fillna(math.inf).groupby(level=0)  # NaN is the largest
    middle = table.median()
    ends = [middle[1], middle[2]] if panel.band_keys else [table[0].quantile(share) for share in panel.band]
    return {x: (*each,) for x, *each in zip(middle.index, middle[0], *ends, strict=True)}


def _plot(axis: Any, points: Points, panel: Panel, number: int) -> Any:
    look = {"color": COLORS[number % len(COLORS)], "linestyle": STYLES[number // len(COLORS) % len(STYLES)]}
    middle, low, high = zip(*points.values(), strict=True)
    (line,) = axis.plot(list(points), middle, marker="." if len(points) < FEW else None, gid=f"run{number}-line", **look)
    if low != middle or high != middle:
        axis.fill_between(list(points), low, high, color=look["color"], alpha=0.15, linewidth=0, gid=f"run{number}-band")
    return line


def _describe(axis: Any, panel: Panel, title: str) -> None:
    across, up = (fill(literal(text), 24) for text in (panel.x_label or panel.x, panel.label or panel.value))
    axis.set(xlabel=across, ylabel=up, title=literal(title))
    if panel.log in (True, "both"):
        axis.set_yscale("log")
    if panel.log in ("x", "both"):
        axis.set_xscale("log")
    elif panel.x in ("epoch", "step"):
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    axis.spines[["top", "right"]].set_visible(False)
