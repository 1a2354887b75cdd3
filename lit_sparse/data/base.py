"""Base of all data modules: seeded orders, shares of processes, and a position that survives a killed run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, Sampler
from typing_extensions import Self

from lit_sparse.checks import SEED, Count, check_indices, check_integer, ranges
from lit_sparse.data.fetched import batches_of, checks_indices, checks_stage, fetched, seeded
from lit_sparse.data.loader import MOST_WORKERS, Batch, EpochLoader
from lit_sparse.data.splits import Split, in_batches, share_of, shuffled
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError, full_name
from lit_sparse.ground.state_checks import COUNT, ListOf, equal_to
from lit_sparse.lightning.choice import check_pairing, pl, rank_zero_warn
from lit_sparse.lightning.internals import check_hooks, fit_position, index_sampler, move_batches, runs_fit
from lit_sparse.runs.checkpoint_files import load_module

__all__ = ["ResumableDataModule"]

#: Examples of small training batches that are fetched together.
ROWS_PER_FETCH = 1024


@ranges(batch_size=Count(), eval_batch_size=Count(), num_workers=Count(0, MOST_WORKERS), seed=SEED, updates_per_batch=Count())
class ResumableDataModule(pl.LightningDataModule, ABC):
    """Base class of data modules whose training resumes exactly: a subclass makes batches from the indices of examples.

    Training shuffles by (seed, epoch), and each process takes every n-th example of the same permutation. The epoch and the
    position in it are the trainer's, so a fit reads each example once per epoch, whatever was read before it. An
    interrupted run continues with the remaining examples, also with another batch size. Validation, test and prediction use
    one fixed order; again, each process takes every n-th example, and no example is repeated.

    Args:
        batch_size: examples per training batch and process.
        eval_batch_size: examples per batch in validation, test and prediction.
        num_workers: number of worker processes that fetch batches; 0 fetches in the training process.
        seed: seed of all random draws, such as orders and augmentation.
        fold: index of a fold, from 0, and number of folds, for cross-validation. Training and validation examples are
            joined and divided at random by the seed; this fold is for validation, the others are for training.
        updates_per_batch: number of successive optimizer updates per training batch, each on ``batch_size`` examples.
            Training is the same as with 1, but the trainer's overhead of about a millisecond per batch occurs only once.
            Steps are updates. Callbacks run, and limits count, once per batch.
        persistent_workers: whether worker processes stay for the next epoch.
        prefetch_factor: number of batches that each worker process fetches in advance; None for torch's default.
        pin_memory: whether worker processes copy batches to pinned memory; None to do so if there is a GPU.
        sampler: order of the training examples in an epoch, in place of a permutation. Its random generator is reseeded in
            each epoch.
        transform: function from each batch to the batch that is used.
        augmentation: function from each training batch, after ``transform``, to the batch that is used. Random numbers in
            both are a function of the seed, the epoch and the batch, so that they are the same in a resumed run.

    Raises:
        ConfigurationError: for a batch size or a number of updates below 1, a negative number of workers, options of
            workers without any, or a wrong fold.
    """

    #: Whether each row of a batch depends on its own example alone, so that small batches can be fetched together. It holds for
    #: the ``fetch`` of the class that sets it; a subclass with another ``fetch`` may set it again.
    independent_rows: ClassVar[bool] = False
    #: Whether training and validation examples may be divided into folds.
    has_folds: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_hooks(cls, "state_dict", "load_state_dict")
        if not cls.__module__.startswith("lit_sparse."):
            return
        if "fetch" in vars(cls):
            cls.fetch = checks_indices(cls.fetch)  # type: ignore[method-assign,assignment]
        if "setup" in vars(cls):
            cls.setup = checks_stage(cls.setup)  # type: ignore[method-assign,assignment,arg-type]

    def __init__(
        self,
        *,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
        fold: tuple[int, int] | None = None,
        updates_per_batch: int = 1,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        pin_memory: bool | None = None,
        sampler: Sampler[int] | None = None,
        transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        augmentation: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        check_pairing()
        self.batch_size, self.eval_batch_size, self.num_workers, self.seed = batch_size, eval_batch_size, num_workers, seed
        if fold is not None and not (self.has_folds and len(fold) == 2 and fold[1] >= 2 and 0 <= fold[0] < fold[1]):
            wanted = "such as [0, 2] or [1, 2]" if self.has_folds else f"to be null for {type(self).__name__}"
            raise ConfigurationError(f"Expected argument `fold` {wanted} but got {list(fold)}. Change it.")
        self.fold, self.updates_per_batch = fold, updates_per_batch
        self.persistent_workers, self.prefetch_factor = persistent_workers, prefetch_factor
        self.pin_memory, self.sampler, self.transform = pin_memory, sampler, transform
        self.augmentation = augmentation
        EpochLoader(lambda _: [], lambda *_: {}, **self._loading())  # checks the options of workers
        if isinstance(sampler, DistributedSampler):
            raise ConfigurationError(
                f"Expected a `sampler` of all examples, which are then divided among processes, but got {full_name(sampler)}."
                " Give the sampler for one process."
            )
        #: Position of loops by hand. In a fit the trainer's position counts.
        self._position: Callable[[], dict[str, Any]] | None = None

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, trust: Collection[str] = (), **options: Any) -> Self:
        """Return a data module built from a checkpoint, after a check of the class names in it.

        Args:
            checkpoint_path: path, or an open file.
            args: positional arguments of Lightning's method, ``map_location`` and ``hparams_file``.
            trust: additional import paths that the checkpoint may name.
            options: options of Lightning's method, and arguments of the data module in place of the checkpoint's.
        """
        options |= dict(zip(("map_location", "hparams_file"), args, strict=False))
        return load_module(cls, checkpoint_path, trust=trust, **options)

    def folded(self, splits: dict[Split, Any]) -> dict[Split, Any]:
        """Return the examples of each split after joining and redividing training and validation examples by ``fold``.

        Args:
            splits: split -> examples, which support ``+``, ``len`` and indexing.
        """
        if self.fold is None:
            return splits
        both = splits["train"] + splits["val"]
        chosen = self.fold_indices(len(splits["train"]), len(splits["val"]))
        return splits | {split: both[indices] for split, indices in chosen.items()}

    def fold_indices(self, train: int, val: int) -> dict[Split, Tensor]:
        """Return the indices of each split's examples in ``fold``, among all training and then all validation examples.

        Args:
            train: number of training examples.
            val: number of validation examples.

        Raises:
            ConfigurationError: with more folds than examples.
        """
        assert self.fold is not None
        number, count = self.fold
        if count > train + val:
            raise ConfigurationError(f"Expected at most {train + val} folds, one per example, but got {count}. Decrease it.")
        order = shuffled(train + val, self.seed, stream=5)
        held = torch.arange(len(order)) % count == number
        return {"train": order[~held].sort().values, "val": order[held].sort().values}

    @abstractmethod
    def size(self, split: Split) -> int:
        """Return the number of examples of a split, available after ``setup``."""

    @abstractmethod
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch of the examples at ``indices`` (B,) of a split.

        All randomness must be a function of (seed, index), and of the epoch in training.

        Raises:
            ConfigurationError: for an unknown split, or an epoch that is no integer.
            IndexError: unless ``indices`` are integers (B,) of int64 in 0 .. ``size(split)`` - 1.
        """

    def train_batches(self, epoch: int, rank: int, processes: int) -> Sequence[Tensor]:
        """Return the indices of each training batch of one process; all processes have equally many batches."""
        return in_batches(share_of(self._order(self.size("train"), epoch), rank, processes), self.batch_size)

    def _order(self, size: int, epoch: int, stream: int = 0) -> Tensor:
        """Return the order of a number of training examples in an epoch: the sampler's, or else a permutation."""
        if self.sampler is None:
            return shuffled(size, self.seed, epoch, stream)
        with seeded(self.seed, epoch):
            if isinstance(own := getattr(self.sampler, "generator", None), torch.Generator):
                own.manual_seed(torch.initial_seed())
            return check_indices(torch.tensor([*self.sampler], dtype=torch.int64), size)

    def _loading(self) -> dict[str, Any]:
        """Return the options of loaders about worker processes."""
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers,
            "prefetch_factor": self.prefetch_factor,
            "pin_memory": torch.cuda.is_available() if self.pin_memory is None else self.pin_memory,
        }

    def train_indices(self) -> Tensor:
        """Return the ascending indices (N,) of all examples that training uses."""
        return torch.arange(check_integer("size", self.size("train")))

    def divided(self, batches: Sequence[Tensor], rank: int, processes: int) -> Sequence[Tensor]:
        """Return a process's share of the rest of an epoch that was begun with another batch size or number of processes.

        Args:
            batches: indices of each remaining batch in the former division, all processes in turn.
            rank: number of the process.
            processes: number of processes.
        """
        rest = torch.cat([torch.empty(0, dtype=torch.int64), *batches])
        return in_batches(share_of(rest, rank, processes), self.batch_size)

    def train_dataloader(self) -> EpochLoader:
        """Return the training loader, which follows the trainer's epoch, or else continues where the last loop stopped."""
        loader = _TrainLoader(self, *self._process(), self.trainer if runs_fit(self.trainer) else None)
        if loader.trainer is None:
            if self._position is not None:
                loader.load_state_dict(self._position())
            self._position = loader.state_dict
        return loader

    def val_dataloader(self) -> EpochLoader | list[EpochLoader]:
        """Return the loader of the validation split, or an empty list if there is no validation split."""
        return self._in_order("val")

    def test_dataloader(self) -> EpochLoader:
        """Return the loader of the test split."""
        return self._in_order("test")

    def predict_dataloader(self) -> EpochLoader:
        """Return the loader of the test split, for prediction."""
        return self._in_order("test")

    def eval_order(self, split: Split) -> Tensor:
        """Return the order of a split's examples in validation, test or prediction, a permutation."""
        return torch.arange(self.size(split))

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data of loops without a trainer; a trainer's own position is stored elsewhere."""
        return {} if self._position is None else {"train": self._position()}

    def position_example(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return an example of a position in the training data, against which a stored one is checked."""
        return {"epoch": equal_to(epoch), "batch": equal_to(batch), "parts": ListOf(ListOf(COUNT))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved position in the training data, for loops without a trainer."""
        position = state_dict.get("train")
        self._position = None if position is None else lambda: position

    def _rest_of_epoch(self, epoch: int, parts: list[list[int]], rank: int, processes: int) -> Sequence[Tensor]:
        """Return the batches of a process after parts of an epoch, each with its batch size, processes and examples."""
        own = [self.batch_size, processes]
        alike = all(division == own for *division, _ in parts)
        shares: list[Sequence[Tensor]] = []
        before: list[int] = []
        for *division, examples in (*parts, [*own, 0]):
            if division != before:
                left = [batch for turn in zip(*shares, strict=True) for batch in turn]
                module = copy(self)
                module.batch_size, count = division
                ranks = [rank] if alike else range(count)
                if before:
                    shares = [module.divided(left, number, count) for number in ranks]
                else:
                    shares = [batches_of(module, epoch, number, count) for number in ranks]
                before = division
            shares = [_after(share, examples) for share in shares]
        return shares[0 if alike else rank]

    def _in_order(self, split: Split) -> EpochLoader:
        rank, processes = self._process()
        check_integer("size", self.size(split))
        if self.size(split) < (1 if self._may_be_without() else processes):  # raised on all, so that none waits for another
            raise DataError(
                f"Expected at least {processes} examples in the {split} data, one per process, but got {self.size(split)}."
                f" Use --trainer.devices {max(1, self.size(split))}."
            )
        share = check_indices(self.eval_order(split), self.size(split))[rank::processes]
        batches = in_batches(share, self.eval_batch_size) or [share]  # Lightning skips the hooks of an epoch without batches
        loader = EpochLoader(
            lambda epoch: batches,
            lambda epoch, indices: fetched(self, split, 0, indices) if len(indices) else {},
            **self._loading(),
        )
        loader.batch_sampler = index_sampler(batches)
        return loader

    def _has_independent_rows(self) -> bool:
        """Return whether small batches can be fetched together, see ``independent_rows``."""
        kind = next(kind for kind in type(self).__mro__ if "fetch" in vars(kind) or "independent_rows" in vars(kind))
        changed = self.transform is not None or self.augmentation is not None
        return self.independent_rows and "independent_rows" in vars(kind) and not changed

    def _may_be_without(self) -> bool:
        """Return whether a process may be without an example: in validation and test of models that skip an empty batch."""
        trainer: Any = self.trainer
        skips: bool = getattr(getattr(trainer, "lightning_module", None), "skips_empty_batches", False)
        return skips and not trainer.predicting

    def _process(self) -> tuple[int, int]:
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size


class _TrainLoader(EpochLoader):
    """The training loader of a data module. In a fit, its position is the trainer's."""

    def __init__(self, data: ResumableDataModule, rank: int, processes: int, trainer: pl.Trainer | None) -> None:
        count = data.updates_per_batch
        size = len(batches_of(data, 0, rank, processes)[0]) if count > 1 else 0

        def fetch(epoch: int, indices: Tensor) -> Batch:
            batch = fetched(data, "train", epoch, indices)
            return batch if count == 1 else {**batch, "updates": (count, size)}

        self.data, self.rank, self.processes, self.count, self.trainer = data, rank, processes, count, trainer
        self.division = (data.batch_size, processes)
        self.repeats = trainer is not None and bool(trainer.overfit_batches)  # type: ignore[attr-defined]
        super().__init__(
            lambda epoch: self._joined(batches_of(data, self._order(epoch), rank, processes)),
            fetch,
            **data._loading(),
            rows_per_fetch=ROWS_PER_FETCH if data._has_independent_rows() else 0,
        )

    def __iter__(self) -> Iterator[Batch]:
        if not runs_fit(self.trainer):
            return super().__iter__()
        restored, self._restored = self._restored, False  # the trainer makes the first iterator, before any hook
        return self._of_fit(restored)

    def _of_fit(self, restored: bool) -> Iterator[Batch]:
        """Yield the batches of the trainer's epoch, or what is left of it after a restored position."""
        epoch, _ = self.position()
        if restored and epoch == self.epoch:
            batches = self._epoch(epoch).batches[self.batch :]
        elif epoch == self._continued.number:  # read by hand
            batches = self.batch_indices(epoch)
        else:
            batches = self._epoch(epoch).batches
        yield from self._batches(epoch, batches)

    def position(self) -> tuple[int, int]:
        return super().position() if self.trainer is None else fit_position(self.trainer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.trainer is not None and self.batch != state["batch"]:
            move_batches(self.trainer, self.batch - state["batch"])

    def rest(self, epoch: int, batch: int, parts: list[list[int]]) -> Sequence[Tensor]:
        *last, _ = parts[-1]
        if (*last,) != self.division:
            rank_zero_warn(
                f"Epoch {epoch} began with a batch size of {last[0]} on {last[1]} processes, and continues with"
                f" {self.division[0]} on {self.division[1]}: its remaining examples are divided again, and each occurs once."
            )
        return self._joined(self.data._rest_of_epoch(self._order(epoch), parts, self.rank, self.processes))

    def _order(self, epoch: int) -> int:
        """Return the epoch whose order an epoch has: always the first with ``overfit_batches``, which repeats a few batches."""
        return 0 if self.repeats else epoch

    def _joined(self, updates: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the indices of batches that have several updates each."""
        if self.count == 1:
            return updates
        return [torch.cat(list(updates[first : first + self.count])) for first in range(0, len(updates), self.count)]


def _after(batches: Sequence[Tensor], examples: int) -> Sequence[Tensor]:
    """Return the batches after the first ones, which have a given number of examples.

    Raises:
        CheckpointError: if no number of batches has that many.
    """
    ends = [0, *accumulate(len(indices) for indices in batches)]
    if examples not in ends:
        raise CheckpointError(
            f"Expected a position in an epoch of {ends[-1]} examples at the end of a batch but got {examples} examples. Use"
            " the data and the data options of the run, or start a new run from the weights:"
            " --model.init_args.initial_weights CHECKPOINT"
        )
    return batches[ends.index(examples) :]
