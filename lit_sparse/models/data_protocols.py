"""Protocols of the data modules that models need, and checks of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.models.base import Batch

__all__ = ["HasRows", "apply_network", "check_entries", "check_features", "check_keys", "check_labels", "has_rows"]


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
    """Check that images (B, D) are floating and have the size of the model's input.

    Raises:
        ConfigurationError: if D is not ``in_features``, or they are not a floating tensor.
    """
    if not isinstance(pixels, Tensor) or not pixels.is_floating_point() or not pixels.dim():
        got = pixels.dtype if isinstance(pixels, Tensor) else full_name(pixels)
        raise ConfigurationError(f"Expected images in a floating tensor (B, D) but got {got}.")
    if pixels.shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected images of in_features={in_features} features but got {pixels.shape[-1]}."
            f" Train a model with in_features={pixels.shape[-1]}, or use other data."
        )


def check_labels(label: Tensor, classes: int) -> None:
    """Check that the labels (B,) of a batch are classes, if they are on the CPU; negative ones mark unlabelled examples.

    Raises:
        ConfigurationError: for another shape, or a label that is too large.
    """
    if label.dim() != 1:
        raise ConfigurationError(f"Expected labels (B,) but got {tuple(label.shape)}.")
    if label.device.type == "cpu" and len(label) and int(label.max()) >= classes:
        raise ConfigurationError(
            f"Expected labels below classes={classes} but got {int(label.max())}. Set `classes` to their number."
        )


def apply_network(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output of a network that the user gives.

    Raises:
        ConfigurationError: if it does not take inputs of this shape.
    """
    if torch.compiler.is_compiling():
        return network(inputs)  # type: ignore[no-any-return]
    try:
        output: Tensor = network(inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ConfigurationError(
            f"Expected a `network` for inputs {tuple(inputs.shape)} but {full_name(network)} does not take them: {error}."
        ) from error
    return output
