"""Splits and orders of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import MOST_EXAMPLES, check_number
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.lightning.choice import rank_zero_warn

__all__ = [
    *("SPLITS", "STAGES", "Rows", "Split", "Splits", "check_finite", "held_out", "in_batches", "loaded", "numbers_of"),
    *("share_of", "shuffled", "splits_of", "warn_without_test"),
]

Loaded = TypeVar("Loaded")
Split = Literal["train", "val", "test", "predict"]

#: The splits of a data set.
SPLITS: tuple[Split, ...] = ("train", "val", "test")


#: Stages of Lightning's trainer, and the splits that they read.
STAGES: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class Splits(dict[Split, Any]):
    """Dict from splits to their data; for a split that was not read yet, the error says to call ``setup``."""

    def __missing__(self, split: Split) -> Any:
        raise DataError(f"Expected the {split} split to be read before it is used. Call data.setup() first.")


@dataclass(frozen=True)
class Rows:
    """Base class of dataclasses of tensors with a row for each example; a column that is not known is None.

    An index selects rows of every column. ``+`` appends rows, and keeps the columns that both sides know.
    """

    def _known(self) -> dict[str, Tensor]:
        return {name: column for name, column in vars(self).items() if column is not None}

    def __getitem__(self, which: Tensor | slice) -> Self:
        plain = isinstance(which, slice) or which.dtype == torch.bool  # for others, `index_select` is four times faster
        known = self._known().items()
        return type(self)(**{name: column[which] if plain else column.index_select(0, which) for name, column in known})  # type: ignore[arg-type]

    def __add__(self, other: Self) -> Self:
        others = other._known()
        both = {name: torch.cat([column, others[name]]) for name, column in self._known().items() if name in others}
        return type(self)(**both)

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


def splits_of(stage: str | None) -> tuple[Split, ...]:
    """Return the splits that a stage of the trainer reads, such as ``"fit"``; without a stage, all of the data set."""
    return STAGES.get(stage or "", SPLITS)


def numbers_of(words: Iterable[str], where: str, other: str = "") -> Tensor:
    """Return the position of each word in ``SPLITS``.

    Args:
        words: names of splits, one for each example of a file.
        where: name of the array, for the message.
        other: what else it may hold, for the message.

    Raises:
        DataError: if a word is not the name of a split.
    """
    names = [str(word) for word in words]
    if unknown := sorted({*names} - {*SPLITS}):
        got = ", ".join(map(repr, unknown[:5]))
        raise DataError(f"Expected the words {', '.join(SPLITS)}{other} in {where} but got {got}. Correct them.")
    return torch.tensor([SPLITS.index(name) for name in names], dtype=torch.int64)


def shuffled(size: int, seed: int, epoch: int = 0, stream: int = 0) -> Tensor:
    """Return a random permutation (size,) of ``0 .. size - 1`` that is a function of the seed, the epoch and the stream."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) * 101 + stream)
    return torch.randperm(size, generator=generator)


def share_of(indices: Tensor, rank: int, processes: int) -> Tensor:
    """Return a process's share of indices (N,), every ``processes``-th one; all processes get equally many."""
    return indices[rank : len(indices) - len(indices) % processes : processes]


def in_batches(indices: Tensor, size: int) -> list[Tensor]:
    """Return indices (N,) split into batches of ``size``; the last batch may be smaller."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def check_finite(what: str, rows: Tensor) -> None:
    """Check that rows (N, ...) have no missing or infinite value.

    Raises:
        DataError: with the first row that has one, and their number.
    """
    if bool(rows.sum().isfinite()):  # a missing or infinite value makes the sum one, too
        return
    broken = sorted({row for row, *_ in (~rows.isfinite()).nonzero().tolist()})
    if broken:
        raise DataError(
            f"Expected finite {what} but got missing or infinite ones in row {broken[0]} ({len(broken)} rows in all). Fill them"
            " in, or leave the rows out."
        )


def loaded(data: Any, kind: type[Loaded]) -> dict[Split, Loaded]:
    """Return the splits that a data module's ``load`` returns, after a check.

    Raises:
        DataError: unless they are a dict of objects of type ``kind`` with a key ``train``.
    """
    splits: dict[Split, Loaded] = data.load()
    if not isinstance(splits, dict) or "train" not in splits or not all(isinstance(part, kind) for part in splits.values()):
        got = {name: full_name(part) for name, part in splits.items()} if isinstance(splits, dict) else full_name(splits)
        raise DataError(
            f"Expected `load` of {full_name(data)} to return a dict with 'train' and other splits, each {kind.__name__}, but"
            f" got {got}."
        )
    return splits


def held_out(name: str, size: float, total: int, rest: int) -> int:
    """Return the number of examples that a split holds out, given as a number or as a fraction.

    Args:
        name: name of the argument, for the message.
        size: a fraction of ``total`` if below 1, else a number.
        total: number of all examples.
        rest: number of examples that can be held out; at least one of them remains.

    Raises:
        ConfigurationError: unless it is between 1 and ``rest - 1``.
        DataError: if too few examples are left for that.

    Example:
        >>> held_out("val_size", 0.1, 50, 40), held_out("val_size", 7, 50, 40)
        (5, 7)
    """
    # NaN fails every comparison: `not size >= 1` leaves it to the check of numbers.
    if MOST_EXAMPLES > size >= 1 and size != int(size):
        raise ConfigurationError(f"Expected `{name}` to be a fraction below 1, or a whole number, but got {size}. Round it.")
    count = round(check_number(name, size, 0.0, MOST_EXAMPLES) * total) if not size >= 1 else int(min(size, MOST_EXAMPLES))
    if rest < 2:
        raise DataError(f"Expected at least 2 examples, so that `{name}` can hold some out, but got {max(rest, 0)}. Add some.")
    if not 0 < count < rest:
        raise ConfigurationError(
            f"Expected `{name}` to hold out 1 .. {rest - 1} examples but got {size!r}, which is {count}. Change it."
        )
    return count


def warn_without_test(check: Callable[[], None]) -> None:
    """Warn, before a long training run, if the test split is missing.

    Args:
        check: function that raises a DataError if the test split is missing.
    """
    try:
        check()
    except DataError as error:
        rank_zero_warn(f"The test split is missing: `fit` runs without it, but `test` will not. {error}")
