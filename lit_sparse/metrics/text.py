"""What metrics of written text share: sums over inputs, which do not depend on how the inputs were batched or spread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = ["TextMetric", "check_flag", "check_name", "check_texts"]


class TextMetric(ExactMetric, ABC):
    """Compares hypotheses with references, by sums over inputs that give the same numbers for any batches and processes.

    A subclass says what is summed (:meth:`statistics`) and what becomes of the sums (:meth:`scores`). Its texts stay on the
    CPU, its sums, int64 or float64, are where the metric is.

    Args:
        columns: K, how many numbers are summed.
        dtype: of the sums.
    """

    sums: Tensor
    seen: Tensor

    def __init__(self, columns: int, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(columns, dtype=dtype), dist_reduce_fx="sum")
        # inputs, their references, and the squares of these numbers: they tell whether the number is the same everywhere
        self.add_state("seen", torch.zeros(3, dtype=torch.int64), dist_reduce_fx="sum")
        self._reported: tuple[int, list[int]] | None = None

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return what is summed over inputs, (N, K) on the CPU.

        Args:
            hypotheses: N >= 1 texts.
            references: for each its references, at least one.
        """

    @abstractmethod
    def scores(self, sums: Tensor, number: int) -> dict[str, float]:
        """Return the numbers to log from the sums (K,) over so many inputs; the first is what the metric is named for.

        Args:
            sums: on the CPU; all zero for ``number`` = 1 where there was no input, to learn the keys.
            number: N, how many inputs they were summed over.
        """

    @abstractmethod
    def described(self, references: int | None) -> str:
        """Return the signature for so many references an input, None where that differs."""

    def update(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add some inputs.

        Args:
            hypotheses: N texts; an empty one is a text, too.
            references: for each its references, at least one; how many may differ between inputs.

        Raises:
            DataError: if an input has no reference, the numbers of both differ, or something is no text.
        """
        check_texts(hypotheses, references)
        self._reported = None
        if not hypotheses:
            return
        numbers = torch.tensor([len(some) for some in references])
        sums = self.statistics(hypotheses, references).sum(0)
        self.sums += sums.to(self.sums)
        self.seen += torch.stack([torch.ones_like(numbers), numbers, numbers.square()]).sum(-1).to(self.seen)

    def compute(self) -> dict[str, Tensor]:
        """Return log-key suffixes and their values, float64 scalars; NaN before any input."""
        seen = self.seen.tolist()
        self._reported = (self.update_count, seen)  # those of all processes, which the signature is to tell of
        scores = self.scores(self.sums.cpu(), max(seen[0], 1))
        values = {key: value if seen[0] else torch.nan for key, value in scores.items()}
        return {key: torch.tensor(value, dtype=torch.float64, device=self.sums.device) for key, value in values.items()}

    def reset(self) -> None:
        """Forget all inputs."""
        super().reset()
        self._reported = None

    @property
    def signature(self) -> str | None:
        """What the numbers depend on beside the texts, in sacrebleu's form; None before any input.

        After :meth:`compute` it speaks of the inputs of all processes, before of those of this one.
        """
        reported = self._reported
        number, total, squares = reported[1] if reported and reported[0] == self.update_count else self.seen.tolist()
        if not number:
            return None
        return self.described(total // number if number * squares == total**2 else None)  # equality in Cauchy-Schwarz


def check_texts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Check that each hypothesis has references, and that all are texts.

    Raises:
        DataError: if one is not as it should be.
    """
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise DataError(f"Expected `{name}` to be a list with one entry an input but got {type(texts).__name__}.")
    if len(hypotheses) != len(references):
        raise DataError(
            f"Expected references for each hypothesis but got {len(hypotheses)} hypotheses, references for {len(references)}."
        )
    for index, (hypothesis, some) in enumerate(zip(hypotheses, references, strict=True)):
        if not isinstance(hypothesis, str):
            raise DataError(f"Expected hypotheses[{index}] to be a str but got {type(hypothesis).__name__}.")
        if isinstance(some, str) or not isinstance(some, Sequence):
            raise DataError(
                f"Expected references[{index}] to be a list of str, such as ['the only one'], but got {type(some).__name__}."
            )
        if not some:
            raise DataError(f"Expected at least one reference for each hypothesis but references[{index}] is empty.")
        for number, reference in enumerate(some):
            if not isinstance(reference, str):
                raise DataError(f"Expected references[{index}][{number}] to be a str but got {type(reference).__name__}.")


def check_name(name: str, value: str) -> str:
    """Return a name for log keys.

    Raises:
        ConfigurationError: if it is empty, or no text.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"Expected argument `{name}` to be a name for log keys but got {value!r}.")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return what must be True or False.

    Raises:
        ConfigurationError: if it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"Expected argument `{name}` to be True or False but got {value!r}.")
    return value
