"""Data for optimal transport: pairs of points drawn from two measures, and empirical measures from files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import EXAMPLES, check_result, ranges
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import check_kind, read_npy
from lit_sparse.data.readers.places import reading
from lit_sparse.data.readers.text_files import existing
from lit_sparse.data.splits import Split, check_finite
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.stored import open_plain
from lit_sparse.transport.measures import Measure, draw_rows, normalized_weights

__all__ = ["Points", "TransportDataModule"]

#: Seeds of the source draws of each split; the target's seed is the next number.
STREAMS: dict[Split, int] = {"train": 0, "val": 2, "test": 4, "predict": 4}


@ranges(samples=EXAMPLES, val_size=EXAMPLES, test_size=EXAMPLES)
class TransportDataModule(ResumableDataModule):
    """Data module of points sampled from two measures, resampled in each training epoch, fixed for validation and test.

    Batches are dicts of ``source`` (B, d) float32, independent ``target`` (B, d) float32, and ``index`` (B,) within the
    split. Samples are a function of (seed, split, index), and of the epoch in training.

    Args:
        source: measure of the source points.
        target: measure of the target points.
        samples: number of points of each measure per training epoch.
        val_size: number of points of each measure in validation, which uses all pairs of them.
        test_size: number of points of each measure in the test.
        batch_size: pairs per training batch and process.
        eval_batch_size: pairs per batch in validation, test and prediction.
        options: workers and seed; see :class:`~lit_sparse.data.ResumableDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range, or measures of points with different numbers of coordinates.

    Example:
        >>> from lit_sparse.transport import GaussianMixture
        >>> data = TransportDataModule(
        ...     GaussianMixture([0.0], [1.0]),
        ...     GaussianMixture([-1.0, 1.5], [0.25, 0.16]),
        ...     batch_size=8,
        ... )
        >>> data.setup()
        >>> next(iter(data.train_dataloader()))["target"].shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        source: Measure,
        target: Measure,
        *,
        samples: int = 10_000,
        val_size: int = 1000,
        test_size: int = 1000,
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, **options)
        for name, measure in (("source", source), ("target", target)):
            if not isinstance(measure, Measure):
                raise ConfigurationError(
                    f"Expected argument `{name}` to be a Measure but got {type(measure).__name__}. Convert an array of points"
                    " with Points.of(array)."
                )
        self.source, self.target, self.samples, self.val_size = source, target, samples, val_size
        self.test_size = test_size

    def setup(self, stage: str | None = None) -> None:
        """Read the points of files, and check that both measures have the same dimension.

        Raises:
            ConfigurationError: if the measures have points with different numbers of coordinates.
        """
        if self.source.dim != self.target.dim:
            raise ConfigurationError(
                f"Expected points of `source` and `target` with equally many coordinates but got {self.source.dim} and"
                f" {self.target.dim}. Change one of them."
            )

    @override
    def size(self, split: Split) -> int:
        return {"train": self.samples, "val": self.val_size}.get(split, self.test_size)

    @override
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        stream = STREAMS[split]
        seeds = [(self.seed * 1_000_003 + (epoch if split == "train" else 0)) * 101 + stream + side for side in (0, 1)]
        source, target = (
            measure.sample(seed, indices) for measure, seed in zip((self.source, self.target), seeds, strict=True)
        )
        for measure, points in ((self.source, source), (self.target, target)):
            check_result(measure, "sample", points, (len(indices), measure.dim))
        return {"source": source, "target": target, "index": indices}


class Points(Measure):
    """Empirical measure of the rows of a file or an array.

    Args:
        path: path of the points: a ``.npy`` file with an array (N, d) or (N,), or a ``.csv`` file with N lines of d columns
            and an optional header.
        weights: path of a file of N nonnegative weights, with any positive sum; None for equal weights.

    The files are read when they are first needed; :meth:`of` takes arrays instead.

    Raises:
        DataError: if a file cannot be read, or does not hold these numbers.

    Example:
        >>> corners = Points.of([[0.0, 0.0], [1.0, 1.0]], weights=[3.0, 1.0])
        >>> (
        ...     corners.dim,
        ...     abs(float(corners.sample(0, torch.arange(4000)).mean()) - 0.25) < 0.05,
        ... )
        (2, True)
    """

    def __init__(self, path: str, *, weights: str | None = None) -> None:
        self.path, self.weights = path, weights

    @classmethod
    def of(cls, points: Any, weights: Sequence[float] | Tensor | None = None) -> Self:
        """Return the empirical measure of an array of points (N, d) or (N,), with weights (N,).

        Raises:
            DataError: if the points are not an array (N, d) or (N,), or the weights do not fit.
        """
        made = cls("(an array)")
        try:
            arrays = np.asarray(points), None if weights is None else np.asarray(weights)
        except ValueError as error:
            raise DataError(f"Expected points (N, d) but got rows of different lengths: {error}.") from error
        made._tables = made._checked(*arrays)
        return made

    @property
    def dim(self) -> int:
        """Dimension d of the points."""
        return self._tables[0].shape[1]

    @override
    def sample(self, seed: int, index: Tensor) -> Tensor:
        points, shares = (part.to(index.device) for part in self._tables)
        return points[draw_rows(shares, seed, index)]

    def __len__(self) -> int:
        return len(self._tables[0])

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """The points (N, d) float32 and their probabilities (N,) float64, read when they are first needed."""
        return self._checked(_from_file(self.path), None if self.weights is None else _from_file(self.weights))

    def _checked(self, points: np.ndarray, weights: np.ndarray | None) -> tuple[Tensor, Tensor]:
        check_kind(points.dtype, repr(self.path))
        try:
            x = torch.from_numpy(np.array(points, dtype=np.float32))
            w = None if weights is None else torch.from_numpy(np.array(weights, dtype=np.float64)).flatten()
        except (TypeError, ValueError) as error:
            raise DataError(f"Expected numbers in {self.path!r} but got: {error}. Convert them.") from error
        x = x.unsqueeze(1) if x.ndim == 1 else x
        if x.ndim != 2 or 0 in x.shape:
            raise DataError(f"Expected points (N, d) in {self.path!r} but got an array {tuple(x.shape)}. Reshape it.")
        check_finite(f"numbers in {self.path!r}", x)
        try:
            return x, normalized_weights(None if w is None else w.tolist(), len(x), "point")
        except ConfigurationError as error:
            raise DataError(str(error)) from error


def _from_file(name: str) -> np.ndarray:
    path = existing(name, "points")
    if path.suffix not in (".npy", ".csv"):
        raise DataError(f"Expected points in a .npy or .csv file but got {str(path)!r}. Convert it.")
    if path.suffix == ".npy":
        return read_npy(path)
    with reading(f"{str(path)!r} cannot be read as {path.suffix} data", "Check the format."):
        with io.TextIOWrapper(open_plain(path), "utf-8") as file:
            lines = [line for line in file if line.strip()]
        named = bool(lines) and not any(map(_is_number, lines[0].split(",")))
        return np.loadtxt(lines[int(named) :], delimiter=",", comments=None, ndmin=2)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
