"""Data of optimal transport: pairs of points drawn from two measures, one apart from the other."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import MOST_EXAMPLES, check_count
from lit_sparse.data.base import ResumableDataModule, Split
from lit_sparse.data.loader import Batch
from lit_sparse.data.measures import Measure
from lit_sparse.errors import ConfigurationError

__all__ = ["TransportDataModule"]

#: Seeds of what is drawn for a split; the target's is the next.
STREAMS: dict[Split, int] = {"train": 0, "val": 2, "test": 4, "predict": 4}


class TransportDataModule(ResumableDataModule):
    """Points of two measures. Training draws new ones each epoch; those of validation and test stay the same.

    Batches are dicts of ``source`` (B, d) float32, ``target`` (B, d) float32, drawn apart from it, and ``index`` (B,), the
    place in its split. What is drawn is a function of (seed, split, index), and of the epoch in training.

    Args:
        source: what source points are drawn from.
        target: what target points are drawn from.
        samples: of each in an epoch of training.
        val_samples: of each in validation, where all pairs of them are looked at.
        test_samples: of each in the test.
        batch_size: pairs in a training batch of one process.
        eval_batch_size: pairs in a batch of validation, test and prediction.
        num_workers: processes that draw batches ahead.
        seed: of what is drawn, and of orders.

    Raises:
        ConfigurationError: for an argument outside its range, or measures of points that differ in their number of coordinates.

    Example:
        >>> from lit_sparse.data import GaussianMixture
        >>> data = TransportDataModule(GaussianMixture([0.0], [1.0]), GaussianMixture([-1.0, 1.5], [0.25, 0.16]), batch_size=8)
        >>> data.setup()
        >>> next(iter(data.train_dataloader()))["target"].shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        source: Measure,
        target: Measure,
        *,
        samples: int = 10_000,
        val_samples: int = 1000,
        test_samples: int = 1000,
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, num_workers=num_workers, seed=seed)
        for name, measure in (("source", source), ("target", target)):
            if not isinstance(measure, Measure):
                raise ConfigurationError(
                    f"Expected argument `{name}` to be a Measure but got {type(measure).__name__}. An array of points is"
                    " Points.of(array)."
                )
        self.source = source
        self.target = target
        self.samples = check_count("samples", samples, most=MOST_EXAMPLES)
        self.val_samples = check_count("val_samples", val_samples, most=MOST_EXAMPLES)
        self.test_samples = check_count("test_samples", test_samples, most=MOST_EXAMPLES)

    def setup(self, stage: str | None = None) -> None:
        """Check that the measures have points of the same kind; those of a file are read here."""
        if self.source.dim != self.target.dim:
            raise ConfigurationError(
                f"Expected `source` and `target` to have points of as many numbers but they have {self.source.dim} and"
                f" {self.target.dim}."
            )

    @override
    def size(self, split: Split) -> int:
        return {"train": self.samples, "val": self.val_samples}.get(split, self.test_samples)

    @override
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        stream = STREAMS[split]
        seeds = [(self.seed * 1_000_003 + (epoch if split == "train" else 0)) * 101 + stream + side for side in (0, 1)]
        source, target = (
            measure.sample(seed, indices) for measure, seed in zip((self.source, self.target), seeds, strict=True)
        )
        return {"source": source, "target": target, "index": indices}

    def train_indices(self) -> Tensor:
        """Return the indices (N,) of an epoch's draws."""
        return torch.arange(self.samples)
