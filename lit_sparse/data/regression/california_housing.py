"""California housing: house prices of 20,640 block groups of the 1990 census."""

from __future__ import annotations

import pickletools
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lit_sparse.data.readers.hub import load_all, table_chunks
from lit_sparse.data.readers.places import brief, reading
from lit_sparse.data.readers.sizes import check_unpacked
from lit_sparse.data.readers.tables import TABLES, chunks_of, float_of, from_chunks
from lit_sparse.data.readers.text_files import ending_of
from lit_sparse.data.regression.base import RegressionDataModule, Table
from lit_sparse.data.splits import Split
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.stored import largest_unpacked, open_plain

__all__ = ["CaliforniaHousingDataModule"]

#: Number of bytes of the longest description of an array by joblib, and its entry for a padding of the array.
DESCRIPTION, ALIGNED = 2**16, "numpy_array_alignment_bytes"
HUB_NAME = "gvlassis/california_housing"
#: Columns of the raw table: three are totals of a block group, the fourth is its households, and the last is the target.
RAW = (
    "medianIncome",
    "housingMedianAge",
    "totalRooms",
    "totalBedrooms",
    "population",
    "households",
    "latitude",
    "longitude",
    "medianHouseValue",
)
#: The same columns in a common copy of the table.
SNAKE_CASE = tuple(re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name) for name in RAW)
#: Columns of scikit-learn's table.
PREPARED = ("MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude", "MedHouseVal")


class CaliforniaHousingDataModule(RegressionDataModule):
    """Data module of California housing: median house values of 20,640 block groups, from eight features.

    Targets are in units of 100,000 dollars.

    The features are scikit-learn's, in its order: median income, median age of the houses, rooms and bedrooms per
    household, population, people per household, latitude, longitude.

    Args:
        source: source of the rows. ``"csv"``: a table in ``path``. ``"sklearn"``: scikit-learn's download, which the
            first run makes. ``"hub"``:
            the data hub, through the ``datasets`` library, with all its splits together.
        path: path of the table, gzipped or not, for ``"csv"``. It has the nine columns of StatLib's table (``longitude``,
            ``latitude``, ``housingMedianAge``, ``totalRooms``, ``totalBedrooms``, ``population``, ``households``,
            ``medianIncome``, ``medianHouseValue``), also spelled as in ``housing_median_age``, or scikit-learn's columns
            (``MedInc`` to ``MedHouseVal``). For ``"sklearn"``, the path is its data folder; None for the usual one.
        hub_name: name on the hub of a table with any of these columns.
        standardize: whether to shift and scale features to mean 0 and standard deviation 1 over the training rows; constant
            features become 0.
        options: options of :class:`~lit_sparse.data.RegressionDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range, or a missing path for ``"csv"``.
        DataError: if the rows are not available, or lack a column or a value.

    Source: Pace & Barry (1997), Sparse Spatial Autoregressions.
    """

    def __init__(
        self,
        source: Literal["csv", "sklearn", "hub"] = "csv",
        *,
        path: str | None = None,
        hub_name: str = HUB_NAME,
        standardize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(standardize=standardize, **options)
        self.source = source
        if source == "csv" and path is None:
            raise ConfigurationError(
                "Expected argument `path`, a csv file with the columns of StatLib's table, but got none. Give"
                " --data.init_args.path=FILE. Without the file, --data.init_args.source=sklearn uses scikit-learn's earlier"
                " download, and --data.init_args.source=hub downloads."
            )
        self.path = path
        self.hub_name = hub_name

    def load(self) -> dict[Split, Table]:
        """Return the rows with scikit-learn's features."""
        readers = {"csv": self._from_csv, "sklearn": self._from_sklearn, "hub": self._from_hub}
        features, target = readers[self.source]()
        return {"train": Table(torch.from_numpy(features), torch.from_numpy(target).float())}

    def _from_csv(self) -> tuple[np.ndarray, np.ndarray]:
        path = Path(str(self.path)).expanduser()
        if ending_of(path) != ".csv":
            raise DataError(f"Expected a .csv file, gzipped or not, but got {str(path)!r}. Convert or rename it.")
        _, first = next(iter(TABLES[".csv"].rows(path, {})), ("", {}))
        names = _naming([*first])
        columns = {name: name for name in names}
        return _prepared(from_chunks(chunks_of([path], columns), columns, path), names, repr(str(path)))

    def prepare_data(self) -> None:
        """Download the rows once, with scikit-learn or from the hub, if the source is one of these."""
        if self.source == "hub":
            self._from_hub()
        elif self.source == "sklearn":
            from sklearn.datasets import fetch_california_housing

            with self._kept_by_sklearn() as file:
                if not file.is_file():
                    fetch_california_housing(data_home=self.path)

    @contextmanager
    def _kept_by_sklearn(self) -> Iterator[Path]:
        """Provide the path of scikit-learn's copy; an error within the context says how to get it."""
        from sklearn.datasets import get_data_home

        file = Path(get_data_home(self.path)) / f"cal_housing_py{sys.version_info[0]}.pkz"
        try:
            yield file
        except Exception as error:  # of the network or the disk; a truncated or forged file may raise anything
            where = "" if self.path is None else f"data_home={self.path!r}"
            raise DataError(
                f"scikit-learn's copy of the data, {str(file)!r}, cannot be read ({brief(error)}). Download it once"
                ' with a network, python -c "from sklearn.datasets import fetch_california_housing as fetch;'
                f' fetch({where})", or use a file: --data.init_args.source=csv --data.init_args.path=FILE.'
            ) from error

    def _from_sklearn(self) -> tuple[np.ndarray, np.ndarray]:
        with self._kept_by_sklearn() as file:
            table = _numbers_of_joblib(file)  # scikit-learn itself would unpickle it
        names = (RAW[-1], *RAW[:-1])  # scikit-learn keeps the target first
        return _prepared(dict(zip(names, table.T, strict=True)), RAW, repr(str(file)))

    def _from_hub(self) -> tuple[np.ndarray, np.ndarray]:
        from datasets import concatenate_datasets

        other = "Without a network, use a file: --data.init_args.source=csv --data.init_args.path=FILE."
        splits = load_all(self.hub_name, other)
        with reading(f"The splits of {self.hub_name!r} cannot be joined", other):
            table = concatenate_datasets([*splits.values()])
        names, where = _naming(table.column_names), repr(self.hub_name)
        columns = {name: name for name in names}
        return _prepared(from_chunks(table_chunks(table, columns, where), columns, mapped=True), names, where)


def _numbers_of_joblib(path: Path) -> np.ndarray:
    """Return the table (N, 9) in a file of ``joblib.dump(table, path, compress=...)``, whose pickle is read but not run.

    Raises:
        ValueError: if the file holds anything else.
    """
    with open_plain(path) as file:
        packed = file.read()
    content = zlib.decompressobj().decompress(packed, largest_unpacked(len(packed)) + 1)
    check_unpacked(path, len(content), len(packed))
    said: list[Any] = []
    builds, start = 0, 0
    for opcode, value, place in pickletools.genops(content[:DESCRIPTION]):
        said += [] if value is None or isinstance(value, tuple) or "PUT" in opcode.name else [value]
        builds += opcode.name == "BUILD"  # first the type of the entries, then the description
        if builds == 2:
            start = (place or 0) + 1
            break
    order, rows, columns = said[said.index("order") + 1], *said[said.index("shape") + 1 :][:2]
    if ALIGNED in said:
        start += 1 + content[start]
    if not start or columns != len(RAW) or "f8" not in said or len(content) != start + 8 * rows * columns + 1:
        raise ValueError(f"it does not contain a single float64 table (N, {len(RAW)})")
    return np.frombuffer(content, "<f8", rows * columns, start).reshape((rows, columns), order=order)


def _naming(header: Sequence[str]) -> tuple[str, ...]:
    """Return the nine column names of a table, from the known set of names that matches most of its header."""
    return max((RAW, SNAKE_CASE, PREPARED), key=lambda names: len({*names} & {*header}))


def _prepared(columns: Mapping[str, Sequence[Any]], names: tuple[str, ...], where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's features (N, 8) and target (N,) from the columns of a table."""
    table = np.stack([_numbers(columns[name], name, where) for name in names], axis=1)
    features, target = table[:, :-1], table[:, -1]
    if names == PREPARED:
        return features, target
    income, age, rooms, bedrooms, population, households, latitude, longitude = features.T
    empty = np.flatnonzero(households <= 0)
    if len(empty):
        raise DataError(
            f"Expected a positive number of households in {where} but got {households[empty[0]]:g} in row {empty[0] + 1}."
            " Leave the row out."
        )
    shares = [rooms / households, bedrooms / households, population, population / households]
    return np.stack([income, age, *shares, latitude, longitude], axis=1), target / 100_000


def _numbers(values: Sequence[Any], name: str, where: str) -> np.ndarray:
    """Return a column as float64."""
    for row, value in enumerate(values, 1):
        try:
            number = float_of(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not np.isfinite(number):
            raise DataError(
                f"Expected a number in column {name!r} of {where} but got {value!r} in row {row}. Fill it in, or leave the row"
                " out."
            )
    return np.array(values, dtype=np.float64)
