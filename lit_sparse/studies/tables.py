"""Tables of a study from its rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from lit_sparse.studies.rows import Row
from lit_sparse.studies.study import Column, Study, Table

__all__ = ["markdown", "numbers", "page"]

MISSING = "-"


def numbers(rows: Iterable[Row], column: Column) -> list[float]:
    """Return a column's numbers of some rows; empty cells are left out."""
    found = [row[column.value] for row in rows if row.get(column.value)]
    return [column.factor * float(value) + column.offset for value in found]


def cell_text(values: Sequence[float], column: Column) -> str:
    """Return the text of a table's cell: a summary of the numbers of several seeds."""
    if not values:
        return MISSING

    def text(value: float) -> str:
        return format(value, column.form)

    wide = [value if math.isfinite(value) else math.inf for value in values]
    if column.show.startswith("above "):
        return str(sum(value > float(column.show.split()[1]) for value in wide))
    if column.show in ("min", "max"):
        return text({"min": min, "max": max}[column.show](wide))
    median = text(statistics.median(wide))
    if column.show == "median" or len(values) == 1:
        return median
    if column.show == "range":
        return f"{median} ({text(min(wide))} to {text(max(wide))})"
    return f"{text(statistics.fmean(values))} ± {text(statistics.stdev(values))}"


def markdown(lines: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table in markdown; the first one is its head.

    Args:
        lines: cells of each line.
        left: number of columns that are aligned to the left.
    """
    texts = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines]
    texts.insert(1, "|" + " --- |" * left + " ---: |" * (len(lines[0]) - left))
    return texts


def by_cell(study: Study, rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """Return a table with a line for each cell."""
    cells = [(name, cell) for name, cell in study.cells.items() if any(row["cell"] == name for row in rows)]
    labels = list(dict.fromkeys(label for _, cell in cells for label in cell.labels))
    columns = {name: study.columns[name] for name in names}
    published = [name for name in columns if any(name in cell.published for _, cell in cells)]
    head = ["", *labels, "seeds"]
    for name, column in columns.items():
        head += [column.title or name, *([f"{column.title or name}, published"] if name in published else [])]
    lines = [head]
    values = {(cell, name): numbers(_of(rows, cell), column) for cell, _ in cells for name, column in columns.items()}
    for name, cell in cells:
        line = [cell.title or name, *(cell.labels.get(label, "") for label in labels)]
        line.append(str(len({row["seed"] for row in _of(rows, name)})))
        for key, column in columns.items():
            text = cell_text(values[name, key], column)
            if column.best is not None and values[name, key]:
                medians = {other: statistics.median(values[other, key]) for other, _ in cells if values[other, key]}
                best = {"min": min, "max": max}[column.best](medians.values())
                text = f"**{text}**" if medians[name] == best and len(medians) > 1 else text
            line += [text, *([str(cell.published.get(key, MISSING))] if key in published else [])]
        lines.append(line)
    return lines


def _of(rows: Iterable[Row], cell: str) -> list[Row]:
    return [row for row in rows if row["cell"] == cell]


def _ordered(values: Iterable[str]) -> list[str]:
    """Return values once each, numbers in their order."""
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def pivot(study: Study, rows: Sequence[Row], table: Table, column: Column) -> list[list[str]]:
    """Return a table of one column over two keys of the rows."""
    assert table.lines is not None
    across = [row[table.across] for row in rows]
    heads = [name for name in study.cells if name in across] if table.across == "cell" else _ordered(across)
    titles = [study.title_of(name) if table.across == "cell" else f"{table.across} {name}" for name in heads]
    lines = [["" if table.lines == "cell" else table.lines, *titles]]
    names = [row[table.lines] for row in rows]
    for name in [cell for cell in study.cells if cell in names] if table.lines == "cell" else _ordered(names):
        of_line = [row for row in rows if row[table.lines] == name]
        texts = [cell_text(numbers([row for row in of_line if row[table.across] == head], column), column) for head in heads]
        lines.append([study.title_of(name) if table.lines == "cell" else name, *texts])
    return lines


def page(study: Study, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a study's page in markdown: its tables and notes."""
    lines = [f"# {study.title or study.path.stem}"]
    for table in study.tables:
        kept = [row for row in rows if all(row.get(key) in map(str, values) for key, values in table.where.items())]
        if not kept:
            continue
        lines += ["", f"## {table.title}"] if table.title else []
        if table.lines is None:
            lines += ["", *markdown(by_cell(study, kept, table.columns or list(study.columns)))]
            continue
        for part in _ordered(row[table.by] for row in kept) if table.by else [None]:
            of_part = [row for row in kept if part is None or row[str(table.by)] == part]
            for name in table.value:
                column = study.columns[name]
                seeds = len({row["seed"] for row in of_part})
                shown = study.title_of(part) if table.by == "cell" and part else part
                title = ", ".join(text for text in (shown, column.title or name, f"{seeds} seeds") if text)
                lines += ["", f"{'###' if table.title else '##'} {title}"]
                lines += ["", *markdown(pivot(study, of_part, table, column), left=int(table.lines == "cell"))]
    if study.ranks is not None:
        from lit_sparse.studies.statistics import ranks_page

        lines += ranks_page(study, rows)
    notes = [*study.notes, *([f"Published values: {study.source}."] if study.source else [])]
    return [*lines, *(line for note in notes for line in ("", note))]
