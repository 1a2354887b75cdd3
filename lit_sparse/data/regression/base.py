"""Base of data modules for regression: features, an intercept and a target."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Count, Number, ranges
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.loader import Batch
from lit_sparse.data.regression.radial_bases import RadialBases
from lit_sparse.data.splits import Rows, Split, Splits, check_finite, held_out, loaded, shuffled
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["Affine", "RegressionDataModule", "Table"]

Divided = TypeVar("Divided", Tensor, "Table")


@dataclass(frozen=True)
class Table(Rows):
    """Rows of a regression table: features, targets and optional groups.

    Attributes:
        features: (N, D) float32, or float64 before preprocessing.
        target: (N,) float32, or float64 before preprocessing.
        groups: (N,) int64 groups, numbered from 0; None without groups.
    """

    features: Tensor
    target: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or not self.features.shape[1] or self.target.shape != self.features.shape[:1]:
            raise DataError(
                f"Expected features (N, D), D at least 1, and targets (N,) but got {tuple(self.features.shape)} and"
                f" {tuple(self.target.shape)}. Reshape them."
            )
        if self.groups is not None and self.groups.shape != self.target.shape:
            raise DataError(
                f"Expected a group for each of {len(self.target)} rows but got {tuple(self.groups.shape)}. Give one per row."
            )
        check_finite("features", self.features)
        check_finite("target", self.target)


@ranges(train_size=Count(), val_size=Number(0.0, 1e12, open_low=True), test_size=Number(0.0, 1e12, open_low=True))
class RegressionDataModule(ResumableDataModule):
    """Base class of regression data modules; a subclass implements :meth:`load`.

    Batches are dicts of ``features`` (B, D) float32, ``target`` (B,) float32 and ``index`` (B,) within the split, and of
    ``group`` (B,) int64 for a table with groups. With an intercept the last feature is 1. All statistics for preprocessing
    come from the training rows.

    Args:
        whiten: whether to rotate and scale the features so that their covariance over the training rows is the identity.
        standardize: whether to shift and scale features to mean 0 and standard deviation 1 over the training rows; constant
            features become 0.
        bases: radial basis functions that replace the features; None to keep the features.
        intercept: whether to append a feature equal to 1.
        train_size: number of training rows, the first in random order; None for all.
        val_size: rows held out for validation: a fraction if below 1, else a number.
        test_size: rows held out for the test: a fraction if below 1, else a number.
        standardize_target: whether to shift and scale targets to mean 0 and standard deviation 1 over the training rows;
            ``target_mean`` and ``target_std`` invert this after ``setup``.
        use_all: whether to train on all rows in the file's order; splits that the file does not define reuse them.
        eval_batch_size: rows per batch in validation, test and prediction.
        options: other batch size, workers and seed; see :class:`~lit_sparse.data.ResumableDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range, or two arguments that exclude each other.
    """

    has_folds = True
    independent_rows = True

    def __init__(
        self,
        *,
        whiten: bool = False,
        standardize: bool = False,
        bases: RadialBases | None = None,
        intercept: bool = True,
        train_size: int | None = None,
        val_size: float = 0.1,
        test_size: float = 0.1,
        use_all: bool = False,
        standardize_target: bool = False,
        eval_batch_size: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, **options)
        if whiten and standardize:
            raise ConfigurationError(
                "Expected either `whiten` or `standardize` but got both. Leave out `standardize`: whitened features already"
                " have mean 0 and standard deviation 1."
            )
        if use_all and train_size is not None:
            raise ConfigurationError(
                f"Expected no `train_size` with `use_all`, which trains on all rows, but got {train_size}. Leave one out."
            )
        self.whiten, self.standardize, self.bases, self.intercept = whiten, standardize, bases, intercept
        self.train_size, self.val_size, self.test_size = train_size, val_size, test_size
        self.use_all, self.standardize_target = use_all, standardize_target
        self.target_mean, self.target_std = 0.0, 1.0
        self._tables: dict[Split, Table] = Splits()
        self._changes: list[Callable[[Tensor], Tensor]] = []

    @abstractmethod
    def load(self) -> dict[Split, Table]:
        """Return the rows of the training split, and of validation and test if the data set separates them."""

    def setup(self, stage: str | None = None) -> None:
        """Read the rows, split them, and prepare the features."""
        if self._tables:
            return
        tables = self._split(loaded(self, Table))
        if self.standardize_target:
            target = tables["train"].target.double()
            constant = bool((target == target[0]).all())
            self._fit_target(float(target.mean()), float(target.std(correction=0)), len(target), constant=constant)
        self._fit_features(tables["train"].features.double())
        self._tables = {split: self._made(tables.pop(split)) for split in [*tables]}  # each is released when it is made

    def _made(self, table: Table) -> Table:
        """Return rows (N, D) as they were read with the features (N, F) and targets that batches have."""
        return replace(table, features=self._features_of(table.features.double()), target=self._target_of(table.target))

    def _fit_features(self, x: Tensor) -> None:
        """Compute from the training rows (N, D) how features are made."""
        self._changes = []
        if self.whiten:
            self._changes.append(Affine(*_whitening(x)))
        if self.standardize:
            self._changes.append(Affine(*_spread(x)))
        if self.bases is not None:
            for change in self._changes:
                x = change(x)
            centres = self.bases.centres(x, torch.Generator().manual_seed(self.seed))
            self._changes.append(partial(self.bases, centres=centres))

    def _features_of(self, x: Tensor) -> Tensor:
        """Return the features (N, F) float32 of rows (N, D) float64."""
        for change in self._changes:
            x = change(x)
        return (torch.cat([x, torch.ones(len(x), 1).to(x)], 1) if self.intercept else x).float()

    @override
    def size(self, split: Split) -> int:
        return len(self._tables[split])

    @override
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        table = self._tables[split]
        columns = {"features": table.features, "target": table.target, "group": table.groups}
        rows = {name: column.index_select(0, indices) for name, column in columns.items() if column is not None}
        return {**rows, "index": indices}

    def _fit_target(self, mean: float, std: float, count: int, *, constant: bool) -> None:
        """Set the mean and deviation of the training targets."""
        if constant:
            raise DataError(
                f"Expected different training targets with `standardize_target` but got {mean:g} for all {count}. Leave it out."
            )
        self.target_mean, self.target_std = mean, std

    def _target_of(self, target: Tensor) -> Tensor:
        """Return the targets (N,) float32, standardized if they are to be."""
        return ((target.double() - self.target_mean) / self.target_std if self.standardize_target else target).float()

    def _split(self, tables: dict[Split, Table]) -> dict[Split, Table]:
        """Hold out the missing splits, and limit the training rows to ``train_size``."""
        if self.use_all and self.fold is not None:
            raise ConfigurationError("Expected no `fold` with `use_all`, which trains on all rows. Leave one out.")
        if self.use_all:
            return {"val": tables["train"], "test": tables["train"], **tables}
        rows = tables["train"][shuffled(len(tables["train"]), self.seed)]
        return self.folded({**tables, **self._divided(rows, [*tables])})

    def _divided(self, rows: Divided, known: Collection[Split] = ()) -> dict[Split, Divided]:
        """Return the first ``train_size`` rows for training, after the rows held out for splits that are not known."""
        size, splits = len(rows), dict[Split, Divided]()
        for split, part in (("test", self.test_size), ("val", self.val_size)):
            if split not in known:
                count = held_out(f"{split}_size", part, size, len(rows))
                splits[split], rows = rows[:count], rows[count:]  # type: ignore[index]
        if self.train_size is not None and self.train_size > len(rows):
            raise ConfigurationError(f"Expected `train_size` in 1 .. {len(rows)} but got {self.train_size}. Change it.")
        return splits | {"train": rows[: self.train_size]}


@dataclass(frozen=True)
class Affine:
    """Affine map of rows x (N, D): ``(x - mean) / scale`` for a scale (D,), ``(x - mean) @ scale`` for a matrix (D, D)."""

    mean: Tensor
    scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mapped rows."""
        return (x - self.mean) @ self.scale if self.scale.ndim == 2 else (x - self.mean) / self.scale


def _whitening(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of rows (N, D), and a matrix that whitens them."""
    mean = x.mean(0)
    covariance = torch.cov((x - mean).mT).reshape(x.shape[1], x.shape[1])
    if not bool(covariance.isfinite().all()):
        raise DataError("Expected features with a finite covariance for `whiten` but got too large ones. Rescale them.")
    values, turns = torch.linalg.eigh(covariance)
    least = 1e-10 * values[-1].clamp_min(1e-300)
    return mean, (turns * torch.where(values > least, values, torch.inf).rsqrt()) @ turns.mT


def _spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) and the standard deviation (D,) of rows (N, D), infinite for constant columns."""
    alike = x.amax(0) == x.amin(0)  # their computed standard deviation may not be exactly 0
    return x.mean(0), torch.where(alike, torch.inf, x.std(0, correction=0))
