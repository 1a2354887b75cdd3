"""The short tables that a command prints at its end: the best validation of ``lit-sparse fit``, and the scores of a test."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["best_metrics", "monitor_of", "ordered", "table"]

#: Names that the tables leave out: statistics besides the mean, and the number of examples, pairs or tokens.
LEFT_OUT = re.compile(r"_(p10|median|p90|total|step)$|/(examples|pairs|tokens|seconds)$")
#: Names of the components of another metric.
COMPONENT = re.compile(r"_(bp|ratio|precision\d?|recall)$")
#: Names of statistics that callbacks log.
COUNTS = re.compile(r"(support_size|decoder_calls|groups)_mean$")
LINES = 8


def monitor_of(model: Any) -> tuple[str, str]:
    """Return the metric that selects the best checkpoint of a model, and its mode, ``"min"`` or ``"max"``."""
    found = getattr(model, "monitor", None)  # the user's own model may have something else under this name
    key, mode = found if isinstance(found, tuple | list) and len(found) == 2 else ("val/loss", "min")
    return key, mode


def ordered(names: Iterable[str], model: Any) -> list[str]:
    """Return the names of logged metrics in the order of their interest for a user.

    First comes the metric that selects the best checkpoint, then the others that the model declares, in its order, then
    other logged values, then components of metrics, and last the counts.

    Args:
        names: names of logged values, as in ``val/loss``.
        model: a model, with ``monitor`` and metrics if it is one of this package.
    """
    first = monitor_of(model)[0].rpartition("/")[2]
    declared = [first, *getattr(model, "test_metrics", getattr(model, "val_metrics", ()))]

    def rank(name: str) -> tuple[bool, bool, int, str]:
        own = name.rpartition("/")[2]
        place = declared.index(own) if own in declared else len(declared)
        return COUNTS.search(name) is not None, COMPONENT.search(name) is not None, place, own

    return sorted((name for name in names if not LEFT_OUT.search(name)), key=rank)


def table(values: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return the lines of a text table of names and values.

    Example:
        >>> table({"test/loss": 1.0, "test/accuracy": 0.5}, ["test/accuracy", "test/loss"])
        ['  test/accuracy  0.5', '  test/loss        1']
    """
    texts = {name: f"{values[name]:.5g}" for name in names}
    width, digits = (max(map(len, column), default=0) for column in (texts.keys(), texts.values()))
    return [f"  {name:<{width}}  {text:>{digits}}" for name, text in texts.items()]


def best_metrics(rows: Sequence[Mapping[str, float]], key: str, mode: str, model: Any = None) -> list[str]:
    """Return the lines of a text table with the best value of the monitored metric, and the other metrics of that epoch.

    Args:
        rows: logged values, as in ``metrics.csv``.
        key: name of the monitored metric.
        mode: ``"min"`` or ``"max"``.
        model: model that logged them.

    Returns:
        The lines; none without a validation.

    Example:
        >>> rows = [
        ...     {"epoch": 0, "val/loss": 2.0},
        ...     {"epoch": 1, "val/loss": 1.0, "val/accuracy": 0.5},
        ... ]
        >>> best_metrics(rows, "val/loss", "min")
        ['best validation: epoch 2, least val/loss', '  val/loss        1', '  val/accuracy  0.5']
    """
    validations = [row for row in rows if not math.isnan(row.get(key, math.nan))]
    if not validations:
        return []
    best = (min if mode == "min" else max)(validations, key=lambda row: row[key])  # the first of equal ones, as checkpoints
    names = dict.fromkeys([key, *(name for name in ordered(best, model) if name.startswith("val/"))])
    title = f"best validation: epoch {int(best.get('epoch', 0)) + 1}, {'least' if mode == 'min' else 'largest'} {key}"
    return [title, *table(best, [*names][:LINES])]
