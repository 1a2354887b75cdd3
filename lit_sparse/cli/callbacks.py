"""The callbacks that the command line adds to a config's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

import lit_sparse.callbacks
from lit_sparse.cli.best_metrics import monitor_of
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import read_bytes, read_yaml
from lit_sparse.lightning.choice import ModelCheckpoint, ModelSummary, ProgressBar, SaveConfigCallback, pl
from lit_sparse.lightning.internals import sets_rates
from lit_sparse.runs.folders import NUMBER

__all__ = ["OptimizerOptions", "SaveConfig", "as_list", "checkpoints", "not_named", "pictures"]

#: Options of an optimizer that do not apply to the dual variable of a risk.
KEPT = ("lr", "weight_decay")


class SaveConfig(SaveConfigCallback):
    """Callback that writes the resolved config to the run folder; a resumed run with another config keeps the former one.

    Args:
        folder: the run folder; None for the logger's folder.
    """

    def __init__(self, *args: Any, folder: Path | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "save_to_log_dir": False})
        self.folder = folder

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the folder to write to, by default the logger's, on all processes, because the first one broadcasts it."""
        if self.folder is None and trainer.loggers and trainer.log_dir is not None:
            self.folder = Path(trainer.log_dir)
        super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write the config file; Lightning calls this only on the first process."""
        if self.folder is None:  # without a logger this would be the current folder
            return
        path, config = self.folder / self.config_filename, self.config
        if (before := read_yaml(path, self.folder)) is not None:
            former = path.read_bytes()
            config = config.clone()
            config.ckpt_path = before.get("ckpt_path")  # the checkpoint that a run continues from is not part of its config
            if before == yaml.safe_load(self._text(config)):
                return
            self._keep(former)
        with replaced(path, "w") as file:
            file.write(self._text(config))

    def _keep(self, former: bytes) -> None:
        """Keep a former config under the next number, unless a killed process has done so."""
        assert self.folder is not None
        names = {path.stem.partition("_")[2]: path for path in self.folder.glob("config_*.yaml")}
        kept = {int(name): path for name, path in names.items() if NUMBER.fullmatch(name)}
        last = max(kept, default=-1)
        if kept and read_bytes(kept[last], self.folder) == former:
            return
        with replaced(self.folder / f"config_{last + 1}.yaml", "wb") as file:
            file.write(former)

    def _text(self, config: Any) -> str:
        return str(self.parser.dump(config, skip_none=False))


class OptimizerOptions(pl.Callback):
    """Callback that sets changed optimizer options in a resumed run, after the optimizer's state is restored.

    Args:
        options: name -> value, for all parameter groups.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the options of the optimizer.

        Raises:
            ConfigurationError: if a scheduler sets the learning rate.
        """
        if sets_rates(trainer) and "lr" in self.options:
            raise ConfigurationError(
                "Expected no change of `lr` but got one for a run whose scheduler sets the learning rate. Leave `lr` out."
            )
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                dual = group.get("dual", False)  # the dual variable of a risk has a separate rate and no decay
                group.update({name: value for name, value in self.options.items() if not dual or name not in KEPT})


def pictures(folder: str | None) -> list[pl.Callback]:
    """Return the default callbacks that draw pictures and write predictions: all of the package that write to a folder.

    Each ignores models it does not apply to.

    Args:
        folder: output folder; None for the logger's folder.
    """
    exported = [vars(lit_sparse.callbacks)[name] for name in lit_sparse.callbacks.__all__]
    kinds = [kind for kind in exported if isinstance(kind, type) and "folder" in constructor_parameters(kind)]
    return [kind(folder=folder) for kind in kinds]


class RunCheckpoint(ModelCheckpoint):
    """Checkpoint callback of the command line; a class of its own, so its state is separate from the user's callbacks.

    The user's write no file of its name, such as ``last.ckpt`` with ``save_last``: it counts as written from the start.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reserve the file for this callback."""
        super().setup(trainer, pl_module, stage)
        savers = [saver for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]
        own = {_place(saver.format_checkpoint_name({})) for saver in savers if isinstance(saver, RunCheckpoint)}
        for saver in savers:
            if not isinstance(saver, RunCheckpoint):
                saver.file_exists = partial(_exists, own, partial(type(saver).file_exists, saver))  # type: ignore[method-assign]


def _place(path: Any) -> Path:
    return Path(path).parent.resolve() / Path(path).name  # a link is itself the file


def _exists(own: set[Path], exists: Callable[[Any, pl.Trainer], bool], path: Any, trainer: pl.Trainer) -> bool:
    """Return whether a file exists, as one that is written later does."""
    return _place(path) in own or exists(path, trainer)


def checkpoints(folder: Path, model: pl.LightningModule, every_n_steps: int | None) -> list[pl.Callback]:
    """Return the callbacks that write the best and the last checkpoint.

    Args:
        folder: folder of the checkpoints.
        model: model whose ``monitor`` names the metric for the best checkpoint.
        every_n_steps: number of steps after which the last checkpoint is also written, besides after each epoch.
    """
    key, mode = monitor_of(model)
    common: dict[str, Any] = {"dirpath": folder, "enable_version_counter": False, "auto_insert_metric_name": False}
    callbacks: list[pl.Callback] = [
        RunCheckpoint(filename="best", monitor=key, mode=mode, **common),
        RunCheckpoint(filename="last", every_n_epochs=1, save_on_train_epoch_end=True, **common),
    ]
    if every_n_steps:
        callbacks.append(RunCheckpoint(filename="last", every_n_train_steps=every_n_steps, **common))
    return callbacks


def as_list(value: Any) -> list[Any]:
    """Return the callbacks or loggers of a config, which may be None, one or a list, as a list."""
    return [] if value is None else [*value] if isinstance(value, list | tuple) else [value]


def not_named(callbacks: list[pl.Callback], config: Any) -> list[pl.Callback]:
    """Return the default callbacks whose class the config does not name; checkpoint callbacks are always returned.

    A progress bar or a summary of the model in the config replaces any other.

    Args:
        callbacks: default callbacks.
        config: value of ``trainer.callbacks``: None, one callback or a list.
    """
    kinds = {kind for callback in as_list(config) for kind in _kinds(callback)}
    return [callback for callback in callbacks if isinstance(callback, ModelCheckpoint) or not _kinds(callback) & kinds]


def _kinds(callback: pl.Callback) -> set[type]:
    return {type(callback), *(kind for kind in (ProgressBar, ModelSummary) if isinstance(callback, kind))}
