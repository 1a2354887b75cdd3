"""Files of a run that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO

from lit_sparse.checkpoint_files import check_written, read_checkpoint
from lit_sparse.errors import LitSparseError

__all__ = ["DISK_IS_FULL", "DiskError", "WholeFiles", "replaced"]

#: Errors of the system after which nothing more can be written.
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class DiskError(LitSparseError, OSError):
    """A file of a run cannot be written: the disk is full, or the folder cannot be written to."""


@contextmanager
def replaced(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Open a file in the folder of another that takes its name once it is whole and on the disk.

    Args:
        path: file that is made or replaced.
        mode: ``"w"`` for text, ``"wb"`` for bytes.
    """
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open(mode, newline=None if "b" in mode else "") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name is on the disk, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class WholeFiles(TorchCheckpointIO):
    """Write checkpoints to a file beside the target, to the disk, and only then give it the target's name."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            DiskError: if it cannot be written; the earlier one of that name is as it was.
        """
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        try:
            with replaced(target, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            earlier = " The earlier file of that name is whole." if target.is_file() else ""
            raise DiskError(
                f"Expected to write the checkpoint {str(target)!r} but got: {_reason(error)}.{earlier} Free space on the disk."
            ) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint as it was read before the model was built: with all checks, should the file have changed since."""
        if weights_only is False:
            return super().load_checkpoint(path, map_location, weights_only)
        checkpoint = read_checkpoint(path)
        check_written(repr(str(path)), checkpoint)
        return checkpoint


def _reason(error: BaseException) -> str:
    """Return the message of the system's error behind what torch makes of it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(cause or error).split()).rstrip(".")
