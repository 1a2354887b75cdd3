"""The vectors of a coreset problem: a matrix in memory, blocks made when they are looked at, or shares of several processes.

All that a selector asks of N vectors of S numbers are products, norms and a few rows. So N x S numbers need not exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import FLOATS, check_count
from lit_sparse.distributed import broadcast, gather, gather_unequal, rank, reduce
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.kernels.row_sums import row_products, row_sum

__all__ = ["BlockVectors", "DenseVectors", "ShardedVectors", "Vectors", "as_vectors"]

#: Numbers of a block that is worked on at once where a copy in another type is made.
BLOCK_NUMBERS = 2**20
#: Lengths of vectors between this and one over it have products whose squares neither vanish nor overflow in float32.
HARMLESS = 2.0**20
#: Numbers of a matrix that a copy in float32 is made of, whose products take half as long; and how far these may be off.
MOST_COPIED = 2**26
ROUGH = 2e-5


class Vectors(ABC):
    """N vectors g_1 ... g_N of S numbers, the rows of Phi^T; their sum y = Phi 1 is what a coreset approximates.

    Attributes:
        shape: N and S.
        dtype: of all products, float32 or float64.
        device: where products are.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def correlate(self, direction: Tensor) -> Tensor:
        """Return ``Phi^T r``: the products (N,) of all vectors with a direction (S,)."""

    @abstractmethod
    def rows(self, indices: Tensor) -> Tensor:
        """Return some of the vectors, (n, S), for indices (n,)."""

    @abstractmethod
    def measure(self) -> tuple[Tensor, Tensor]:
        """Return the norms (N,) of all vectors and their sum (S,), both float64."""

    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        """Return the products (n,) of the vectors at indices (n,) with a direction (S,)."""
        return self.rows(indices) @ direction

    def correlate_roughly(self, direction: Tensor) -> tuple[Tensor, float]:
        """Return the products (N,) with a unit vector, and how far they may be off, as a share of their vectors' norms."""
        return self.correlate(direction), 0.0

    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum (S,) of the vectors at indices (n,), with weights (n,)."""
        return weights @ self.rows(indices)

    @abstractmethod
    def divided(self, unit: float) -> Vectors:
        """Return the vectors divided by a number, which is done for each of their numbers."""

    def scaled(self, unit: float) -> Vectors:
        """Return the vectors divided by a power of two, without a copy where none is needed."""
        if 1 / HARMLESS <= unit <= HARMLESS:
            return ScaledVectors(self, unit)
        return self.divided(unit)

    @abstractmethod
    def subset(self, indices: Tensor) -> Vectors:
        """Return the vectors at indices (n,), ascending, as vectors of their own."""

    def agree(self, value: Tensor) -> Tensor:
        """Return what the first of the processes that select together has for this value."""
        return value

    @cached_property
    def norms(self) -> Tensor:
        """The norms (N,) of all vectors, float64."""
        return self._measured[0]

    @cached_property
    def total(self) -> Tensor:
        """The sum (S,) of all vectors, float64."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[Tensor, Tensor]:
        return self.measure()


class DenseVectors(Vectors):
    """Vectors in memory, or in a file that is mapped into it.

    Args:
        vectors: (N, S) floating; float32 and float64 are used as they are, without a copy if contiguous; half precision as
            float32.

    Raises:
        ConfigurationError: if it is no floating matrix.
    """

    def __init__(self, vectors: Tensor) -> None:
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or vectors.dtype not in FLOATS:
            got = f"{tuple(vectors.shape)} {vectors.dtype}" if isinstance(vectors, Tensor) else repr(type(vectors).__name__)
            raise ConfigurationError(f"Expected `vectors` to be a floating tensor (N, S) but got {got}.")
        vectors = vectors.detach().contiguous()
        self.vectors = vectors if vectors.dtype in (torch.float32, torch.float64) else vectors.float()
        self.shape = (vectors.shape[0], vectors.shape[1])
        self.dtype, self.device = self.vectors.dtype, self.vectors.device
        self._single: Tensor | None = None

    @override
    def correlate(self, direction: Tensor) -> Tensor:
        return self.vectors @ direction

    @override
    def rows(self, indices: Tensor) -> Tensor:
        return self.vectors.index_select(0, indices)

    @override
    def correlate_roughly(self, direction: Tensor) -> tuple[Tensor, float]:
        if self.dtype != torch.float64 or self.device.type != "cpu" or self.vectors.numel() > MOST_COPIED:
            return super().correlate_roughly(direction)
        if self._single is None:
            self._single = self.vectors.float()
        return self._single @ direction.float(), ROUGH

    @override
    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return row_products(self.vectors, indices, direction).to(self.dtype)
        return self.rows(indices) @ direction

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
        # Written in place: small results that stay between blocks that go would keep memory from being used again.
        norms = total.new_empty(self.shape[0])
        for start in range(0, self.shape[0], step):
            exact = self.vectors[start : start + step].double()
            norms[start : start + step] = torch.linalg.vector_norm(exact, dim=1)
            total += exact.sum(0)
        return norms, total


class BlockVectors(Vectors):
    """Vectors that are made, or read, in blocks whenever they are looked at.

    Args:
        rows: gives the vectors (n, S) at indices (n,) int64, the same each time.
        size: N.
        block_size: how many are made at once.
        device: where the indices are that ``rows`` is called with.

    Raises:
        ConfigurationError: if ``rows`` gives something else.

    Example:
        >>> features, draws = torch.randn(1000, 3), torch.randn(3, 20)
        >>> made = BlockVectors(lambda indices: features[indices] @ draws, 1000, block_size=128)
        >>> torch.allclose(made.correlate(torch.ones(20)), features @ draws.sum(1), atol=1e-4)
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
        self.block_size = check_count("block_size", block_size)
        self.device = torch.device(device)
        self.shape = (check_count("size", size, 0), 0)
        first = rows(torch.zeros(min(1, size), dtype=torch.int64, device=self.device))
        DenseVectors(first)  # checks it
        self.shape = (size, first.shape[1])
        self.dtype = first.dtype if first.dtype in (torch.float32, torch.float64) else torch.float32
        self.device = first.device

    @override
    def rows(self, indices: Tensor) -> Tensor:
        made = self._rows(indices).detach()
        if made.shape != (len(indices), self.shape[1]):
            raise ConfigurationError(
                f"Expected `rows` to give {(len(indices), self.shape[1])} numbers for {len(indices)} indices but got"
                f" {tuple(made.shape)}."
            )
        return made.to(self.dtype)

    @override
    def correlate(self, direction: Tensor) -> Tensor:
        products = direction.new_empty(self.shape[0])
        for start, block in self._blocks():
            products[start : start + len(block)] = block @ direction
        return products

    @override
    def divided(self, unit: float) -> BlockVectors:
        made, dtype = self._rows, self.dtype
        return BlockVectors(
            lambda some: (made(some).double() / unit).to(dtype), self.shape[0], block_size=self.block_size, device=self.device
        )

    @override
    def subset(self, indices: Tensor) -> BlockVectors:
        return BlockVectors(
            lambda some: self._rows(indices[some]), len(indices), block_size=self.block_size, device=self.device
        )

    @override
    def measure(self) -> tuple[Tensor, Tensor]:
        total = torch.zeros(self.shape[1], dtype=torch.float64, device=self.device)
        norms = total.new_empty(self.shape[0])
        for start, block in self._blocks():
            norms[start : start + len(block)], sum_of_block = DenseVectors(block).measure()
            total += sum_of_block
        return norms, total

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Iterate over all blocks, and the number of the first vector in each."""
        for start in range(0, self.shape[0], self.block_size):
            yield start, self.rows(torch.arange(start, min(start + self.block_size, self.shape[0]), device=self.device))


class ShardedVectors(Vectors):
    """Vectors of which each process of a group holds some: those of the first process come first.

    All processes make the same calls and get the same results, so that whatever selects need not know of the others.

    Args:
        share: the vectors of this process; there may be none.
        group: the processes; None for all of them.

    Raises:
        ConfigurationError: if the processes' vectors differ in S or in their type.
    """

    def __init__(self, share: Vectors | Tensor, group: Any = None) -> None:
        self.share = share if isinstance(share, Vectors) else DenseVectors(share)
        self.group = group
        self.dtype, self.device = self.share.dtype, self.share.device
        double = int(self.dtype == torch.float64)
        mine = torch.tensor([*self.share.shape, double], device=self.device)
        theirs = torch.stack(gather(mine, group)).tolist()
        if len({(width, kind) for _, width, kind in theirs}) > 1:
            shapes = ", ".join(f"({size}, {width}) float{64 if kind else 32}" for size, width, kind in theirs)
            raise ConfigurationError(f"Expected vectors of one length and type on all processes but got {shapes}.")
        self.sizes = [size for size, _, _ in theirs]
        self.first = sum(self.sizes[: rank(group)])
        self.shape = (sum(self.sizes), self.share.shape[1])

    @override
    def correlate(self, direction: Tensor) -> Tensor:
        return self._joined(self.share.correlate(direction))

    @override
    def rows(self, indices: Tensor) -> Tensor:
        # Each row comes from one process; the others add zeros, which is exact.
        found = torch.zeros(len(indices), self.shape[1], dtype=self.dtype, device=self.device)
        mine, own = self._own(indices)
        if len(mine):
            found[mine] = self.share.rows(own)
        return reduce(found, self.group)

    @override
    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        found = torch.zeros(len(indices), dtype=self.dtype, device=self.device)
        mine, own = self._own(indices)
        if len(mine):
            found[mine] = self.share.correlate_some(own, direction)
        return reduce(found, self.group)

    @override
    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        mine, own = self._own(indices)
        part = self.share.combine(own, weights[mine]) if len(mine) else weights.new_zeros(self.shape[1])
        return torch.stack(gather(part, self.group)).sum(0)

    @override
    def divided(self, unit: float) -> ShardedVectors:
        return ShardedVectors(self.share.divided(unit), self.group)

    @override
    def subset(self, indices: Tensor) -> ShardedVectors:
        return ShardedVectors(self.share.subset(self._own(indices)[1]), self.group)

    @override
    def measure(self) -> tuple[Tensor, Tensor]:
        norms, total = self.share.measure()
        return self._joined(norms), torch.stack(gather(total, self.group)).sum(0)

    @override
    def agree(self, value: Tensor) -> Tensor:
        return broadcast(value.to(self.device), self.group)

    def _own(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of some indices (n,) are those of this process's vectors, and their numbers among these."""
        mine = ((indices >= self.first) & (indices < self.first + self.share.shape[0])).nonzero().squeeze(-1)
        return mine, indices[mine] - self.first

    def _joined(self, value: Tensor) -> Tensor:
        """Return the values (n, ...) of all processes' vectors, (N, ...)."""
        return torch.cat(gather_unequal(value, self.group))


class ScaledVectors(Vectors):
    """Vectors whose products are divided by a power of two, which is exact."""

    def __init__(self, vectors: Vectors, unit: float) -> None:
        self.vectors = vectors
        self.unit = unit
        self.shape, self.dtype, self.device = vectors.shape, vectors.dtype, vectors.device

    def correlate(self, direction: Tensor) -> Tensor:
        return self.vectors.correlate(direction / self.unit)

    def correlate_some(self, indices: Tensor, direction: Tensor) -> Tensor:
        return self.vectors.correlate_some(indices, direction / self.unit)

    def correlate_roughly(self, direction: Tensor) -> tuple[Tensor, float]:
        products, off = self.vectors.correlate_roughly(direction)
        return products / self.unit, off

    def rows(self, indices: Tensor) -> Tensor:
        return self.vectors.rows(indices) / self.unit

    def combine(self, indices: Tensor, weights: Tensor) -> Tensor:
        return self.vectors.combine(indices, weights) / self.unit

    def divided(self, unit: float) -> Vectors:
        return self.vectors.divided(self.unit * unit)

    def subset(self, indices: Tensor) -> ScaledVectors:
        return ScaledVectors(self.vectors.subset(indices), self.unit)

    def measure(self) -> tuple[Tensor, Tensor]:
        return self.vectors.norms / self.unit, self.vectors.total / self.unit

    def agree(self, value: Tensor) -> Tensor:
        return self.vectors.agree(value)


def as_vectors(vectors: Vectors | Tensor) -> Vectors:
    """Return vectors as they are, or those of a matrix (N, S), checked.

    Raises:
        ConfigurationError: for something else.
        DataError: if there are none, or one of them has NaN or an infinite number.
    """
    found = vectors if isinstance(vectors, Vectors) else DenseVectors(vectors)
    if 0 in found.shape:
        raise DataError(f"Expected vectors (N, S) of at least one example and one number but got {found.shape}.")
    broken = (~found.norms.isfinite()).nonzero().squeeze(-1)
    if len(broken):
        raise DataError(
            f"The vector of example {int(broken[0])} has NaN or an infinite number, or is too long to measure"
            f" ({len(broken)} of {found.shape[0]} are so). Mend the model or the data that it comes from, or leave it out."
        )
    return found
