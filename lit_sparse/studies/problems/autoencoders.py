"""Sparse auto-encoders on activations of a sentence encoder, trained in a loop of its own, faster than ``lit-sparse fit``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from lit_sparse.data import ActivationDataModule
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.splits import in_batches, shuffled
from lit_sparse.hf.saved_files import SavedFiles
from lit_sparse.hf.splicing import loss_recovered
from lit_sparse.mappings import BatchTopK, HardThreshold, HoyerProjection, JumpReLU, SparseMapping, Sparsemax, TopKEntmax
from lit_sparse.metrics import DeadFraction, ExplainedVariance
from lit_sparse.models import SparseAutoencoder
from lit_sparse.text.tokenizer_json import tokenizer_of

__all__ = ["LABELS", "MAPPINGS", "front", "ranking_loss", "sentence_vectors"]

#: Number of pairs of sentences whose ranking is the encoder's loss.
PAIRS = 40
LABELS, TEMPERATURE = {"entailment": 3, "neutral": 2, "contradiction": 1}, 0.05
#: Name -> mapping of about k active units of a width; those without a k have constants that were found by trial.
MAPPINGS: dict[str, Callable[[int, int], SparseMapping]] = {
    "top-k": lambda k, width: HardThreshold(k, nonneg=True),
    "BatchTopK": lambda k, width: BatchTopK(k),
    "JumpReLU": lambda k, width: JumpReLU(k, shape=(width,), start=NormalDist().inv_cdf(1 - k / width), bandwidth=0.5),
    "Hoyer": lambda k, width: HoyerProjection((width**0.5 - (0.26 * k) ** 0.5) / (width**0.5 - 1), nonneg=True),
    "sparsemax": lambda k, width: Sparsemax(gamma=0.6 * k),
    "top-k entmax": lambda k, width: TopKEntmax(k, gamma=k / 2),
}


def front(
    seed: int,
    *,
    mapping: str,
    k: int,
    width: int,
    model: str,
    layer: str,
    path: str,
    folder: str,
    max_texts: int = 16_000,
    steps: int = 300,
    batch_size: int = 128,
    lr: float = 3e-3,
) -> dict[str, float]:
    """Train a sparse auto-encoder on a sentence encoder's activations; return its explained variance and active units.

    Args:
        seed: seed of the initial weights and of the order of the data.
        mapping: name of the mapping, a key of ``MAPPINGS``.
        k: number of active units, on average or as a target.
        width: number of units.
        model: folder of the sentence encoder.
        layer: module whose activations are reconstructed.
        path: folder of SNLI.
        folder: folder where activations are stored.
        max_texts: number of sentences for training, and for the evaluation.
        steps: number of updates; the learning rate falls to zero in the second half.
        batch_size: number of activations per update.
        lr: learning rate of Adam.

    Returns:
        ``explained_variance``, ``l0``, its standard deviation ``l0_std``, ``dead_fraction``, and ``recovered``, the
        fraction of :func:`ranking_loss` that is recovered with reconstructions in place of the activations.
    """
    train, held_out = activations_of(model, layer, path, folder, max_texts)
    torch.manual_seed(seed)
    sae = SparseAutoencoder(MAPPINGS[mapping](k, width), in_features=train.shape[1], width=width)
    sae.start_from(train[shuffled(len(train), seed)[:4096]])
    optimizer = torch.optim.Adam(sae.parameters(), lr=lr)
    epochs = -(-steps * batch_size // len(train))
    order = torch.cat([shuffled(len(train), seed, epoch) for epoch in range(epochs)])
    for step, rows in enumerate(in_batches(order[: steps * batch_size], batch_size)):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, 2 * (1 - step / steps))
        optimizer.zero_grad()
        sae.run_step({"features": train[rows], "index": rows}, step, "train")["loss"].backward()
        optimizer.step()
    sae.eval().requires_grad_(False)
    explained, dead, active = ExplainedVariance(train.shape[1]), DeadFraction(width), []
    for rows in in_batches(torch.arange(len(held_out)), 1024):
        part = held_out[rows]
        activity = sae.encode(part)
        explained.update(part, sae.decode(activity))
        dead.update(activity)
        active.append((activity != 0).sum(1).float())
    encoder, skipped, loss = encoder_of(model, path)
    l0 = torch.cat(active)
    return {
        "explained_variance": float(explained.compute()),
        "l0": float(l0.mean()),
        "l0_std": float(l0.std()),
        "dead_fraction": float(dead.compute()),
        "recovered": loss_recovered(encoder, layer, sae, loss, skipped)["recovered"],
    }


@cache
def activations_of(model: str, layer: str, path: str, folder: str, max_texts: int) -> tuple[Tensor, Tensor]:
    """Return activations (N, D) of training sentences and of held-out sentences."""
    columns = ["premise", "hypothesis"]
    data = ActivationDataModule(model, layer, folder=folder, path=path, val="dev", columns=columns, max_texts=max_texts)
    data.setup("fit")
    train, held_out = (data.fetch(split, 0, torch.arange(data.size(split)))["features"] for split in ("train", "val"))
    return train, held_out


@cache
def encoder_of(model: str, path: str) -> tuple[Any, list[int], Callable[[], float]]:
    """Return the sentence encoder, its special tokens, and a function that returns its loss on pairs of the test split."""
    files = SavedFiles(model, {}, None)
    encoder, words = files.model("AutoModel").eval(), files.tokenizer(tokenizer_of)
    names = ("premise", "hypothesis", "label")
    columns = read_split(path, "test", {name: name for name in names})
    premises, hypotheses, labels = (columns[name][:PAIRS] for name in names)
    inputs = words([*premises, *hypotheses], padding=True, truncation=True, max_length=64, return_tensors="pt")
    ranks = torch.tensor([LABELS[label] for label in labels])

    @torch.no_grad()
    def loss() -> float:
        first, second = sentence_vectors(encoder, inputs).chunk(2)
        return float(ranking_loss(first, second, ranks))

    return encoder, words.all_special_ids, loss


def sentence_vectors(encoder: Any, inputs: Any) -> Tensor:
    """Return sentence vectors (B, D): the means of a transformers encoder's token states, with norm 1."""
    states, mask = encoder(**inputs).last_hidden_state, inputs["attention_mask"].unsqueeze(-1)
    return nnf.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def ranking_loss(first: Tensor, second: Tensor, ranks: Tensor) -> Tensor:
    """Return the ranking loss CoSENT, which is low if higher-ranked pairs are more similar than lower-ranked ones.

    It is the log of 1 plus the sum, over such pairs of pairs, of the exponential of the difference in similarity.

    A premise with the hypothesis of another pair has the lowest rank.

    Args:
        first: (N, D) vectors of premises, of norm 1.
        second: (N, D) vectors of hypotheses, of norm 1.
        ranks: (N,) ranks of the pairs, from 1.

    Source: Su (2022), CoSENT.
    """
    similar = torch.cat([(first * second).sum(-1), (first * second.roll(1, 0)).sum(-1)]) / TEMPERATURE
    ranks = torch.cat([ranks, torch.zeros_like(ranks)])
    wrong = (similar.unsqueeze(1) - similar)[ranks.unsqueeze(1) < ranks]
    return torch.logsumexp(nnf.pad(wrong, (1, 0)), 0)
