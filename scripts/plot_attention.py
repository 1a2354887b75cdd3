"""Draw the attention of trained models: one heat map for each checkpoint and each example, side by side.

Usage:
    python scripts/plot_attention.py NAME=CHECKPOINT [NAME=CHECKPOINT ...] --examples FILE --output PATH
        [--words LEAST MOST] [--first N] [--groups tied]

An example is a line of the file: a sentence or an article for a model that writes, or a premise and a hypothesis parted by a
tab for a classifier. ``--words`` leaves out shorter and longer lines, and ``--first`` all but the first N of the others. Exact
zeros are grey, and neighbours of equal weight have no border between them. ``--groups`` says which equal weights are marked, by
default those that the model's mapping ties. The picture goes to PATH, as PNG or SVG by its ending. ``pictures/README.md`` has
the commands of the committed pictures.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_sparse.callbacks import draw_attention
from lit_sparse.callbacks.pictures.heat_maps import CELL, LONGEST, Attention, Groups
from lit_sparse.data.readers.text_files import read_lines
from lit_sparse.errors import LitSparseError
from lit_sparse.models import EntailmentClassifier, Seq2Seq, TextModule

#: Inches: the width for each letter of a token left of a heat map, and the height of a title.
LETTER, TITLE = 0.08, 0.25
Panel: TypeAlias = tuple[str, Attention, Groups]


def model_of(path: str) -> TextModule:
    """Load a checkpoint of either kind of model."""
    try:
        name = torch.load(path, map_location="cpu", weights_only=True)["hyper_parameters"]["_class_path"]
    except (OSError, KeyError, RuntimeError) as error:
        raise LitSparseError(f"{path!r} is not a checkpoint of a model of text: {error}") from error
    kinds = {kind.__name__: kind for kind in (Seq2Seq, EntailmentClassifier)}
    kind = kinds.get(name.rsplit(".", 1)[-1])
    if kind is None:
        raise LitSparseError(f"{path!r} is a checkpoint of {name}, which does not attend to text. Known: {', '.join(kinds)}.")
    return kind.load_from_checkpoint(path, map_location="cpu", weights_only=True).eval()  # type: ignore[no-any-return,attr-defined]


def batch_of(model: TextModule, line: str) -> dict[str, Any]:
    """Return one example as a batch of its own."""
    classifies = isinstance(model, EntailmentClassifier)
    texts = line.split("\t") if classifies else [line]
    if classifies and len(texts) != 2:
        raise LitSparseError(f"Expected a premise and a hypothesis parted by a tab but got {line!r}.")
    batch: dict[str, Any] = {"index": torch.tensor([0])}
    for role, text in zip(("premise", "hypothesis") if classifies else ("source",), texts, strict=True):
        (numbers,) = model.vocabularies["text" if classifies else "source"].encode([text])
        batch |= {role: torch.tensor([numbers]), f"{role}_length": torch.tensor([len(numbers)]), f"{role}_text": [text]}
    return batch


def lines_of(path: str, least: int, most: int) -> list[str]:
    """Return the lines of a file that have so many words, without empty ones."""
    lines = [line for line in read_lines(path) if max(1, least) <= len(line.split()) <= most]
    if not lines:
        raise LitSparseError(f"Expected lines of {least} to {most} words in {path!r} but got none. Change --words.")
    return lines


def panel_of(name: str, model: TextModule, line: str, groups: Groups | None) -> Panel:
    """Return the title, the attention and the marked groups of a model and an example."""
    attention = Attention.cut(model.predict_step(batch_of(model, line), 0), 0)
    title = ": ".join(part for part in (name, line.partition("\t")[2]) if part)
    return title, attention, groups or model.mapping.groups


def figure_of(rows: Sequence[Sequence[Panel]]) -> Figure:
    """Return a figure of rows of panels, whose cells have one size."""
    panels = [panel for row in rows for _, panel, _ in row]
    left, below = (
        LETTER * min(LONGEST, max(len(token) for panel in panels for token in getattr(panel, side)))
        for side in ("output", "source")
    )
    across = left + CELL * max(len(panel.source) for panel in panels)
    heights = [TITLE + CELL * max(len(panel.output) for _, panel, _ in row) + below for row in rows]
    width, height = across * max(map(len, rows)), sum(heights)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    for number, row in enumerate(rows):
        top = height - sum(heights[:number]) - TITLE
        for place, (title, panel, groups) in enumerate(row):
            size = CELL * len(panel.source), CELL * len(panel.output)
            corner = place * across + left, top - size[1]
            axis = figure.add_axes((corner[0] / width, corner[1] / height, size[0] / width, size[1] / height))
            weights = panel.weights.reshape(panel.weights.shape[-2:])
            draw_attention(axis, weights, panel.source, panel.output, groups=groups)
            axis.set_title(title, fontsize=9, loc="left", pad=3)
    return figure


def main(arguments: list[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--examples", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--words", nargs=2, type=int, default=(1, sys.maxsize), metavar=("LEAST", "MOST"))
    parser.add_argument("--first", type=int, metavar="N")
    parser.add_argument("--groups", choices=["neighbours", "tied", "none"])
    options = parser.parse_args(arguments)
    try:
        models = {}
        for pair in options.checkpoints:
            name, _, path = pair.partition("=")
            if not path:
                raise LitSparseError(f"Expected NAME=CHECKPOINT but got {pair!r}.")
            models[name] = model_of(path)
        lines = lines_of(options.examples, *options.words)[: options.first]
        with torch.no_grad():
            rows = [[panel_of(name, model, line, options.groups) for name, model in models.items()] for line in lines]
    except LitSparseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if all(len(panel.output) == 1 for row in rows for _, panel, _ in row):  # classifiers, below each other
        rows = [[panel] for row in rows for panel in row]
    figure = figure_of(rows)
    path = Path(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
