"""Writes predicted text: one line an input, and all that is known of it beside."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from typing_extensions import override

from lit_sparse.callbacks.pictures.attention import check_folder
from lit_sparse.callbacks.pictures.heat_maps import Attention
from lit_sparse.callbacks.writers.outputs import gather_in_order, write_files
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["TextPredictionWriter"]

#: What ends a line for one reader or another, NUL, and halves of a character, which are no UTF-8.
BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]")
HALVES = re.compile("[\ud800-\udfff]")
#: What JSON may hold as it is, though a reader of lines or of UTF-8 would stumble.
UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Significant digits of weights.
DIGITS = 6
ATTENTION = ("attention", "source_tokens", "output_tokens")


@dataclass(frozen=True)
class _Prediction:
    """What is predicted for one input."""

    index: int
    line: str
    candidates: list[dict[str, Any]] | None
    source: str | None
    attention: Attention | None


class TextPredictionWriter(pl.Callback):
    r"""Write the text that ``predict_step`` returns, in the order of the inputs, over any number of processes.

    - ``predictions.txt``: exactly one line an input, UTF-8; what would end a line within an output becomes a space.
    - ``predictions.jsonl``: one JSON object an input, with ``index``, ``source`` and ``outputs``, a list of
      ``{"text", "score"}``, best first; with ``attention=True`` also ``source_tokens``, ``output_tokens`` and ``attention``,
      T rows of S weights of six significant digits, so that zero stays what is exactly zero.

    Reads dicts with ``lines``, a list of B strings, the best output of each input, and ``index`` (B,), the inputs' numbers
    from 0; if they are there, ``candidates``, B lists of ``{"text", "score"}``, ``source``, a list of B strings, and
    ``attention`` (B, T, S) or (B, heads, T, S) with ``source_tokens`` and ``output_tokens``, lists of B lists of strings.
    Other models are left alone. A file appears whole or not at all.

    To use it in a config::

        trainer:
          callbacks:
            - class_path: TextPredictionWriter
              init_args: {attention: true}

    Args:
        folder: where the files go; the logger's folder by default.
        attention: whether weights of attention are written.

    Raises:
        ConfigurationError: if an argument has a value that is not allowed.
    """

    def __init__(self, folder: str | None = None, attention: bool = False) -> None:
        super().__init__()
        if not isinstance(attention, bool):
            raise ConfigurationError(f"Expected argument `attention` to be True or False but got {attention!r}.")
        self.folder = check_folder(folder)
        self.attention = attention
        self._rows: list[_Prediction] = []
        self._log_dir: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Ask for the logger's folder here, where all processes are: the answer is broadcast."""
        self._log_dir = trainer.log_dir

    @override
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._rows = []

    def on_predict_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        """Keep what was predicted.

        Raises:
            DataError: if there is not one entry an input of everything.
            ConfigurationError: if attention is asked for and there is none.
        """
        if isinstance(outputs, dict) and "lines" in outputs:
            self._rows += _predictions(outputs, self.attention)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the files, on the first process.

        Raises:
            DataError: if an input was predicted twice or not at all, on every process.
        """
        rows, self._rows = self._rows, []
        found = gather_in_order(rows, [row.index for row in rows])
        if not found:
            return
        folder = Path(self.folder or self._log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(
            {
                folder / "predictions.txt": (_one_line(row.line) for row in found),
                folder / "predictions.jsonl": (_json(row) for row in found),
            }
        )


def _predictions(outputs: dict[str, Any], attention: bool) -> Iterator[_Prediction]:
    """Take one batch apart."""
    lines = list(outputs["lines"])
    needed = ("index", *(ATTENTION if attention else ()))
    absent = [name for name in needed if outputs.get(name) is None]
    if "index" in absent:
        raise DataError("Expected `index` (B,), the numbers of the inputs, beside the `lines` that predict_step returns.")
    if absent:
        raise ConfigurationError(
            f"TextPredictionWriter(attention=True) needs {', '.join(f'`{name}`' for name in absent)} of what predict_step"
            " returns, and this model has none: use attention=False."
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
    found: dict[str, Any] = {"index": row.index}
    if row.source is not None:
        found["source"] = row.source
    if row.candidates is None:
        found["outputs"] = [{"text": row.line}]
    else:
        found["outputs"] = [{"text": made["text"], "score": _number(float(made["score"]))} for made in row.candidates]
    if row.attention is not None:
        found["source_tokens"], found["output_tokens"] = row.attention.source, row.attention.output
        found["attention"] = _rounded(row.attention.weights.double().tolist())
    text = json.dumps(found, ensure_ascii=False, allow_nan=False)
    return UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _number(value: float) -> float | None:
    """Return a number, or None for one that JSON does not know."""
    return value if math.isfinite(value) else None


def _rounded(weights: Any) -> Any:
    """Round nested lists to significant digits: what is not zero stays so, what is equal stays so."""
    if isinstance(weights, list):
        return [_rounded(part) for part in weights]
    return _number(float(f"{weights:.{DIGITS}g}"))
