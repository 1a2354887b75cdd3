"""Loading a trained model in one line, for notebooks and serving."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, overload

from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.stored import read_yaml
from lit_sparse.lightning.choice import pl
from lit_sparse.runs.builder import build
from lit_sparse.runs.checkpoint_files import load_module, restoring_error
from lit_sparse.runs.folders import CHECKPOINTS, inside
from lit_sparse.runs.torch_files import is_sharded, is_url
from lit_sparse.runs.trust import trusting

__all__ = ["load"]


@overload
def load(path: str | Path, which: str = ..., *, data: Literal[False] = ..., **arguments: Any) -> pl.LightningModule: ...


@overload
def load(
    path: str | Path, which: str = ..., *, data: Literal[True], **arguments: Any
) -> tuple[pl.LightningModule, pl.LightningDataModule]: ...


@checked
def load(
    path: str | Path,
    which: str = "best",
    *,
    data: bool = False,
    map_location: Any = "cpu",
    trust: Collection[str] = (),
    **arguments: Any,
) -> pl.LightningModule | tuple[pl.LightningModule, pl.LightningDataModule]:
    """Return a trained model in eval mode, loaded from a run folder or a checkpoint.

    Args:
        path: path of a run folder such as ``"runs/ssvae/digits/0"``, or path or URL of a checkpoint, such as
            ``"hf://user/repository/best.ckpt"``.
        which: checkpoint in the run folder, ``"best"`` or ``"last"``.
        data: whether to also return the run's data module; text data use the vocabularies of the model.
        map_location: device of the weights.
        trust: import paths that the run may name in addition to the allowed ones; see ``docs/explanation/trust.md``.
        arguments: arguments of the model that replace the checkpoint's.

    Returns:
        The model; with ``data``, the model and the data module.

    Raises:
        CheckpointError: if the checkpoint is missing, does not match the model, or names a forbidden class.
    """
    folder = None if is_url(path) or is_sharded(path) or not Path(path).is_dir() else Path(path)
    file = path if folder is None else _checkpoint_of(folder, which)
    model = load_module(pl.LightningModule, file, trust=trust, map_location=map_location, within=folder, **arguments).eval()
    if not data:
        return model
    run = Path(file).parent.parent
    try:
        with trusting(trust):
            module = _data_of(run)
        if hasattr(module, "use_vocabularies") and getattr(model, "vocabularies", None):
            module.use_vocabularies(model.vocabularies)
    except Exception as error:
        raise restoring_error(repr(str(run)), error) from error
    return model, module


def _checkpoint_of(folder: Path, which: str) -> Path:
    found: list[str] = []
    try:
        found = sorted(path.stem for path in (folder / CHECKPOINTS).iterdir() if path.suffix == ".ckpt")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CheckpointError(
            f"Expected a folder of checkpoints in {str(folder / CHECKPOINTS)!r} but got: {error.strerror}. Check its"
            " permissions."
        ) from error
    if which in found:
        return inside(folder / CHECKPOINTS / f"{which}.ckpt", folder)
    there = f"only {' and '.join(found)}" if found else "no checkpoint"
    runs = [] if found else sorted(path.parent.name for path in folder.glob(f"*/{CHECKPOINTS}"))
    hint = f" Give one of its runs: {', '.join(str(folder / name) for name in runs)}." if runs else ""
    raise CheckpointError(f"Expected a {which} checkpoint in the run folder {str(folder)!r} but there is {there}.{hint}")


def _data_of(run: Path) -> Any:
    config = run / "config.yaml"
    try:
        content = read_yaml(config, run) or {}
    except ConfigurationError as error:
        raise CheckpointError(str(error)) from error
    described = content.get("data")
    if not isinstance(described, dict):
        raise CheckpointError(f"Expected a data module in {str(config)!r} but got none.")
    return build(repr(str(config)), described, pl.LightningDataModule)
