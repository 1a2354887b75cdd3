"""The vectors of a coreset problem: a matrix in memory, or blocks computed on access.

A selector needs only products, norms and a few rows of the N vectors, so N x S numbers need not be stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import FLOATS, Count, check_indices, check_result, check_tensor, ranges
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.distributed import is_first
from lit_sparse.kernels.row_sums import add_exactly, row_products, row_sum

__all__ = ["BlockVectors", "DenseVectors", "VectorSource", "Vectors", "as_vectors"]

#: Largest number of entries in a block that is converted to another dtype.
BLOCK_NUMBERS = 2**20
#: Smallest and largest norms whose products have squares that neither vanish nor overflow in float32.
HARMLESS = 2.0**20
#: Largest matrix copied to float32 for faster products, and the relative error of those.
MOST_COPIED = 2**26
ROUGH = 2e-5
#: Largest number of vectors that processes exchange for a weighted sum of them.
MOST_GATHERED = 2**14


class VectorSource:
    """Base class of vectors, and of projections, which make vectors from examples."""


class Vectors(VectorSource, ABC):
    """Base class of the vectors of a coreset problem: N vectors of dimension S whose sum a coreset approximates.

    The vectors g_1 ... g_N are the columns of Phi, and y is their sum.

    Attributes:
        shape: N and S.
        dtype: dtype of all products, float32 or float64.
        device: device of the products.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def correlate(self, direction: Tensor) -> Tensor:
        """Return the inner products ``Phi^T r``, (N,), of all vectors with a direction r (S,)."""

    @abstractmethod
    def rows(self, indices: Tensor) -> Tensor:
        """Return the vectors (n, S) at indices (n,) int64.

        Raises:
            IndexError: for an index outside 0 .. N - 1.
        """

    @abstractmethod
    def measure(self) -> tuple[Tensor, Tensor]:
        """Return the norms (N,) of all vectors and their sum (S,), both float64.

        The sum may also be parts (p, S), which are added without rounding between them.
        """

    def _direction(self, direction: Tensor) -> Tensor:
        """Return a direction in the vectors' dtype, if it is (S,); a product with a matrix would have another shape."""
        what = f"a floating direction ({self.shape[1]},)"
        return check_tensor(direction, what, shape=self.shape[1:], dtypes=FLOATS).to(self.dtype)

    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        """Return the inner products (n,) of the vectors at indices (n,) with a direction (S,)."""
        return self.rows(indices) @ self._direction(direction)

    def correlate_roughly(self, direction: Tensor) -> tuple[Tensor, float]:
        """Return approximate inner products (N,) with a unit vector, and an error bound relative to the vectors' norms."""
        return self.correlate(direction), 0.0

    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum (S,) of the vectors at indices (n,), with weights (n,)."""
        rows = self.rows(indices)
        weights = check_tensor(weights, f"floating weights ({len(rows)},)", shape=rows.shape[:1], dtypes=FLOATS)
        return weights.to(rows.dtype) @ rows

    @abstractmethod
    def divided(self, unit: float) -> Vectors:
        """Return the vectors divided by a number, entry by entry."""

    def scaled(self, unit: float) -> Vectors:
        """Return the vectors divided by a power of two, without a copy if possible."""
        if 1 / HARMLESS <= unit <= HARMLESS:
            return ScaledVectors(self, unit)
        return ScaledVectors(check_vectors(self, "divided", self.divided(unit), self.shape[0]), 1.0)

    @abstractmethod
    def subset(self, indices: Tensor) -> Vectors:
        """Return the vectors at ascending indices (n,) as a new object."""

    def agree(self, value: Tensor) -> Tensor:
        """Return, on each of the processes that select together, the tensor that the first of them has given."""
        return value

    @property
    def is_first(self) -> bool:
        """Whether this process is the first of the processes that select together."""
        return is_first()

    @cached_property
    def norms(self) -> Tensor:
        """Norms (N,) of all vectors, float64."""
        return self._measured[0]

    @cached_property
    def total(self) -> Tensor:
        """Sum (S,) of all vectors, float64."""
        parts = self._measured[1]
        return parts if parts.ndim == 1 else add_exactly(parts)[0]

    @cached_property
    def _measured(self) -> tuple[Tensor, Tensor]:
        measured: Any = self.measure()
        if not isinstance(measured, tuple) or len(measured) != 2:
            raise ConfigurationError(
                f"Expected `measure` of {full_name(self)} to return norms and a sum but got {full_name(measured)}."
            )
        norms, total = measured
        parts = total.shape[:-1] if isinstance(total, Tensor) and total.ndim == 2 else ()
        return (
            check_result(self, "measure", norms, self.shape[:1]).double(),
            check_result(self, "measure", total, (*parts, self.shape[1])).double(),
        )


class DenseVectors(Vectors):
    """Vectors of a coreset problem in a matrix, in memory or memory-mapped.

    Args:
        vectors: (N, S) floating. Contiguous float32 and float64 are used without a copy; half precision is converted to
            float32.

    Raises:
        ConfigurationError: if ``vectors`` is not a floating matrix.
    """

    def __init__(self, vectors: Tensor) -> None:
        what = "`vectors` to be a floating tensor (N, S)"
        vectors = check_tensor(vectors, what, shape=(None, None), dtypes=FLOATS).detach().contiguous()
        self.vectors = vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
        self.shape = (vectors.shape[0], vectors.shape[1])
        self.dtype, self.device = self.vectors.dtype, self.vectors.device
        self._single: Tensor | None = None

    @override
    def correlate(self, direction: Tensor) -> Tensor:
        return self.vectors @ self._direction(direction)

    @override
    def rows(self, indices: Tensor) -> Tensor:
        return self.vectors.index_select(0, check_indices(indices, self.shape[0]) if self.vectors.is_cpu else indices)

    @override
    def correlate_roughly(self, direction: Tensor) -> tuple[Tensor, float]:
        if self.dtype != torch.float64 or self.device.type != "cpu" or self.vectors.numel() > MOST_COPIED:
            return super().correlate_roughly(direction)
        if self._single is None:
            self._single = self.vectors.float()
        return self._single @ self._direction(direction).float(), ROUGH

    @override
    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return row_products(self.vectors, indices, direction).to(self.dtype)
        return super().correlate_some(indices, direction)

    @override
    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return row_sum(self.vectors, indices, weights).to(self.dtype)
        return (weights.double() @ self.rows(indices).double()).to(self.dtype)

    @override
    def divided(self, unit: float) -> DenseVectors:
        made = torch.empty_like(self.vectors)
        step = max(1, BLOCK_NUMBERS // max(1, self.shape[1]))
        for start in range(0, len(made), step):
            made[start : start + step] = self.vectors[start : start + step].double() / unit
        return DenseVectors(made)

    @override
    def subset(self, indices: Tensor) -> DenseVectors:
        return DenseVectors(self.rows(indices))

    @override
    def measure(self) -> tuple[Tensor, Tensor]:
        step = max(1, BLOCK_NUMBERS // max(1, self.shape[1]))
        total = torch.zeros(self.shape[1], dtype=torch.float64, device=self.device)
        # Written in place: small results that outlive the blocks would fragment memory.
        norms = total.new_empty(self.shape[0])
        for start in range(0, self.shape[0], step):
            exact = self.vectors[start : start + step].double()
            norms[start : start + step] = torch.linalg.vector_norm(exact, dim=1)
            total += exact.sum(0)
        return norms, total


@ranges(size=Count(0), block_size=Count())
class BlockVectors(Vectors):
    """Vectors of a coreset problem that a function computes or reads, in blocks, on each access.

    Args:
        rows: function from indices (n,) int64 to vectors (n, S), the same each time.
        size: number of vectors N.
        block_size: number of vectors per block.
        device: device of the indices that ``rows`` receives.

    Raises:
        ConfigurationError: if ``rows`` returns another shape or type.

    Example:
        >>> features, draws = torch.randn(1000, 3), torch.randn(3, 20)
        >>> made = BlockVectors(
        ...     lambda indices: features[indices] @ draws, 1000, block_size=128
        ... )
        >>> torch.allclose(
        ...     made.correlate(torch.ones(20)), features @ draws.sum(1), atol=1e-4
        ... )
        True
    """

    def __init__(
        self,
        rows: Callable[[Tensor], Tensor],
        size: int,
        *,
        block_size: int = 8192,
        device: torch.device | str = "cpu",
    ) -> None:
        self._rows = rows
        self.block_size = block_size
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigurationError(f"Expected argument `device` to be one of torch but got {device!r}.") from error
        self.shape = (size, 0)
        first = rows(torch.zeros(min(1, size), dtype=torch.int64, device=self.device))
        DenseVectors(first)  # validates it
        self.shape = (size, first.shape[1])
        self.dtype = first.dtype if first.dtype in (torch.float32, torch.float64) else torch.float32
        self.device = first.device

    @override
    def rows(self, indices: Tensor) -> Tensor:
        shape = (len(check_indices(indices, self.shape[0])), self.shape[1])
        what = f"`rows` to return the shape {shape} for {len(indices)} indices"
        return check_tensor(self._rows(indices), what, shape=shape).detach().to(self.dtype)

    @override
    def correlate(self, direction: Tensor) -> Tensor:
        direction = self._direction(direction)
        products = direction.new_empty(self.shape[0])
        for start, block in self.blocks():
            products[start : start + len(block)] = self._products(block, direction)
        return products

    @override
    def divided(self, unit: float) -> BlockVectors:
        return self._alike(lambda some: (self.rows(some).double() / unit).to(self.dtype), self.shape[0])

    @override
    def subset(self, indices: Tensor) -> BlockVectors:
        return self._alike(lambda some: self.rows(indices[some]), len(check_indices(indices, self.shape[0])))

    @override
    def measure(self) -> tuple[Tensor, Tensor]:
        total = torch.zeros(self.shape[1], dtype=torch.float64, device=self.device)
        norms = total.new_empty(self.shape[0])
        for start, block in self.blocks():
            norms[start : start + len(block)], sum_of_block = DenseVectors(block).measure()
            total += sum_of_block
        return norms, total

    def _products(self, block: Tensor, direction: Tensor) -> Tensor:
        """Return the inner products (n,) of a block's vectors with a direction."""
        return block @ direction

    def _alike(self, rows: Callable[[Tensor], Tensor], size: int) -> BlockVectors:
        return BlockVectors(rows, size, block_size=self.block_size, device=self.device)

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Iterate over all blocks, each with the index of its first vector."""
        for start in range(0, self.shape[0], self.block_size):
            yield start, self.rows(torch.arange(start, min(start + self.block_size, self.shape[0]), device=self.device))


class ScaledVectors(Vectors):
    """Vectors divided by a power of two, without a copy: the division, which is exact, is applied to their products.

    Selectors access all vectors through this class, which also checks the results of a user's own class of vectors.
    """

    def __init__(self, vectors: Vectors, unit: float) -> None:
        self.vectors = vectors
        self.unit = unit
        self.shape, self.dtype, self.device = vectors.shape, vectors.dtype, vectors.device

    def correlate(self, direction: Tensor) -> Tensor:
        return self._got("correlate", self.vectors.correlate(direction / self.unit), self.shape[0])

    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        return self._got("correlate_some", self.vectors.correlate_some(indices, direction / self.unit), len(indices))

    def correlate_roughly(self, direction: Tensor) -> tuple[Tensor, float]:
        products, off = self.vectors.correlate_roughly(direction)
        return check_result(self.vectors, "correlate_roughly", products, self.shape[:1]) / self.unit, off

    def rows(self, indices: Tensor) -> Tensor:
        return self._got("rows", self.vectors.rows(indices), len(indices), self.shape[1]) / self.unit

    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        return self._got("combine", self.vectors.combine(indices, weights), self.shape[1]) / self.unit

    def divided(self, unit: float) -> Vectors:
        return self.vectors.divided(self.unit * unit)

    def subset(self, indices: Tensor) -> ScaledVectors:
        return ScaledVectors(part_of(self.vectors, indices), self.unit)

    def measure(self) -> tuple[Tensor, Tensor]:
        return self.vectors.norms / self.unit, self.vectors.total / self.unit

    def _got(self, method: str, value: Tensor, *shape: int) -> Tensor:
        return check_result(self.vectors, method, value, shape).to(self.dtype)

    def agree(self, value: Tensor) -> Tensor:
        return self.vectors.agree(value)

    @property
    def is_first(self) -> bool:
        """Whether this process is the first of the processes that select together."""
        return self.vectors.is_first


def check_vectors(vectors: Vectors, method: str, found: Any, size: int) -> Vectors:
    """Return the vectors that a method of a class of vectors made, after a check of their number and length.

    Raises:
        ConfigurationError: unless there are ``size`` vectors, of the same length as before.
    """
    if not isinstance(found, Vectors) or tuple(found.shape) != (size, vectors.shape[1]):
        got = tuple(found.shape) if isinstance(found, Vectors) else full_name(found)
        raise ConfigurationError(
            f"Expected `{method}` of {full_name(vectors)} to return Vectors {(size, vectors.shape[1])} but got {got}."
        )
    return found


def part_of(vectors: Vectors, indices: Tensor) -> Vectors:
    """Return the vectors at ascending indices (n,), whatever their class."""
    return check_vectors(vectors, "subset", vectors.subset(indices), len(indices))


def as_vectors(vectors: Vectors | Tensor) -> Vectors:
    """Return vectors unchanged, or a checked matrix (N, S) as vectors.

    Raises:
        ConfigurationError: for another type.
        DataError: if there are no vectors, or one has NaN or infinite entries.
    """
    found = vectors if isinstance(vectors, Vectors) else DenseVectors(vectors)
    if 0 in found.shape:
        raise DataError(f"Expected vectors (N, S) with at least one example and one entry but got {found.shape}.")
    broken = (~found.norms.isfinite()).nonzero().squeeze(-1)
    if len(broken):
        raise DataError(
            f"The vector of example {int(broken[0])} has NaN or infinite entries, or is too long to measure"
            f" ({len(broken)} of {found.shape[0]} vectors). Correct the model or the data, or leave out the example."
        )
    return found
