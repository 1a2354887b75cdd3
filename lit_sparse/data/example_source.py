"""Access by index to the training examples of any data module."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import DataLoader

from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.fetched import fetched
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import pl

__all__ = ["ExampleSource", "source_of", "with_weights"]


class _Resumable:
    """Training examples of one of this package's data modules."""

    def __init__(self, base: ResumableDataModule) -> None:
        self.base, self.indices = base, base.train_indices()
        self.batch_size, self.num_workers = base.batch_size, base.num_workers

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, epoch: int, indices: Tensor) -> Any:
        """Return a batch of the examples at indices (B,), as of an epoch."""
        return fetched(self.base, "train", epoch, self.indices[indices])


class _OfLoader:
    """Training examples in the data set of another data module's ``DataLoader``."""

    def __init__(self, base: pl.LightningDataModule) -> None:
        loader = base.train_dataloader()
        if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__getitem__"):
            raise ConfigurationError(
                f"Expected the training loader of {type(base).__name__} to be a DataLoader of a map-style data set but got"
                f" {type(loader).__name__}. Derive it from lit_sparse.data.ResumableDataModule."
            )
        self.loader = loader
        self.batch_size, self.num_workers = loader.batch_size or 1, loader.num_workers

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]

    def fetch(self, epoch: int, indices: Tensor) -> Any:
        """Return a batch of the examples at indices (B,), which are the same in each epoch."""
        return self.loader.collate_fn([self.loader.dataset[i] for i in indices.tolist()])


#: Training examples of a data module by index.
ExampleSource: TypeAlias = _Resumable | _OfLoader


def source_of(base: pl.LightningDataModule) -> ExampleSource:
    """Return the training examples of a data module, after its ``setup``.

    Raises:
        ConfigurationError: if its loader is not a DataLoader of a data set with indices.
    """
    return _Resumable(base) if isinstance(base, ResumableDataModule) else _OfLoader(base)


def with_weights(batch: Any, weights: Tensor) -> Any:
    """Return a batch with the weights (B,) of its examples: an entry ``weight`` of a dict, or the last of a tuple.

    Raises:
        ConfigurationError: for a batch that has weights, which would be lost.
    """
    if isinstance(batch, dict):
        if "weight" in batch:
            raise ConfigurationError(
                "Expected a `base` without weights, because the examples of a coreset get its own, but got batches with an"
                " entry 'weight'. Select from all examples at once."
            )
        return {**batch, "weight": weights}
    return (*batch, weights) if isinstance(batch, list | tuple) else (batch, weights)
