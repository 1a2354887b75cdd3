"""Draw attention between two sentences whose words repeat, with and without agreement constraints.

Usage:
    python scripts/plot_agreement.py [--output pictures/agreement.png]

A pair of words that a dictionary holds has score 1.5, another one 0. Left: sparsemax of each row. Middle: LP-SparseMAP whose
factors are one partner for each word of a row and at most one for each word of a column. Right: neighbours along a diagonal
also agree, by pairs with a potential.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lit_sparse.callbacks import draw_attention
from lit_sparse.callbacks.pictures.base import new_figure
from lit_sparse.mappings import LPSparseMAP, Sparsemax
from lit_sparse.structures import Budget, Factor, FactorGraph, Pair, Xor

SOURCE = ["ein", "Mann", "und", "ein", "Hund", "sehen", "ein", "Boot"]
OUTPUT = ["a", "man", "and", "a", "dog", "watch", "a", "boat"]
#: The words of the dictionary; it lacks "and" and "watch".
KNOWN = {("a", "ein"), ("man", "Mann"), ("dog", "Hund"), ("boat", "Boot")}
AGREEMENT = 0.8
ALT = (
    "Attention between an English and a German sentence. By sparsemax each of three articles attends to three articles, and"
    " words outside the dictionary to all words. With one partner each, these words share the words that are left. With"
    " diagonals that agree, most of the weight of each word is at its partner."
)


def scores() -> Tensor:
    """Return the scores (T, S) of the dictionary."""
    return 1.5 * torch.tensor([[float((word, other) in KNOWN) for other in SOURCE] for word in OUTPUT])


def alignment(rows: int, columns: int) -> FactorGraph:
    """Return one partner for each row, at most one for each column, and pairs (i, j), (i + 1, j + 1)."""
    cells = torch.arange(rows * columns).reshape(rows, columns)
    diagonal = torch.stack([cells[:-1, :-1].flatten(), cells[1:, 1:].flatten()], 1)
    factors = [Factor(Xor(), cells.tolist()), Factor(Budget(None, 1), cells.T.tolist()), Factor(Pair(), diagonal.tolist())]
    return FactorGraph(rows * columns, factors)


def attentions() -> dict[str, Tensor]:
    """Return title -> weights (T, S)."""
    x = scores()
    found = {"sparsemax": Sparsemax()(x)}
    for title, agreement in (("one partner each", 0.0), ("diagonals agree", AGREEMENT)):
        layer = LPSparseMAP(alignment(*x.shape), potentials=[agreement])
        found[title] = layer(x.flatten()).reshape(x.shape)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("pictures/agreement.png"))
    path = parser.parse_args(arguments).output
    figure, axes = new_figure(1, 3, width=10.5, height=3.6)
    for axis, (title, weights) in zip(axes, attentions().items(), strict=True):
        draw_attention(axis, weights, SOURCE, OUTPUT, groups="none")
        axis.set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, facecolor="white", metadata={"Software": None, "Description": ALT})
    print(f"Drew {path}.")


if __name__ == "__main__":
    main()
