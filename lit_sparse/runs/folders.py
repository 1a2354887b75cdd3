"""Run folders: their location and numbers, the run that a command continues, its files and the changes of its options."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.ground.files import STATUS, not_plain
from lit_sparse.ground.stored import is_file

__all__ = [
    "CHECKPOINTS",
    "NUMBER",
    "claim_folder",
    "differences",
    "discard_if_unused",
    "experiment_folder",
    "experiment_name",
    "find_checkpoint",
    "inside",
    "is_checkpoint",
    "next_command",
    "remove",
    "replace_folder",
    "run_of",
]

CHECKPOINTS = "checkpoints"
#: Environment variable with the folder that the first process claimed, for the processes of the other ranks.
FOLDER_VARIABLE = "LIT_SPARSE_RUN_FOLDER"
#: Number in the name of a folder or file, in one spelling.
NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


def experiment_name(config: str | None, model: str) -> str:
    """Return the name of an experiment: of its config (``configs/ssvae/digits.yaml`` -> ``ssvae/digits``), or of its model."""
    if config is None:
        return model.rsplit(".", 1)[-1]
    path = Path(config).with_suffix("")
    parts = path.parts
    if "configs" in parts:
        return "/".join(parts[len(parts) - parts[::-1].index("configs") :])
    return path.name


def experiment_folder(output_dir: str, name: str) -> Path:
    """Return the folder of all runs of an experiment.

    Raises:
        ConfigurationError: if the folder is outside the output folder, or at a URL.
    """
    if "://" in output_dir:
        raise ConfigurationError(
            f"Expected a local folder of runs but got {output_dir!r}. Choose one, and let a ModelCheckpoint copy the"
            f" checkpoints: --trainer.callbacks+ ModelCheckpoint --trainer.callbacks.dirpath {output_dir}"
        )
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
        raise ConfigurationError(
            f"Expected an experiment folder within --output_dir, such as ssvae/digits, but got {name!r}."
            " Give another --name, or another --output_dir."
        )
    return Path(output_dir) / name


def numbered(folder: Path) -> list[Path]:
    """Return the numbered subfolders of a folder in order, without links; the newest comes last."""
    if not folder.is_dir():
        return []
    return sorted(
        (path for path in folder.iterdir() if NUMBER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()),
        key=lambda path: int(path.name),
    )


def claim_folder(parent: Path, command: str = "", *, first_process: bool) -> Path:
    """Return a new numbered folder, created on the first process and the same on all others.

    Args:
        parent: folder of all runs of an experiment, or a run folder.
        command: name of the folder to create in it, for a command other than ``fit``.
        first_process: whether this is rank 0.

    Raises:
        ConfigurationError: if the folder cannot be created, or a link with the command's name leads elsewhere.
    """
    parent = parent / command
    if command and parent.is_symlink():
        raise not_plain(parent, "folder")
    if not first_process and FOLDER_VARIABLE in os.environ:
        return Path(os.environ[FOLDER_VARIABLE])
    number = int(numbered(parent)[-1].name) + 1 if numbered(parent) else 0
    if not first_process:
        return parent / str(number)  # a cluster scheduler started this process: only the first process writes
    while True:
        folder = parent / str(number)
        try:
            folder.mkdir(parents=True)
            os.environ[FOLDER_VARIABLE] = str(folder)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigurationError(
                f"Expected to create the run folder {str(folder)!r} but got: {error}. Choose another --output_dir."
            ) from error


def discard_if_unused(folder: Path) -> None:
    """Remove a run folder that holds only files from before the first step: the config and empty logs."""
    files = [path.name for path in folder.rglob("*") if not path.is_dir()]
    early = ("config.yaml", "hparams.yaml", STATUS)
    if folder.is_dir() and all(name in early or name.startswith("events.out.") for name in files):
        shutil.rmtree(folder)


def find_checkpoint(
    wanted: str, parent: Path, config: str | None = None, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Return the path of the checkpoint that the option ``--ckpt_path`` names.

    Args:
        wanted: a path; or ``"last"`` or ``"best"`` for a checkpoint of the newest run that has it, or of the run that
            ``config`` belongs to.
        parent: folder of all runs of the experiment.
        config: path of the config of the command.
        note: function that is called with a message if that run has no such checkpoint, so that another run's is returned.

    Raises:
        CheckpointError: if there is no such file.
    """
    if wanted not in ("last", "best"):
        if not is_checkpoint(path := Path(wanted)):
            raise CheckpointError(
                f"--ckpt_path {wanted}: there is no such file. Give the path of a checkpoint, or `last` or `best` for a"
                " checkpoint of the newest run."
            )
        return path
    own = run_of(Path(config).parent / CHECKPOINTS / f"{wanted}.ckpt") if config is not None else None
    runs = [*([own] if own else []), *reversed(numbered(parent))]
    for name in (wanted, "last" if wanted == "best" else "best"):
        for run in runs:
            if not is_checkpoint(path := run / CHECKPOINTS / f"{name}.ckpt"):
                continue
            if name != wanted:
                raise CheckpointError(
                    f"--ckpt_path {wanted}: no run in {str(parent)!r} holds a {wanted} checkpoint, but {str(path)!r} exists."
                    f" Give --ckpt_path {name}."
                )
            if run != runs[0]:
                which = "the run of the config" if own else "the newest run"
                note(f"{which}, {runs[0]}, has no {wanted} checkpoint; the older run {run} is used")
            return inside(path, run)
    raise CheckpointError(
        f"--ckpt_path {wanted}: no run in {str(parent)!r} holds a {wanted} checkpoint. Start a run with `fit`, without"
        " --ckpt_path, or give the folder of the run with --output_dir and --name."
    )


def is_checkpoint(path: Path) -> bool:
    """Return whether a checkpoint, a file or a folder, exists at a path, after undoing an interrupted replacement."""
    old = path.parent / f".{path.name}.old"
    if os.path.isdir(old) and not path.exists():  # noqa: PTH112  (a name may be too long for the system)
        old.rename(path)
    return is_file(path) or is_file(path / "meta.pt")


def replace_folder(part: Path, target: Path) -> None:
    """Move a folder to the place of a file or folder; :func:`is_checkpoint` undoes an interrupted replacement."""
    old = target.with_name(f".{target.name}.old")
    remove(old)
    if target.exists():
        target.rename(old)
    part.rename(target)
    remove(old)


def remove(path: Path) -> None:
    """Remove a folder, a file or a link, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def run_of(checkpoint: Path | None) -> Path | None:
    """Return the run folder that a checkpoint belongs to, or None."""
    if checkpoint is None:
        return None
    run = checkpoint.parent.parent
    return run if checkpoint.parent.name == CHECKPOINTS and (run / "config.yaml").is_file() else None


def next_command(run: Path, command: str, names: Iterable[str]) -> str:
    """Return a line with the command that resumes or uses a run, or an empty string if the run has no checkpoint.

    Args:
        run: the run folder.
        command: ``"fit"`` to resume, or another command.
        names: ``"best"`` and ``"last"`` in some order; the first that exists is used.
    """
    checkpoint = next((name for name in names if is_checkpoint(run / CHECKPOINTS / f"{name}.ckpt")), None)
    if checkpoint is None:
        return ""
    config = shlex.quote(str(run / "config.yaml"))
    return f"{'continue' if command == 'fit' else command} with: lit-sparse {command} -c {config} --ckpt_path {checkpoint}"


def differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return the keys whose values differ between two configs, with both values; None stands for an absent key."""
    old, new = (vars(value) if isinstance(value, Namespace) else value for value in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        changes = []
        for key in dict.fromkeys([*old, *new]):
            changes += differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return changes
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        old, new = list(old), list(new)
        if len(old) == len(new) and not any(differences(*both) for both in zip(old, new, strict=True)):
            return []
    return [] if old == new else [(prefix, old, new)]


def inside(path: Path, folder: Path) -> Path:
    """Return a path inside a folder, after checking that no link leads out of the folder.

    Raises:
        CheckpointError: if a link does; the message names it.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(
            f"Expected {str(path)!r} to be in its run folder but it is a link out of it. Copy the file there."
        )
    return path
