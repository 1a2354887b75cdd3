"""Data for regression from a file of arrays, of columns, or of sparse rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Count, ranges
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import open_arrays
from lit_sparse.data.readers.places import Place, place_of, reading
from lit_sparse.data.readers.sizes import bytes_of, check_unpacked
from lit_sparse.data.readers.tables import TABLES, chunks_of, float_of, number_chunks, read_numbers
from lit_sparse.data.readers.text_files import ending_of, open_bounded
from lit_sparse.data.regression.base import Affine, RegressionDataModule, Table
from lit_sparse.data.splits import Split, shuffled
from lit_sparse.data.stream import Stream, check_streaming, stream_batches
from lit_sparse.errors import ConfigurationError, DataError

__all__ = ["TableDataModule"]

#: Features, target and, with ``group``, groups.
Columns: TypeAlias = tuple[np.ndarray, ...]


@ranges(shuffle_buffer=Count(0))
class TableDataModule(RegressionDataModule):
    """Data module for regression on a file of your own: arrays, CSV columns, or LIBSVM's sparse rows.

    A ``.npz`` file holds the arrays that ``features`` and ``target`` name; optional arrays ``{features}t`` and
    ``{target}t`` are the test rows. In a ``.csv`` file, which may be compressed with gzip or bzip2, ``features`` is a
    comma-separated list of columns and ``target`` a column. Any other file is read as LIBSVM's sparse rows, which have no
    names.

    With ``group``, each value of that column is a group of rows, for :class:`lit_sparse.risks.GroupDRO` and for metrics by
    group. The values, in ascending order, are ``group_names`` after ``setup``; their positions are the groups of batches.

    Args:
        path: path of the file.
        features: name of the array (N, D), or comma-separated names of columns.
        target: name of the array (N,), or name of the column.
        group: name of the array (N,) or of the column, with any values; None for no groups.
        log_target: whether to take the logarithm of the targets; ``standardize_target`` applies to it.
        drop_last: whether to drop the last feature, for a file that already has an intercept.
        streaming: whether to read the training rows from the file in each epoch, in file order, without a copy in
            memory or on disk. Rows for validation and test are held out as without streaming.
        shuffle_buffer: number of successive rows that are shuffled together with ``streaming``, and kept in memory. A
            resumed run is exact with it, too.
        options: options of :class:`~lit_sparse.data.RegressionDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.
        DataError: if the file cannot be read, or lacks an array or a column.
    """

    #: Value of each group.
    group_names: list[str]

    independent_rows = True

    def __init__(
        self,
        path: str,
        *,
        features: str = "X",
        target: str = "y",
        group: str | None = None,
        log_target: bool = False,
        drop_last: bool = False,
        streaming: bool = False,
        shuffle_buffer: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.streaming, self.shuffle_buffer = streaming, shuffle_buffer
        whole: dict[str, Any] = {"`fold`": self.fold, "`sampler`": self.sampler, "`bases`": self.bases, "`group`": group}
        whole |= {"`whiten`": self.whiten or None, "`use_all`": self.use_all or None}
        check_streaming(whole, shuffle_buffer, streaming=streaming)
        self._stream: Stream | None = None
        self._rows = torch.empty(0, dtype=torch.int64)  # training rows of the stream
        self.path, self.features, self.target, self.group = path, features, target, group
        self.group_names = []
        self.log_target, self.drop_last = log_target, drop_last

    def setup(self, stage: str | None = None) -> None:
        """Read the rows; with ``streaming`` only the held-out rows, and the statistics of the training rows.

        Raises:
            DataError: if the file cannot be read, or is not a table and ``streaming`` is set.
        """
        if not self.streaming:
            super().setup(stage)
        elif not self._tables:
            path = self._place()
            if ending_of(path) not in TABLES:
                raise DataError(f"Expected a table {', '.join(TABLES)} with `streaming` but got {str(path)!r}. Convert it.")
            with reading(f"{str(path)!r} cannot be read as numbers", "Check the format."):
                self._open_stream(path)

    def _open_stream(self, path: Place) -> None:
        names = self._columns()
        chunks = partial(chunks_of, [path], {name: name for name in names})
        stream = Stream(chunks, TABLES[ending_of(path)].decode, buffer=self.shuffle_buffer)
        held = self._divided(shuffled(len(stream), self.seed))
        self._rows = held.pop("train").sort().values
        apart = torch.cat([*held.values()]).sort().values
        kinds = torch.zeros(len(stream), dtype=torch.uint8)
        kinds[self._rows], kinds[apart] = 1, 2
        inputs, targets, kept, row = Spread(), Spread(), [], 0
        for numbers, _ in number_chunks(path, names):
            table, kind = self._table(numbers[:, :-1], numbers[:, -1]), kinds[row : row + len(numbers)]
            row += len(numbers)
            inputs.add(table.features[kind == 1])
            targets.add(table.target[kind == 1].double())
            kept.append(table[kind == 2])
        if self.standardize:
            self._changes = [Affine(inputs.mean, inputs.scale)]
        if self.standardize_target:
            self._fit_target(float(targets.mean), float(targets.std), targets.count, constant=bool(targets.constant))
        together = Table(torch.cat([table.features for table in kept]), torch.cat([table.target for table in kept]))
        self._tables = {split: self._made(together[torch.searchsorted(apart, rows)]) for split, rows in held.items()}
        self._stream = stream

    @override
    def size(self, split: Split) -> int:
        return len(self._rows) if self.streaming and split == "train" else super().size(split)

    @override
    def train_batches(self, epoch: int, rank: int, processes: int) -> Sequence[Tensor]:
        if not self.streaming:
            return super().train_batches(epoch, rank, processes)
        return stream_batches(self, self.shuffle_buffer, epoch, rank, processes)

    @override
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        if not self.streaming or split != "train":
            return super().fetch(split, epoch, indices)
        assert self._stream is not None
        rows = self._stream.rows(self._rows[indices])
        numbers = np.array([[*map(float_of, rows[name])] for name in self._columns()]).T
        table = self._made(self._table(numbers[:, :-1], numbers[:, -1]))
        return {"features": table.features, "target": table.target, "index": indices}

    def _place(self) -> Place:
        path = place_of(self.path)
        if not path.is_file():
            raise DataError(f"There is no plain file {str(path)!r}. Give the path of a table.")
        return path

    def load(self) -> dict[Split, Table]:
        """Return the rows of the file by split: all as training rows, unless the file has test rows of its own.

        Raises:
            DataError: if the file cannot be read, holds no rows, or has rows of different widths.
        """
        path = self._place()
        ending = ending_of(path)
        readers = {".npz": self._from_npz, **dict.fromkeys(TABLES, self._from_table)}
        kind = ending if ending in readers else "LIBSVM"
        with reading(f"{str(path)!r} cannot be read as {kind} data", "Check the format."):
            arrays = readers.get(ending, self._from_libsvm)(path)
            tables = {split: self._table(x, y) for split, (x, y, *_) in arrays.items()}
            if self.group is not None:
                tables = self._grouped(tables, {split: column.reshape(-1) for split, (*_, column) in arrays.items()})
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
                raise DataError("Expected positive targets with `log_target` but some are not. Leave out `log_target`.")
            y = y.log()
        return Table(x[:, :-1] if self.drop_last and x.ndim == 2 else x, y)

    def _grouped(self, tables: dict[Split, Table], columns: dict[Split, np.ndarray]) -> dict[Split, Table]:
        """Return tables with the positions of their groups among all values."""
        names = np.unique(np.concatenate([*columns.values()]))
        self.group_names = [str(name) for name in names]
        groups = {split: torch.from_numpy(np.searchsorted(names, column)) for split, column in columns.items()}
        return {split: replace(table, groups=groups[split]) for split, table in tables.items()}

    def _from_npz(self, path: Place) -> dict[Split, Columns]:
        names = [self.features, self.target, *self._groups()]
        with open_arrays(path) as arrays:
            splits: dict[Split, Columns] = {"train": tuple(arrays[name] for name in names)}
            test = [f"{name}t" in arrays for name in (self.features, self.target)]
            if test[0] != test[1]:
                raise DataError(
                    f"Expected both {self.features}t and {self.target}t as test rows in {str(path)!r}, or neither, but got one."
                    " Add the other."
                )
            if test[0]:
                splits["test"] = tuple(arrays[f"{name}t"] for name in names)
        return splits

    def _groups(self) -> list[str]:
        """Return the name of the groups, if any."""
        return [] if self.group is None else [self.group]

    def _columns(self) -> list[str]:
        """Return the names of the features and of the target."""
        names = [name.strip() for name in self.features.split(",")]
        repeated = [name for name in names if names.count(name) > 1 or name == self.target]
        if repeated:
            raise ConfigurationError(
                f"Expected `features` to name different columns, without the target {self.target!r}, but got {repeated[0]!r}"
                f" in {self.features!r}. Leave it out."
            )
        return [*names, self.target]

    def _from_table(self, path: Place) -> dict[Split, Columns]:
        table, others = read_numbers(path, self._columns(), self._groups())
        return {"train": (table[:, :-1], table[:, -1], *map(np.array, others.values()))}

    def _from_libsvm(self, path: Place) -> dict[Split, Columns]:
        from sklearn.datasets import load_svmlight_file

        if self.group is not None:
            raise DataError(f"Expected a .npz or .csv file with `group` but got {str(path)!r}, whose columns have no names.")
        with open_bounded(path, lines=True) as file:
            for number, line in enumerate(file, 1):
                if b"_" in line.partition(b"#")[0]:  # which Python reads in a number
                    raise DataError(f"Expected numbers in {str(path)!r} but got {line[:40]!r} in line {number}. Correct it.")
        with open_bounded(path, lines=True) as file:
            x, y = load_svmlight_file(file)
        what, remedy = f"a dense table of {x.shape[0]} rows and {x.shape[1]} features", "number the features without gaps"
        check_unpacked(path, bytes_of(x.shape, 8), max(path.stat().st_size, x.nnz), what, remedy)
        return {"train": (x.toarray(), y)}


class Spread:
    """Running mean (D,) and standard deviation (D,) of rows (N, D) float64 that come in pieces.

    Example:
        >>> spread = Spread()
        >>> for piece in torch.arange(12.0).double().view(6, 2).split(4):
        ...     spread.add(piece)
        >>> spread.mean, spread.std
        (tensor([5., 6.], dtype=torch.float64), tensor([3.4157, 3.4157], dtype=torch.float64))

    Source: Chan, Golub & LeVeque (1979), Updating Formulae and a Pairwise Algorithm for Computing Sample Variances.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean, self._squares, self._first = torch.zeros(()).double(), torch.zeros(()).double(), torch.zeros(()).double()
        self.constant = torch.ones((), dtype=torch.bool)

    def add(self, rows: Tensor) -> None:
        """Update mean and standard deviation by rows (n, D)."""
        if not len(rows):
            return
        if not self.count:
            self._first = rows[0]
        self.constant = self.constant & (rows == self._first).all(0)
        mean, count = rows.mean(0), self.count + len(rows)
        shift = mean - self.mean
        self._squares = self._squares + (rows - mean).square().sum(0) + shift.square() * self.count * len(rows) / count
        self.mean = self.mean + shift * len(rows) / count
        self.count = count

    @property
    def std(self) -> Tensor:
        """The standard deviation (D,), without Bessel's correction."""
        return (self._squares / self.count).sqrt()

    @property
    def scale(self) -> Tensor:
        """The standard deviation (D,), infinite for constant columns."""
        return torch.where(self.constant, torch.inf, self.std)
