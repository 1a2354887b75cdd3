"""Reads checkpoints for the command line, and merges their model with the config."""

from __future__ import annotations

import json
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from typing_extensions import Self

from lit_sparse.cli.parser import Parser, StoredParser
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.ground.stored import read_yaml
from lit_sparse.lightning.choice import pl
from lit_sparse.runs.allocation import Limits
from lit_sparse.runs.checkpoint_files import (
    check_finite,
    check_kinds,
    check_resumable,
    check_written,
    plan_module,
    read_checkpoint,
    restoring_error,
)
from lit_sparse.runs.folders import differences
from lit_sparse.runs.trust import find_imported

__all__ = ["StoredModel", "changes_of_run", "is_restoring", "load_weights", "read_for"]


def read_for(command: str, path: Path, source: str, within: Path | None = None) -> dict[str, Any]:
    """Return a checkpoint after checking that a command can use it.

    Args:
        command: name of the command; ``"fit"`` also needs the state of the optimizer.
        path: path of the checkpoint.
        source: name of the file in messages.
        within: folder out of which no link may lead; None for a file that the user names.

    Raises:
        CheckpointError: if it is not a checkpoint, names a class that is not allowed, or holds NaN.
    """
    checkpoint = read_checkpoint(path, source, within=within)
    described = checkpoint.get("hyper_parameters")
    if not isinstance(described, dict) or "_class_path" in described:
        plan_module(Limits.of(source, checkpoint["state_dict"]), described, pl.LightningModule)
    if command == "fit":
        check_resumable(source, checkpoint)
    check_written(source, checkpoint)
    check_finite(source, checkpoint)
    return checkpoint


def load_weights(model: pl.LightningModule, path: Path) -> None:
    """Load the weights of a checkpoint into a model, and set it to eval mode.

    Raises:
        CheckpointError: if the weights do not match the model.
    """
    checkpoint = read_checkpoint(path)
    try:
        model.on_load_checkpoint(checkpoint)
        check_kinds(model, checkpoint)
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
class StoredModel:
    """The model that a checkpoint describes, to be merged with the options of a command.

    Attributes:
        path: path or URL of the checkpoint.
        saved: the model as the checkpoint describes it.
        inference: names of the inference arguments of the model, which may differ in every command.
    """

    path: str
    saved: Namespace
    inference: frozenset[str]

    @classmethod
    def of(cls, described: dict[str, Any], path: str) -> Self:
        """Return the model given by a checkpoint's description, whose classes and values were already checked.

        Args:
            described: hyperparameters of the checkpoint, including ``_class_path``.
            path: path or URL of the checkpoint.
        """
        init_args = {name: value for name, value in described.items() if not name.startswith("_")}
        plain = json.loads(json.dumps({"class_path": described["_class_path"], "init_args": init_args}))  # dicts and lists
        inference: frozenset[str] = getattr(find_imported(described["_class_path"]), "inference_arguments", frozenset())
        return cls(path, _parser(StoredParser).parse_object({"model": plain})["model"], inference)

    def used_in(self, command: str, configured: Namespace, options: list[str]) -> Namespace:
        """Return the model as it was trained, with the inference arguments of the options, for commands that do not train it.

        Args:
            command: name of the command.
            configured: the model with all changes by configs and options.
            options: options of the model.

        Raises:
            CheckpointError: if the configs or options name another class.
            ConfigurationError: if the options change an argument that may not differ.
        """
        kept, asked = str(self.saved["class_path"]), str(configured["class_path"]).rpartition(".")[2]
        if asked != kept.rpartition(".")[2]:
            raise CheckpointError(
                f"Expected a checkpoint of a {asked}, as in the config, but got {self.path!r} of a {kept}. Give the config"
                " that it was trained with, e.g. config.yaml of its run folder."
            )
        used = self.saved.clone()
        if not options:
            return used
        base = Namespace(model=used.clone())  # type: ignore[no-untyped-call]
        changed = _parser(Parser).parse_args(options, namespace=base)["model"]
        for key in (f"init_args.{name}" for name in self.inference):
            if key in changed:
                used[key] = changed[key]
        if command != "fit" and (refused := differences(used, changed)):
            key, old, new = refused[0]
            may = f" These may differ: {', '.join(sorted(self.inference))}." if self.inference else ""
            raise ConfigurationError(
                f"Expected model.{key} = {old}, with which the checkpoint was trained, but got --model.{key} {new}."
                f" `{command}` uses a model as it was trained: leave the option out.{may}"
            )
        return used

    def scored(self, used: Namespace, configured: Namespace) -> list[str]:
        """Return notes on what a command that evaluates the model changes, and on ignored values of the config."""
        return [
            *(
                f"model.{key} was {old} when {self.path} was written and is {new} here"
                for key, old, new in differences(self.saved, used)
            ),
            *(
                f"the config has model.{key} = {new}; the checkpoint was trained with {old}, which is used"
                for key, old, new in differences(used, configured)
            ),
        ]

    def continued(self, used: Namespace, configured: Namespace, state: Collection[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the optimizer options that a resumed run changes, to set after its state is restored, and notes on changes.

        Args:
            used: see :meth:`used_in`.
            configured: the model with all changes by configs and options.
            state: names in the state dict of the checkpoint's model.

        Raises:
            ConfigurationError: if a value that is part of the trained state differs, or the class of optimizer or
                scheduler.
        """
        changes, options = differences(used, configured), {}
        for key, old, new in changes:
            part, _, option = key.removeprefix("init_args.").partition(".")
            if part == "optimizer" and option.startswith("init_args."):
                options[option.removeprefix("init_args.")] = new
            elif part in ("optimizer", "lr_scheduler"):
                raise ConfigurationError(
                    f"Expected model.{key} = {old}, whose state the checkpoint holds, but got {new}."
                    " Start a new run from the weights instead: --model.init_args.initial_weights CHECKPOINT"
                )
            elif key.replace("init_args.", "") in state:
                raise ConfigurationError(
                    f"Expected model.{key} = {old}, which is part of the trained state, but got {new}. Leave it out, or"
                    " start a new run from the weights: --model.init_args.initial_weights CHECKPOINT"
                )
        return options, [
            f"model.{key} was {old} when {self.path} was written and is {new} from here on" for key, old, new in changes
        ]


def _parser(kind: type[Parser]) -> Parser:
    """Return a parser of a model alone."""
    parser = kind(exit_on_error=False)
    parser.add_subclass_arguments(pl.LightningModule, "model", fail_untyped=False)  # as Lightning does
    return parser


def changes_of_run(config: Path, command: str, now: dict[str, Any]) -> list[str]:
    """Return notes on the data and trainer options in which a command differs from a run.

    Args:
        config: path of the run's config.
        command: name of the command; only ``fit`` resumes a run, which needs its seed and a trainer of the same kind.
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
