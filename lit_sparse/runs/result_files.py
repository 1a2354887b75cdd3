"""Readers of what runs have logged and drawn (metrics, attention, pictures), which check the content before it is used."""

from __future__ import annotations

import math
import re
import reprlib
from pathlib import Path
from typing import Any

from lit_sparse.ground.stored import MAX_YAML_BYTES, ORIGIN, REPAIR, parse_json, read_bytes, read_table, read_text, refusal

__all__ = ["read_attention", "read_lines", "read_metrics", "read_png"]

#: Largest number of pixels of a picture, which a browser unpacks.
MAX_PIXELS = 2**26
#: Largest weight of attention; it has few digits.
LARGEST_WEIGHT = 1e6
#: What lets Lightning log several validations at one step, in one of the configs of a run.
ACCUMULATES = re.compile(r"^ +accumulate_grad_batches: (?!1$|null$)|GradientAccumulationScheduler", re.MULTILINE)
PNG = b"\x89PNG\r\n\x1a\n"


def read_metrics(folder: Path, within: Path | None = None) -> list[dict[str, float]]:
    """Return the rows of a ``metrics.csv`` as dicts, without empty cells; none if there is no such file.

    Args:
        folder: folder of the file.
        within: see :func:`~lit_sparse.ground.stored.read_bytes`; by default the same folder.

    Raises:
        ConfigurationError: if epochs or steps decrease, a metric has two values at one step, or the file is not a table;
            see :func:`~lit_sparse.ground.stored.read_table`.
    """
    path = folder / "metrics.csv"
    lines = read_lines(path, within or folder)
    _check_order(path, within or folder, [line for line in lines if "epoch" in line])  # others are the user's, of any step
    return lines


def read_lines(path: Path, within: Path) -> list[dict[str, float]]:
    """Return the rows of a CSV file of logged numbers in any order, without empty cells; see :func:`read_metrics`.

    Raises:
        ConfigurationError: if a cell is not a finite number, or the file is not a table.
    """
    table = read_table(path, within, numbers=None)
    lines = [{key: float(cell) for key, cell in row.items() if cell} for row in table]
    for line in lines:
        for key in ("epoch", "step"):
            if not 0 <= line.get(key, 0.0) < math.inf:
                raise refusal(path, f"finite numbers in column {key!r}, at least 0", str(line[key]), REPAIR)
    return lines


def _check_order(path: Path, within: Path, lines: list[dict[str, float]]) -> None:
    """Check that the values of each column stand in order, with one value at each place."""
    last: dict[str, tuple[float, float, float]] = {}
    for line in lines:
        for name in (name for name in line if name not in ("epoch", "step")):
            epoch, step, value = last.get(name, (0.0, -1.0, math.nan))
            at = line["epoch"], line.get("step", step)
            where = f"epoch {at[0]:g}, step {at[1]:g}"
            if at[0] < epoch or at[1] < step:
                raise refusal(path, f"{name!r} in order", f"{where} after epoch {epoch:g}, step {step:g}", REPAIR)
            both = value, line[name]
            if "step" in line and at == (epoch, step) and value != line[name] and not all(map(math.isnan, both)):
                configs = (read_text(one, within, MAX_YAML_BYTES) or "" for one in path.parent.glob("config*.yaml"))
                if not any(map(ACCUMULATES.search, configs)):
                    raise refusal(path, f"one {name!r} at {where}", " and ".join(map(str, both)), REPAIR)
            last[name] = (*at, line[name])


def read_attention(path: Path, within: Path) -> dict[str, Any]:
    """Return the tokens and weights in a JSON file written by ``AttentionPlot``.

    Raises:
        ConfigurationError: if the file has other content, or cannot be read; see
            :func:`~lit_sparse.ground.stored.read_bytes`.
    """
    content: Any = (parse_json(path, within) or (None,))[0]
    if not _is_attention(content):
        expected = "a title, lists `source` and `output` of words, and `heads` with a row of weights for each word of `output`"
        raise refusal(path, expected, reprlib.repr(content), "Remove the file, or let AttentionPlot write it again")
    return dict(content)


def _is_attention(content: Any) -> bool:
    match content:
        case {"title": str(), "source": list(source), "output": list(output), "heads": list(heads)}:
            return all(isinstance(word, str) for word in (*source, *output)) and all(
                _has_length(head, output) and all(_has_length(row, source) and all(map(_is_weight, row)) for row in head)
                for head in heads
            )
    return False


def _is_weight(value: Any) -> bool:
    """Return whether AttentionPlot writes such a number: exact zeros are integers."""
    return value == 0 if type(value) is int else type(value) is float and not abs(value) > LARGEST_WEIGHT


def _has_length(some: Any, of: list[Any]) -> bool:
    return isinstance(some, list) and len(some) == len(of)


def read_png(path: Path, within: Path) -> bytes:
    """Return the bytes of a PNG picture.

    Raises:
        ConfigurationError: if it is not a PNG file, or cannot be read; see :func:`~lit_sparse.ground.stored.read_bytes`.
    """
    content = read_bytes(path, within) or b""
    if not content.startswith(PNG):
        raise refusal(path, "a PNG picture", reprlib.repr(content[:8]), "Remove the file, or draw it again")
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    if not 0 < width * height <= MAX_PIXELS:
        raise refusal(path, f"a picture of at most {MAX_PIXELS:,} pixels", f"{width:,} x {height:,}", ORIGIN)
    return content
