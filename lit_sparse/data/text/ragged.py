"""Sequences of different lengths in one tensor."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lit_sparse.errors import DataError
from lit_sparse.ground.tensors import INTEGERS

__all__ = ["Ragged"]


class Ragged:
    """Integer sequences of different lengths, concatenated in one tensor.

    Args:
        flat: (M,) int32, the concatenated sequences.
        lengths: (N,) int64 lengths of the sequences, with the sum M.

    Raises:
        DataError: if the lengths have another sum, or one is negative.

    Example:
        >>> ragged = Ragged.of([[5, 6], [], [7]])
        >>> ragged.padded(torch.tensor([2, 0]), 0)
        (tensor([[7, 0],
                [5, 6]]), tensor([1, 2]))
    """

    def __init__(self, flat: Tensor, lengths: Tensor) -> None:
        whole = all(it.dtype in INTEGERS and it.dim() == 1 for it in (flat, lengths))
        if not whole or int(lengths.sum()) != len(flat):
            raise DataError(
                f"Expected integers (n,) and lengths (N,) whose sum is n but got {flat.dtype} {tuple(flat.shape)} and lengths"
                f" {lengths.dtype} {tuple(lengths.shape)} of sum {lengths.sum().item()}."
            )
        if len(lengths) and int(lengths.min()) < 0:
            raise DataError(f"Expected lengths of at least 0 but got {int(lengths.min())}.")
        self.flat = flat
        self.lengths = lengths
        self._starts = lengths.cumsum(0) - lengths

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> Ragged:
        """Return a :class:`Ragged` of the integer sequences that an iterable yields, read in one pass."""
        flat, lengths = array("i"), array("q")
        for sequence in sequences:
            flat.extend(sequence)
            lengths.append(len(sequence))
        return cls(torch.from_numpy(np.array(flat, np.int32)), torch.from_numpy(np.array(lengths, np.int64)))

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, indices: Tensor, pad: int) -> tuple[Tensor, Tensor]:
        """Return the sequences at some indices, padded to (B, L) int64, and their lengths (B,); L is at least 1."""
        lengths = self.lengths[indices]
        longest = max(1, int(lengths.max())) if len(indices) else 1
        columns = torch.arange(longest)
        there = columns < lengths.unsqueeze(-1)
        if len(self.flat) == 0:
            return torch.full(there.shape, pad, dtype=torch.int64), lengths
        places = torch.where(there, self._starts[indices].unsqueeze(-1) + columns, 0)
        return torch.where(there, self.flat[places].long(), pad), lengths

    def chosen(self, indices: Tensor) -> Ragged:
        """Return the sequences at indices (n,), as a :class:`Ragged`."""
        return self._taken(self._starts[indices], self.lengths[indices])

    def cut(self, longest: int) -> Ragged:
        """Return the sequences truncated to a maximum length."""
        return self._taken(self._starts, self.lengths.clamp(max=longest))

    def framed(self, first: int, last: int) -> Ragged:
        """Return the sequences with a token before and a token after each."""
        flat = torch.empty(len(self.flat) + 2 * len(self), dtype=torch.int32)
        starts = self._starts + 2 * torch.arange(len(self))
        shift = torch.arange(len(self)).repeat_interleave(self.lengths)
        flat[torch.arange(len(self.flat)) + 2 * shift + 1] = self.flat
        flat[starts], flat[starts + self.lengths + 1] = first, last
        return Ragged(flat, self.lengths + 2)

    def _taken(self, starts: Tensor, lengths: Tensor) -> Ragged:
        begin = lengths.cumsum(0) - lengths
        offsets = (starts - begin).repeat_interleave(lengths)
        return Ragged(self.flat[torch.arange(len(offsets)) + offsets], lengths)
