"""Reads checkpoints for the command line, and merges their model with the config."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from typing_extensions import Self

from lit_sparse.allocation import Limits
from lit_sparse.checkpoint_files import (
    check_finite,
    check_resumable,
    check_written,
    plan_module,
    read_checkpoint,
    restoring_error,
)
from lit_sparse.cli.arguments import as_yaml_file, chosen_options, split_model_options
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.lightning import LightningArgumentParser, pl
from lit_sparse.runs import differences
from lit_sparse.stored import read_yaml
from lit_sparse.trust import find_imported

__all__ = ["MergedModel", "changes_of_run", "check_model", "is_restoring", "load_weights", "read_for"]

Change = tuple[str, Any, Any]


def read_for(command: str, path: Path, classes: Collection[str], within: Path | None = None) -> dict[str, Any]:
    """Return a checkpoint that a command can use.

    Args:
        command: name of the command; ``"fit"`` also needs the state of the optimizer.
        path: path of the checkpoint.
        classes: classes that the user names; the checkpoint may name others of their modules.
        within: folder out of which no link may lead; None for a file that the user names.

    Raises:
        CheckpointError: if it is not a checkpoint, names a class that is not allowed, or holds NaN.
    """
    for module in {name.rpartition(".")[0] for name in classes} - {""}:
        with suppress(Exception):  # the parser reports the error
            import_module(module)
    source = repr(str(path))
    checkpoint = read_checkpoint(path, within=within)
    described = checkpoint.get("hyper_parameters")
    if not isinstance(described, dict) or "_class_path" in described:
        plan_module(Limits.of(source, checkpoint["state_dict"]), described, pl.LightningModule)
    if command == "fit":
        check_resumable(source, checkpoint)
    check_written(source, checkpoint)
    check_finite(source, checkpoint)
    return checkpoint


def check_model(asked: str | None, kept: str, path: Path) -> None:
    """Check that the class of a checkpoint's model is the class that the config names.

    Raises:
        CheckpointError: if the classes differ.
    """
    if asked is not None and asked.rpartition(".")[2] != kept.rpartition(".")[2]:
        raise CheckpointError(
            f"Expected a checkpoint of a {asked}, as in the config, but got {str(path)!r} of a {kept}. Give the config that it"
            " was trained with, e.g. config.yaml of its run folder."
        )


def load_weights(model: pl.LightningModule, path: Path) -> None:
    """Load the weights of a checkpoint into a model, and set it to evaluation mode.

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
    """Return whether an error was raised while Lightning restored a checkpoint."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        code.co_filename.endswith("checkpoint_connector.py") and code.co_name.lstrip("_").startswith(("restore", "resume"))
        for code in codes
    )


@dataclass(frozen=True)
class MergedModel:
    """A command over the model of a checkpoint, parsed in four steps with more and more of the user's options.

    Attributes:
        path: path of the checkpoint.
        command: name of the command.
        saved: config with the model of the checkpoint.
        used: the same with the inference arguments of the command line.
        asked: the same with all model options of the command line.
        configured: the same with the model of the config as well.
        inference: names of the inference arguments of the model.
    """

    path: Path
    command: str
    saved: Namespace
    used: Namespace
    asked: Namespace
    configured: Namespace
    inference: frozenset[str]

    @classmethod
    def parse(
        cls, parser: LightningArgumentParser, command: str, options: list[str], described: dict[str, Any], path: Path
    ) -> Self:
        """Parse the options of a command over the model of a checkpoint.

        Args:
            parser: parser of the command line.
            command: name of the command.
            options: arguments after the command.
            described: hyper-parameters of the checkpoint, ``_class_path`` among them.
            path: path of the checkpoint.
        """
        class_path = described["_class_path"]
        init_args = {name: value for name, value in described.items() if not name.startswith("_")}
        inference: frozenset[str] = getattr(find_imported(class_path), "inference_arguments", frozenset())
        asked, others = split_model_options(options)
        with as_yaml_file({"model": {"class_path": class_path, "init_args": init_args}}) as model:
            parsed = cache(lambda *words: parser.parse_args([command, *words]))  # most commands have no model options
            return cls(
                path=path,
                command=command,
                saved=parsed(*others, "-c", model),
                used=parsed(*others, "-c", model, *chosen_options(asked, inference)),
                asked=parsed(*others, "-c", model, *asked),
                configured=parsed("-c", model, *options),
                inference=inference,
            )

    def for_fit(self, state: Collection[str]) -> tuple[Namespace, list[str]]:
        """Return the config of a continued run, and notes on its changes.

        Args:
            state: names in the state of the checkpoint's model.

        Raises:
            ConfigurationError: if an argument differs whose value is part of the trained state.
        """
        changes = self._changes(self.used, self.configured)
        for key, old, new in changes:
            if key.replace("init_args.", "") in state:
                raise ConfigurationError(
                    f"Expected model.{key} = {old}, which is part of the trained state, but got {new}. Leave it out, or"
                    " start a new run from the weights: --model.init_args.initial_weights CHECKPOINT"
                )
        notes = [f"model.{key} was {old} when {self.path} was written and is {new} from here on" for key, old, new in changes]
        return self.configured, notes

    def for_scoring(self) -> tuple[Namespace, list[str]]:
        """Return the config that scores the model as it was trained, and notes on ignored values of the config.

        Raises:
            ConfigurationError: if the command line contradicts the checkpoint.
        """
        if refused := self._changes(self.used, self.asked):
            key, old, new = refused[0]
            may = f" These may differ: {', '.join(sorted(self.inference))}." if self.inference else ""
            raise ConfigurationError(
                f"Expected model.{key} = {old}, with which the checkpoint was trained, but got --model.{key} {new}."
                f" `{self.command}` uses a model as it was trained: leave the option out.{may}"
            )
        notes = [
            f"model.{key} was {old} when {self.path} was written and is {new} here"
            for key, old, new in self._changes(self.saved, self.used)
        ]
        notes += [
            f"the config has model.{key} = {new}; the checkpoint was trained with {old}, which is used"
            for key, old, new in self._changes(self.used, self.configured)
        ]
        return self.used, notes

    def optimizer_options(self) -> dict[str, Any]:
        """Return the changed options of the optimizer, which would be lost when its state is restored.

        Raises:
            ConfigurationError: if the optimizer or the scheduler has another class.
        """
        changed = {}
        for key, old, new in self._changes(self.used, self.configured):
            part, _, option = key.removeprefix("init_args.").partition(".")
            if part == "optimizer" and option.startswith("init_args."):
                changed[option.removeprefix("init_args.")] = new
            elif part in ("optimizer", "lr_scheduler"):
                raise ConfigurationError(
                    f"Expected model.{key} = {old}, whose state the checkpoint holds, but got {new}."
                    " Start a new run from the weights instead: --model.init_args.initial_weights CHECKPOINT"
                )
        return changed

    def _changes(self, old: Namespace, new: Namespace) -> list[Change]:
        return differences(old[self.command]["model"], new[self.command]["model"])


def changes_of_run(config: Path, command: str, now: dict[str, Any]) -> list[str]:
    """Return notes on the options of data and trainer that a command changes.

    Args:
        config: path of the run's config.
        command: name of the command; only `fit` continues a run, with its seed and a trainer of the same kind.
        now: config of the command.

    Raises:
        ConfigurationError: if the file is not a config, or has another seed.
    """
    began = read_yaml(config, config.parent) or {}
    fits = command == "fit"
    if fits and began.get("seed_everything") != now.get("seed_everything"):
        raise ConfigurationError(
            f"Expected seed_everything = {began.get('seed_everything')}, with which the run began, but got"
            f" {now.get('seed_everything')}. Leave it out, or start a new run."
        )
    then, now_on = ("before this continuation", "from here on") if fits else ("in training", "here")
    return [
        f"{key} was {old} {then} and is {new} {now_on}"
        for part in (("data", "trainer") if fits else ("data",))
        for key, old, new in differences(began.get(part), now.get(part), part)
    ]
