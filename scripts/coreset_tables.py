"""Tables and pictures of coresets that were measured; used by reproduce_coresets.py."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["FIELDS", "draw", "read", "write_row", "write_table"]

#: Measurements of each coreset.
FIELDS = ("problem", "trial", "selector", "k", "size", "objective", "forward_kl", "reverse_kl", "map_distance")
SHOWN = {"reverse_kl": "reverse KL", "forward_kl": "forward KL", "symmetrized_kl": "symmetrized KL", "objective": "objective"}
LABELS = {"map_distance": "distance of the modes", **SHOWN}
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Return the rows that were measured so far; a line that a killed run left unfinished is none."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        lines = [line for line in file if line.endswith("\n")]
    return [row for row in csv.DictReader(lines) if None not in row.values() and None not in row]


def write_row(path: Path, row: dict[str, object]) -> None:
    """Append a row, and write it out at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read(path)
    text = path.read_text() if path.is_file() else ""
    if text and (not text.endswith("\n") or text.splitlines()[0].split(",") != list(FIELDS)):
        with path.open("w", newline="") as file:  # of a killed run, or of an older version with other columns
            writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not text:
            writer.writeheader()
        writer.writerow(row)


def value(row: Row, name: str) -> float:
    """Return a number of a row."""
    if name == "symmetrized_kl":
        return float(row["forward_kl"]) + float(row["reverse_kl"])
    return float(row[name])


def _of(rows: Iterable[Row], problem: str, selector: str) -> dict[int, list[Row]]:
    """Return k -> the rows of a problem and a selector."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row["problem"] == problem and row["selector"] == selector:
            found.setdefault(int(row["k"]), []).append(row)
    return dict(sorted(found.items()))


def write_table(path: Path, rows: Sequence[Row], title: str, measures: Sequence[str]) -> None:
    """Write the medians of some measures, a table for each problem and measure."""
    lines = [f"# {title}", "", "Medians over trials (their number in parentheses behind the problem)."]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        selectors = list(dict.fromkeys(row["selector"] for row in rows if row["problem"] == problem))
        trials = len({row["trial"] for row in rows if row["problem"] == problem})
        for measure in measures:
            sizes = sorted({int(row["k"]) for row in rows if row["problem"] == problem})
            lines += ["", f"## {problem} ({trials}): {LABELS[measure]}", ""]
            lines += ["| k | " + " | ".join(selectors) + " |", "| ---: |" + " ---: |" * len(selectors)]
            for k in sizes:
                cells = []
                for selector in selectors:
                    found = _of(rows, problem, selector).get(k)
                    cells.append(f"{statistics.median(value(row, measure) for row in found):.3g}" if found else "")
                lines.append(f"| {k} | " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")


def draw(path: Path, rows: Sequence[Row], measures: Sequence[str], band: tuple[float, float]) -> None:
    """Draw medians and bands of some measures over k, a row of panels for each problem."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure = Figure(figsize=(4.2 * len(measures), 3.2 * len(problems)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(problems), len(measures), squeeze=False)
    for line, problem in zip(panels, problems, strict=True):
        for panel, measure in zip(line, measures, strict=True):
            for selector in dict.fromkeys(row["selector"] for row in rows):
                found = {k: sorted(value(row, measure) for row in some) for k, some in _of(rows, problem, selector).items()}
                if not found:
                    continue
                ks = list(found)
                middle = [statistics.median(values) for values in found.values()]
                panel.plot(ks, middle, label=selector, marker=".", linewidth=1.2)
                low, high = ([_percentile(values, share) for values in found.values()] for share in band)
                panel.fill_between(ks, low, high, alpha=0.2)
            panel.set(title=problem, xlabel="k", ylabel=LABELS[measure], yscale="log")
            panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
