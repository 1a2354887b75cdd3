"""What the command line does with a checkpoint, besides making it agree with the config."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule

from lit_sparse.checkpoint_files import (
    check_finite,
    check_resumable,
    check_written,
    read_checkpoint,
    restoring_error,
)
from lit_sparse.errors import CheckpointError

__all__ = ["check_model", "is_restoring", "load_weights", "read_for"]


def read_for(command: str, path: Path, classes: Collection[str]) -> dict[str, Any]:
    """Return a checkpoint that a command can use.

    Args:
        command: ``"fit"`` needs more of it than the others.
        path: of the checkpoint.
        classes: those that the user names, whose modules the checkpoint may name too.

    Raises:
        CheckpointError: if it is not a checkpoint, names what may not be used, or holds NaN.
    """
    for module in {name.rpartition(".")[0] for name in classes} - {""}:
        with suppress(Exception):  # the parser says what is wrong with it
            import_module(module)
    source = repr(str(path))
    checkpoint = read_checkpoint(path)
    if command == "fit":
        check_resumable(source, checkpoint)
    check_written(source, checkpoint)
    check_finite(source, checkpoint)
    return checkpoint


def check_model(asked: str | None, kept: str, path: Path) -> None:
    """Check that a checkpoint is of the class that the config names.

    Raises:
        CheckpointError: if it is of another.
    """
    if asked is not None and asked.rpartition(".")[2] != kept.rpartition(".")[2]:
        raise CheckpointError(
            f"Expected a checkpoint of a {asked}, which the config names, but {str(path)!r} is one of a {kept}. Give the config"
            " that it was trained with, such as config.yaml of its run folder."
        )


def load_weights(model: LightningModule, path: Path) -> None:
    """Give a model the weights of its checkpoint, and put it into evaluation.

    Raises:
        CheckpointError: if they do not fit.
    """
    checkpoint = read_checkpoint(path)
    try:
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
    except Exception as error:
        raise restoring_error(repr(str(path)), error) from error
    model.eval()


def is_restoring(error: BaseException) -> bool:
    """Tell whether an error was raised while Lightning restored a checkpoint."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        code.co_filename.endswith("checkpoint_connector.py") and code.co_name.lstrip("_").startswith(("restore", "resume"))
        for code in codes
    )
