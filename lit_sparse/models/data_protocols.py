"""What models need of data modules and their batches: protocols, checks, columns and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

from torch import Tensor

from lit_sparse.errors import ConfigurationError

__all__ = [
    "Batch",
    "HasRows",
    "check_columns",
    "check_entries",
    "check_features",
    "check_keys",
    "column_of",
    "has_rows",
    "place_of",
    "rows_of",
    "size_of",
]

Batch: TypeAlias = dict[str, Any]


class HasRows(Protocol):
    """A data module with access to its rows."""

    def size(self, split: Literal["train", "test"]) -> int:
        """Return the number of rows."""

    def fetch(self, split: Literal["train", "test"], epoch: int, indices: Tensor) -> Batch:
        """Return the rows at some indices."""


def has_rows(data: object) -> TypeGuard[HasRows]:
    """Return whether a data module gives access to its rows."""
    return callable(getattr(data, "size", None)) and callable(getattr(data, "fetch", None))


def check_keys(batch: Batch, names: Sequence[str], remedy: str) -> None:
    """Check that a batch has some entries.

    Args:
        batch: the batch.
        names: names of the entries.
        remedy: last sentence of the message.

    Raises:
        ConfigurationError: if one is missing.
    """
    missing = [name for name in names if name not in batch]
    if missing:
        raise ConfigurationError(
            f"Expected batches with {' and '.join(missing)} but got {', '.join(batch)}, from the data of another kind of model."
            f" {remedy}"
        )


def check_entries(batch: Batch, in_features: int) -> None:
    """Check that a batch has features (B, D) and a target.

    Raises:
        ConfigurationError: if an entry is missing, or D is not ``in_features``.
    """
    check_keys(batch, ["features", "target"], "Use a RegressionDataModule.")
    check_columns(batch["features"], in_features)


def check_columns(features: Tensor, in_features: int) -> None:
    """Check the number of columns of features (B, D) of a regression.

    Raises:
        ConfigurationError: if D is not ``in_features``.
    """
    if features.shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected in_features={in_features} features but got {features.shape[-1]}. Set `in_features` to their number,"
            " including the intercept."
        )


def check_features(pixels: Tensor, in_features: int) -> None:
    """Check that images (B, D) have the size of the model's input.

    Raises:
        ConfigurationError: if D is not ``in_features``.
    """
    if pixels.shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected images of in_features={in_features} features but got {pixels.shape[-1]}."
            f" Train a model with in_features={pixels.shape[-1]}, or use other data."
        )


def column_of(name: str | None, batch: Batch, rows: Tensor | None) -> Tensor | None:
    """Return an entry of a batch with one value per loss, or None for data without it.

    Args:
        name: name of the entry (B,); None for no entry.
        batch: the batch.
        rows: (R,) position in the batch of the example that each loss belongs to; None for one loss per example.
    """
    if name is None or name not in batch:
        return None
    column: Tensor = batch[name]
    return column if rows is None else column[rows]


def size_of(batch: Batch) -> int:
    """Return the number of examples of a batch: the length of its first tensor."""
    return next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()), 0)


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """Return a batch with the examples at ``rows`` (M,) of another."""
    size = size_of(batch)

    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == size:
            return value[rows.to(value.device)]
        return [value[row] for row in rows.tolist()] if isinstance(value, list) and len(value) == size else value

    return {name: chosen(value) for name, value in batch.items()}


def place_of(row: int, batch: Batch) -> str:
    """Return the index of an example for messages, or nothing if batches have no indices."""
    index = batch.get("index")
    return f" (number {int(index[row])} of the training data)" if isinstance(index, Tensor) else ""
