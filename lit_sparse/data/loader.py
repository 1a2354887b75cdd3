"""A loader whose order is a function of (seed, epoch) and whose place in it can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lit_sparse.errors import CheckpointError

__all__ = ["Batch", "EpochLoader", "Fetch", "Plan"]

#: Tensors, and lists of text.
Batch = dict[str, Any]
#: ``plan(epoch)`` lists the batches of an epoch, each as the indices of its examples; all epochs have as many.
Plan = Callable[[int], Sequence[Tensor]]
#: ``fetch(epoch, indices)`` makes one batch.
Fetch = Callable[[int, Tensor], Batch]


class EpochLoader:
    """Iterates over the batches of one epoch after another; each ``iter`` is an epoch.

    It is no ``torch.utils.data.DataLoader``, so Lightning leaves its order alone on several processes: the plan already
    holds this process's share.

    Args:
        plan: which examples make up each batch of an epoch.
        fetch: makes a batch of them.
        num_workers: processes that fetch ahead; 0 fetches in this one.
        pin_memory: whether worker processes' batches are copied to pinned memory.
        limit: returns how many batches of an epoch will be used, where that is fewer than there are.
    """

    def __init__(
        self,
        plan: Plan,
        fetch: Fetch,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        limit: Callable[[], float] | None = None,
    ) -> None:
        self.plan = plan
        self.fetch = fetch
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.limit = limit
        self.epoch = 0
        self.batch = 0  # how many batches of the epoch were handed out
        self._restored = False
        self._length = len(plan(0))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        if not self._restored and self.batch > 0:
            self.epoch, self.batch = self.epoch + 1, 0
        self._restored = False
        epoch, start = self.epoch, self.batch
        for number, batch in enumerate(self._batches(epoch, self.plan(epoch)[start:]), start + 1):
            self.batch = number
            yield batch

    def _batches(self, epoch: int, plan: Sequence[Tensor]) -> Iterator[Batch]:
        if self.num_workers == 0:
            return (self.fetch(epoch, indices) for indices in plan)
        return iter(
            DataLoader(
                _Planned(self.fetch, epoch, plan), batch_size=None, num_workers=self.num_workers, pin_memory=self.pin_memory
            )
        )

    def state_dict(self) -> dict[str, int]:
        """Return the place after the last batch handed out: the epoch and the number of its batches that are done."""
        used = len(self) if self.limit is None else min(len(self), self.limit())
        if self.batch >= used:
            return {"epoch": self.epoch + 1, "batch": 0}
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place; the next iteration yields what is left of its epoch.

        Raises:
            CheckpointError: if it is not a place.
        """
        places = [state.get(key) for key in ("epoch", "batch")] if isinstance(state, dict) else [None]
        if not all(isinstance(place, int) and place >= 0 for place in places):
            raise CheckpointError(f"Expected a place in the training data, of an epoch and a batch, but got {state!r}.")
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        self._restored = True


class _Planned(Dataset[Batch]):
    """The batches of one epoch, fetched in worker processes."""

    def __init__(self, fetch: Fetch, epoch: int, plan: Sequence[Tensor]) -> None:
        self.fetch = fetch
        self.epoch = epoch
        self.plan = plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Batch:
        if index >= len(self.plan):
            raise IndexError(index)
        return self.fetch(self.epoch, self.plan[index])
