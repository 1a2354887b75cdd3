"""Reads checkpoints that several processes have written to one folder, each its part of the weights.

torch's own reader unpickles whatever the folder holds, which may run any code. Here only plain data are read.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import CheckpointError
from lit_sparse.ground.distributed import SHARD_NAMES, unflatten
from lit_sparse.ground.pickles import check_pickle
from lit_sparse.ground.stored import open_plain

__all__ = ["META", "is_sharded", "read_shards"]

#: File of what a checkpoint holds besides tensors, and the list of its tensors.
META, TENSORS = "meta.pt", ".metadata"
#: What the list of tensors names.
NAMED = {*SHARD_NAMES, "torch.serialization._get_layout", "torch.Size", "pathlib.PosixPath", "pathlib.WindowsPath"}
#: Largest list, and most bytes of the list of tensors.
MOST_ITEMS, MOST_BYTES = 10_000, 2**27


def is_sharded(path: str | Path) -> bool:
    """Return whether a path is the folder of a sharded checkpoint."""
    return (Path(path) / META).is_file() and (Path(path) / TENSORS).is_file()


class _Unpickler(pickle.Unpickler):
    """Finds only classes of the list of tensors, and types of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if f"{module}.{name}" in NAMED or module == "torch" else None
        if found is None or (module == "torch" and name != "Size" and not isinstance(found, torch.dtype)):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of plain data")
        return found


def read_shards(folder: Path, source: str, read: Callable[..., Any]) -> dict[str, Any]:
    """Return the content of a sharded checkpoint as if it were a single file, with whole tensors.

    Args:
        folder: folder of the checkpoint.
        source: name of the folder in messages.
        read: function that reads a ``torch.save`` file as plain data.

    Raises:
        CheckpointError: if it is damaged, or holds anything but plain data.
    """
    found = read(folder / META, source, within=folder)
    try:
        with open_plain(folder / TENSORS, folder) as file:
            content = file.read(MOST_BYTES)
        check_pickle(content, NAMED)
        listed = _Unpickler(io.BytesIO(content)).load()
        flat = _tensors(folder, source, listed, read)
        if any(type(step) is int and step >= MOST_ITEMS for step in chain.from_iterable(listed.planner_data.values())):
            raise ValueError("its lists are too long")
        parts = unflatten(flat, listed.planner_data)
        optimizers = [parts[f"optimizer_{number}"] for number in range(len(parts) - 1)]
        return {**found, "state_dict": parts["state_dict"], "optimizer_states": optimizers}
    except CheckpointError:
        raise
    except Exception as error:  # unpickling can raise any exception
        reason = " ".join(str(error).split()).rstrip(".")[:300]
        raise CheckpointError(
            f"{source} cannot be read as a sharded checkpoint: {type(error).__name__}: {reason}. Use another checkpoint."
        ) from error


def _tensors(folder: Path, source: str, listed: Any, read: Callable[..., Any]) -> dict[str, Any]:
    """Return the tensors and other values by name."""
    places = {(index.fqn, tuple(index.offset or ())): place for index, place in listed.storage_data.items()}
    allowed = sum(path.stat().st_size for path in folder.iterdir())
    flat: dict[str, Any] = {}

    def part(name: str, offset: tuple[int, ...]) -> Any:
        place = places[name, offset]
        if Path(place.relative_path).name != place.relative_path or getattr(place, "transform_descriptors", None):
            raise ValueError(f"{place.relative_path!r} is not a plain file of it")
        with open_plain(folder / place.relative_path, folder) as file:
            file.seek(place.offset)
            return read(io.BytesIO(file.read(min(place.length, allowed))), source)

    for name, entry in listed.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            flat[name] = part(name, ())
            continue
        if torch.empty(entry.size, dtype=entry.properties.dtype, device="meta").nbytes > allowed:
            raise ValueError(f"{name} is larger than its files")
        flat[name] = torch.zeros(entry.size, dtype=entry.properties.dtype)
        for chunk in entry.chunks:
            where = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
            shard = part(name, tuple(chunk.offsets))
            if not isinstance(shard, Tensor) or shard.shape != flat[name][where].shape:
                raise ValueError(f"{name} has a part of another shape")
            flat[name][where] = shard
    return flat
