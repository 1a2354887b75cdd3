"""Data of regression: features, an intercept and a target, drawn from a model or read from a table."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import MOST_EXAMPLES, check_choice, check_count, check_number
from lit_sparse.data.base import ResumableDataModule, Split, shuffled
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import open_arrays
from lit_sparse.data.readers.sizes import check_dense
from lit_sparse.data.readers.text_files import ending_of, open_bytes
from lit_sparse.data.regression.radial_bases import RadialBases
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["RegressionDataModule", "SyntheticRegressionDataModule", "Table", "TableDataModule"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
#: What readers raise for files that hold something else, or no more than a part.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
FAMILIES = ("normal", "logistic", "poisson")


@dataclass(frozen=True)
class Table:
    """Some rows.

    Attributes:
        features: (N, D) float32, or float64 before they are prepared.
        target: (N,) float32.
    """

    features: Tensor
    target: Tensor

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.target.shape != self.features.shape[:1]:
            raise DataError(
                f"Expected features (N, D) and targets (N,) but got {tuple(self.features.shape)} and"
                f" {tuple(self.target.shape)}."
            )
        for name, values in (("features", self.features), ("target", self.target)):
            broken = sorted({row for row, *_ in (~values.isfinite()).nonzero().tolist()})
            if broken:
                raise DataError(f"Row {broken[0]} has {name} that are missing or infinite ({len(broken)} rows have).")

    def __getitem__(self, which: Tensor | slice) -> Table:
        return Table(self.features[which], self.target[which])

    def __len__(self) -> int:
        return len(self.target)


class RegressionDataModule(ResumableDataModule):
    """Base of regression data modules: a subclass reads the rows, :meth:`load`.

    Batches are dicts of ``features`` (B, D) float32, ``target`` (B,) float32 and ``index`` (B,), the place in its split. With
    an intercept the last feature is 1. Everything that is estimated for the features is estimated from the training rows.

    Args:
        whiten: turn and scale the features so that those of the training rows have the identity as their covariance.
        standardize: shift and scale features to mean 0 and standard deviation 1 over the training rows; constant ones become 0.
        bases: in place of the features, radial bases of them; None for the features themselves.
        intercept: add a feature that is 1.
        train_size: training rows, the first in random order; None for all that are there.
        val_size: rows held out for validation: a share of all if below 1.
        test_size: rows held out for the test: a share of all if below 1.
        standardize_target: shift and scale targets to mean 0 and standard deviation 1 over the training rows; ``target_mean``
            and ``target_std`` turn them back, once ``setup`` has run.
        whole: hold nothing out: all rows train, in the order in which they are read, and are the splits that are not apart.
        batch_size: rows in a training batch of one process.
        eval_batch_size: rows in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of what is drawn, splits and orders.

    Raises:
        ConfigurationError: for an argument outside its range, or for two that exclude each other.
    """

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
        whole: bool = False,
        standardize_target: bool = False,
        batch_size: int = 64,
        eval_batch_size: int = 1024,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, num_workers=num_workers, seed=seed)
        if whiten and standardize:
            raise ConfigurationError(
                "Expected either `whiten` or `standardize` but got both: whitened features have mean 0 and standard deviation 1"
                " already. Leave out `standardize`."
            )
        if whole and train_size is not None:
            raise ConfigurationError(
                f"Expected no `train_size` with `whole`, which trains on all rows, but got {train_size}. Leave out one of them."
            )
        self.whiten = whiten
        self.standardize = standardize
        self.bases = bases
        self.intercept = intercept
        self.train_size = None if train_size is None else check_count("train_size", train_size)
        self.val_size = check_number("val_size", val_size, 0.0, 1e12, open_low=True)
        self.test_size = check_number("test_size", test_size, 0.0, 1e12, open_low=True)
        self.whole = whole
        self.standardize_target = standardize_target
        self.target_mean, self.target_std = 0.0, 1.0
        self._tables: dict[Split, Table] = {}

    @abstractmethod
    def load(self) -> dict[Split, Table]:
        """Read the rows: those of ``train``, and of ``val`` and ``test`` where they are apart from these."""

    def setup(self, stage: str | None = None) -> None:
        """Read the rows, split them, and prepare the features."""
        if self._tables:
            return
        tables = self._split(self.load())
        if self.standardize_target:
            tables = self._with_standard_targets(tables)
        inputs = {split: table.features.double() for split, table in tables.items()}
        if self.whiten:
            mean, turn = _whitening(inputs["train"])
            inputs = {split: (x - mean) @ turn for split, x in inputs.items()}
        if self.standardize:
            mean, spread = _spread(inputs["train"])
            inputs = {split: (x - mean) / spread for split, x in inputs.items()}
        if self.bases is not None:
            centres = self.bases.centres(inputs["train"], torch.Generator().manual_seed(self.seed))
            inputs = {split: self.bases(x, centres) for split, x in inputs.items()}
        if self.intercept:
            inputs = {split: torch.cat([x, torch.ones(len(x), 1).to(x)], 1) for split, x in inputs.items()}
        self._tables = {split: Table(x.float(), tables[split].target) for split, x in inputs.items()}

    @override
    def size(self, split: Split) -> int:
        return len(self._tables[split])

    @override
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        rows = self._tables[split][indices]
        return {"features": rows.features, "target": rows.target, "index": indices}

    def _with_standard_targets(self, tables: dict[Split, Table]) -> dict[Split, Table]:
        target = tables["train"].target.double()
        self.target_mean, self.target_std = float(target.mean()), float(target.std(correction=0))
        if bool((target == target[0]).all()):
            raise DataError(
                f"Expected training targets that differ with `standardize_target` but all {len(target)} are {target[0]:g}."
            )
        standard = {split: (table.target.double() - self.target_mean) / self.target_std for split, table in tables.items()}
        return {split: Table(table.features, standard[split].float()) for split, table in tables.items()}

    def _split(self, tables: dict[Split, Table]) -> dict[Split, Table]:
        """Hold out what is not apart yet, and leave out what is too much for training."""
        if self.whole:
            return {"val": tables["train"], "test": tables["train"], **tables}
        order = shuffled(len(tables["train"]), self.seed)
        rest = tables["train"][order]
        found: dict[Split, Table] = dict(tables)
        for split, size in (("test", self.test_size), ("val", self.val_size)):
            if split not in tables:
                held = round(size * len(order)) if size < 1 else int(size)
                if not 0 < held < len(rest):
                    raise ConfigurationError(
                        f"Expected `{split}_size` to hold out 1 .. {len(rest) - 1} of the rows but {size} is {held}."
                    )
                found[split], rest = rest[:held], rest[held:]  # type: ignore[index]
        if self.train_size is not None and self.train_size > len(rest):
            raise ConfigurationError(f"Expected `train_size` in 1 .. {len(rest)} but got {self.train_size}.")
        found["train"] = rest[: self.train_size]
        return found


class SyntheticRegressionDataModule(RegressionDataModule):
    """Rows drawn from a model: standard normal features, and targets whose predictor is their product with coefficients.

    Args:
        family: of the targets: ``"normal"`` of variance ``noise``, ``"logistic"`` of the classes 0 and 1, or ``"poisson"`` of
            rate ``ln(1 + e^eta)``.
        size: rows for training, validation and test together.
        coefficients: one for each feature, and one for the intercept if there is one.
        noise: variance of normal targets.
        whiten: turn and scale the features so that those of the training rows have the identity as their covariance.
        standardize: shift and scale features to mean 0 and standard deviation 1 over the training rows; constant ones become 0.
        intercept: add a feature that is 1.
        val_size: rows held out for validation: a share of all if below 1.
        test_size: rows held out for the test: a share of all if below 1.
        batch_size: rows in a training batch of one process.
        eval_batch_size: rows in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of rows, splits and orders.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: the logistic data of Zhang et al. (2021) have the coefficients 3, 3 and 0.
    """

    def __init__(
        self,
        family: Literal["normal", "logistic", "poisson"] = "logistic",
        *,
        size: int = 9000,
        coefficients: tuple[float, ...] = (3.0, 3.0, 0.0),
        noise: float = 1.0,
        whiten: bool = False,
        standardize: bool = False,
        intercept: bool = True,
        val_size: float = 0.1,
        test_size: float = 0.1,
        batch_size: int = 64,
        eval_batch_size: int = 1024,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            whiten=whiten,
            standardize=standardize,
            intercept=intercept,
            val_size=val_size,
            test_size=test_size,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        self.family = check_choice("family", family, FAMILIES)
        self.rows = check_count("size", size, 3, MOST_EXAMPLES)
        self.coefficients = tuple(float(value) for value in coefficients)
        if len(self.coefficients) <= int(intercept):
            raise ConfigurationError("Expected argument `coefficients` to have one for each feature, but there is no feature.")
        self.noise = check_number("noise", noise, 0.0, 1e12)

    def load(self) -> dict[Split, Table]:
        """Draw the rows."""
        generator = torch.Generator().manual_seed(self.seed)
        theta = torch.tensor(self.coefficients)
        features = torch.randn(self.rows, len(theta) - int(self.intercept), generator=generator)
        eta = features @ theta[: features.shape[1]] + (theta[-1] if self.intercept else 0.0)
        if self.family == "normal":
            target = eta + self.noise**0.5 * torch.randn(self.rows, generator=generator)
        elif self.family == "logistic":
            target = torch.bernoulli(eta.sigmoid(), generator=generator)
        else:
            target = torch.poisson(torch.nn.functional.softplus(eta), generator=generator)
        return {"train": Table(features, target)}


class TableDataModule(RegressionDataModule):
    """Rows of a file of your own.

    A ``.npz`` file holds the arrays that ``features`` and ``target`` name; its arrays ``{features}t`` and ``{target}t``, if
    there are such, are the test rows. In a ``.csv`` file the arguments name columns, ``features`` several of them parted by
    commas; it may be packed by gzip or bzip2. Any other file is read as LIBSVM's sparse rows, which have no names.

    Args:
        path: of the file.
        features: name of the array (N, D), or names of columns parted by commas.
        target: name of the array (N,), or of the column.
        log_target: take the logarithm of the targets.
        standardize_target: shift and scale targets, after the logarithm, to mean 0 and standard deviation 1 over the training
            rows; ``target_mean`` and ``target_std`` turn them back.
        drop_last: leave out the last feature, where it is an intercept already.
        whiten: turn and scale the features so that those of the training rows have the identity as their covariance.
        standardize: shift and scale features to mean 0 and standard deviation 1 over the training rows; constant ones become 0.
        bases: in place of the features, radial bases of them; None for the features themselves.
        intercept: add a feature that is 1.
        train_size: training rows, the first in random order; None for all that are there.
        val_size: rows held out for validation: a share of all if below 1.
        test_size: rows held out for the test, unless the file has some: a share of all if below 1.
        batch_size: rows in a training batch of one process.
        eval_batch_size: rows in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of splits and orders.

    Raises:
        ConfigurationError: for an argument outside its range.
        DataError: if the file cannot be read, or has not what is asked for.
    """

    def __init__(
        self,
        path: str,
        *,
        features: str = "X",
        target: str = "y",
        log_target: bool = False,
        standardize_target: bool = False,
        drop_last: bool = False,
        whiten: bool = False,
        standardize: bool = False,
        bases: RadialBases | None = None,
        intercept: bool = True,
        train_size: int | None = None,
        val_size: float = 0.1,
        test_size: float = 0.1,
        batch_size: int = 64,
        eval_batch_size: int = 1024,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            whiten=whiten,
            standardize=standardize,
            bases=bases,
            intercept=intercept,
            standardize_target=standardize_target,
            train_size=train_size,
            val_size=val_size,
            test_size=test_size,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        self.path = path
        self.features = features
        self.target = target
        self.log_target = log_target
        self.drop_last = drop_last

    def load(self) -> dict[Split, Table]:
        """Read the file."""
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise DataError(f"The file {str(path)!r} does not exist.")
        ending = ending_of(path)
        readers = {".npz": self._from_npz, ".csv": self._from_csv}
        try:
            arrays = readers.get(ending, self._from_libsvm)(path)
            tables = {split: self._table(x, y) for split, (x, y) in arrays.items()}
        except DataError:
            raise
        except UNREADABLE as error:
            kind = ending if ending in readers else "LIBSVM"
            raise DataError(f"{str(path)!r} cannot be read as {kind} data: {error}") from error
        if not len(tables["train"]):
            raise DataError(f"{str(path)!r} holds no rows.")
        widths = {split: table.features.shape[1] for split, table in tables.items()}
        if len(set(widths.values())) > 1:
            raise DataError(f"Expected as many features in all rows of {str(path)!r} but got {widths}.")
        return tables

    def _table(self, features: np.ndarray, target: np.ndarray) -> Table:
        x = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float64))
        y = torch.from_numpy(np.ascontiguousarray(target, dtype=np.float64))
        if self.log_target:
            if not bool((y > 0).all()):
                raise DataError("Expected positive targets with `log_target` but some of them are not.")
            y = y.log()
        return Table(x[:, :-1] if self.drop_last and x.ndim == 2 else x, y.float())

    def _from_npz(self, path: Path) -> dict[Split, tuple[np.ndarray, np.ndarray]]:
        with open_arrays(path) as arrays:
            found: dict[Split, tuple[np.ndarray, np.ndarray]] = {"train": (arrays[self.features], arrays[self.target])}
            if f"{self.features}t" in arrays and f"{self.target}t" in arrays:
                found["test"] = (arrays[f"{self.features}t"], arrays[f"{self.target}t"])
        return found

    def _from_csv(self, path: Path) -> dict[Split, tuple[np.ndarray, np.ndarray]]:
        from lit_sparse.data.readers.tables import from_tables

        names = [name.strip() for name in self.features.split(",")]
        columns = from_tables([path], {name: name for name in [*names, self.target]}, optional=())
        x = np.array([columns[name] for name in names], dtype=np.float64).T
        return {"train": (x, np.array(columns[self.target], dtype=np.float64))}

    def _from_libsvm(self, path: Path) -> dict[Split, tuple[np.ndarray, np.ndarray]]:
        from sklearn.datasets import load_svmlight_file

        with open_bytes(path) as file:
            x, y = load_svmlight_file(file)
        check_dense(path, x.shape, x.nnz)
        return {"train": (x.toarray(), y)}


def _whitening(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of rows (N, D), and a matrix that makes the identity of their covariance."""
    mean = x.mean(0)
    values, turns = torch.linalg.eigh(torch.cov((x - mean).mT).reshape(x.shape[1], x.shape[1]))
    least = 1e-10 * values[-1].clamp_min(1e-300)
    return mean, (turns * torch.where(values > least, values, torch.inf).rsqrt()) @ turns.mT


def _spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) and the standard deviation (D,) of rows (N, D), the latter infinite where all are alike."""
    alike = x.amax(0) == x.amin(0)  # rounding may leave them a standard deviation that is not quite 0
    return x.mean(0), torch.where(alike, torch.inf, x.std(0, correction=0))
