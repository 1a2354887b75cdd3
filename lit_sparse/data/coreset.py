"""Data module of a coreset: a few weighted training examples of another data module."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Number, ranges
from lit_sparse.coresets import (
    Coreset,
    CoresetSelector,
    DenseVectors,
    Examples,
    FileVectors,
    Projection,
    SelectionState,
    ShardedVectors,
    Vectors,
    VectorSource,
    select_by_group,
)
from lit_sparse.coresets.coreset import check_sum
from lit_sparse.coresets.projections import entry
from lit_sparse.coresets.selector import squared_distance
from lit_sparse.coresets.vectors import part_of
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.example_source import ExampleSource, source_of, with_weights
from lit_sparse.data.loader import Batch
from lit_sparse.data.splits import Split
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.distributed import rank, world_size
from lit_sparse.lightning.choice import pl, rank_zero_info

__all__ = ["CoresetDataModule"]

STATE = "coreset"
#: Attributes of the wrapped data module that models and callbacks read.
FORWARDED = {
    *("attribute_count", "attributes", "class_names", "classes", "group_names", "labels", "shape", "target_mean", "target_std"),
    *("use_vocabularies", "vectors", "vocabularies"),
}


@ranges(k=Number(0.0, 1e18, open_low=True))
class CoresetDataModule(ResumableDataModule):
    """Data module that trains on a coreset of another data module's training examples.

    The coreset is selected when training begins. Training batches have an additional entry ``weight`` (B,). The mean over
    the coreset of weight times loss estimates the mean loss of all examples, and the package's models weight their losses
    by it. Validation, test, prediction and all other attributes come from the base data module.

    Indices count the examples that the base trains on: with images and ``labelled_only``, the labelled ones. An epoch is
    one pass over the coreset in random batches of the base's size; other rules of the base for its batches, such as sorting
    by length, do not apply. Only the logged training loss is weighted.

    The coreset is part of checkpoints, so a resumed run continues with it. It is also written to ``coreset.npz`` in the run
    folder. Several processes share the work of computing the vectors.

    The base may be any Lightning data module whose training loader is a ``DataLoader`` of an indexable data set. Weights
    are then appended to batches that are tuples or lists.

    Args:
        base: data module to select from.
        selector: selection method.
        k: maximum number of examples; a fraction of them if below 1.
        vectors: a projection, or any function from :class:`lit_sparse.coresets.Examples` to vectors (N, S). Also vectors,
            such as :class:`lit_sparse.coresets.FileVectors`, in the order of the training examples.
        coreset: file of a coreset to train on, instead of a selection.
        normalize: whether to scale the weights to a mean of 1.
        stratify: key of the classes (B,) in a batch; each class is selected separately with its share of k. None selects
            from all examples together.
        stream: whether to recompute vectors whenever the selector reads them, instead of storing the N x S matrix in
            memory.
        seed: seed of the selection and of orders.

    Raises:
        ConfigurationError: unless either a selector with k and vectors, or a coreset is given.

    Example:
        >>> from lit_sparse.coresets import Uniform
        >>> from lit_sparse.data import DigitsDataModule
        >>> pixels = lambda examples: examples[torch.arange(len(examples))]["pixels"]
        >>> data = CoresetDataModule(
        ...     DigitsDataModule(labelled=1.0), Uniform(), 100, pixels
        ... )
        >>> data.setup("fit")
        >>> data.size("train"), sorted(data.fetch("train", 0, torch.arange(4)))
        (100, ['index', 'label', 'pixels', 'weight'])
    """

    def __init__(
        self,
        base: pl.LightningDataModule,
        selector: CoresetSelector | None = None,
        k: float | None = None,
        vectors: VectorSource | Callable[[Examples], Any] | None = None,
        *,
        coreset: str | None = None,
        normalize: bool = False,
        stratify: str | None = None,
        stream: bool = False,
        seed: int = 0,
    ) -> None:
        if any((part is None) == (coreset is None) for part in (selector, k, vectors)):
            raise ConfigurationError(
                "Expected either `selector`, `k` and `vectors`, or `coreset` but got neither or both. Give the three, or the"
                " file of a saved coreset."
            )
        super().__init__(seed=seed)
        if getattr(base, "sampler", None) is not None:
            raise ConfigurationError(
                "Expected a `base` without `sampler`, since a coreset is a sample, but got one. Leave it out."
            )
        self.base = base
        self._selector = selector
        self._k = k
        if k is not None and k >= 1 and k != int(k):
            raise ConfigurationError(f"Expected argument `k` to be a fraction below 1 or a whole number but got {k}. Round it.")
        self._vectors: Any = vectors
        self._file = coreset
        self._normalize = normalize
        self._stratify = stratify
        self._stream = stream
        self._coreset: Coreset | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in FORWARDED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    @property
    def batch_size(self) -> int:
        """Examples per training batch and process, by default the same number as in ``base``."""
        return vars(self).get("_batch_size") or getattr(self.base, "batch_size", None) or self._source.batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        if "base" in vars(self):  # otherwise the default of the base class
            self._batch_size = value

    @property
    def coreset(self) -> Coreset:
        """The coreset, selected at the first access after ``setup``."""
        if self._coreset is None:
            try:
                self._coreset = self._chosen()
            except AttributeError as error:  # otherwise Python would call `__getattr__` and raise its error
                raise RuntimeError(f"The coreset could not be selected: {error}") from error
            rank_zero_info(f"coreset: {self._coreset}; objective {self._coreset.objective:.6g}")
        return self._coreset

    @override
    def prepare_data(self) -> None:
        self.base.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Set up the base data module."""
        self.base.trainer = self.trainer
        self.base.setup(stage)  # type: ignore[arg-type]

    @override
    def teardown(self, stage: str | None = None) -> None:
        self.base.teardown(stage)  # type: ignore[arg-type]

    @override
    def size(self, split: Split) -> int:
        return len(self.coreset) if split == "train" else self.base.size(split)  # type: ignore[attr-defined]

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return the coreset's examples at indices (B,) with their weights as a batch, or a batch of another split."""
        if split != "train":
            return self.base.fetch(split, epoch, indices)  # type: ignore[attr-defined, no-any-return]
        weights = self.coreset.weights
        scale = 1 / float(weights.mean()) if self._normalize else len(weights) / self.coreset.size
        batch = self._source.fetch(epoch, self.coreset.indices[indices])
        return with_weights(batch, (scale * weights[indices]).float())  # type: ignore[no-any-return]

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
        self.num_workers = self._source.num_workers
        self.updates_per_batch = getattr(self.base, "updates_per_batch", 1)
        if len(coreset) < (processes := self._process()[1]):
            raise DataError(
                f"Expected a coreset of at least {processes} examples, one per process, but got {len(coreset)}. Use"
                f" --trainer.devices {len(coreset)}, or a larger k."
            )
        if trainer is not None:
            folder = trainer.log_dir  # read on all processes because it is broadcast
            if folder is not None and trainer.loggers and trainer.is_global_zero:
                coreset.save(Path(folder) / "coreset.npz")
        return super().train_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data, and the coreset, for a checkpoint."""
        state = super().state_dict()
        if self._coreset is not None:
            names = ("indices", "weights", "objective", "trace", "size")
            state[STATE] = {name: getattr(self._coreset, name) for name in names}
        base = self.base.state_dict()
        return {**state, "base": base} if base else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a coreset and the position in the training data from a checkpoint."""
        super().load_state_dict(state_dict)
        if STATE in state_dict:
            self._coreset = Coreset(**state_dict[STATE])
        if "base" in state_dict:
            self.base.load_state_dict(state_dict["base"])

    @override
    def _loading(self) -> dict[str, Any]:
        base: Any = vars(self).get("base")
        return base._loading() if isinstance(base, ResumableDataModule) else super()._loading()

    @override
    def _has_independent_rows(self) -> bool:
        return isinstance(self.base, ResumableDataModule) and self.base._has_independent_rows()

    @cached_property
    def _source(self) -> ExampleSource:
        return source_of(self.base)

    def _chosen(self) -> Coreset:
        return self._checked(Coreset.load(self._file)) if self._file is not None else self.select(*self.candidates())

    @property
    def k(self) -> int:
        """Maximum number of examples of the coreset."""
        if self._k is None:
            raise ConfigurationError(
                f"Expected a selector and k but got the coreset {self._file!r}, which is already selected."
            )
        size = len(self._source)
        k = max(1, round(self._k * size)) if self._k < 1 else int(self._k)
        if k > size:
            raise ConfigurationError(
                f"Expected argument `k` to be at most {size}, the number of training examples, but got {k}. Decrease it."
            )
        return k

    @property
    def smallest(self) -> int:
        """Smallest k that can be selected: the number of classes with ``stratify``, else 1."""
        return 1 if self._stratify is None else len(torch.unique(self._classes(self._stratify)))

    def candidates(self) -> tuple[Vectors, CoresetSelector]:
        """Return the vectors of all training examples, and a selector for them; requires ``setup``.

        Raises:
            ConfigurationError: if the coreset is read from a file, or k is too large.
            DataError: if the number of vectors differs from the number of examples.
        """
        k, size = self.k, len(self._source)
        assert self._selector is not None and self._vectors is not None and k <= size
        selector = self._selector
        if self.trainer is not None and self.trainer.progress_bar_callback is not None:
            selector = copy(selector)
            selector.progress = True
        examples = self._all_examples()
        if isinstance(self._vectors, Projection):
            vectors = self._projected(self._vectors, examples)
            selector = selector.prepared(self._vectors, examples)
        else:
            output = self._vectors if isinstance(self._vectors, Vectors) else self._vectors(examples)
            vectors = output if isinstance(output, Vectors) else DenseVectors(output)
        if vectors.shape[0] != size:
            raise DataError(
                f"Expected a vector for each of the {size} training examples but got {vectors.shape[0]}. Correct `vectors`."
            )
        if isinstance(vectors, FileVectors) and world_size() > 1:
            first, last = (size * part // world_size() for part in (rank(), rank() + 1))
            vectors = ShardedVectors(vectors.part(first, last))
        return vectors, selector

    def select(
        self, vectors: Vectors, selector: CoresetSelector, k: int | None = None, state: SelectionState | None = None
    ) -> Coreset:
        """Return a coreset of the training examples, without storing it in the data module.

        Args:
            vectors: vectors of :meth:`candidates`.
            selector: selector of :meth:`candidates`.
            k: maximum number of examples; by default the data module's k.
            state: file from which an interrupted selection continues.

        Raises:
            DataError: if the coreset is empty, or an example has no class.
        """
        k = self.k if k is None else k
        generator = torch.Generator().manual_seed(self.seed)
        if self._stratify is None:
            coreset: Coreset = selector(vectors, k, generator, state).to("cpu")
        else:
            classes = self._classes(self._stratify)
            coreset = select_by_group(selector, vectors, k, classes, generator, state).to("cpu")
        if not len(coreset):
            raise DataError(
                "Expected vectors with a nonzero sum but got the sum 0, for which the best coreset is empty. Use other vectors."
            )
        if self.trainer is None:
            return coreset
        # Random vectors may differ between processes, so all use the selection of the first.
        return self.trainer.strategy.broadcast(coreset)

    def objective(self, vectors: Vectors, coreset: Coreset) -> float:
        """Return the objective of a coreset of the training examples, from its indices and weights.

        Args:
            vectors: vectors of :meth:`candidates`.
            coreset: the coreset.
        """
        if self._stratify is None:
            return squared_distance(vectors, coreset.indices.to(vectors.device), coreset.weights.to(vectors.device))
        classes, found = self._classes(self._stratify), 0.0
        for name in torch.unique(classes):
            members, own = (classes == name).nonzero().squeeze(-1), classes[coreset.indices] == name
            places = torch.searchsorted(members, coreset.indices[own]).to(vectors.device)
            part = part_of(vectors, members.to(vectors.device))
            found += squared_distance(part, places, coreset.weights[own].to(vectors.device))
        return found

    def _classes(self, key: str) -> Tensor:
        """Return the classes (N,) of all training examples."""
        classes = torch.cat([entry(batch, key) for batch in self._all_examples().batches(1024)])
        if bool((classes < 0).any()):
            raise DataError(
                f"Expected a class for each example with `stratify` but got {int((classes < 0).sum())} unlabelled examples."
                " With images, set `labelled: 1.0` to use all labels."
            )
        return classes

    def _all_examples(self) -> Examples:
        return Examples(lambda indices: self._source.fetch(0, indices), len(self._source))

    def _projected(self, projection: Projection, examples: Examples) -> Vectors:
        """Return the vectors of all examples; each process makes a share of them."""
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
                f"Expected {coreset.size} training examples, from which the coreset was selected, but got {len(self._source)}."
                " Use the data of the coreset, or select another coreset."
            )
        check_sum(coreset.weights)
        return coreset
