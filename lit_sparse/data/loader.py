"""A loader whose order is a function of (seed, epoch), with a position that can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lit_sparse.aliases import former_arguments
from lit_sparse.errors import CheckpointError, ConfigurationError

__all__ = ["Batch", "BatchIndices", "EpochLoader", "Fetch"]

#: Bytes of which the address of a new tensor is a multiple.
ALIGNMENT = 64
#: Tensors and lists of text by name.
Batch = dict[str, Any]
#: ``batch_indices(epoch)`` lists the batches of an epoch, each as the indices of its examples; all epochs have as many.
BatchIndices = Callable[[int], Sequence[Tensor]]
#: ``fetch(epoch, indices)`` makes one batch.
Fetch = Callable[[int, Tensor], Batch]


class EpochLoader:
    """Iterate over batches; each ``iter`` is the next epoch.

    The class is not a ``torch.utils.data.DataLoader``, so Lightning does not change its order in distributed training: the
    indices already are only this process's share.

    Args:
        batch_indices: function from the epoch to the indices of each batch.
        fetch: function from the epoch and indices to a batch.
        num_workers: number of worker processes that fetch batches; 0 fetches in this process.
        pin_memory: whether to copy batches of worker processes to pinned memory.
        limit: function that returns the maximal number of batches per epoch.
        rows_per_fetch: number of examples up to which this process fetches batches together, because a call takes longer than
            the rows of a small batch. The entries of their batches are rows, but tuples are the same in each. 0 fetches each
            batch by itself.
    """

    #: Where Lightning looks up the indices of predicted batches.
    batch_sampler: Any = None

    @former_arguments(plan="batch_indices")
    def __init__(
        self,
        batch_indices: BatchIndices,
        fetch: Fetch,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        limit: Callable[[], float] | None = None,
        rows_per_fetch: int = 0,
    ) -> None:
        self.batch_indices = batch_indices
        self.fetch = fetch
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.limit = limit
        self.rows_per_fetch = rows_per_fetch
        self.epoch = 0
        self.batch = 0  # number of batches of the epoch so far
        self._restored = False
        self._length = len(batch_indices(0))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        if not self._restored and self.batch > 0:
            self.epoch, self.batch = self.epoch + 1, 0
        self._restored = False
        epoch, start = self.epoch, self.batch
        for number, batch in enumerate(self._batches(epoch, self.batch_indices(epoch)[start:]), start + 1):
            self.batch = number
            yield batch

    def _batches(self, epoch: int, batch_indices: Sequence[Tensor]) -> Iterator[Batch]:
        if self.num_workers == 0:
            return self._fetched(epoch, batch_indices)
        batches = _Batches(self.fetch, epoch, batch_indices)
        return iter(DataLoader(batches, batch_size=None, num_workers=self.num_workers, pin_memory=self.pin_memory))

    def _fetched(self, epoch: int, batch_indices: Sequence[Tensor]) -> Iterator[Batch]:
        for several in self._together(batch_indices):
            if len(several) == 1:
                yield self.fetch(epoch, several[0])
            else:
                yield from _divided(self.fetch(epoch, torch.cat(several)), [len(indices) for indices in several])

    def _together(self, batch_indices: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the indices of successive batches that are fetched by one call."""
        several: list[Tensor] = []
        rows = 0
        for indices in batch_indices:
            rows += len(indices)
            if several and rows > self.rows_per_fetch:
                yield several
                several, rows = [], len(indices)
            several.append(indices)
        if several:
            yield several

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch: the epoch and its number of batches so far."""
        used = len(self) if self.limit is None else min(len(self), self.limit())
        if self.batch >= used:
            return {"epoch": self.epoch + 1, "batch": 0}
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position; the next iteration yields the rest of its epoch.

        Raises:
            CheckpointError: if the state is not a position.
        """
        positions = [state.get(key) for key in ("epoch", "batch")] if isinstance(state, dict) else [None]
        if not all(isinstance(position, int) and position >= 0 for position in positions):
            raise CheckpointError(
                f"Expected a position in the training data, an epoch and a batch, but got {state!r}. Use another checkpoint."
            )
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        self._restored = True


def _divided(batch: Batch, sizes: list[int]) -> Iterator[Batch]:
    """Yield batches of ``sizes`` examples, the rows of one batch.

    Raises:
        ConfigurationError: if an entry does not have a row for each example.
    """
    for name, value in batch.items():
        sized = isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0)
        if not isinstance(value, tuple) and not (sized and len(value) == sum(sizes)):
            kind = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ConfigurationError(
                f"Expected {name!r} of a batch to be a tensor or list with {sum(sizes)} rows, one per example, but got {kind}."
                " Correct `fetch`, or set `independent_rows = False` in the class of the data module."
            )

    def rows(value: Any, first: int, last: int) -> Any:
        """Return some rows, copied unless they are aligned as a new tensor: products may be rounded otherwise."""
        if isinstance(value, tuple):
            return value
        part = value[first:last]
        aligned = not isinstance(value, Tensor) or value.dim() < 2 or value.stride(0) * value.element_size() % ALIGNMENT == 0
        return part if aligned else part.clone()

    for first, last in pairwise(accumulate(sizes, initial=0)):
        yield {name: rows(value, first, last) for name, value in batch.items()}


class _Batches(Dataset[Batch]):
    """The batches of one epoch, fetched in worker processes."""

    def __init__(self, fetch: Fetch, epoch: int, batch_indices: Sequence[Tensor]) -> None:
        self.fetch = fetch
        self.epoch = epoch
        self.batch_indices = batch_indices

    def __len__(self) -> int:
        return len(self.batch_indices)

    def __getitem__(self, index: int) -> Batch:
        if index >= len(self.batch_indices):
            raise IndexError(index)
        return self.fetch(self.epoch, self.batch_indices[index])
