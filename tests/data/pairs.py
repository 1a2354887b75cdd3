"""Parallel text for tests: sentences of random words, translated by the words spelt backwards, in reverse order."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = "ein Hund Mann Frau läuft steht sitzt über unter die das Straße Haus rot blau zwei drei".split()  # noqa: SIM905


def write_pairs(folder: Path, split: str, number: int, seed: int = 0) -> list[str]:
    """Write ``{split}.de`` and ``{split}.en``, and return the lines of the first."""
    rng = random.Random(f"{seed} {split}")
    source = [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(number)]
    target = [" ".join(word[::-1] for word in line.split()[::-1]) for line in source]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.de").write_text("\n".join(source) + "\n", encoding="utf-8")
    (folder / f"{split}.en").write_text("\n".join(target) + "\n", encoding="utf-8")
    return source
