"""Tables of a study from its rows."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from lit_sparse.errors import ConfigurationError
from lit_sparse.studies.jobs.rows import Row
from lit_sparse.studies.plan.load import check_names
from lit_sparse.studies.plan.presentation import Column, Table
from lit_sparse.studies.plan.study import Study, written

__all__ = ["by_size", "condensed", "fitted", "head", "least", "markdown", "median", "numbers", "page", "selected"]

MISSING = "-"
PLAIN = re.compile(r"-?\d+(\.\d+)?")
BOOTSTRAP = (
    "Differences by a paired bootstrap over the test sentences (Koehn, 2004) of one trained model each, of the seed of median"
    " value, the lower one of two: they say nothing of other seeds. The interval is two-sided. The last column is the share of"
    " resamples in which a model is at least as good as the best."
)


def numbers(rows: Iterable[Row], column: Column) -> list[float]:
    """Return the numbers of a column in some rows, without empty cells."""
    found = [row[column.value] for row in rows if row.get(column.value)]
    return [column.factor * float(value) + column.offset for value in found]


def cell_text(values: Sequence[float], column: Column) -> str:
    """Return the text of a table's cell: a summary of the numbers of several seeds."""
    if not values:
        return MISSING
    if column.show.startswith("above "):
        return f"{summary(values, column):.0f}"
    middle = summary(values, column)
    if len(values) > 1 and column.show == "range":
        return "{} ({} to {})".format(*_alike([middle, *by_size(values, column).agg(["min", "max"])], column.form))
    if len(values) > 1 and column.show == "mean" and all(map(math.isfinite, values)):
        deviation = float(pd.Series(values).std())
        return " ± ".join(_alike([middle, deviation], column.form, deviation))
    return format(middle, column.form)


def _text(rows: Sequence[Row], column: Column) -> str:
    """Return the text of a table's cell, with the number of values unless each seed has one."""
    values, seeds = numbers(rows, column), {row["seed"] for row in rows}
    over = f" (over {len(values)} value{'s' * (len(values) != 1)})" if values and len(values) != len(seeds) else ""
    return cell_text(values, column) + over


def _alike(values: Sequence[float], form: str, deviation: float = 0.0) -> list[str]:
    """Return the texts of numbers with equal decimals, no more than two significant digits of a deviation unless it is 0."""
    texts = [format(value, form) for value in values]
    if not all(PLAIN.fullmatch(text) for text in texts):
        return texts
    places = max(len(text.partition(".")[2]) for text in texts)
    if deviation:
        places = min(places, 1 - math.floor(math.log10(float(f"{deviation:.1e}"))))
    return [f"{round(value, places):.{max(0, places)}f}" for value in values]


def summary(values: Sequence[float], column: Column) -> float:
    """Return the number by which a column summarizes several seeds, and by which cells are compared."""
    if column.show.startswith("above "):
        return float(sum(not value <= float(column.show.split()[1]) for value in values))
    if len(values) == 1 or column.show == "mean":
        return float(pd.Series(values).mean(skipna=False))
    return float(by_size(values, column).agg({"min": "min", "max": "max"}.get(column.show, "median")))


def by_size(values: Iterable[float], column: Column) -> pd.Series:
    """Return numbers of which NaN is the worst."""
    return pd.Series([*values], dtype=float).fillna(-math.inf if column.best == "max" else math.inf)


def median(values: Iterable[float]) -> float:
    """Return the median of numbers of which NaN is the largest."""
    return float(pd.Series([*values], dtype=float).fillna(math.inf).median())


def markdown(lines: Sequence[Sequence[str]], left: int = 1, *, aligned: bool = False) -> list[str]:
    """Return the lines of a markdown table; the first given line is the header.

    Args:
        lines: cells of each line.
        left: number of left-aligned columns.
        aligned: whether the columns are as wide as their longest cells, as for a terminal.
    """
    shown = [[" ".join(cell.replace("|", r"\|").splitlines()) for cell in line] for line in lines]
    rule = ["---"] * left + ["---:"] * (len(lines[0]) - left)
    shown.insert(1, rule)
    if aligned:
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        shown[1] = [mark.replace("---", "-" * (width - len(mark) + 3)) for mark, width in zip(rule, widths, strict=True)]
        sides = ["<"] * left + [">"] * (len(rule) - left)
        shown = [[f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)] for line in shown]
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in shown]


def condensed(table: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[str]]:
    """Return a table without columns that are equal in all lines or repeat another one, and sentences that name these.

    Example:
        >>> table = [["", "lr", "epochs", "nelbo", "loss"], ["a", "0.1", "2", "9", "9"]]
        >>> condensed([*table, ["b", "0.2", "2", "8", "8"]])[1]
        ['The same in all: epochs 2.', 'Shown once: loss = nelbo.']
    """
    kept: dict[tuple[str, ...], list[str]] = {}
    told: dict[str, list[str]] = {"The same in all": [], "Shown once": []}
    for head, *cells in zip(*table, strict=True):
        key = tuple(cell.strip("*") for cell in cells)
        if len(cells) > 1 and kept and {*cells} == {*key[:1]}:  # not in bold, as the best are
            told["The same in all"] += [] if key[0] == MISSING else [f"{head} {key[0]}"]
        elif len(cells) > 1 and kept.get(key, [""])[0]:
            told["Shown once"].append(f"{head} = {kept[key][0]}")
        else:
            kept[key if len(cells) > 1 and key not in kept else (head,)] = [head, *cells]
    return [*map(list, zip(*kept.values(), strict=True))], [f"{key}: {', '.join(some)}." for key, some in told.items() if some]


def fitted(table: list[list[str]], width: int) -> tuple[list[str], list[str]]:
    """Return the lines of a table no wider than a width, transposed or without last columns, and the heads of these."""
    turned = [*map(list, zip(*table, strict=True))]
    for tried in (table, turned, *([line[:end] for line in table] for end in range(len(table[0]), 1, -1))):
        text = markdown(tried, aligned=True)
        if len(text[0]) <= width:
            break
    return text, [] if tried == turned else table[0][len(tried[0]) :]


def machines(rows: Iterable[Row]) -> list[str]:
    """Return the distinct machines and torch versions on which rows were made, the most frequent first."""
    built = ((row.get("machine", ""), word) for row in rows for word in row.get("versions", "").split())
    texts = [f"{machine}, {word}" for machine, word in built if word.startswith("torch=")]
    return [name for name, _ in Counter(texts).most_common()]


def by_cell(
    study: Study, rows: Sequence[Row], names: Sequence[str], keys: Sequence[str] = (), *, counted: bool = True
) -> list[list[str]]:
    """Return a table of results with one line per cell, and the given keys as further columns.

    Columns without values are left out. The best line is in bold unless the rows come from several machines or versions.

    Args:
        study: the study.
        rows: rows of the study.
        names: names of the columns to show.
        keys: keys of the rows that are shown as columns.
        counted: whether the number of seeds is shown even if it is 1 everywhere.
    """
    alike = len(machines(rows)) < 2
    there = {name: some for name in study.cells if (some := _of(rows, name))}
    labels = dict.fromkeys(label for name in there for label in study.cells[name].labels if label not in study.series)
    table = [("", [study.title_of(name) for name in there])]
    table += [(label, [str(study.cells[name].labels.get(label, "")) for name in there]) for label in labels]
    table += [(key, [", ".join(dict.fromkeys(row.get(key, "") for row in some)) for some in there.values()]) for key in keys]
    seeds = [str(len({row["seed"] for row in some})) for some in there.values()]
    table += [("seeds", seeds)] if counted or {*seeds} != {"1"} else []
    for key in names:
        column, title = study.columns[key], study.columns[key].title or key
        values = {name: found for name, some in there.items() if (found := numbers(some, column))}
        if not values:
            continue
        texts = {name: _text(there[name], column) for name in values}
        if alike and column.best is not None and len(values) > 1:
            summaries = by_size([summary(found, column) for found in values.values()], column)
            best = summaries.agg(column.best)
            texts |= {name: f"**{texts[name]}**" for name, one in zip(values, summaries, strict=True) if one == best}
        table.append((title, [texts.get(name, MISSING) for name in there]))
        published = [study.published_value(name, key) for name in there]
        table += [(f"{title}, published", [text or MISSING for text in published])] if any(published) else []
    heads, columns = zip(*table, strict=True)
    return [[*heads], *map(list, zip(*columns, strict=True))]


def bootstrap_table(study: Study, rows: Sequence[Row], samples: Sequence[Row]) -> list[list[str]]:
    """Return a table of the differences between each cell and the best one, by the paired bootstrap.

    Each cell is represented by the seed with the median value.

    Cells run on other machines or torch versions than most are left out.

    Raises:
        ConfigurationError: if cells have different numbers of resampled scores.
    """
    from lit_sparse.metrics.bleu import compare_resampled

    assert study.compare is not None
    common = machines(rows)[:1]
    rows = [row for row in rows if machines([row]) in ([], common)]
    column, chosen = study.columns[study.compare.column], {}
    column = replace(column, best=column.best or "max")  # scores of texts are large where these are good
    for name in study.cells:
        known = [row for row in _of(rows, name) if row.get(column.value)]
        ordered = sorted(zip(by_size(numbers(known, column), column), (row["seed"] for row in known), strict=True))
        found = {row["seed"]: row["values"] for row in _of(samples, name) if row["name"] == study.compare.samples}
        if ordered and (middle := ordered[(len(ordered) - 1) // 2])[1] in found:
            chosen[name] = [float(text) for text in found[middle[1]].split()]
    if not chosen:
        return []
    lengths = {len(values) for values in chosen.values()}
    if len(lengths) > 1 or lengths <= {0, 1}:
        raise ConfigurationError(
            f"Expected equally many resampled scores {study.compare.samples!r} of all cells, two at least, but got"
            f" {', '.join(map(str, sorted(lengths)))}. Run the cells with fewer again."
        )
    scores = by_size((values[0] for values in chosen.values()), column)
    best = [*chosen][scores.argmin() if column.best == "min" else scores.argmax()]
    title = f"{column.title or study.compare.column}, difference to the best"
    lines = [["", title, "95 % interval", "resamples at least as good"]]
    for name, values in chosen.items():
        one = compare_resampled(values, chosen[best])
        texts = [f"{one.difference:.2f}", f"{one.low:.2f} to {one.high:.2f}", f"{one.one_sided:.3f}"]
        lines.append([study.title_of(name), *(texts if name != best else ["best", MISSING, MISSING])])
    return lines


def selected(rows: Iterable[Row], where: Mapping[str, Sequence[object]]) -> list[Row]:
    """Return the rows whose keys have some of the given values."""
    return [row for row in rows if all(row.get(key, "") in map(str, values) for key, values in where.items())]


def least(study: Study, rows: Sequence[Row], column: Column) -> list[Row]:
    """Return the rows of each cell at the point of its grid where the median of a column is smallest.

    A cell with a single point keeps it, even without numbers in the column.
    """
    cells: defaultdict[str, defaultdict[tuple[str, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        point = (row["cell"], *(row.get(key, "") for key in study.cells[row["cell"]].grid))
        cells[written(row["cell"])][point].append(row)
    kept = []
    for points in cells.values():
        medians = {point: median(found) for point, some in points.items() if (found := numbers(some, column))}
        chosen = medians if len(points) > 1 else points
        kept += points[min(chosen, key=lambda point: medians.get(point, 0.0))] if chosen else []
    return kept


def _of(rows: Iterable[Row], cell: str) -> list[Row]:
    return [row for row in rows if row["cell"] == cell]


def _ordered(values: Iterable[str]) -> list[str]:
    """Return values once each, numbers in their order."""
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def head(key: str, value: str) -> str:
    """Return the header text for a column of a pivot table: a value, with its key if it is a number."""
    return f"{key} {value}" if value.replace(".", "", 1).isdigit() else value


def seeds_text(rows: Iterable[Row]) -> str:
    """Return the number of seeds of rows as text, such as ``3 seeds``."""
    count = len({row["seed"] for row in rows})
    return f"{count} seed{'s' * (count != 1)}"


def pivot(study: Study, rows: Sequence[Row], table: Table, column: Column) -> list[list[str]]:
    """Return a table of one column's values over two keys of the rows."""

    def values(key: str) -> list[str]:
        there = [row.get(key, "") for row in rows]
        return [name for name in study.cells if name in there] if key == "cell" else _ordered(there)

    def title(key: str, value: str) -> str:
        text = study.title_of(value) if key == "cell" else head(key, value) if key == table.across else value
        seeds = seeds_text(row for row in rows if row.get(key, "") == value)
        return text if seeds == seeds_text(rows) else f"{text} ({seeds})"

    lines_of, across = str(table.lines), str(table.across)
    lines = [["" if lines_of == "cell" else lines_of, *(title(across, value) for value in values(across))]]
    for name in values(lines_of):
        line = selected(rows, {lines_of: [name]})
        parts = [selected(line, {across: [other]}) for other in values(across)]
        lines.append([title(lines_of, name), *(_text(part, column) for part in parts)])
    return lines


def page(
    study: Study, rows: Sequence[Row], samples: Sequence[Row] = (), ranks: Sequence[str] = (), *, aligned: bool = False
) -> list[str]:
    """Return the lines of a study's results page in markdown: its tables and notes.

    Args:
        study: the study.
        rows: rows of the study.
        samples: scores of resampled test inputs.
        ranks: lines of the comparison by ranks.
        aligned: whether the columns are aligned, as for a terminal.
    """
    lines = [f"# {study.title or study.path.stem}"]
    for table in study.tables:
        asked = (*table.keys, *table.where, *((table.lines, table.across, table.by) if table.lines else ()))
        there = dict.fromkeys(key for row in rows for key in row)
        check_names(filter(None, asked), there, f"keys of the rows in a table of {study.path}")
        kept = selected(rows, table.where)
        if not kept:
            continue
        if table.least is not None:
            kept = least(study, kept, study.columns[table.least])
        lines += ["", f"## {table.title}"] if table.title else []
        if table.lines is None:
            lines += ["", *markdown(by_cell(study, kept, table.columns or list(study.columns), table.keys), aligned=aligned)]
            continue
        for part in _ordered(row.get(table.by, "") for row in kept) if table.by else [None]:
            of_part = selected(kept, {} if part is None else {str(table.by): [part]})
            for name in table.value:
                column = study.columns[name]
                shown = study.title_of(part) if table.by == "cell" and part else part
                title = ", ".join(text for text in (shown, column.title or name, seeds_text(of_part)) if text)
                lines += ["", f"{'###' if table.title else '##'} {title}"]
                lines += ["", *markdown(pivot(study, of_part, table, column), left=int(table.lines == "cell"), aligned=aligned)]
    if study.compare is not None and (compared := bootstrap_table(study, rows, samples)):
        lines += ["", *markdown(compared), "", BOOTSTRAP]
        if others := machines(rows)[1:]:
            here = (study.title_of(name) for name in study.cells if {*machines(_of(rows, name))} & {*others})
            lines[-1] += f" Not compared, because they ran on another machine or version of torch: {', '.join(here)}."
    lines += ranks
    if deviations := [line for line in lines if "±" in line]:
        several = any("(over " in line for line in deviations)
        lines += ["", f"± is the standard deviation over the seeds{', or over the number of values given' * several}."]
    notes = [*study.notes, *([f"Published values: {study.source}."] if study.source else [])]
    return [*lines, *(line for note in notes for line in ("", note))]
