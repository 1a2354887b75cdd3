"""A model and data whose counts a test can write down; imported by command lines under test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.data import ResumableDataModule
from lit_sparse.models import LitSparseModule, StepOutput

DECISIONS = 11


def calls_of(index: int) -> list[int]:
    """Return the decoder calls of an example's decisions."""
    return [(index * 37 + place * 11) % 3 + 1 for place in range(DECISIONS)]


class CountedData(ResumableDataModule):
    """Six examples for training, two for validation."""

    def size(self, split: str) -> int:
        return 6 if split == "train" else 2

    def fetch(self, split: str, epoch: int, indices: Tensor) -> dict[str, Tensor]:
        return {"index": indices, "calls": torch.tensor([calls_of(int(index)) for index in indices])}


class Counted(LitSparseModule):
    """One weight; the decisions of an example are its data."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.weight = torch.nn.Parameter(torch.tensor(1.0))

    def step(self, batch: dict[str, Tensor], batch_idx: int, stage: str) -> StepOutput:
        calls = batch["calls"]
        losses = self.weight * calls.float().sum(1)
        return StepOutput(losses, decoder_calls=calls.flatten(), support_size=calls.flatten() + 1)
