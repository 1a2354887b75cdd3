"""Protocols of the data modules that models need, and checks of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeGuard

from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.models.base import Batch

__all__ = ["HasRows", "check_entries", "check_features", "check_keys", "has_rows"]


class HasRows(Protocol):
    """A data module with access to its training rows."""

    def size(self, split: Literal["train"]) -> int:
        """Return the number of rows."""

    def fetch(self, split: Literal["train"], epoch: int, indices: Tensor) -> Batch:
        """Return the rows at some indices."""


def has_rows(data: object) -> TypeGuard[HasRows]:
    """Return whether a data module gives access to its training rows."""
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
    if batch["features"].shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected in_features={in_features} features but got {batch['features'].shape[-1]}. Set `in_features` to their"
            " number, including the intercept."
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
