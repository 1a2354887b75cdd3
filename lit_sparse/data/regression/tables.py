"""Data for regression from a file of arrays, of columns, or of sparse rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_sparse.data.base import Split
from lit_sparse.data.readers.arrays import open_arrays
from lit_sparse.data.readers.sizes import check_dense
from lit_sparse.data.readers.text_files import ending_of, open_bytes
from lit_sparse.data.regression.base import RegressionDataModule, Table
from lit_sparse.errors import DataError

__all__ = ["TableDataModule"]

#: Exceptions of readers for broken, truncated or foreign files.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


class TableDataModule(RegressionDataModule):
    """Rows of your own file.

    A ``.npz`` file holds the arrays that ``features`` and ``target`` name; optional arrays ``{features}t`` and ``{target}t``
    are the test rows. In a ``.csv`` file, which may be compressed by gzip or bzip2, ``features`` is a comma-separated list of
    columns and ``target`` a column. Any other file is read as LIBSVM's sparse rows, which have no names.

    Args:
        path: path of the file.
        features: name of the array (N, D), or comma-separated names of columns.
        target: name of the array (N,), or name of the column.
        log_target: whether to take the logarithm of the targets; ``standardize_target`` applies to it.
        drop_last: whether to drop the last feature, for a file that already has an intercept.
        options: options of :class:`~lit_sparse.data.RegressionDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.
        DataError: if the file cannot be read, or lacks an array or a column.
    """

    def __init__(
        self,
        path: str,
        *,
        features: str = "X",
        target: str = "y",
        log_target: bool = False,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.path = path
        self.features = features
        self.target = target
        self.log_target = log_target
        self.drop_last = drop_last

    def load(self) -> dict[Split, Table]:
        """Read the file."""
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise DataError(f"The file {str(path)!r} does not exist. Give the path of a table.")
        ending = ending_of(path)
        readers = {".npz": self._from_npz, ".csv": self._from_csv}
        try:
            arrays = readers.get(ending, self._from_libsvm)(path)
            tables = {split: self._table(x, y) for split, (x, y) in arrays.items()}
        except DataError:
            raise
        except UNREADABLE as error:
            kind = ending if ending in readers else "LIBSVM"
            raise DataError(f"{str(path)!r} cannot be read as {kind} data: {error}. Check the format.") from error
        if not len(tables["train"]):
            raise DataError(f"{str(path)!r} holds no rows. Give another table.")
        widths = {split: table.features.shape[1] for split, table in tables.items()}
        if len(set(widths.values())) > 1:
            raise DataError(f"Expected equally many features in all rows of {str(path)!r} but got {widths}. Correct the file.")
        return tables

    def _table(self, features: np.ndarray, target: np.ndarray) -> Table:
        x = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float64))
        y = torch.from_numpy(np.ascontiguousarray(target, dtype=np.float64))
        if self.log_target:
            if not bool((y > 0).all()):
                raise DataError("Expected positive targets with `log_target` but got others. Leave out `log_target`.")
            y = y.log()
        return Table(x[:, :-1] if self.drop_last and x.ndim == 2 else x, y.float())

    def _from_npz(self, path: Path) -> dict[Split, tuple[np.ndarray, np.ndarray]]:
        with open_arrays(path) as arrays:
            splits: dict[Split, tuple[np.ndarray, np.ndarray]] = {"train": (arrays[self.features], arrays[self.target])}
            if f"{self.features}t" in arrays and f"{self.target}t" in arrays:
                splits["test"] = (arrays[f"{self.features}t"], arrays[f"{self.target}t"])
        return splits

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
