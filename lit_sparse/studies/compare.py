"""The command ``lit-sparse compare``: the numbers and curves of some runs next to each other."""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from lit_sparse.errors import ConfigurationError, did_you_mean, printable
from lit_sparse.ground.commands import command_parser
from lit_sparse.ground.files import matching, not_plain, result_file
from lit_sparse.ground.stored import is_file
from lit_sparse.runs.folders import numbered
from lit_sparse.runs.status import check_plain, logged
from lit_sparse.studies.jobs.logged import kind_and_name, logged_by_program, summarized
from lit_sparse.studies.jobs.rows import Row, shown
from lit_sparse.studies.pages.figures import draw
from lit_sparse.studies.pages.tables import by_cell, condensed, fitted, markdown
from lit_sparse.studies.plan.presentation import Column, Figure, Panel
from lit_sparse.studies.plan.study import Cell, Study
from lit_sparse.studies.settings import read_config, settings_of

__all__ = ["CURVES", "Source", "comparison", "configs_of", "is_folder", "main", "named", "parser", "sources", "table_of"]

#: Metrics that are drawn, those that come first preferred.
PREFERRED = ("nelbo", "success", "bleu", "accuracy", "loss")
CALLS, SIZES = "train/decoder_calls_median", "train/support_size_median"
#: Pictures of a curve -> its value; a report of several runs has their curves on common axes instead.
CURVES = {"decoder calls": CALLS, "support size": SIZES, "negative elbo": "val/nelbo", "success": "val/success"}
#: Calls of the epochs since the point before.
CALLS_SINCE = f"{CALLS} since"
#: Largest number of points of a curve, more than a picture can show.
MOST_POINTS = 2000
#: Endings of names that the table leaves out.
COUNTS = ("_p10", "_p90", "_median", "_total", "/examples")
#: Columns that place a row.
PLACES = ("epoch", "step", "cell", "seed")
#: End of a trial's name in a sweep with folds.
FOLD = re.compile("fold_[0-9]+")
BLOCKS = "▁▂▃▄▅▆▇█"
#: Largest number of characters of a name beside them.
LONGEST = 36


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse compare``."""
    found = command_parser("compare", "Print and write the numbers and curves of some runs next to each other.")
    found.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="run folders, or the folder of a sweep or study")
    found.add_argument("--metric", help="metric of the curves and of the first column; by default the models' usual one")
    found.add_argument("--output", type=Path, default=Path("comparison"), help="path of the files to write, without an ending")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse compare``: print and write a table and curves of several runs."""
    options = parser().parse_args(list(arguments))
    if not options.output.name:
        raise ConfigurationError(f"Expected --output to be the path of files but got {str(options.output)!r}. Give a name.")
    found = sources(options.runs)
    study, figure, rows, curves = comparison(found, options.metric)
    table, metric = table_of(study, rows, settings_of(configs_of(found))), figure.panels[-1].value
    order = sorted(range(len(table[0])), key=lambda place: place > 0 and _name(table[0][place]) != _name(metric))
    brief, same = condensed([[line[place] for place in order] for line in table])
    files = [options.output.with_name(options.output.name + ending) for ending in (".md", ".csv", ".png")]
    with result_file(files[0], "w") as file:
        file.write("\n".join([*markdown(brief, aligned=True), *(f"\n{line}" for line in same)]) + "\n")
    with result_file(files[1], "w") as file:
        csv.writer(file, lineterminator="\n").writerows(table)
    draw(study, figure, rows, curves, files[2])
    text, left = fitted(brief, shutil.get_terminal_size().columns)
    more = [f"Too wide to be shown, but in {files[0]}: {', '.join(left)}."] if left else []
    print(printable("\n".join([*text, *same, *more, "", f"{metric} over epochs", *_lines(curves, metric)])))
    print(*files, sep="\n")
    return 0


class Source(NamedTuple):
    """A run to compare.

    Attributes:
        folder: the run folder.
        root: folder below which links are refused.
    """

    folder: Path
    root: Path


def sources(texts: Sequence[str]) -> dict[str, list[Source]]:
    """Return the runs given as ``[NAME=]FOLDER``, each the folder of a run, or of a sweep or study with several runs.

    Returns:
        Name of a line in the table -> its runs, one for each seed or fold.

    Raises:
        ConfigurationError: if two have the same name.
    """
    names = [named(text)[0] for text in texts]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"Expected a name for each run, as in NAME=FOLDER, but got {', '.join(names)}.")
    found: dict[str, list[Source]] = {}
    for name, root in map(named, texts):
        inner = [] if is_file(root / "metrics.csv") else matching(root, "**/seed_*/0")
        if inner:
            check_plain(root)
        inner = sorted(filter(_has_run, inner), key=_in_order)
        for path in inner:
            parts = path.parent.parent.relative_to(root).parts
            cell = "/".join(parts[:-1] if len(parts) > 1 and FOLD.fullmatch(parts[-1]) else parts) or name
            found.setdefault(f"{name}/{cell}" if len(texts) > 1 else cell, []).append(Source(path, root))
        if not inner:
            found.setdefault(name, []).append(Source(root, root))
    return found


def _has_run(folder: Path) -> bool:
    return is_file(folder / "metrics.csv") or bool(matching(folder, "fit/**/metrics.csv"))


def _in_order(path: Path) -> list[str | int]:
    return [int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", str(path)))]


def comparison(
    runs: Mapping[str, Sequence[Source]],
    asked: str | None,
    monitor: Callable[[str, Collection[str]], tuple[str, str] | None] | None = None,
) -> tuple[Study, Figure, list[Row], list[Row]]:
    """Return a study that compares some runs, with its figure, rows and curves.

    Args:
        runs: name -> runs of its seeds.
        asked: metric of the curves; None for the models' own.
        monitor: function from the drawn metric and the names of all logged values to the value by which the best run is
            chosen, such as ``max(val/accuracy)``, and ``"min"``, ``"max"`` or, if that is not known, ``""``, or None. That
            value becomes the first column.

    Raises:
        ConfigurationError: if a folder is not a run folder, or the metric was not logged.
    """
    found = [(name, seed, _logged(run)) for name, some in runs.items() for seed, run in enumerate(some)]
    keys = {key for _, _, lines in found for line in lines for key in line}
    metric = _metric(keys, asked)
    value, mode = (monitor(metric, keys) if monitor else None) or ("", "")
    rows, curves = [], []
    for name, seed, lines in found:
        where = {"cell": name, "seed": str(seed)}
        last = {key: number for line in lines for key, number in line.items()} | {value: summarized(lines, value)}
        rows.append({key: shown(number) for key, number in last.items()} | where)
        merged: dict[float, dict[str, float]] = {}
        for line in lines:
            merged.setdefault(line.get("epoch", 0.0) + 1, {}).update(line)
        curves += [{key: shown(number) for key, number in point.items()} | where for point in _thinned(merged)]
    watched = kind_and_name(value)[1]
    title = f"best {watched}" if value == f"{mode}({watched})" else value
    columns = {title: Column(value, form=".4g", best=mode or None)} if value else {}
    columns |= {name: one for name, one in _columns(rows, metric).items() if name != value}
    study = Study(title="Comparison", cells={name: Cell() for name in runs}, columns=columns)
    panels = _panels(metric, curves)
    panels = [Panel(watched), *panels] if watched not in ("", metric) and not asked else panels
    if monitor:  # one value is in the table
        places = [(row["cell"], row["seed"], key) for row in curves for key in row if row[key]]
        several = {key for (_, _, key), number in Counter(places).items() if number > 1}
        panels = [panel for panel in panels if panel.value in several]
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    figure = Figure(panels, alt=f"{', '.join(dict.fromkeys(panel.value for panel in panels))} of {count}.")
    return study, figure, rows, curves


def configs_of(runs: Mapping[str, Sequence[Source]]) -> dict[str, dict[Any, Any]]:
    """Return the config of the first run of each name."""
    return {name: read_config(*some[0]) for name, some in runs.items()}


def table_of(study: Study, rows: Sequence[Row], settings: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """Return the table of a study with the settings in which its cells differ, and the number of seeds unless it is 1."""
    cells = {name: replace(cell, labels={**cell.labels, **settings.get(name, {})}) for name, cell in study.cells.items()}
    return by_cell(replace(study, cells=cells), rows, list(study.columns), counted=False)


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _thinned(merged: dict[float, dict[str, float]]) -> Iterator[dict[str, float]]:
    """Yield the logged values of each epoch as a point of a curve; a point stands for several epochs if there are very many."""
    epochs, each = sorted(merged), -(-len(merged) // MOST_POINTS)
    for start in range(0, len(epochs), each):
        some = [merged[epoch] for epoch in epochs[start : start + each]]
        last = {key: value for line in some for key, value in line.items()} | {"epoch": epochs[start : start + each][-1]}
        yield last | ({CALLS_SINCE: sum(line.get(CALLS, 0.0) for line in some)} if CALLS in last else {})


def named(text: str) -> tuple[str, Path]:
    """Return name and folder of a run given as ``[NAME=]FOLDER``; undecodable characters are replaced in the name.

    Raises:
        ConfigurationError: for an empty name or folder.
    """
    name, given, path = text.partition("=")
    if not text or (given and not (name and path) and not is_folder(text)):
        raise ConfigurationError(f"Expected NAME=FOLDER but got {text!r}. Add the missing one, or give only the folder.")
    if not given or is_folder(text):
        name, path = text, text
    return name.encode("utf-8", "replace").decode(), Path(path)


def is_folder(path: str | Path) -> bool:
    """Return whether a path is a folder; a text may be too long for a path."""
    return os.path.isdir(path)  # noqa: PTH112


def _logged(run: Source) -> list[dict[str, float]]:
    """Return what a run logged, with its newest test last."""
    inner = run.folder / "fit"  # where a program writes
    if inner.is_symlink():
        raise not_plain(inner, "folder")
    folder, read = (inner, logged_by_program) if inner.is_dir() else (run.folder, logged)
    lines = read(folder, within=run.root)
    if not lines:
        raise ConfigurationError(
            f"{str(run.folder)!r} is not a run folder: it has neither metrics.csv nor the runs of a sweep or study. A run"
            " prints its folder last."
        )
    epoch = lines[-1].get("epoch", 0.0)
    tests = [{**line, "epoch": epoch} for test in numbered(run.folder / "test")[-1:] for line in read(test, within=run.root)]
    return [*lines, *tests]


def _metric(keys: set[str], asked: str | None) -> str:
    """Return the logged name of what is drawn."""
    names = {key.split("/", 1)[1] for key in keys if key.startswith(("val/", "train/"))} or keys - {"epoch", "step"}
    if asked in keys - {"epoch", "step"}:
        return str(asked)
    wanted = [_name(asked)] if asked else [*PREFERRED, *sorted(names, key=lambda name: ("val" not in name, name))]
    for stage in ("val/", "train/", ""):
        for name in wanted:
            if f"{stage}{name}" in keys:
                return f"{stage}{name}"
    raise ConfigurationError(
        f"Expected --metric to be one of {', '.join(sorted(names)) or 'none'}, which the runs logged, but got {asked!r}."
        f"{did_you_mean(str(asked), names)}"
    )


def _columns(rows: Sequence[Row], metric: str) -> dict[str, Column]:
    """Return the columns of the table: epochs, decoder calls, and results of tests; of validations if some have no test.

    The drawn metric is among them.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    tested = all(any(key.startswith("test") and row[key] for key in row) for row in rows)
    stages = ("test",) if tested else ("val", "test") if any(key.startswith(("val", "test")) for key in keys) else ("",)
    kept = [key for stage in stages for key in keys if key.startswith(stage) and not key.endswith((*COUNTS, *PLACES))]
    calls = ["train/decoder_calls_mean"] if "train/decoder_calls_mean" in keys else []
    epochs = {"epochs": Column("epoch", offset=1.0, form="g")}
    drawn = [] if _name(metric) in map(_name, kept) else [metric]
    return epochs | {key: Column(key, form=".4g") for key in (*calls, *kept, *drawn)}


def _panels(metric: str, curves: Sequence[Row]) -> list[Panel]:
    """Return the panels of the counts, support sizes only if they are not the decoder calls, of the metric, and of its cost."""
    several = [(row.get(CALLS), row.get(SIZES)) for row in curves]
    counts = [(SIZES, "support size")] if any(size and size != calls for calls, size in several) else []
    counts += [(CALLS, "decoder calls")] if (costs := any(calls for calls, _ in several)) else []
    bands = [Panel(key, label, band=[key.replace("median", end) for end in ("p10", "p90")]) for key, label in counts]
    cost = Panel(metric, x=f"cumulative {CALLS_SINCE}", x_label="cumulative median decoder calls")
    return [*bands, Panel(metric), *([cost] if costs else [])]


def _lines(curves: Sequence[Row], metric: str) -> list[str]:
    """Return a line of blocks for the values of each run, means over its seeds, on one scale and within 80 columns."""
    points: dict[str, dict[float, list[float]]] = {}
    for row in curves:
        if row.get(metric):
            points.setdefault(row["cell"], {}).setdefault(float(row["epoch"]), []).append(float(row[metric]))
    values = {name: [fmean(some) for _, some in sorted(epochs.items())] for name, epochs in points.items()}
    finite = [value for some in values.values() for value in some if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    ends = [f"{some[0]:.4g} to {some[-1]:.4g}" for some in values.values()]
    names = [name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}" for name in values]
    width = max(map(len, names), default=0)
    room = 80 - 4 - width - max(map(len, ends), default=0)
    lines = []
    for name, some, end in zip(names, values.values(), ends, strict=True):
        picked = [some[round(place * (len(some) - 1) / (room - 1))] for place in range(room)] if len(some) > room else some
        heights = [(value - low) / (high - low or 1.0) if math.isfinite(value) else 1.0 for value in picked]
        bars = "".join(BLOCKS[min(7, int(8 * height))] for height in heights)
        lines.append(f"{name:<{width}}  {bars}  {end}")
    return lines
