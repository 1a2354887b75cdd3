"""The command line proper: LightningCLI with run folders, checkpoints that are taken at their word, and short messages."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from jsonargparse import Namespace
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import MisconfigurationException  # type: ignore[attr-defined]

import lit_sparse.data
import lit_sparse.estimators
import lit_sparse.mappings
import lit_sparse.models
import lit_sparse.risks  # noqa: F401  (imported so that bare class names are found)
from lit_sparse.cli.arguments import (
    as_yaml_file,
    chosen_options,
    configs_first,
    differences,
    read_checkpoint,
    split_model_options,
    value_of,
    without,
)
from lit_sparse.cli.callbacks import OptimizerOptions, SaveConfig, checkpoints, measures, not_named, pictures
from lit_sparse.cli.loggers import run_loggers
from lit_sparse.cli.messages import plain_message
from lit_sparse.cli.runs import CHECKPOINTS, claim_folder, discard_if_unused, experiment_name, find_checkpoint, run_of
from lit_sparse.errors import CheckpointError, ConfigurationError, LitSparseError
from lit_sparse.models.base import SHOWN_EVERY

__all__ = ["LitSparseCLI", "run"]


def run(args: list[str]) -> int:
    """Run one command; see :func:`lit_sparse.cli.main`.

    Raises:
        LitSparseError: saying what to change.
    """
    with _quiet():
        LitSparseCLI(args, execute=True)
    return 0


class _Parser(LightningArgumentParser):
    """Takes options by their whole names, and raises an error that says what to change where argparse prints a page."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> Any:
        options = [action.dest for action in self._actions if "help" not in action.dest.split(".")]
        raise ConfigurationError(plain_message(message, ex, options)) from ex


class LitSparseCLI(LightningCLI):
    """Parse a command, build its model, data and trainer, and run it.

    Args:
        args: what follows ``lit-sparse``; the command first.
        execute: whether to run the command once everything is built.

    Raises:
        LitSparseError: saying what to change.
    """

    def __init__(self, args: list[str], execute: bool = True) -> None:
        self.command = args[0]
        self._args = args
        self._execute = execute
        self._checkpoint: Path | None = None
        self._resumed_step: int | None = None
        self._optimizer_options: dict[str, Any] = {}
        self.run_folder: Path | None = None
        super().__init__(
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            save_config_callback=SaveConfig,
            seed_everything_default=0,
            parser_class=_Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            args=args,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return this command alone: describing the arguments of four takes four times as long."""
        return {self.command: LightningCLI.subcommands()[self.command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the arguments that say where runs are kept."""
        parser.add_argument("--output_dir", type=str, default="runs", help="Folder of all runs.")
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="Name of the experiment; by default that of its config, as in ssvae/digits.",
        )
        parser.add_argument(
            "--checkpoint_every_n_steps",
            type=int | None,
            default=None,
            help="Also write the last checkpoint every so many steps, not only after each epoch.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments, and make the checkpoint and what was asked for agree."""
        rest = configs_first(args[1:])
        wanted = value_of(rest, "--ckpt_path")
        if "--help" in rest or "-h" in rest:
            parser.parse_args([self.command, *rest])
        if wanted is None:
            self.config = parser.parse_args([self.command, *rest])
            wanted = self._options().get("ckpt_path")
        elif wanted in ("last", "best"):
            self.config = parser.parse_args([self.command, *rest])
        if wanted is None:
            if self.command != "fit":
                raise CheckpointError(
                    f"`{self.command}` needs the checkpoint of a trained model: --ckpt_path PATH, or --ckpt_path best for the"
                    " best of the newest run."
                )
            return
        parent = self._experiment(rest) if wanted in ("last", "best") else Path()
        self._checkpoint = find_checkpoint(wanted, parent, value_of(rest, "-c") or value_of(rest, "--config"))
        rest = without(rest, "--ckpt_path")
        checkpoint = read_checkpoint(self._checkpoint)
        self._resumed_step = checkpoint.get("global_step")
        self._merge(parser, rest, checkpoint.get("hyper_parameters") or {}, checkpoint.get("state_dict") or {})
        self._options()["ckpt_path"] = str(self._checkpoint)

    def _merge(
        self, parser: LightningArgumentParser, rest: list[str], hyperparameters: dict[str, Any], state: dict[str, Any]
    ) -> None:
        """Parse the model of a checkpoint: as asked for when it is trained on, as it was trained when it is scored."""
        if "_class_path" not in hyperparameters:
            self.config = parser.parse_args([self.command, *rest])
            return
        init_args = {name: value for name, value in hyperparameters.items() if not name.startswith("_")}
        described = {"model": {"class_path": hyperparameters["_class_path"], "init_args": init_args}}
        asked, others = split_model_options(rest)
        with as_yaml_file(described) as path:
            chosen = chosen_options(asked, _choosable(hyperparameters["_class_path"]))
            trained = parser.parse_args([self.command, *others, "-c", path, *chosen])
            here = parser.parse_args([self.command, "-c", path, *rest])
            explicit = parser.parse_args([self.command, *others, "-c", path, *asked])
            before = parser.parse_args([self.command, *others, "-c", path]) if chosen else trained
        model = trained[self.command]["model"]
        if self.command == "fit":
            self.config = here
            self._tell_changes()
            self._note_optimizer(differences(model, here[self.command]["model"]))
            for key, old, new in differences(model, here[self.command]["model"]):
                if key.replace("init_args.", "") in state:
                    raise ConfigurationError(
                        f"model.{key} = {new} was {old} when this run began, and is part of what it has learnt since, which"
                        " goes on. Leave it out, or start a new run from its weights: --model.init_args.initial_weights"
                        " CHECKPOINT"
                    )
            for key, old, new in differences(model, here[self.command]["model"]):
                _say(f"note: model.{key} was {old} when {self._checkpoint} was written and is {new} from here on")
            return
        refused = differences(model, explicit[self.command]["model"])
        if refused:
            key, old, new = refused[0]
            names = sorted(_choosable(hyperparameters["_class_path"]))
            may = f" Others may differ: {', '.join(names)}." if names else ""
            raise ConfigurationError(
                f"--model.{key} {new} contradicts the checkpoint, which was trained with {old}."
                f" `{self.command}` uses a model as it was trained; leave the option out.{may}"
            )
        for key, old, new in differences(before[self.command]["model"], model):
            _say(f"note: model.{key} was {old} when {self._checkpoint} was written and is {new} here")
        for key, old, new in differences(model, here[self.command]["model"]):
            _say(f"note: the config has model.{key} = {new}; the checkpoint was trained with {old}, which is used")
        self.config = trained

    def _note_optimizer(self, changes: list[tuple[str, Any, Any]]) -> None:
        """Keep the changed options of the optimizer, which would be lost when its state is restored."""
        for key, old, new in changes:
            part, _, option = key.removeprefix("init_args.").partition(".")
            if part == "optimizer" and option.startswith("init_args."):
                self._optimizer_options[option.removeprefix("init_args.")] = new
            elif part in ("optimizer", "lr_scheduler"):
                raise ConfigurationError(
                    f"The run was trained with model.{key} = {old}, whose state cannot be continued with {new}."
                    " Start a new run from its weights instead: --model.init_args.initial_weights CHECKPOINT"
                )

    def _tell_changes(self) -> None:
        """Say in which data, seed and trainer settings a continued run differs from what it began with."""
        run = run_of(self._checkpoint) if self._checkpoint is not None else None
        if run is None:
            return
        began = yaml.safe_load((run / "config.yaml").read_text())
        now = yaml.safe_load(self.parser.dump(self.config, skip_validation=True))[self.command]
        if began.get("seed_everything") != now.get("seed_everything"):
            raise ConfigurationError(
                f"The run began with seed_everything = {began.get('seed_everything')} and draws by it to its end;"
                f" {now.get('seed_everything')} would be ignored. Leave it out, or start a new run."
            )
        for part in ("data",):
            for key, old, new in differences(began.get(part), now.get(part)):
                name = f"{part}.{key}" if key else part
                _say(f"note: {name} was {old} when this run began and is {new} from here on")

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would let the checkpoint override the command line in silence."""

    def _options(self) -> Namespace:
        options: Namespace = self.config[self.command]
        return options

    def _experiment(self, rest: list[str]) -> Path:
        """Return the folder of all runs of this experiment, and note its name in the config."""
        options = self._options()
        if options.get("name") is None:
            config = value_of(rest, "-c") or value_of(rest, "--config")
            options["name"] = experiment_name(config, str(options["model"]["class_path"]))
        return Path(str(options["output_dir"])) / str(options["name"])

    def _choose_folder(self) -> None:
        """Choose the run folder: a new one, that of the run which is continued, or one beside the scored checkpoint."""
        parent = self._experiment(self._args[1:])
        if not self._execute or self._options()["trainer"].get("fast_dev_run"):
            return
        first = _is_first()
        run = run_of(self._checkpoint) if self._checkpoint is not None else None
        if self.command == "fit":
            last = self._checkpoint is not None and self._checkpoint.name == "last.ckpt"
            continued = last and run is not None and run.parent.resolve() == parent.resolve()
            self.run_folder = run if continued else claim_folder(parent, first_process=first)
        else:
            self.run_folder = claim_folder((run or parent) / self.command, first_process=first)

    def instantiate_classes(self) -> None:
        """Build the parts; a refused argument is told without the page that the parser makes of it."""
        try:
            super().instantiate_classes()
        except LitSparseError:
            raise
        except (ValueError, TypeError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, LitSparseError):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            raise cause from None

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Build the trainer with the package's loggers and callbacks, where the config leaves them to us."""
        self._choose_folder()  # now that all parts were built
        asked = self._get(self.config_init, "trainer")
        training = self.command == "fit"
        callbacks = measures()
        if asked.get("enable_progress_bar") is not False and _is_first():
            callbacks.append(RichProgressBar(refresh_rate=SHOWN_EVERY))
        if self.run_folder is not None:
            if asked.get("logger") in (None, True):
                kwargs["logger"] = run_loggers(self.run_folder, self._resumed_step if training else None, board=training)
            callbacks += pictures(str(self.run_folder) if asked.get("logger") is False else None)
            if training and asked.get("enable_checkpointing") is not False:
                every = self._options().get("checkpoint_every_n_steps")
                callbacks += checkpoints(self.run_folder / CHECKPOINTS, self.model, every)
        if self._optimizer_options:
            callbacks.append(OptimizerOptions(self._optimizer_options))
        if not training and asked.get("enable_checkpointing") is None:
            kwargs["enable_checkpointing"] = False
        self.trainer_defaults = {"callbacks": not_named(callbacks, asked.get("callbacks"))}
        with self._folder_if_used():
            try:
                return super().instantiate_trainer(**kwargs)
            except (MisconfigurationException, ValueError) as error:
                raise ConfigurationError(f"The trainer refuses its arguments: {error}") from error
            except RuntimeError as error:
                found = re.search(r"more than one stateful callback of type `(\w+)`", str(error))
                if found is None:
                    raise
                raise ConfigurationError(
                    f"There are two {found[1]} for the same thing in `trainer.callbacks`. To change the last one of a config,"
                    " give its options alone, such as --trainer.callbacks.NAME VALUE, without `--trainer.callbacks+`."
                ) from error

    @contextmanager
    def _folder_if_used(self) -> Iterator[None]:
        """Take the run folder away again if what follows fails before the first step."""
        try:
            yield
        except BaseException:
            began = getattr(self, "trainer", None) is not None and self.trainer.global_step > 0
            if self.run_folder is not None and not began and _is_first():
                discard_if_unused(self.run_folder)
            raise

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if kwargs.get("weights_only", True) is None:
            kwargs["weights_only"] = True
        if subcommand == "predict":
            kwargs["return_predictions"] = False
        return kwargs

    def _run_subcommand(self, subcommand: str) -> None:
        if not self._execute:
            return
        with warnings.catch_warnings(), self._folder_if_used():
            if subcommand != "fit":  # what wrote the checkpoint has no part in scoring it
                warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`, callbacks used to create")
            try:
                super()._run_subcommand(subcommand)
            except RuntimeError as error:
                if self._checkpoint is None or "Error(s) in loading state_dict" not in str(error):
                    raise
                reason = " ".join(str(error).split())[:300]
                raise CheckpointError(f"{str(self._checkpoint)!r} does not fit the model of this config: {reason}") from None
        if self.run_folder is None or not self.trainer.is_global_zero:
            return
        found = [path for name in ("best", "last") if (path := self.run_folder / CHECKPOINTS / f"{name}.ckpt").is_file()]
        if subcommand == "fit" and found:
            resumed = sorted(self.run_folder.glob("config_resumed_*.yaml"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
            config = [self.run_folder / "config.yaml", *resumed][-1]
            print(f"test it with: lit-sparse test -c {shlex.quote(str(config))} --ckpt_path {shlex.quote(str(found[0]))}")
        print(f"run folder: {self.run_folder}")


def _choosable(class_path: str) -> frozenset[str]:
    """Return which arguments of a model may be others when it is used than when it was trained."""
    module, _, name = class_path.rpartition(".")
    found: frozenset[str] = getattr(getattr(import_module(module), name, None), "choosable", frozenset())
    return found


def _is_first() -> bool:
    """Tell whether this is the first process, before a trainer knows."""
    return int(getattr(rank_zero_only, "rank", 0) or 0) == 0


@rank_zero_only
def _say(message: str) -> None:
    print(message, file=sys.stderr)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the notices of other packages about their own future, which nobody who trains a model can act on."""
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(lambda record: "litlogger" not in record.getMessage())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated", append=False)
        warnings.filterwarnings("ignore", message=r".*does not have many workers which may be a bottleneck.*")
        warnings.filterwarnings("ignore", message=r"The dirpath has changed from")  # a run branches off another
        warnings.filterwarnings("ignore", message=r"Checkpoint directory .* exists and is not empty")
        yield
