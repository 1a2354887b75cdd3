"""Checkpoint files that are written completely or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lit_sparse.errors import LitSparseError, cause_of
from lit_sparse.ground.files import replaced
from lit_sparse.lightning.choice import TorchCheckpointIO
from lit_sparse.runs.checkpoint_files import check_written, read_checkpoint
from lit_sparse.runs.folders import remove, replace_folder
from lit_sparse.runs.torch_files import is_sharded

__all__ = ["DiskError", "WholeFiles", "keep_shards_whole"]


class DiskError(LitSparseError, OSError):
    """Error for a full disk or a folder without write permission."""


class WholeFiles(TorchCheckpointIO):
    """Checkpoint plugin that writes to a temporary file and renames it, so a checkpoint is complete or absent.

    Times of change follow the order of writing, even if a clock was set back: a continued run tells later files by them.
    """

    _latest = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint completely, or leave an earlier file of that name unchanged.

        Raises:
            DiskError: if it cannot be written.
        """
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        try:
            with replaced(target, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()  # else it would change the time later
                self._latest = max(os.fstat(file.fileno()).st_mtime_ns, self._latest + 1)
                with suppress(OSError):  # the checkpoint is whole
                    os.utime(file.name, ns=(self._latest, self._latest))
        except (OSError, RuntimeError) as error:
            cause = cause_of(error, OSError) or error  # torch's error hides the system's
            reason = getattr(cause, "strerror", None) or " ".join(str(cause).split()).rstrip(".")
            earlier = " The earlier file of that name is unchanged." if target.is_file() else ""
            raise DiskError(
                f"Expected to write the checkpoint {str(target)!r} but got: {reason}.{earlier} Free space on the disk."
            ) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Return a checkpoint after all checks, because the file may have changed since the model was built."""
        with suppress(OSError):  # it may be a URL
            self._latest = max(self._latest, Path(path).stat().st_mtime_ns)
        if weights_only is False:
            return super().load_checkpoint(path, map_location, weights_only)
        checkpoint = read_checkpoint(path)
        check_written(repr(str(path)), checkpoint)
        return checkpoint


def keep_shards_whole(strategy: Any) -> None:
    """Make a ModelParallelStrategy write its checkpoint folders completely or not at all, and read them as plain data.

    Torch would unpickle the content of the folder. Instead, each process reads the whole folder, and keeps its part.
    """
    save, load = strategy.save_checkpoint, strategy.load_checkpoint

    def on_first(act: Any, *args: Any) -> None:
        strategy.barrier()
        if strategy.global_rank == 0:
            act(*args)
        strategy.barrier()

    def save_checkpoint(checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if not strategy._save_distributed_checkpoint:
            save(checkpoint, filepath, storage_options)
            return
        target = Path(strategy.broadcast(filepath))
        part = target.with_name(f".{target.name}.part")
        on_first(remove, part)
        save(checkpoint, part, storage_options)
        on_first(replace_folder, part, target)

    def load_checkpoint(checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        path = Path(strategy.broadcast(checkpoint_path))
        if not is_sharded(path):
            return load(path, weights_only)
        whole = path.with_name(f".{path.name}.whole")
        on_first(lambda: torch.save(read_checkpoint(path), whole))
        try:
            return load(whole, True)
        finally:
            on_first(remove, whole)

    strategy.save_checkpoint, strategy.load_checkpoint = save_checkpoint, load_checkpoint
