"""Writes predicted text, one line per input, and a file with all outputs, their scores and attention."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from typing_extensions import override

from lit_sparse.callbacks.pictures.heat_maps import Attention
from lit_sparse.callbacks.writers.outputs import Writer
from lit_sparse.checks import FLAG, ranges
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["TextPredictionWriter"]

#: Line terminators and NUL. Lone surrogates, which UTF-8 cannot encode.
BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]")
HALVES = re.compile("[\ud800-\udfff]")
#: Characters that JSON allows unescaped, and that end lines or are not valid UTF-8.
UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Significant digits of weights.
DIGITS = 6
ATTENTION = ("attention", "source_tokens", "output_tokens")


@ranges(attention=FLAG)
class TextPredictionWriter(Writer):
    r"""Write the text that ``predict_step`` returns to files, in the order of the inputs, over any number of processes.

    - ``predictions.txt``: exactly one line per input, in UTF-8. Line terminators within an output become spaces.
    - ``predictions.jsonl``: one JSON object per input, with ``index``, ``source`` and ``outputs``, a list of
      ``{"text", "score"}``, best first. With ``attention=True`` it also has ``source_tokens``, ``output_tokens`` and
      ``attention``, T rows of S weights. Weights have six significant digits, and only exact zeros are 0.

    The output of ``predict_step`` is a dict with ``lines``, a list of B strings, the best output of each input, and
    ``index`` (B,), the numbers of the inputs from 0. Optional entries are ``candidates``, B lists of ``{"text", "score"}``,
    and ``source``, a list of B strings. ``attention`` (B, T, S) or (B, heads, T, S) comes with ``source_tokens`` and
    ``output_tokens``, lists of B lists of strings. Other outputs are ignored. A file is written completely or not at all.

    To use it in a config::

        trainer:
          callbacks:
            - class_path: TextPredictionWriter
              init_args: {attention: true}

    Args:
        folder: folder of the files; None for the logger's folder, or without one the trainer's root folder.
        attention: whether to write attention weights.
        write_interval: ``"epoch"``, or ``"batch"`` to write each batch at once, in the order of prediction; on several
            processes to ``predictions_0.txt`` and so on.

    Raises:
        ConfigurationError: if an argument has a value that is not allowed.
    """

    def __init__(
        self, folder: str | None = None, attention: bool = False, write_interval: Literal["batch", "epoch"] = "epoch"
    ) -> None:
        super().__init__(folder, write_interval)
        self.attention = attention

    @override
    def rows_of(self, outputs: Any) -> Iterable[dict[str, Any]]:
        return _predictions(outputs, self.attention) if isinstance(outputs, dict) and "lines" in outputs else []

    @override
    def files_of(self, rows: list[dict[str, Any]], begun: bool) -> dict[str, Iterable[str]]:
        return {"predictions.txt": (_one_line(row["line"]) for row in rows), "predictions.jsonl": map(_json, rows)}


def _predictions(outputs: dict[str, Any], attention: bool) -> Iterator[dict[str, Any]]:
    """Yield the index and the line of each input of a batch, with its candidates, source and attention, if there are any."""
    lines = list(outputs["lines"])
    needed = ("index", *(ATTENTION if attention else ()))
    absent = [name for name in needed if outputs.get(name) is None]
    if "index" in absent:
        raise DataError(
            "Expected `index` (B,), the numbers of the inputs, with `lines` in the output of predict_step but got none."
        )
    if absent:
        raise ConfigurationError(
            f"Expected {', '.join(f'`{name}`' for name in absent)} in the output of predict_step but got none. Use"
            " TextPredictionWriter(attention=False)."
        )
    for name in (*needed, "candidates", "source"):
        if outputs.get(name) is not None and len(outputs[name]) != len(lines):
            raise DataError(f"Expected `{name}` to have one entry for each of {len(lines)} lines but got {len(outputs[name])}.")
    indices = torch.as_tensor(outputs["index"]).tolist()
    given = [name for name in ("candidates", "source") if outputs.get(name) is not None]
    for place, (index, line) in enumerate(zip(indices, lines, strict=True)):
        row = {"index": index, "line": line} | {name: one for name in given if (one := outputs[name][place]) is not None}
        yield row | ({"attention": Attention.cut(outputs, place)} if attention else {})


def _one_line(text: str) -> str:
    r"""Return an output that stays on one line.

    Example:
        >>> _one_line("a\r\nb\u2028c")
        'a  b c'
    """
    return HALVES.sub("\ufffd", BREAKS.sub(" ", text))


def _json(row: dict[str, Any]) -> str:
    """Return a prediction as a JSON object on one line."""
    fields: dict[str, Any] = {name: row[name] for name in ("index", "source") if name in row}
    fields["outputs"] = [{"text": row["line"]}]
    if "candidates" in row:
        fields["outputs"] = [{"text": one["text"], "score": _number(float(one["score"]))} for one in row["candidates"]]
    if "attention" in row:
        fields["source_tokens"], fields["output_tokens"] = row["attention"].source, row["attention"].output
        fields["attention"] = _rounded(row["attention"].weights.double().tolist())
    text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    return UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _number(value: float) -> float | None:
    """Return a number, or None for NaN and infinities, which JSON does not have."""
    return value if math.isfinite(value) else None


def _rounded(weights: Any) -> Any:
    """Round nested lists of numbers to six significant digits; nonzero numbers stay nonzero."""
    if isinstance(weights, list):
        return [_rounded(part) for part in weights]
    return _number(float(f"{weights:.{DIGITS}g}"))
