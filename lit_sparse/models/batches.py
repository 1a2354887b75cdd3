"""Columns and rows of batches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name

__all__ = ["check_batch", "column_of", "place_of", "rows_of", "size_of"]

#: Entries of a batch with a row per example, and the ones with whole numbers.
ROWS = ("pixels", "features", "target", "label", "true_label", "weight", "group")
WHOLE = ("label", "true_label", "group")


def check_batch(batch: Any) -> None:
    """Check that a batch is a dict whose known entries have equally many rows.

    Raises:
        ConfigurationError: if it is not.
    """
    if not isinstance(batch, dict):
        raise ConfigurationError(f"Expected batches that are dicts of tensors but got {full_name(batch)}. Use a data module.")
    known = {name: batch[name] for name in ROWS if name in batch}
    sizes = {len(value) if isinstance(value, Tensor) and value.dim() else None for value in known.values()}
    fractions = [
        name for name in WHOLE if name in known and isinstance(known[name], Tensor) and known[name].is_floating_point()
    ]
    if len(sizes) > 1 or None in sizes or fractions:
        shown = ", ".join(
            f"{name} {value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name} {full_name(value)}"
            for name, value in known.items()
        )
        raise ConfigurationError(
            f"Expected tensors with a row per example, and whole numbers as {', '.join(WHOLE)}, but got {shown}."
        )


def column_of(name: str | None, batch: dict[str, Any], rows: Tensor | None) -> Tensor | None:
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


def size_of(batch: dict[str, Any]) -> int:
    """Return the number of examples of a batch, that of its first tensor."""
    return next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()), 0)


def rows_of(batch: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """Return a batch with the examples at ``rows`` (M,) of another."""
    size = size_of(batch)

    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == size:
            return value[rows.to(value.device)]
        return [value[row] for row in rows.tolist()] if isinstance(value, list) and len(value) == size else value

    return {name: chosen(value) for name, value in batch.items()}


def place_of(row: int, batch: dict[str, Any]) -> str:
    """Return the index of an example for messages, or nothing if batches have no indices."""
    index = batch.get("index")
    return f" (number {int(index[row])} of the training data)" if isinstance(index, Tensor) else ""
