"""Examples for a projection, fetched in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import Count, check_count, ranges
from lit_sparse.errors import ConfigurationError, DataError, full_name

__all__ = ["Examples"]


@ranges(size=Count(0))
class Examples:
    """Sequence of N examples that can be fetched as batches, in any order.

    Args:
        fetch: function from indices (B,) int64 to the batch of these examples, the same each time.
        size: number of examples N.

    Example:
        >>> examples = Examples.of(
        ...     features=torch.arange(6.0).view(3, 2), target=torch.tensor([0, 1, 0])
        ... )
        >>> len(examples), examples[torch.tensor([2])]
        (3, {'features': tensor([[4., 5.]]), 'target': tensor([0])})
    """

    def __init__(self, fetch: Callable[[Tensor], Any], size: int) -> None:
        self.fetch, self.size = fetch, size

    @classmethod
    def of(cls, **tensors: Tensor) -> Examples:
        """Return examples whose batches are dicts with rows of these tensors, each (N, ...).

        Raises:
            DataError: if there are none, one is not a tensor of rows, or their lengths differ.
        """
        sizes = {name: len(it) if isinstance(it, Tensor) and it.dim() else full_name(it) for name, it in tensors.items()}
        if len({*sizes.values()}) != 1 or not isinstance(size := next(iter(sizes.values())), int):
            raise DataError(f"Expected tensors of rows, all of the same length, but got {sizes}.")
        return cls(lambda indices: {name: values[indices] for name, values in tensors.items()}, size)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, indices: Tensor) -> Any:
        if not isinstance(indices, Tensor):
            raise ConfigurationError(
                f"Expected a tensor of indices, as in examples[torch.arange(len(examples))], but got {indices!r}. For a"
                " function of a batch, use FunctionVectors."
            )
        return self.fetch(indices)

    def batches(self, batch_size: int) -> Iterator[Any]:
        """Iterate over all examples in order."""
        for start in range(0, self.size, check_count("batch_size", batch_size)):
            yield self.fetch(torch.arange(start, min(start + batch_size, self.size)))

    def part(self, start: int, stop: int) -> Examples:
        """Return the examples ``start .. stop - 1``.

        Raises:
            ConfigurationError: unless ``0 <= start <= stop <= len(self)``.
        """
        check_count("start", start, 0, check_count("stop", stop, 0, self.size))
        return Examples(lambda indices: self.fetch(indices + start), stop - start)
