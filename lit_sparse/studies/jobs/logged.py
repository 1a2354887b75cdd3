"""What runs have logged: the files of a program, and summaries of the values over a training run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.ground.files import matching
from lit_sparse.runs.result_files import read_lines
from lit_sparse.studies.plan.presentation import SUMMARY
from lit_sparse.studies.plan.study import Study

__all__ = ["by_age", "check_logged", "directions_of", "diverged", "kind_and_name", "logged_by_program", "summarized"]

#: Direction -> parts of the names of metrics that have it.
DIRECTIONS = {
    "minimize": r"loss|nelbo|nll|bits|(?<=/)rate(?!_)|distortion|perplexity|classification|calls|error",
    "maximize": r"success|accuracy|similarity|bleu|rouge",
}
#: Words beside the name of a metric that give it another direction, or none.
OTHERWISE = re.compile(r"(?<![a-z])(?:neg|negative|gap|ratio|recovered|std)(?![a-z])")


def logged_by_program(folder: Path, pattern: str = Study.metric_files, within: Path | None = None) -> list[dict[str, float]]:
    """Return the values that a program logged in one file per process, without steps repeated after a resume."""
    found: list[dict[str, float]] = []
    for path in by_age(folder, pattern):
        lines = read_lines(path, within or folder)
        first = min((line.get("step", 0.0) for line in lines), default=math.inf)
        found = [line for line in found if line.get("step", 0.0) < first] + lines
    return found


def by_age(folder: Path, pattern: str | None) -> list[Path]:
    """Return the files of a folder that match a pattern, the newest last."""
    found = [path for path in matching(folder, pattern) if path.is_file()] if pattern else []
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path))


def kind_and_name(value: str) -> tuple[str, str]:
    """Return the summary that a value asks for, ``last`` by default, and the logged name.

    Example:
        >>> kind_and_name("max(val/accuracy)"), kind_and_name("val/loss")
        (('max', 'val/accuracy'), ('last', 'val/loss'))
    """
    given = SUMMARY.fullmatch(value)
    return (given[1], given[2]) if given else ("last", value)


def directions_of(metric: str) -> list[str]:
    """Return the directions that the words of a metric's name imply.

    Example:
        >>> [
        ...     directions_of(f"val/{name}")
        ...     for name in ("accuracy", "rate", "hit_rate", "recalls")
        ... ]
        [['maximize'], ['minimize'], [], []]
    """
    found = [way for way, names in DIRECTIONS.items() if re.search(rf"(?<![a-z])(?:{names})(?![a-z])", metric)]
    return [] if OTHERWISE.search(metric.rpartition("/")[2]) else found


def summarized(lines: Sequence[Mapping[str, float]], value: str) -> float | None:
    """Return the last logged value of a name, or a summary such as ``min(NAME)``; None if nothing was logged."""
    kind, name = kind_and_name(value)
    found = [(line.get("epoch", 0.0) + 1, line[name]) for line in lines if name in line]
    if not found:
        return None
    values = pd.Series([number for _, number in found], [epoch for epoch, _ in found])
    if kind in ("first", "last"):
        return float(values.iloc[0 if kind == "first" else -1])
    if kind in ("sum", "count"):
        return float(values.sum(skipna=False) if kind == "sum" else len(values))
    known = values.dropna()
    return float(known.agg(kind.replace("arg", "idx"))) if len(known) else math.nan


def diverged(value: float | None, direction: str) -> bool:
    """Return whether a value is NaN, or the infinity that no trial could improve on."""
    return value is not None and (math.isnan(value) or value == (math.inf if direction == "maximize" else -math.inf))


def check_logged(metrics: Sequence[str], values: Sequence[float | None], lines: Sequence[Mapping[str, float]]) -> None:
    """Check that the value of each metric was logged.

    Raises:
        ConfigurationError: with the names that were, if one was not.
    """
    for metric, value in zip(metrics, values, strict=True):
        if value is None:
            names = sorted({key for line in lines for key in line if key.startswith("val")})
            raise ConfigurationError(
                f"Expected --metric to be among what was logged, {', '.join(names) or 'nothing by validation'}, but got"
                f" {metric!r}.{did_you_mean(metric, names)}"
            )
