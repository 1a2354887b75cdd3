"""A loader whose order is a function of (seed, epoch), with a position that can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

from lit_sparse.checks import Count, ranges
from lit_sparse.errors import CheckpointError, ConfigurationError, LitSparseError
from lit_sparse.ground.state_checks import COUNT

__all__ = ["Batch", "BatchIndices", "EpochLoader", "Fetch"]

#: Largest number of worker processes; more than processors have cores would freeze the machine.
MOST_WORKERS = 512
#: Bytes of which the address of a new tensor is a multiple.
ALIGNMENT = 64
#: Tensors and lists of text by name.
Batch = dict[str, Any]
#: Indices of examples.
Array = npt.NDArray[np.int64]
#: ``batch_indices(epoch)`` lists the batches of an epoch, each as the indices of its examples; all epochs have as many.
BatchIndices = Callable[[int], Sequence[Tensor]]
#: ``fetch(epoch, indices)`` makes one batch.
Fetch = Callable[[int, Tensor], Batch]


class _Epoch(NamedTuple):
    """The batches of an epoch, and the parts of it that came before a restored position."""

    number: int
    parts: list[list[int]]
    batches: Sequence[Tensor]


@ranges(num_workers=Count(0, MOST_WORKERS), prefetch_factor=Count(), rows_per_fetch=Count(0))
class EpochLoader:
    """Loader of batches whose order is a function of the epoch, with a position that can be saved; each ``iter`` is an epoch.

    The class is not a ``torch.utils.data.DataLoader``, so Lightning does not change its order in distributed training; the
    indices are already this process's share.

    Args:
        batch_indices: function from the epoch to the indices of each batch.
        fetch: function from the epoch and indices to a batch.
        num_workers: number of worker processes that fetch batches; 0 fetches in this process.
        pin_memory: whether to copy batches of worker processes to pinned memory.
        persistent_workers: whether the worker processes stay for the next epoch.
        prefetch_factor: number of batches that each worker process fetches in advance; None for torch's default.
        rows_per_fetch: number of examples up to which this process fetches several batches in one call, since calls
            dominate the cost of small batches. The entries of batches must be rows, except tuples, which all batches share.
            0 fetches each batch by itself.

    Raises:
        ConfigurationError: for a number outside its range, or options of worker processes without any.
    """

    #: Where Lightning looks up the indices of predicted batches.
    batch_sampler: Any = None
    #: What else besides the epoch decides its batches, such as the batch size; part of a position.
    division: tuple[int, ...] = ()

    def __init__(
        self,
        batch_indices: BatchIndices,
        fetch: Fetch,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        rows_per_fetch: int = 0,
    ) -> None:
        self.batch_indices, self.fetch, self.num_workers = batch_indices, fetch, num_workers
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        self.prefetch_factor = prefetch_factor
        if not num_workers and (persistent_workers or prefetch_factor is not None):
            raise ConfigurationError(
                "Expected `num_workers` of at least 1 with `persistent_workers` or `prefetch_factor` but got 0. Increase it, or"
                " leave them out."
            )
        self._workers: tuple[list[Any], DataLoader[Any]] | None = None  # those that stay, unless an iterator has them
        self.rows_per_fetch = rows_per_fetch
        self.epoch = 0
        self.batch = 0  # number of batches of the epoch so far
        self._restored = False
        self._continued = _Epoch(-1, [], [])
        self._last = _Epoch(-1, [], [])
        self._length = len(batch_indices(0))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        if not self._restored and self.batch > 0:
            self.epoch, self.batch = self.epoch + 1, 0
        self._restored = False
        epoch, start = self.epoch, self.batch
        for number, batch in enumerate(self._batches(epoch, self._epoch(epoch).batches[start:]), start + 1):
            self.batch = number
            yield batch

    def position(self) -> tuple[int, int]:
        """Return the epoch and the number of its batches so far."""
        return (self.epoch, self.batch) if self.batch < len(self) else (self.epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, as a dict.

        It holds the ``epoch``, the number of its batches so far, ``batch``, and its ``parts``: one for each way in
        which the epoch was divided into batches, with the ``division`` and, last, the number of examples.
        """
        epoch, batch = self.position()
        if batch == 0:
            return {"epoch": epoch, "batch": 0, "parts": []}
        this = self._epoch(epoch)
        part = [*self.division, sum(len(indices) for indices in this.batches[:batch])]
        parts = [list(part) for part in this.parts]
        if parts and parts[-1][:-1] == part[:-1]:
            part[-1] += parts.pop()[-1]
        return {"epoch": epoch, "batch": batch, "parts": [*parts, part]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position; the next iteration yields the rest of its epoch.

        Raises:
            CheckpointError: if the state is not a position, or one in batches of another size.
        """
        found = state if isinstance(state, dict) else {}
        epoch: Any = found.get("epoch")
        batch: Any = found.get("batch")
        parts: Any = found.get("parts", [])
        if not (
            COUNT.holds(epoch)
            and COUNT.holds(batch)
            and _are_parts(parts, len(self.division) + 1)
            and bool(batch) <= bool(parts)
        ):
            raise CheckpointError(
                "Expected a position in the training data, an epoch, a batch and numbers of examples, but got"
                f" {str(state)[:200]}. Use another checkpoint."
            )
        batches = self.rest(epoch, batch, parts) if parts else []
        self.epoch, self.batch = epoch, len(self) - len(batches) if parts else 0
        self._continued = _Epoch(epoch if parts else -1, parts, [*[torch.empty(0, dtype=torch.int64)] * self.batch, *batches])
        self._restored = True

    def rest(self, epoch: int, batch: int, parts: list[list[int]]) -> Sequence[Tensor]:
        """Return the indices of an epoch's remaining batches, after the first ``batch`` ones.

        Args:
            epoch: number of the epoch.
            batch: number of batches before the position.
            parts: ``[[examples]]``, the number of examples in these batches, as stored with the position.

        Raises:
            CheckpointError: if the first ``batch`` batches have another number of examples now.
        """
        batches = self.batch_indices(epoch)
        if [[sum(len(indices) for indices in batches[:batch])]] != parts:
            raise CheckpointError(
                f"Expected a position after {batch} batches of this loader but got one after {parts[0][-1]} examples. Use the"
                " batch size of the run, or give the trainer the data module, which divides the rest of an epoch again."
            )
        return batches[batch:]

    def _epoch(self, epoch: int) -> _Epoch:
        """Return the batches of an epoch; those before a restored position are empty."""
        if epoch == self._continued.number:
            return self._continued
        if epoch != self._last.number:
            self._last = _Epoch(epoch, [], self.batch_indices(epoch))
        return self._last

    def _batches(self, epoch: int, batch_indices: Sequence[Tensor]) -> Iterator[Batch]:
        if self.num_workers == 0:
            return self._fetched(epoch, batch_indices)
        return self._by_workers([(epoch, indices.numpy()) for indices in batch_indices])

    def _by_workers(self, wanted: list[tuple[int, Array]]) -> Iterator[Batch]:
        (keys, loader), self._workers = self._workers or self._started(), None
        keys[:] = wanted
        batches = _begun(loader)
        try:
            for batch in batches:
                if isinstance(batch, LitSparseError):
                    raise batch
                yield batch
        except (ConnectionResetError, EOFError, RuntimeError) as error:
            text = str(error)
            ended = text.startswith("DataLoader worker (pid")  # unless torch still counts a killed worker as alive
            if not ended and (isinstance(error, RuntimeError) or "in DataLoader worker process" in text):
                raise
            raise LitSparseError(
                "Expected the workers to fetch all batches but the system ended one, perhaps because memory is short. Free"
                " memory, or lower `num_workers`."
            ) from error
        finally:
            if self.persistent_workers:
                self._workers = keys, loader

    def _started(self) -> tuple[list[Any], DataLoader[Any]]:
        """Return a loader of batches by their epochs and indices, and the list in which it looks these up."""
        keys: list[Any] = []
        loader = DataLoader(
            _Batches(self.fetch),
            batch_size=None,
            sampler=keys,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            persistent_workers=self.persistent_workers,
            prefetch_factor=self.prefetch_factor,
        )
        return keys, loader

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


def _are_parts(found: Any, numbers: int) -> bool:
    """Return whether a state has the parts of an epoch, each with the expected number of positive integers."""
    return isinstance(found, list) and all(
        isinstance(part, list) and len(part) == numbers and all(COUNT.holds(number) and number > 0 for number in part)
        for part in found
    )


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
        """Return some rows, copied unless aligned like a new tensor, because products may otherwise be rounded differently."""
        if isinstance(value, tuple):
            return value
        part = value[first:last]
        aligned = not isinstance(value, Tensor) or value.dim() < 2 or value.stride(0) * value.element_size() % ALIGNMENT == 0
        return part if aligned else part.clone()

    for first, last in pairwise(accumulate(sizes, initial=0)):
        yield {name: rows(value, first, last) for name, value in batch.items()}


def _begun(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers, without torch's handler of their ends, which raises an error wherever this process is then."""
    before, signal_handling._SIGCHLD_handler_set = signal_handling._SIGCHLD_handler_set, True
    try:
        return iter(loader)
    finally:
        signal_handling._SIGCHLD_handler_set = before


class _Batches(Dataset[Batch | LitSparseError]):
    """Batches by their epochs and indices, fetched in worker processes, or errors of this package.

    The indices are arrays, because the worker would have to ask this process for a tensor's file, and it may have been killed.
    """

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def __getitem__(self, key: tuple[int, Array]) -> Batch | LitSparseError:
        epoch, indices = key
        try:
            batch = self.fetch(epoch, torch.from_numpy(indices))
        except LitSparseError as error:  # torch would add a traceback to its message
            return error
        tensors = [value for value in batch.values() if isinstance(value, Tensor) and value.layout is torch.strided]
        try:  # as sending them would, in a thread whose error nobody hears of
            for value in tensors:
                value.share_memory_()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            return LitSparseError(
                f"Expected to put a batch into shared memory but got: {error}. Free space there, or set `num_workers` to 0."
            )
        return batch
