"""Trains on a coreset of any data module: a few of its training examples, each with a weight."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lit_sparse.checks import check_number
from lit_sparse.coresets import (
    Coreset,
    CoresetSelector,
    DenseVectors,
    Examples,
    Projection,
    ShardedVectors,
    Vectors,
    select_by_group,
)
from lit_sparse.coresets.projections import entry
from lit_sparse.data.base import ResumableDataModule, Split
from lit_sparse.data.loader import Batch
from lit_sparse.distributed import rank, world_size
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["CoresetDataModule"]

STATE = "coreset"
#: Attributes of the wrapped data module that models and callbacks read.
FORWARDED = frozenset(
    {
        "attribute_count",
        "attributes",
        "class_names",
        "classes",
        "labels",
        "shape",
        "target_mean",
        "target_std",
        "use_vocabularies",
        "vectors",
        "vocabularies",
    }
)


class CoresetDataModule(ResumableDataModule):
    """Selects a coreset of the training examples of another data module when training begins, and trains on it.

    Batches are the other's, with ``weight`` (B,) beside what they hold: how many examples each stands for, in units in which
    the mean over the coreset of weight times loss is the coreset's estimate of the mean loss of all examples. The package's
    models weigh their losses by it. Validation, test and prediction, and everything else that is asked of the data, are the
    other's.

    Indices count the examples that the other trains on: with images and ``labelled_only``, those whose label is told. An epoch
    goes once through the coreset, in batches of the other's size at random; how else the other makes up batches and epochs,
    such as by length or of two kinds, does not count. The logged training loss is weighted, other numbers are not.

    The coreset is part of checkpoints: a resumed run goes on with it. It is written to ``coreset.npz`` in the run folder. Of
    several processes each makes the vectors of its share of the examples.

    A data module that is none of this package's serves too, if its training loader is a ``DataLoader`` of a data set with
    indices; weights then follow the entries of batches that are tuples or lists.

    Args:
        base: the other data module.
        selector: what selects.
        k: how many examples at most; a share of them if below 1, so that 1 is one example.
        vectors: gives the examples their vectors: a projection, or any function from :class:`lit_sparse.coresets.Examples`
            to vectors (N, S).
        coreset: the file of a coreset to train on, in place of selecting one.
        normalize: scale the weights to a mean of 1.
        stratify: key of the classes (B,) in a batch: each of them keeps its share of k, and is selected for itself; None for
            no such shares.
        stream: make vectors anew whenever the selector looks at them, in place of keeping N x S numbers.
        seed: of the selection and of orders.

    Raises:
        ConfigurationError: if neither a selector with k and vectors is given, nor a coreset, or both are.

    Example:
        >>> from lit_sparse.coresets import Uniform
        >>> from lit_sparse.data import DigitsDataModule
        >>> pixels = lambda examples: examples[torch.arange(len(examples))]["pixels"]
        >>> data = CoresetDataModule(DigitsDataModule(labelled=1.0), Uniform(), 100, pixels)
        >>> data.setup("fit")
        >>> data.size("train"), sorted(data.fetch("train", 0, torch.arange(4)))
        (100, ['index', 'label', 'pixels', 'weight'])
    """

    def __init__(
        self,
        base: pl.LightningDataModule,
        selector: CoresetSelector | None = None,
        k: float | None = None,
        vectors: Projection | Callable[[Examples], Tensor | Vectors] | None = None,
        *,
        coreset: str | None = None,
        normalize: bool = False,
        stratify: str | None = None,
        stream: bool = False,
        seed: int = 0,
    ) -> None:
        chosen = [part is not None for part in (selector, k, vectors)]
        if all(chosen) == (coreset is not None) or (any(chosen) and not all(chosen)) or (any(chosen) and coreset is not None):
            raise ConfigurationError("Expected either `selector`, `k` and `vectors`, or `coreset`, the file of a saved one.")
        super().__init__(seed=seed)
        self.base = base
        self._selector = selector
        self._k = None if k is None else check_number("k", k, 0.0, 1e18, open_low=True)
        if k is not None and k >= 1 and k != int(k):
            raise ConfigurationError(f"Expected argument `k` to be a share below 1 or a whole number but got {k}.")
        self._vectors = vectors
        self._file = coreset
        self._normalize = normalize
        self._stratify = stratify
        self._stream = stream
        self._coreset: Coreset | None = None
        self._examples: _Source | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in FORWARDED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    @property
    def coreset(self) -> Coreset:
        """The coreset, which is selected when it is first asked for, once ``setup`` has run."""
        if self._coreset is None:
            try:
                self._coreset = self._chosen()
            except AttributeError as error:  # as it is, Python would ask `__getattr__` and tell its error
                raise RuntimeError(f"The coreset could not be selected: {error}") from error
            rank_zero_info(f"coreset: {self._coreset}; objective {self._coreset.objective:.6g}")
        return self._coreset

    @override
    def prepare_data(self) -> None:
        self.base.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Set up the other data module."""
        self.base.trainer = self.trainer
        self.base.setup(stage)  # type: ignore[arg-type]

    @override
    def teardown(self, stage: str | None = None) -> None:
        self.base.teardown(stage)  # type: ignore[arg-type]

    @override
    def size(self, split: Split) -> int:
        if split == "train":
            return len(self.coreset)
        size: int = self.base.size(split)  # type: ignore[attr-defined]
        return size

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch of the coreset's examples, with their weights, or one of another split."""
        if split != "train":
            other: Batch = self.base.fetch(split, epoch, indices)  # type: ignore[attr-defined]
            return other
        weights = self.coreset.weights
        scale = 1 / float(weights.mean()) if self._normalize else len(weights) / self.coreset.size
        batch: Batch = _with_weights(
            self._source.fetch(epoch, self.coreset.indices[indices]), (scale * weights[indices]).float()
        )
        return batch

    @override
    def val_dataloader(self) -> Any:
        return self.base.val_dataloader()

    @override
    def test_dataloader(self) -> Any:
        return self.base.test_dataloader()

    @override
    def predict_dataloader(self) -> Any:
        return self.base.predict_dataloader()

    @override
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.base.on_before_batch_transfer(batch, dataloader_idx)

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return self.base.on_after_batch_transfer(batch, dataloader_idx)

    def train_dataloader(self) -> Any:
        """Return the training loader, and write the coreset to the run folder."""
        coreset, trainer = self._checked(self.coreset), self.trainer
        self.batch_size, self.num_workers = self._source.batch_size, self._source.num_workers
        if len(coreset) < (processes := self._process()[1]):
            raise DataError(
                f"The coreset has {len(coreset)} examples for {processes} processes, each of which needs one. Use"
                f" --trainer.devices {len(coreset)}, or a larger k."
            )
        if trainer is not None:
            folder = trainer.log_dir  # asked for on all processes
            if folder is not None and trainer.loggers and trainer.is_global_zero:
                coreset.save(Path(folder) / "coreset.npz")
        return super().train_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the training data, and the coreset."""
        state = super().state_dict()
        if self._coreset is not None:
            its = self._coreset
            state[STATE] = {
                "indices": its.indices,
                "weights": its.weights,
                "objective": its.objective,
                "trace": its.trace,
                "size": its.size,
            }
        base = self.base.state_dict()
        return {**state, "base": base} if base else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with a saved coreset, at a saved place."""
        super().load_state_dict(state_dict)
        if STATE in state_dict:
            self._coreset = Coreset(**state_dict[STATE])
        if "base" in state_dict:
            self.base.load_state_dict(state_dict["base"])

    @property
    def _source(self) -> _Source:
        if self._examples is None:
            resumable = isinstance(self.base, ResumableDataModule)
            self._examples = _Resumable(self.base) if resumable else _OfLoader(self.base)  # type: ignore[arg-type]
        return self._examples

    def _chosen(self) -> Coreset:
        size = len(self._source)
        if self._file is not None:
            return self._checked(Coreset.load(self._file))
        assert self._selector is not None and self._k is not None and self._vectors is not None
        selector = self._selector
        if self.trainer is not None and self.trainer.progress_bar_callback is not None:
            selector = copy(selector)
            selector.progress = True
        k = max(1, round(self._k * size)) if self._k < 1 else int(self._k)
        if k > size:
            raise ConfigurationError(
                f"Expected argument `k` to be at most {size}, the number of training examples, but got {k}."
            )
        examples = Examples(lambda indices: self._source.fetch(0, indices), size)
        if isinstance(self._vectors, Projection):
            vectors = self._projected(self._vectors, examples)
            selector = selector.prepared(self._vectors, examples)
        else:
            found = self._vectors(examples)
            vectors = found if isinstance(found, Vectors) else DenseVectors(found)
        if vectors.shape[0] != size:
            raise DataError(f"Expected a vector for each of the {size} training examples but got {vectors.shape[0]}.")
        generator = torch.Generator().manual_seed(self.seed)
        if self._stratify is None:
            coreset: Coreset = selector(vectors, k, generator).to("cpu")
        else:
            classes = torch.cat([entry(batch, self._stratify) for batch in examples.batches(1024)])
            if bool((classes < 0).any()):
                raise DataError(
                    f"Expected a class of each example with `stratify` but {int((classes < 0).sum())} have none. With images,"
                    " `labelled: 1.0` tells all labels."
                )
            coreset = select_by_group(selector, vectors, k, classes, generator).to("cpu")
        if not len(coreset):
            raise DataError("The selected coreset is empty: the vectors' sum is zero, so no examples stand for it. Use others.")
        if self.trainer is None:
            return coreset
        # Should vectors be drawn, and not alike, those of the first process count.
        first: Coreset = self.trainer.strategy.broadcast(coreset)
        return first

    def _projected(self, projection: Projection, examples: Examples) -> Vectors:
        """Return the vectors of all examples, of which each process makes a share."""
        projection.fit(examples)
        first, last = (len(examples) * part // world_size() for part in (rank(), rank() + 1))
        share = examples.part(first, last)
        device = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        device = device if device.type == "cuda" else torch.device("cpu")
        vectors: Vectors = (
            projection.streamed(share, device) if self._stream else DenseVectors(projection.of_part(share).to(device))
        )
        return ShardedVectors(vectors) if world_size() > 1 else vectors

    def _checked(self, coreset: Coreset) -> Coreset:
        if coreset.size != len(self._source):
            raise DataError(
                f"The coreset was chosen from {coreset.size} examples, but there are {len(self._source)} for training."
                " Give it the data that it is of, or select another one."
            )
        return coreset


class _Source(Protocol):
    """The training examples of a data module."""

    batch_size: int
    num_workers: int

    def __len__(self) -> int: ...

    def fetch(self, epoch: int, indices: Tensor) -> Any: ...


class _Resumable:
    def __init__(self, base: ResumableDataModule) -> None:
        self.base, self.indices = base, base.train_indices()
        self.batch_size, self.num_workers = base.batch_size, base.num_workers

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, epoch: int, indices: Tensor) -> Any:
        return self.base.fetch("train", epoch, self.indices[indices])


class _OfLoader:
    """The examples of the data set behind a ``DataLoader``."""

    def __init__(self, base: pl.LightningDataModule) -> None:
        loader = base.train_dataloader()
        if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__getitem__"):
            raise ConfigurationError(
                f"Expected the training loader of {type(base).__name__} to be a DataLoader of a data set with indices but got"
                f" {type(loader).__name__}. Derive it from lit_sparse.data.ResumableDataModule."
            )
        self.loader = loader
        self.batch_size, self.num_workers = loader.batch_size or 1, loader.num_workers

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]

    def fetch(self, epoch: int, indices: Tensor) -> Any:
        return self.loader.collate_fn([self.loader.dataset[i] for i in indices.tolist()])


def _with_weights(batch: Any, weights: Tensor) -> Any:
    if isinstance(batch, dict):
        return {**batch, "weight": weights}
    return (*batch, weights) if isinstance(batch, list | tuple) else (batch, weights)
