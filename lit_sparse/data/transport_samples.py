"""Data of optimal transport: pairs of points drawn from two measures, and measures of the rows of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import MOST_EXAMPLES, check_count
from lit_sparse.data.base import ResumableDataModule, Split
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import check_real, read_npy
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.transport.measures import Measure, draw_rows, normalized_weights

__all__ = ["Points", "TransportDataModule"]

#: Seeds of what is drawn for a split; the target's is the next.
STREAMS: dict[Split, int] = {"train": 0, "val": 2, "test": 4, "predict": 4}


class TransportDataModule(ResumableDataModule):
    """Points of two measures. Training draws new ones each epoch; those of validation and test stay the same.

    Batches are dicts of ``source`` (B, d) float32, ``target`` (B, d) float32, drawn apart from it, and ``index`` (B,), the
    place in its split. What is drawn is a function of (seed, split, index), and of the epoch in training.

    Args:
        source: what source points are drawn from.
        target: what target points are drawn from.
        samples: of each in an epoch of training.
        val_samples: of each in validation, where all pairs of them are looked at.
        test_samples: of each in the test.
        batch_size: pairs in a training batch of one process.
        eval_batch_size: pairs in a batch of validation, test and prediction.
        num_workers: processes that draw batches ahead.
        seed: of what is drawn, and of orders.

    Raises:
        ConfigurationError: for an argument outside its range, or measures of points that differ in their number of coordinates.

    Example:
        >>> from lit_sparse.transport import GaussianMixture
        >>> data = TransportDataModule(GaussianMixture([0.0], [1.0]), GaussianMixture([-1.0, 1.5], [0.25, 0.16]), batch_size=8)
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
        val_samples: int = 1000,
        test_samples: int = 1000,
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, num_workers=num_workers, seed=seed)
        for name, measure in (("source", source), ("target", target)):
            if not isinstance(measure, Measure):
                raise ConfigurationError(
                    f"Expected argument `{name}` to be a Measure but got {type(measure).__name__}. An array of points is"
                    " Points.of(array)."
                )
        self.source = source
        self.target = target
        self.samples = check_count("samples", samples, most=MOST_EXAMPLES)
        self.val_samples = check_count("val_samples", val_samples, most=MOST_EXAMPLES)
        self.test_samples = check_count("test_samples", test_samples, most=MOST_EXAMPLES)

    def setup(self, stage: str | None = None) -> None:
        """Check that the measures have points of the same kind; those of a file are read here."""
        if self.source.dim != self.target.dim:
            raise ConfigurationError(
                f"Expected `source` and `target` to have points of as many numbers but they have {self.source.dim} and"
                f" {self.target.dim}."
            )

    @override
    def size(self, split: Split) -> int:
        return {"train": self.samples, "val": self.val_samples}.get(split, self.test_samples)

    @override
    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        stream = STREAMS[split]
        seeds = [(self.seed * 1_000_003 + (epoch if split == "train" else 0)) * 101 + stream + side for side in (0, 1)]
        source, target = (
            measure.sample(seed, indices) for measure, seed in zip((self.source, self.target), seeds, strict=True)
        )
        return {"source": source, "target": target, "index": indices}

    def train_indices(self) -> Tensor:
        """Return the indices (N,) of an epoch's draws."""
        return torch.arange(self.samples)


class Points(Measure):
    """Empirical measure of the rows of a data set: a draw is one of them.

    Args:
        path: of the points: a ``.npy`` file of (N, d) or (N,) numbers, or a ``.csv`` file of N lines of d numbers, of which the
            first may be a line of names.
        weights: path of such a file of (N,) numbers, of any positive sum; None for equal ones.

    The files are read when they are first needed; :meth:`of` takes arrays instead.

    Raises:
        DataError: if a file cannot be read, or does not hold such numbers.

    Example:
        >>> corners = Points.of([[0.0, 0.0], [1.0, 1.0]], weights=[3.0, 1.0])
        >>> corners.dim, abs(float(corners.sample(0, torch.arange(4000)).mean()) - 0.25) < 0.05
        (2, True)
    """

    def __init__(self, path: str, *, weights: str | None = None) -> None:
        self.path, self.weights = path, weights
        self._read: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, points: Any, weights: Sequence[float] | Tensor | None = None) -> Self:
        """Return the measure of points (N, d) or (N,) that are there already, with weights (N,)."""
        made = cls("(an array)")
        made._keep(np.asarray(points), None if weights is None else np.asarray(weights))
        return made

    @property
    def dim(self) -> int:
        """The numbers d of a point."""
        return self._tables()[0].shape[1]

    @override
    def sample(self, seed: int, index: Tensor) -> Tensor:
        points, shares = (part.to(index.device) for part in self._tables())
        return points[draw_rows(shares, seed, index)]

    def __len__(self) -> int:
        return len(self._tables()[0])

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Return the points (N, d) float32 and their shares (N,) float64."""
        if self._read is None:
            self._keep(_from_file(self.path), None if self.weights is None else _from_file(self.weights))
        assert self._read is not None
        return self._read

    def _keep(self, points: np.ndarray, weights: np.ndarray | None) -> None:
        check_real(points, repr(self.path))
        try:
            x = torch.from_numpy(np.array(points, dtype=np.float32))
            w = None if weights is None else torch.from_numpy(np.array(weights, dtype=np.float64)).flatten()
        except (TypeError, ValueError) as error:
            raise DataError(f"Expected numbers in {self.path!r} but they cannot be read as such: {error}") from error
        x = x.unsqueeze(1) if x.ndim == 1 else x
        if x.ndim != 2 or 0 in x.shape:
            raise DataError(f"Expected points (N, d) in {self.path!r} but got an array {tuple(x.shape)}.")
        broken = (~x.isfinite()).any(1).nonzero().flatten().tolist()
        if broken:
            raise DataError(f"Row {broken[0]} of {self.path!r} is missing or infinite in part ({len(broken)} rows are).")
        try:
            self._read = x, normalized_weights(None if w is None else w.tolist(), len(x), "point")
        except ConfigurationError as error:
            raise DataError(str(error)) from error


def _from_file(name: str) -> np.ndarray:
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(f"The file {str(path)!r} does not exist.")
    if path.suffix not in (".npy", ".csv"):
        raise DataError(f"Expected points in a .npy or .csv file but got {str(path)!r}.")
    try:
        if path.suffix == ".npy":
            return read_npy(path)
        with path.open(encoding="utf-8") as file:
            lines = [line for line in file if line.strip()]
        return np.loadtxt(lines[int(bool(lines) and not _is_numbers(lines[0])) :], delimiter=",", ndmin=2)
    except DataError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{str(path)!r} cannot be read as {path.suffix} data: {error}") from error


def _is_numbers(line: str) -> bool:
    try:
        [float(cell) for cell in line.split(",")]
    except ValueError:
        return False
    return True
