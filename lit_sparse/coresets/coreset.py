"""The result of a selector: indices and weights of examples."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import check_tensor
from lit_sparse.errors import DataError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import check_members, largest_unpacked, open_plain

__all__ = ["Coreset", "check_sum"]

FIELDS = ("indices", "weights", "objective", "trace", "size")


def check_sum(weights: Tensor) -> None:
    """Check that weights can be scaled to any mean.

    Raises:
        DataError: if their sum is zero or infinite.
    """
    if not 0 < (total := float(weights.float().sum())) < math.inf:
        raise DataError(f"Expected weights with a positive, finite sum but got {total}. Select another coreset.")


@dataclass(frozen=True, eq=False)
class Coreset:
    """Coreset: a few weighted examples that represent a data set of N examples.

    Attributes:
        indices: (k',) int64, ascending, indices of the selected examples.
        weights: (k',) number of examples that each one represents, not negative; positive if a selector returned them.
        objective: squared distance ``||y - Phi w||^2`` between the sum of all examples' vectors and the weighted sum.
        trace: (T,) float64, that distance after each iteration of the selector.
        size: N, number of examples in the data set.

    Raises:
        DataError: if lengths or indices of the attributes do not match, or a weight or the objective is negative or not
            finite.

    Example:
        >>> coreset = Coreset(
        ...     torch.tensor([2, 7]), torch.tensor([3.0, 5.0]), objective=0.1, size=8
        ... )
        >>> len(coreset), coreset.dense()
        (2, tensor([0., 0., 3., 0., 0., 0., 0., 5.]))
    """

    indices: Tensor
    weights: Tensor
    objective: float
    trace: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    size: int = 0

    def __post_init__(self) -> None:
        what = "indices (k,) int64 and as many weights"
        shape = check_tensor(self.indices, what, shape=(None,), dtypes=(torch.int64,), error=DataError).shape
        check_tensor(self.weights, "as many weights that are real numbers", shape=shape, error=DataError)
        check_tensor(self.trace, "objectives (T,) that are real numbers", shape=(None,), error=DataError)
        for name, numbers in (("weights", self.weights), ("objectives", self.trace)):
            if numbers.dtype == torch.bool:
                raise DataError(f"Expected {name} that are real numbers but got {numbers.dtype}.")
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 0:
            raise DataError(f"Expected the size to be a whole number, at least 0, but got {self.size!r}.")
        whole = isinstance(self.objective, bool) or not isinstance(self.objective, int | float)
        if whole or not 0 <= self.objective <= sys.float_info.max:
            raise DataError(f"Expected the objective to be a finite number of at least 0 but got {self.objective!r}.")
        if len(self.indices):
            if bool((self.indices.diff() <= 0).any()) or int(self.indices[0]) < 0 or int(self.indices[-1]) >= self.size:
                got = self.indices[:5].tolist()
                raise DataError(f"Expected ascending indices in 0 .. {self.size - 1} without repetition but got {got} ...")
            wrong = ~(self.weights.isfinite() & (self.weights >= 0))
            if bool(wrong.any()):
                raise DataError(f"Expected finite, nonnegative weights but got {float(self.weights[wrong][0])}.")

    def __len__(self) -> int:
        return len(self.indices)

    def __str__(self) -> str:
        return f"{len(self)} of {self.size} examples, of total weight {float(self.weights.sum()):.6g}"

    def __repr__(self) -> str:
        return f"Coreset({self}, objective={self.objective:.6g})"

    def dense(self) -> Tensor:
        """Return the weights (N,) of all examples, mostly zeros."""
        return self.weights.new_zeros(self.size).index_put((self.indices,), self.weights)

    def to(self, device: torch.device | str) -> Coreset:
        """Return the coreset with its tensors on another device."""
        return Coreset(self.indices.to(device), self.weights.to(device), self.objective, self.trace.to(device), self.size)

    @checked
    def save(self, path: str | Path) -> None:
        """Write the coreset to a file for :meth:`load` and ``numpy.load``.

        Args:
            path: path of the file, usually with the ending ``.npz``.
        """
        arrays = {"objective": np.asarray(self.objective), "size": np.asarray(self.size)}
        tensors = {name: getattr(self, name).detach().cpu() for name in ("indices", "weights", "trace")}
        for name, values in tensors.items():  # numpy has no bfloat16
            arrays[name] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        with replaced(Path(path), "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Coreset:
        """Return the coreset that :meth:`save` wrote to a file.

        Raises:
            DataError: if the file is missing, is not a coreset, or holds negative weights.
        """
        try:
            with open_plain(path) as opened, ZipFile(opened) as packed:
                check_members(packed)  # before a member is read
                size, held = sum(member.file_size for member in packed.infolist()), os.fstat(opened.fileno()).st_size
                if size > largest_unpacked(held):
                    raise DataError(f"Expected arrays that fit into {held:,} packed bytes but got {size:,} bytes.")
                opened.seek(0)
                with np.load(opened, allow_pickle=False) as file:
                    arrays = {name: file[name] for name in FIELDS}
            tensors = {name: torch.from_numpy(arrays[name]) for name in ("indices", "weights", "trace")}
            return cls(**tensors, objective=arrays["objective"].item(), size=arrays["size"].item())
        except DataError as error:
            raise DataError(f"The coreset {str(path)!r} is not valid. {error}") from error
        except FileNotFoundError as error:
            raise DataError(f"The coreset {str(path)!r} does not exist.") from error
        except Exception as error:  # a forged file may raise anything
            raise DataError(f"{str(path)!r} cannot be read as a coreset: {error}") from error
