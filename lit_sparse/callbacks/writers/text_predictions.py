"""Writes predicted text, one line per input, and a file with all outputs, their scores and attention."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lit_sparse.callbacks.pictures.heat_maps import Attention
from lit_sparse.callbacks.writers.outputs import Writer, gather_in_order, write_files
from lit_sparse.checks import check_flag
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.lightning.choice import pl

__all__ = ["TextPredictionWriter"]

#: Line terminators and NUL. Lone surrogates, which UTF-8 cannot encode.
BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]")
HALVES = re.compile("[\ud800-\udfff]")
#: Characters that JSON allows unescaped, and that end lines or are not valid UTF-8.
UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Significant digits of weights.
DIGITS = 6
ATTENTION = ("attention", "source_tokens", "output_tokens")


@dataclass(frozen=True)
class _Prediction:
    """Prediction for one input."""

    index: int
    line: str
    candidates: list[dict[str, Any]] | None
    source: str | None
    attention: Attention | None


class TextPredictionWriter(Writer):
    r"""Write the text that ``predict_step`` returns, in the order of the inputs, over any number of processes.

    - ``predictions.txt``: exactly one line per input, in UTF-8. Line terminators within an output become spaces.
    - ``predictions.jsonl``: one JSON object per input, with ``index``, ``source`` and ``outputs``, a list of
      ``{"text", "score"}``, best first. With ``attention=True`` it also has ``source_tokens``, ``output_tokens`` and
      ``attention``, T rows of S weights. Weights have six significant digits, and only exact zeros are 0.

    The output of ``predict_step`` is a dict with ``lines``, a list of B strings, the best output of each input, and ``index``
    (B,), the numbers of the inputs from 0. Optional entries are ``candidates``, B lists of ``{"text", "score"}``, and
    ``source``, a list of B strings. ``attention`` (B, T, S) or (B, heads, T, S) comes with ``source_tokens`` and
    ``output_tokens``, lists of B lists of strings. Other outputs are ignored. A file is written completely or not at all.

    To use it in a config::

        trainer:
          callbacks:
            - class_path: TextPredictionWriter
              init_args: {attention: true}

    Args:
        folder: folder of the files; None for the logger's folder.
        attention: whether to write attention weights.

    Raises:
        ConfigurationError: if an argument has a value that is not allowed.
    """

    def __init__(self, folder: str | None = None, attention: bool = False) -> None:
        super().__init__(folder)
        self.attention = check_flag("attention", attention)

    def on_predict_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        """Store the predictions of a batch.

        Raises:
            DataError: if an entry does not have one value per input.
            ConfigurationError: if the model returns no attention, with ``attention=True``.
        """
        if isinstance(outputs, dict) and "lines" in outputs:
            self._rows += _predictions(outputs, self.attention)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the files, on the first process.

        Raises:
            DataError: if an input was predicted twice or not at all, on every process.
        """
        rows, self._rows = self._rows, []
        ordered = gather_in_order(rows, [row.index for row in rows])
        if not ordered:
            return
        folder = Path(self.folder or self._log_dir or trainer.default_root_dir)
        write_files(
            {
                folder / "predictions.txt": (_one_line(row.line) for row in ordered),
                folder / "predictions.jsonl": (_json(row) for row in ordered),
            }
        )


def _predictions(outputs: dict[str, Any], attention: bool) -> Iterator[_Prediction]:
    """Yield the predictions of a batch."""
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
    for place, (index, line) in enumerate(zip(indices, lines, strict=True)):
        candidates, source = (None if outputs.get(name) is None else outputs[name][place] for name in ("candidates", "source"))
        yield _Prediction(index, line, candidates, source, Attention.cut(outputs, place) if attention else None)


def _one_line(text: str) -> str:
    r"""Return an output that stays on one line.

    Example:
        >>> _one_line("a\r\nb\u2028c")
        'a  b c'
    """
    return HALVES.sub("\ufffd", BREAKS.sub(" ", text))


def _json(row: _Prediction) -> str:
    """Return a prediction as a JSON object on one line."""
    fields: dict[str, Any] = {"index": row.index}
    if row.source is not None:
        fields["source"] = row.source
    if row.candidates is None:
        fields["outputs"] = [{"text": row.line}]
    else:
        fields["outputs"] = [
            {"text": candidate["text"], "score": _number(float(candidate["score"]))} for candidate in row.candidates
        ]
    if row.attention is not None:
        fields["source_tokens"], fields["output_tokens"] = row.attention.source, row.attention.output
        fields["attention"] = _rounded(row.attention.weights.double().tolist())
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
