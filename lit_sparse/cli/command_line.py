"""Parses a command: its configs and options, which change the model of its checkpoint if it has one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace, capture_parser

import lit_sparse.data
import lit_sparse.estimators
import lit_sparse.mappings
import lit_sparse.models
import lit_sparse.risks  # noqa: F401  (imported so that bare class names are found)
from lit_sparse.cli.callbacks import SaveConfig
from lit_sparse.cli.checkpoints import StoredModel, changes_of_run, read_for
from lit_sparse.cli.configs import Given
from lit_sparse.cli.help import USAGES
from lit_sparse.cli.loggers import Kept, kept_by
from lit_sparse.cli.messages import SAID, START
from lit_sparse.cli.parser import Parser
from lit_sparse.cli.stopping import say_less
from lit_sparse.errors import CheckpointError, ConfigurationError, printable
from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.lightning.choice import LightningArgumentParser, LightningCLI, LightningEnvironment, pl, rank_zero_only
from lit_sparse.runs.allocation import Limits
from lit_sparse.runs.folders import experiment_folder, experiment_name, find_checkpoint, run_of
from lit_sparse.runs.torch_files import is_url, local_copy
from lit_sparse.runs.trust import find_imported, mentioned, trusting

__all__ = ["CommandLine", "stamp"]

#: A class and its arguments, as in a config.
Described = Mapping[str, Any]


def options(
    output_dir: str | None = None,
    name: str | None = None,
    checkpoint_every_n_steps: int | None = None,
    compile: bool = False,  # noqa: A002
    trust: list[str] | str | None = None,
) -> None:
    """Declare the options for the run folder, the checkpoints and the trusted classes.

    Args:
        output_dir: Folder of all runs; by default trainer.default_root_dir, or else `runs`.
        name: Name of the experiment; by default the name of its config, such as ssvae/digits.
        checkpoint_every_n_steps: Number of optimizer steps between two writes of the last checkpoint, in addition to each
            epoch.
        compile: Whether to compile the model's step (torch.compile).
        trust: A class or function that the checkpoint may name, e.g. my_package.MyMapping; may be repeated.
    """


def stamp(path: Path) -> tuple[int, int, int]:
    """Return a value that changes when a file is replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class CommandLine(LightningCLI):
    """LightningCLI that parses a command: its configs and options, over the model of its checkpoint if it has one.

    Args:
        args: arguments after ``lit-sparse``; the command first.
        execute: whether the command will be run once everything is built.

    Raises:
        LitSparseError: if an argument is invalid; the message says what to change.
    """

    #: Command whose usage the help shows; the parsed one by default.
    shown: str | None = None
    #: Whether only results, warnings and errors are printed.
    _quiet = False

    def __init__(self, args: list[str], execute: bool = True) -> None:
        SAID.clear()
        START.set(Path.cwd())
        self.command = args[0]
        self._given = Given.of(args[1:])
        self._execute = execute
        self._checkpoint: Path | None = None
        self._resumed_step: int | None = None
        self._kept_rows: Kept = None, None
        self._limits: Limits | None = None
        self._optimizer_options: dict[str, Any] = {}
        self.run_folder: Path | None = None
        with mentioned(self._given.names), trusting(self._given.trusted):
            super().__init__(
                model_class=pl.LightningModule,
                datamodule_class=pl.LightningDataModule,
                save_config_callback=SaveConfig,
                seed_everything_default=0,
                parser_class=Parser,
                parser_kwargs={self.command: {"usage": USAGES[self.shown or self.command], "description": None}},
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                args=[self.command, *self._given.words],
            )

    @classmethod
    def parser_of(cls, *args: Any) -> Any:
        """Return the parser of a command, for the arguments of this class."""
        root = capture_parser(lambda: cls(*args))
        return next(
            parser for action in root._actions if isinstance(action.choices, dict) for parser in action.choices.values()
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return only the present command, because describing the arguments of all four takes four times as long."""
        return {self.command: LightningCLI.subcommands()[self.command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the arguments for the run folder, the checkpoints and the trusted classes to a parser."""
        group = parser.add_argument_group("run folder")
        group.add_function_arguments(options, as_group=False)
        group.add_argument("--quiet", action="store_true", help="Print only results, warnings and errors.")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the configs and options, over the model of the checkpoint if there is one.

        Raises:
            CheckpointError: if the command needs a checkpoint and none is given, or it cannot be used.
            ConfigurationError: if an option or a config is invalid.
        """
        given, wanted, notes = self._given, self._given.checkpoint, list[str]()
        if wanted in (None, "last", "best") or {"-h", "--help"} & {*given.options}:
            self.config = parser.parse_args(args)
        if wanted is None and self.command != "fit":
            raise CheckpointError(
                f"`{self.command}` needs the checkpoint of a trained model: --ckpt_path PATH, or --ckpt_path best for the best"
                " of the newest run."
            )
        if wanted is not None:
            newest = wanted in ("last", "best")
            if is_url(wanted):
                self._checkpoint = local_copy(wanted)
            else:
                self._checkpoint = find_checkpoint(wanted, self._experiment() if newest else Path(), given.config, notes.append)
            shown = wanted if is_url(wanted) else str(self._checkpoint)
            self._stamp = stamp(self._checkpoint)
            within = self._checkpoint.parents[1] if newest else None
            checkpoint = read_for(self.command, self._checkpoint, repr(shown), within)
            if self.command == "fit":
                self._resumed_step, self._kept_rows = checkpoint.get("global_step"), kept_by(checkpoint)
            self._limits = Limits.of(repr(shown), checkpoint["state_dict"])
            notes += self._merge(parser, args, shown, checkpoint)
            self._options()["ckpt_path"] = shown
        self._options()["trust"] = given.trusted or None
        if self._options().pop("quiet", False):  # not a part of the config of a run
            self._quiet = True
            say_less()
        if self.command == "fit":
            notes += kept_arguments(given.contents, given.options, self._options().as_dict())
        for note in notes if self._is_first() else ():
            print(f"note: {printable(note)}", file=sys.stderr)

    def _merge(self, parser: LightningArgumentParser, args: Any, shown: str, checkpoint: dict[str, Any]) -> list[str]:
        """Parse the configs and options over the model of a checkpoint, and return notes on what they change.

        Args:
            parser: parser of the command.
            args: arguments of the command.
            shown: path or URL of the checkpoint.
            checkpoint: its content.
        """
        described = checkpoint.get("hyper_parameters") or {}
        if "_class_path" not in described:
            self.config = parser.parse_args(args)
            return []
        stored = StoredModel.of(described, shown)
        base = Namespace({self.command: Namespace(model=stored.saved.clone())})  # type: ignore[no-untyped-call]
        self.config = parser.parse_args(args, namespace=base)
        configured = self._options()["model"]
        used = stored.used_in(self.command, configured, self._given.model_options)
        notes = []
        if (run := run_of(self._checkpoint)) is not None:
            now = yaml.safe_load(parser.dump(self.config, skip_validation=True))[self.command]
            notes = changes_of_run(run / "config.yaml", self.command, now)
        if self.command == "fit":
            self._optimizer_options, changes = stored.continued(used, configured, checkpoint["state_dict"])
        else:
            self._options()["model"], changes = used, stored.scored(used, configured)
        return notes + changes

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would let the checkpoint silently override the command line."""

    def _options(self) -> Namespace:
        return self.config[self.command]  # type: ignore[no-any-return]

    def _experiment(self) -> Path:
        """Return the folder of all runs of this experiment, and note its name in the config."""
        options = self._options()
        if options.get("name") is None:
            options["name"] = experiment_name(self._given.config, str(options["model"]["class_path"]))
        folders = {str(found) for found in (options["output_dir"], options["trainer"]["default_root_dir"]) if found is not None}
        if len(folders) > 1:
            raise ConfigurationError(
                f"Expected one folder for all runs but got {' and '.join(sorted(folders))} as --output_dir and"
                " --trainer.default_root_dir. Give one of the two."
            )
        return experiment_folder(next(iter(folders), "runs"), str(options["name"]))

    def _is_first(self) -> bool:
        """Return whether this is the first process, before a trainer exists.

        Without a launcher, Lightning's rank counts processes within the machine until the trainer exists.
        """
        machine = LightningEnvironment().node_rank() if self._options()["trainer"].get("num_nodes", 1) > 1 else 0
        return machine == 0 and not getattr(rank_zero_only, "rank", 0)


def kept_arguments(contents: Sequence[Described], options: Sequence[str], parsed: Described) -> list[str]:
    """Return a note for each class in a config that was replaced by another one, which keeps some of the config's arguments.

    Arguments that the options or a later config give, and defaults of the new class, are not named.

    Args:
        contents: what the configs hold, in their order.
        options: words of the command that override the configs.
        parsed: the config that they gave.

    Example:
        >>> config = {"model": {"class_path": "A", "init_args": {"lam": 1.0, "rho": 0.1}}}
        >>> kept_arguments(
        ...     [config],
        ...     ["--model=B"],
        ...     {"model": {"class_path": "b.B", "init_args": {"lam": 1.0, "mu": 2.0}}},
        ... )
        ['model is B in place of A. It keeps lam=1.0 of the config, and drops rho.']
    """
    notes: dict[str, None] = {}
    for place, content in enumerate(contents):
        for path, before, now in _replaced(content, parsed, ()):
            given, taken, defaults = before.get("init_args") or {}, now.get("init_args") or {}, _defaults(now)
            stated = {name for later in contents[place + 1 :] for name in _at(later, path).get("init_args") or {}}
            stated |= {name for name in given if any(re.search(rf"\b{re.escape(name)}\b", word) for word in options)}
            new = {name: taken[name] for name in given if name in taken and name not in stated}
            kept = [f"{name}={_short(value)}" for name, value in new.items() if name not in defaults or defaults[name] != value]
            dropped = ", ".join(name for name in given if name not in taken)
            if kept:
                text = f"{'.'.join(path)} is {_name(now)} in place of {_name(before)}. It keeps {', '.join(kept)} of the config"
                notes[f"{text}, and drops {dropped}." if dropped else f"{text}."] = None
    return [*notes]


def _replaced(before: Any, now: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Described, Described]]:
    """Yield the place of each class of a config that is another class now, with both."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return
    if before.get("class_path") and now.get("class_path") and _name(before) != _name(now):
        yield path, before, now
    for key, value in before.items():
        if key in now:
            yield from _replaced(value, now[key], path if key == "init_args" else (*path, str(key)))


def _at(content: Any, path: tuple[str, ...]) -> Described:
    for key in path:
        if isinstance(content, Mapping) and key not in content:
            content = content.get("init_args")
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def _name(described: Described) -> str:
    return str(described["class_path"]).rpartition(".")[2]


def _defaults(described: Described) -> dict[str, Any]:
    """Return the defaults of a class, which the parser has imported."""
    found = find_imported(str(described["class_path"]))
    return {key: each.default for key, each in constructor_parameters(found).items()} if isinstance(found, type) else {}


def _short(value: Any) -> Any:
    return _name(value) if isinstance(value, Mapping) and "class_path" in value else value
