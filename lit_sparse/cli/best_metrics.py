"""The short table of the best validation that ``lit-sparse fit`` prints at its end."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

__all__ = ["best_metrics"]

#: Names that the table leaves out: statistics besides the mean, and the number of examples.
LEFT_OUT = re.compile(r"_(p10|median|p90|total|step)$|/examples$")
LINES = 6


def best_metrics(rows: Sequence[Mapping[str, float]], key: str, mode: str) -> list[str]:
    """Return the lines of a table: the monitored metric at its best, and other validation metrics of the same epoch.

    Args:
        rows: logged values, as in ``metrics.csv``.
        key: name of the monitored metric.
        mode: ``"min"`` or ``"max"``.

    Returns:
        The lines; none without a validation.

    Example:
        >>> rows = [{"epoch": 0, "val/loss": 2.0}, {"epoch": 1, "val/loss": 1.0, "val/accuracy": 0.5}]
        >>> best_metrics(rows, "val/loss", "min")
        ['best validation: epoch 2, least val/loss', '  val/loss        1', '  val/accuracy  0.5']
    """
    validations = [row for row in rows if not math.isnan(row.get(key, math.nan))]
    if not validations:
        return []
    best = (min if mode == "min" else max)(validations, key=lambda row: row[key])  # the first of equal ones, as checkpoints
    others = [name for name in best if name.startswith("val/") and name != key and not LEFT_OUT.search(name)]
    values = {name: f"{best[name]:.5g}" for name in [key, *others][:LINES]}
    names, digits = (max(map(len, texts)) for texts in (values.keys(), values.values()))
    title = f"best validation: epoch {int(best.get('epoch', 0)) + 1}, {'least' if mode == 'min' else 'largest'} {key}"
    return [title, *(f"  {name:<{names}}  {value:>{digits}}" for name, value in values.items())]
