"""Checkpoint files that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lit_sparse.errors import LitSparseError, cause_of
from lit_sparse.ground.files import replaced
from lit_sparse.lightning.choice import TorchCheckpointIO
from lit_sparse.runs.checkpoint_files import check_written, read_checkpoint

__all__ = ["DiskError", "WholeFiles"]


class DiskError(LitSparseError, OSError):
    """Error for a full disk or a folder without write permission."""


class WholeFiles(TorchCheckpointIO):
    """Write checkpoints to a temporary file on the disk, then rename it to the target."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            DiskError: if it cannot be written; an earlier file of that name stays unchanged.
        """
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        try:
            with replaced(target, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(cause_of(error, OSError) or error).split()).rstrip(".")  # torch's error hides the system's
            earlier = " The earlier file of that name is unchanged." if target.is_file() else ""
            raise DiskError(
                f"Expected to write the checkpoint {str(target)!r} but got: {reason}.{earlier} Free space on the disk."
            ) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint with all checks again, because the file may have changed since the model was built."""
        if weights_only is False:
            return super().load_checkpoint(path, map_location, weights_only)
        checkpoint = read_checkpoint(path)
        check_written(repr(str(path)), checkpoint)
        return checkpoint
