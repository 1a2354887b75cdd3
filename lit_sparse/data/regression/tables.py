"""Data for regression from a file of arrays, of columns, or of sparse rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from lit_sparse.data.base import Split
from lit_sparse.data.readers.arrays import Arrays, open_arrays
from lit_sparse.data.readers.places import Place, place_of
from lit_sparse.data.readers.sizes import bytes_of, check_unpacked
from lit_sparse.data.readers.tables import TABLES, read_numbers
from lit_sparse.data.readers.text_files import ending_of, open_bounded
from lit_sparse.data.regression.base import RegressionDataModule, Table
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["TableDataModule"]

#: Exceptions of readers for broken, truncated or foreign files.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

#: Features, target and groups.
Columns: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray | None]


class TableDataModule(RegressionDataModule):
    """Rows of your own file.

    A ``.npz`` file holds the arrays that ``features`` and ``target`` name; optional arrays ``{features}t`` and ``{target}t``
    are the test rows. In a ``.csv`` file, which may be compressed by gzip or bzip2, ``features`` is a comma-separated list of
    columns and ``target`` a column. Any other file is read as LIBSVM's sparse rows, which have no names.

    With ``group``, each value of that column is a group of rows, for :class:`lit_sparse.risks.GroupDRO` and for scores by
    group. The values, in ascending order, are ``group_names`` after ``setup``; their positions are the groups of batches.

    Args:
        path: path of the file.
        features: name of the array (N, D), or comma-separated names of columns.
        target: name of the array (N,), or name of the column.
        group: name of the array (N,), or name of the column, of any values; None for no groups.
        log_target: whether to take the logarithm of the targets; ``standardize_target`` applies to it.
        drop_last: whether to drop the last feature, for a file that already has an intercept.
        options: options of :class:`~lit_sparse.data.RegressionDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.
        DataError: if the file cannot be read, or lacks an array or a column.
    """

    #: Value of each group.
    group_names: list[str]

    def __init__(
        self,
        path: str,
        *,
        features: str = "X",
        target: str = "y",
        group: str | None = None,
        log_target: bool = False,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.path = path
        self.features = features
        self.target = target
        self.group = group
        self.group_names = []
        self.log_target = log_target
        self.drop_last = drop_last

    def load(self) -> dict[Split, Table]:
        """Read the file."""
        path = place_of(self.path)
        if not path.is_file():
            raise DataError(f"The file {str(path)!r} does not exist. Give the path of a table.")
        ending = ending_of(path)
        readers = {".npz": self._from_npz, **dict.fromkeys(TABLES, self._from_table)}
        try:
            arrays = readers.get(ending, self._from_libsvm)(path)
            tables = {split: self._table(x, y) for split, (x, y, _) in arrays.items()}
            tables = self._grouped(tables, {split: group for split, (*_, group) in arrays.items()})
        except (ConfigurationError, DataError):
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

    def _grouped(self, tables: dict[Split, Table], values: dict[Split, np.ndarray | None]) -> dict[Split, Table]:
        """Return tables with the positions of their groups among all values."""
        if self.group is None:
            return tables
        known = {split: np.asarray(column).reshape(-1) for split, column in values.items() if column is not None}
        names, places = np.unique(np.concatenate(list(known.values())), return_inverse=True)
        self.group_names = [str(name) for name in names]
        ends = np.cumsum([len(column) for column in known.values()])[:-1]
        groups = dict(zip(known, np.split(places.astype(np.int64), ends), strict=True))
        return {split: replace(table, groups=torch.from_numpy(groups[split])) for split, table in tables.items()}

    def _from_npz(self, path: Place) -> dict[Split, Columns]:
        names = (self.features, self.target, self.group)
        with open_arrays(path) as arrays:
            splits: dict[Split, Columns] = {"train": _arrays(arrays, names)}
            test = [f"{name}t" in arrays for name in (self.features, self.target)]
            if test[0] != test[1]:
                raise DataError(
                    f"Expected both {self.features}t and {self.target}t as test rows in {str(path)!r}, or neither, but got one."
                    " Add the other."
                )
            if test[0]:
                splits["test"] = _arrays(arrays, [name and f"{name}t" for name in names])
        return splits

    def _from_table(self, path: Place) -> dict[Split, Columns]:
        names = [name.strip() for name in self.features.split(",")]
        repeated = [name for name in names if names.count(name) > 1 or name == self.target]
        if repeated:
            raise ConfigurationError(
                f"Expected `features` to name different columns, without the target {self.target!r}, but got {repeated[0]!r}"
                f" in {self.features!r}. Leave it out."
            )
        table, others = read_numbers(path, [*names, self.target], [] if self.group is None else [self.group])
        group = None if self.group is None else np.array(others[self.group])
        return {"train": (table[:, :-1], table[:, -1], group)}

    def _from_libsvm(self, path: Place) -> dict[Split, Columns]:
        from sklearn.datasets import load_svmlight_file

        if self.group is not None:
            raise DataError(f"Expected a .npz or .csv file with `group` but got {str(path)!r}, whose columns have no names.")
        with open_bounded(path, lines=True) as file:
            x, y = load_svmlight_file(file)
        what, remedy = f"a dense table of {x.shape[0]} rows and {x.shape[1]} features", "number the features without gaps"
        check_unpacked(path, bytes_of(x.shape, 8), max(path.stat().st_size, x.nnz), what, remedy)
        return {"train": (x.toarray(), y, None)}


def _arrays(arrays: Arrays, names: Sequence[str | None]) -> Columns:
    """Return features, target and groups."""
    features, target, group = (None if name is None else arrays[name] for name in names)
    assert features is not None and target is not None
    return features, target, group
