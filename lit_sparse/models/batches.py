"""Columns and rows of batches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["column_of", "place_of", "rows_of", "size_of"]


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
