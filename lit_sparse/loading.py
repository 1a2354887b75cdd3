"""Loading a trained model in one line, for notebooks and serving."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, overload

import yaml

from lit_sparse.aliases import with_new_names
from lit_sparse.checkpoint_files import load_trusted, restoring_error
from lit_sparse.errors import CheckpointError
from lit_sparse.lightning import instantiate_module, pl
from lit_sparse.trust import check_hyperparameters, trusting

__all__ = ["load"]

CHECKPOINTS = "checkpoints"


@overload
def load(
    path: str | Path,
    which: str = ...,
    *,
    data: Literal[False] = ...,
    map_location: Any = ...,
    trust: Collection[str] = ...,
    **arguments: Any,
) -> pl.LightningModule: ...


@overload
def load(
    path: str | Path,
    which: str = ...,
    *,
    data: Literal[True],
    map_location: Any = ...,
    trust: Collection[str] = ...,
    **arguments: Any,
) -> tuple[pl.LightningModule, pl.LightningDataModule]: ...


def load(
    path: str | Path,
    which: str = "best",
    *,
    data: bool = False,
    map_location: Any = "cpu",
    trust: Collection[str] = (),
    **arguments: Any,
) -> pl.LightningModule | tuple[pl.LightningModule, pl.LightningDataModule]:
    """Return a trained model in evaluation mode.

    Args:
        path: path of a run folder such as ``"runs/ssvae/digits/0"``, or of a checkpoint.
        which: checkpoint in the run folder, ``"best"`` or ``"last"``.
        data: whether to also return the run's data module; text data use the vocabularies of the model.
        map_location: device of the weights.
        trust: import paths that the run may name in addition to the allowed ones; see ``docs/explanation/trust.md``.
        arguments: arguments of the model that replace those in the checkpoint.

    Raises:
        CheckpointError: if the checkpoint is missing, does not fit, or names a forbidden class.
    """
    path = Path(path)
    file = _checkpoint_of(path, which) if path.is_dir() else path
    loader = pl.LightningModule.load_from_checkpoint
    model = load_trusted(loader, file, trust=trust, map_location=map_location, **arguments).eval()
    if not data:
        return model
    run = file.parent.parent
    with trusting(trust):
        described = _data_of(run)
    try:
        module = instantiate_module(pl.LightningDataModule, described)
        if hasattr(module, "use_vocabularies") and getattr(model, "vocabularies", None):
            module.use_vocabularies(model.vocabularies)
    except Exception as error:
        raise restoring_error(repr(str(run)), error) from error
    return model, module


def _checkpoint_of(folder: Path, which: str) -> Path:
    found = sorted(path.stem for path in (folder / CHECKPOINTS).glob("*.ckpt"))
    if which in found:
        return folder / CHECKPOINTS / f"{which}.ckpt"
    there = f"only {' and '.join(found)}" if found else "no checkpoint"
    runs = [] if found else sorted(path.parent.name for path in folder.glob(f"*/{CHECKPOINTS}"))
    hint = f" Give one of its runs: {', '.join(str(folder / name) for name in runs)}." if runs else ""
    raise CheckpointError(f"Expected a {which} checkpoint in the run folder {str(folder)!r} but there is {there}.{hint}")


def _data_of(run: Path) -> dict[str, Any]:
    config = run / "config.yaml"
    try:
        content = yaml.safe_load(config.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"Expected the run's config in {str(config)!r} but it is unreadable: {error}") from error
    described = content.get("data") if isinstance(content, dict) else None
    if not isinstance(described, dict) or not isinstance(described.get("class_path"), str):
        raise CheckpointError(f"Expected a data module in {str(config)!r} but got none.")
    arguments = described.get("init_args") or {}
    if not isinstance(arguments, dict):
        raise CheckpointError(f"Expected `data.init_args` in {str(config)!r} to be a dict but got {arguments!r}.")
    found = {"_class_path": described["class_path"], **arguments}
    check_hyperparameters(repr(str(config)), found)
    renamed: dict[str, Any] = with_new_names(found)
    return renamed
