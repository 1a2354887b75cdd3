"""Checks of what subclasses of data modules return."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import check_choice, check_indices, check_integer, shown
from lit_sparse.data.loader import Batch
from lit_sparse.data.splits import STAGES, Split
from lit_sparse.errors import ConfigurationError, full_name

__all__ = ["batches_of", "checks_indices", "checks_stage", "fetched", "seeded"]


#: ``fetch`` with a check of its arguments -> the same without it. A wrapper of it, which may copy its attributes, has no entry.
UNCHECKED: dict[Any, Callable[[Any, Split, int, Tensor], Batch]] = {}


def checks_indices(fetch: Callable[[Any, Split, int, Tensor], Batch]) -> Callable[[Any, Split, int, Tensor], Batch]:
    """Return the ``fetch`` of a data module with a check of its arguments: a negative index would count from the end."""

    @wraps(fetch)
    def checked(self: Any, split: Split, epoch: int, indices: Tensor) -> Batch:
        if type(self).fetch is checked:  # and not a subclass that calls its base
            size = self.size(check_choice("split", split, get_args(Split)))
            check_integer("epoch", epoch)
            check_indices(indices, size)
        return fetch(self, split, epoch, indices)

    UNCHECKED[checked] = fetch
    return checked


def checks_stage(setup: Callable[[Any, str | None], None]) -> Callable[[Any, str | None], None]:
    """Return the ``setup`` of a data module with a check of its stage: another word would stand for all splits."""

    @wraps(setup)
    def checked(self: Any, stage: str | None = None) -> None:
        setup(self, stage if stage is None else check_choice("stage", stage, tuple(STAGES)))

    return checked


def fetched(data: Any, split: Split, epoch: int, indices: Tensor) -> Batch:
    """Return the batch that a data module's ``fetch`` makes, after a check.

    Without it, Lightning would skip a batch that is None.

    Raises:
        ConfigurationError: if the batch is None, or its ``index`` has another number of examples.
    """
    unchecked = UNCHECKED.get(getattr(data.fetch, "__func__", None))  # the indices are the data module's own
    batch = data.fetch(split, epoch, indices) if unchecked is None else unchecked(data.fetch.__self__, split, epoch, indices)
    index: Any = batch.get("index") if isinstance(batch, dict) else None
    if batch is None or (isinstance(index, Tensor) and index.shape != indices.shape):
        got = "None" if batch is None else f"an `index` {tuple(index.shape)}"
        raise ConfigurationError(
            f"Expected `fetch` of {full_name(data)} to return a batch of {len(indices)} examples but got {got}."
        )
    for change in (data.transform, data.augmentation if split == "train" else None):
        if change is not None:
            with seeded(data.seed, epoch, int(indices[0]) if len(indices) else 0):
                batch = change(batch)
            if not isinstance(batch, dict):
                raise ConfigurationError(f"Expected {full_name(change)} to return a batch, a dict, but got {full_name(batch)}.")
    return batch


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python within a context, and restore them afterwards."""
    seed = int(np.random.SeedSequence([number % 2**32 for number in numbers]).generate_state(1)[0])
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002


def batches_of(data: Any, epoch: int, rank: int, processes: int) -> Sequence[Tensor]:
    """Return the index batches that a data module's ``train_batches`` makes, after a check.

    Raises:
        ConfigurationError: if they are not sequences of indices.
    """
    batches: Any = data.train_batches(epoch, rank, processes)
    wrong = [batches]
    if isinstance(batches, Sequence):
        wrong = [it for it in batches if not isinstance(it, Tensor) or it.ndim != 1 or it.dtype != torch.int64]
    if wrong:
        raise ConfigurationError(
            f"Expected `train_batches` of {full_name(data)} to return a list of indices (B,) int64 but got {shown(wrong[0])}."
        )
    return batches  # type: ignore[no-any-return]
