"""What models need of data modules and their batches: protocols, checks, columns and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.tensors import INTEGERS, check_tensor, is_dense, shown

__all__ = [
    "Batch",
    "HasRows",
    "ask",
    "check_batch",
    "check_columns",
    "check_entries",
    "check_features",
    "check_intensities",
    "check_keys",
    "check_labels",
    "check_positions",
    "first_update",
    "has_rows",
    "require_rows",
    "rows_of",
    "size_of",
    "updates_of",
]

Batch: TypeAlias = dict[str, Any]
#: Entries of a batch with a row per example.
ROWS = ("index", "pixels", "features", "target", "label", "true_label", "weight", "group", "candidates", "position")
#: Entry of a batch of several updates: their number in a full batch, and the number of examples of each.
KEY = "updates"
#: Errors of a module that does not accept its arguments.
NOT_ACCEPTED = (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError, AssertionError)


class HasRows(Protocol):
    """Protocol of a data module that gives access to its rows."""

    def size(self, split: Literal["train", "test"]) -> int:
        """Return the number of rows of a split."""

    def fetch(self, split: Literal["train", "test"], epoch: int, indices: Tensor) -> Batch:
        """Return the rows of a split at indices (B,) as a batch; ``epoch`` determines random augmentation."""


def has_rows(data: object) -> TypeGuard[HasRows]:
    """Return whether a data module gives access to its rows."""
    return callable(getattr(data, "size", None)) and callable(getattr(data, "fetch", None))


def require_rows(data: object, purpose: str, remedy: str) -> HasRows:
    """Return a data module after a check that it gives access to its rows.

    Args:
        data: the data module, or None.
        purpose: words after "a data module of lit_sparse" in the message.
        remedy: last sentence of the message.

    Raises:
        ConfigurationError: if it does not.
    """
    if not has_rows(data):
        raise ConfigurationError(f"Expected a data module of lit_sparse {purpose} but got none. {remedy}")
    return data


def check_keys(batch: Any, names: Sequence[str], remedy: str) -> None:
    """Check that a batch is a dict with the named entries, which are tensors.

    Args:
        batch: the batch.
        names: names of the entries.
        remedy: last sentence of the message.

    Raises:
        ConfigurationError: if an entry is missing, or no tensor.
    """
    check_batch(batch)
    missing = [name for name in names if name not in batch]
    if missing:
        raise ConfigurationError(
            f"Expected batches with {' and '.join(missing)} but got {', '.join(batch)}, from data for a different kind of"
            f" model. {remedy}"
        )
    for name in names:
        if not isinstance(batch[name], Tensor):
            raise ConfigurationError(f"Expected the entry {name!r} of a batch to be a tensor but got {full_name(batch[name])}.")


def check_entries(batch: Batch, in_features: int) -> None:
    """Check that a batch has features (B, D) of the right width and a target.

    Raises:
        ConfigurationError: if an entry is missing, or D is not ``in_features``.
    """
    check_keys(batch, ["features", "target"], "Use a RegressionDataModule.")
    check_columns(batch["features"], in_features)
    if batch["target"].shape != batch["features"].shape[:1]:
        raise ConfigurationError(
            f"Expected a target for each of {len(batch['features'])} examples but got {tuple(batch['target'].shape)}."
        )


def check_columns(features: Tensor, in_features: int) -> None:
    """Check that features (B, D) of a regression are floating and have ``in_features`` columns.

    Raises:
        ConfigurationError: if D is not ``in_features``, or they are not a floating tensor.
    """
    _check_floating("features", features)
    if features.shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected in_features={in_features} features but got {features.shape[-1]}. Set `in_features` to their number,"
            " including the intercept."
        )


def check_features(pixels: Tensor, in_features: int) -> None:
    """Check that images (B, D) are floating and have the size of the model's input.

    Raises:
        ConfigurationError: if D is not ``in_features``, or they are not a floating tensor.
    """
    _check_floating("images", pixels)
    if pixels.shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected images of in_features={in_features} features but got {pixels.shape[-1]}."
            f" Train a model with in_features={pixels.shape[-1]}, or use other data."
        )


def _check_floating(name: str, rows: Tensor) -> None:
    if not isinstance(rows, Tensor) or not is_dense(rows) or not rows.is_floating_point() or not rows.dim():
        got = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) and is_dense(rows) else shown(rows)
        raise ConfigurationError(f"Expected {name} in a floating tensor (B, D) but got {got}.")


def check_batch(batch: Any) -> None:
    """Check that a batch is a dict whose entries of the usual names, such as ``index`` or ``label``, have equally many rows.

    Raises:
        ConfigurationError: if it is not.
    """
    if not isinstance(batch, dict):
        raise ConfigurationError(f"Expected batches that are dicts of tensors but got {full_name(batch)}. Use a data module.")
    known = {name: batch[name] for name in ROWS if name in batch}
    sizes = {len(value) if isinstance(value, Tensor) and value.dim() else None for value in known.values()}
    if len(sizes) > 1 or None in sizes:
        got = ", ".join(f"{name} {shown(value)}" for name, value in known.items())
        raise ConfigurationError(f"Expected tensors with a row per example but got {got}.")


def size_of(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first tensor.

    Raises:
        ConfigurationError: if it is no dict.
    """
    if not isinstance(batch, dict):
        check_batch(batch)
    return next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()), 0)


def first_update(batch: Any, batch_idx: int) -> int:
    """Return the index, within the epoch, of the first optimizer update of a batch."""
    return batch_idx * int(batch[KEY][0]) if isinstance(batch, dict) and KEY in batch else batch_idx


def updates_of(batch: Batch, batch_idx: int) -> list[tuple[int, Batch]]:
    """Return the index and the examples of each optimizer update of a batch; a usual batch is a single update."""
    if not isinstance(batch, dict) or KEY not in batch:
        return [(batch_idx, batch)]
    examples = {name: value for name, value in batch.items() if name != KEY}
    rows, size = len(next(iter(examples.values()))), batch[KEY][1]
    parts = [{name: value[at : at + size] for name, value in examples.items()} for at in range(0, rows, size)]
    return list(enumerate(parts, first_update(batch, batch_idx)))


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """Return a batch of the examples at ``rows`` (M,) of another batch."""
    size = size_of(batch)

    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == size:
            return value[rows.to(value.device)]
        return [value[row] for row in rows.tolist()] if isinstance(value, list) and len(value) == size else value

    return {name: chosen(value) for name, value in batch.items()}


def check_labels(label: Tensor, classes: int) -> Tensor:
    """Return labels (B,) as int64, after a check on the CPU that they are classes; negative ones mark unlabelled examples.

    Raises:
        ConfigurationError: for a wrong shape or dtype, or a label that is too large.
    """
    check_tensor(label, "integer labels (B,)", shape=(None,), dtypes=(*INTEGERS, torch.bool))
    if label.device.type == "cpu" and len(label) and int(label.max()) >= classes:
        raise ConfigurationError(
            f"Expected labels below classes={classes} but got {int(label.max())}. Set `classes` to their number."
        )
    return label.long()


def check_positions(position: Tensor, candidates: int) -> None:
    """Check that positions (B,) of targets on the CPU are positions of candidates.

    Raises:
        ConfigurationError: for a wrong shape or dtype, or a position that no candidate has.
    """
    if position.dim() != 1 or position.dtype != torch.int64:
        raise ConfigurationError(f"Expected positions (B,) int64 but got {position.dtype} {tuple(position.shape)}.")
    if position.device.type == "cpu" and len(position):
        least, most = (int(end) for end in position.aminmax())
        if least < 0 or most >= candidates:
            raise ConfigurationError(f"Expected positions in 0 .. {candidates - 1}, of candidates, but got {least} .. {most}.")


def check_intensities(pixels: Tensor) -> None:
    """Check that images hold intensities in [0, 1]; this synchronizes a GPU.

    Raises:
        ConfigurationError: if an intensity is outside [0, 1].
    """
    if bool(((pixels < 0) | (pixels > 1)).any()):  # NaN makes losses NaN, and these name the example
        least, most = (float(end) for end in pixels.aminmax())
        raise ConfigurationError(
            f"Expected intensities in [0, 1] but got {least:g} .. {most:g}. Leave out the data's `normalize`, or rescale them."
        )


def ask(part: nn.Module, role: str, takes: str, returns: str, shapes: Sequence[tuple[int, ...]], *arguments: Tensor) -> Tensor:
    """Return the result of a module, which may be the user's own, after a check of its shape.

    Args:
        part: the module.
        role: role of the module in the model, for messages.
        takes: description of the arguments, for messages.
        returns: description of the result, for messages.
        shapes: shapes that the result may have.
        arguments: tensors that the module is called with.

    Raises:
        ConfigurationError: if the module does not accept these tensors, or returns something else.
    """
    wanted = f"Expected the {role} {type(part).__name__} to map {takes} to {returns} {shapes[0]}"
    if torch.compiler.is_compiling():
        return part(*arguments)  # type: ignore[no-any-return]
    try:
        found = part(*arguments)
    except NOT_ACCEPTED as error:
        if type(error) not in (*NOT_ACCEPTED, ConfigurationError):  # out of memory, say
            raise
        raise ConfigurationError(f"{wanted} but got {type(error).__name__}: {error}") from error
    if not isinstance(found, Tensor) or found.shape not in shapes or not found.is_floating_point():
        got = f"{returns} {tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigurationError(f"{wanted} but got {got}. Correct it.")
    return found
