"""Draw where trained models look: one heat map for each checkpoint and each example, side by side.

Usage:
    python scripts/plot_attention.py NAME=CHECKPOINT [NAME=CHECKPOINT ...] --examples FILE --output PATH [--groups tied]

An example is a line of the file: a sentence for a model that writes, or a premise and a hypothesis parted by a tab for a
classifier. Exact zeros are grey, and neighbours of equal weight have no border between them; ``--groups`` says which equal
weights are marked, by default those that the model's mapping ties. The picture goes to PATH, as PNG or SVG by its ending.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from lit_sparse.callbacks import draw_attention
from lit_sparse.callbacks.pictures.base import new_figure
from lit_sparse.data.readers.text_files import read_lines
from lit_sparse.errors import LitSparseError
from lit_sparse.models import EntailmentClassifier, Seq2Seq, TextModule


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


def main(arguments: list[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--examples", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--groups", choices=["neighbours", "tied", "none"])
    options = parser.parse_args(arguments)
    try:
        models = {}
        for pair in options.checkpoints:
            name, _, path = pair.partition("=")
            if not path:
                raise LitSparseError(f"Expected NAME=CHECKPOINT but got {pair!r}.")
            models[name] = model_of(path)
        lines = [line for line in read_lines(options.examples) if line.strip()]
        with torch.no_grad():
            found = [[model.predict_step(batch_of(model, line), 0) for model in models.values()] for line in lines]
    except LitSparseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    heights = [max(len(one["output_tokens"][0]) for one in row) for row in found]
    width = max(len(one["source_tokens"][0]) for row in found for one in row)
    columns = (
        1 if max(heights) == 1 else len(models)
    )  # a classifier has one row of weights: those of all models go below each other
    rows = len(lines) * len(models) // columns
    figure, axes = new_figure(
        rows, columns, width=columns * (0.45 * width + 1.5), height=sum(0.35 * h + 1.1 for h in heights) * rows / len(lines)
    )
    for number, (line, row) in enumerate(zip(lines, found, strict=True)):
        for place, ((name, model), one) in enumerate(zip(models.items(), row, strict=True)):
            axis = axes[number * len(models) + place]
            steps, size = len(one["output_tokens"][0]), len(one["source_tokens"][0])
            weights = one["attention"].reshape(one["attention"].shape[-2:])[:steps, :size]
            draw_attention(
                axis, weights, one["source_tokens"][0], one["output_tokens"][0], groups=options.groups or model.mapping.groups
            )
            title = line.partition("\t")[2]
            axis.set_title(f"{name}: {title}" if title else name, fontsize=9)
    figure.tight_layout()
    path = Path(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
