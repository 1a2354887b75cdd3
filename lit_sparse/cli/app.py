"""LightningCLI with run folders, checkpoints that determine the model, and short messages."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from lit_sparse.callbacks import CountLogger, SecondsLogger
from lit_sparse.cli.best_metrics import best_metrics, monitor_of, ordered, table
from lit_sparse.cli.callbacks import OptimizerOptions, as_list, checkpoints, not_named, pictures
from lit_sparse.cli.checkpoints import is_restoring, load_weights
from lit_sparse.cli.command_line import CommandLine, stamp
from lit_sparse.cli.files import DiskError, WholeFiles, keep_shards_whole
from lit_sparse.cli.loggers import RowsBeforeCheckpoint, run_loggers
from lit_sparse.cli.progress import Parts, Watch
from lit_sparse.cli.refusals import build_error, check_numbers, refusal, told_as, trainer_error
from lit_sparse.cli.stopping import DrawWhenStopped, NoteEnd, quiet, stop_status, stoppable, why_interrupted
from lit_sparse.errors import DISK_IS_FULL, CheckpointError, LitSparseError, cause_of, is_terminable, printable
from lit_sparse.ground.distributed import group_for_run, is_lost
from lit_sparse.lightning.choice import Checkpoint, ModelParallelStrategy, ProgressBar, TorchCheckpointIO, pl
from lit_sparse.lightning.internals import leave_sigterm
from lit_sparse.models.base import MOST_COUNTED
from lit_sparse.runs.checkpoint_files import restoring_error
from lit_sparse.runs.config_files import check_empty
from lit_sparse.runs.folders import CHECKPOINTS, claim_folder, discard_if_unused, next_command, run_of
from lit_sparse.runs.result_files import read_metrics
from lit_sparse.runs.status import RunStatus, check_plain, take

__all__ = ["LitSparseCLI", "run"]


def run(args: list[str]) -> int:
    """Run one command of ``lit-sparse``; see :func:`lit_sparse.cli.main`.

    Raises:
        LitSparseError: if an argument is invalid; the message says what to change.
    """
    with quiet(), stoppable(), group_for_run():
        LitSparseCLI(args, execute=True)
    return 0


class LitSparseCLI(CommandLine):
    """LightningCLI that parses a command, builds its model, data and trainer, and runs it.

    Args:
        args: arguments after ``lit-sparse``; the command first.
        execute: whether to run the command once everything is built.

    Raises:
        LitSparseError: if an argument is invalid; the message says what to change.
    """

    #: Whether the scores of a test are printed.
    _verbose = True
    #: Status of the run folder, on the first process.
    _status: RunStatus | None = None

    def _choose_folder(self) -> None:
        """Choose the run folder: a new one, the continued run's, or a new one next to the scored checkpoint."""
        parent = self._experiment()
        if not self._execute or self._options()["trainer"].get("fast_dev_run"):
            return
        first = self._is_first()
        run = run_of(self._checkpoint)
        if self.command == "fit":
            last = self._checkpoint is not None and self._checkpoint.name == "last.ckpt"
            continued = last and run is not None and run.parent.resolve() == parent.resolve()
            self.run_folder = run if continued else claim_folder(parent, first_process=first)
        else:
            if run is not None:
                check_plain(run)
            self.run_folder = claim_folder(run or parent, self.command, first_process=first)
        if first and self.run_folder is not None:
            self._status = take(self.run_folder)
            if self._checkpoint is not None and stamp(self._checkpoint) != self._stamp:
                raise CheckpointError(
                    f"Expected {str(self._checkpoint)!r} as this command has read it but another process has changed it since."
                    " Give the command again."
                )

    def instantiate_classes(self) -> None:
        """Build model, data and trainer, with the checkpoint's weights if the command is not run.

        A bad argument is reported in one message.
        """
        limited = nullcontext() if self._limits is None else self._limits.kept()
        with told_as(lambda error: build_error(error, self._options())), limited:
            super().instantiate_classes()
        if self._options()["compile"]:
            self.model.compile()
        if not self._execute and self.command != "fit" and self._checkpoint is not None:
            load_weights(self.model, self._checkpoint)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Build the trainer, with the package's loggers and callbacks unless the config sets them."""
        asked = self._get(self.config_init, "trainer")
        callbacks = asked.get("callbacks")  # before any is left out
        with self.folder_if_used(), told_as(lambda error: trainer_error(error, callbacks)):
            self._choose_folder()  # only after all parts were built
            return self._build_trainer(asked, **kwargs)

    def _build_trainer(self, asked: Any, **kwargs: Any) -> pl.Trainer:
        training = self.command == "fit"
        callbacks: list[pl.Callback] = [CountLogger(max_count=MOST_COUNTED), SecondsLogger()]
        if self._quiet:
            asked["enable_progress_bar"] = asked["enable_model_summary"] = False
            asked["callbacks"] = [one for one in as_list(asked.get("callbacks")) if not isinstance(one, ProgressBar)]
        if asked.get("enable_progress_bar") is not False and self._is_first():
            callbacks.append(Watch())
        if asked.get("enable_model_summary") is not False:
            callbacks.append(Parts(self.model, self.datamodule))
        self.save_config_kwargs["folder"] = self.run_folder
        if self.run_folder is not None:
            if asked.get("logger") is not False:
                kwargs["logger"] = run_loggers(
                    self.run_folder, asked.get("logger"), self._kept_rows, self._resumed_step, training
                )
            callbacks += [*pictures(str(self.run_folder)), RowsBeforeCheckpoint(), DrawWhenStopped(), NoteEnd(self._status)]
            if training and asked.get("enable_checkpointing") is not False:
                every = self._options().get("checkpoint_every_n_steps")
                callbacks += checkpoints(self.run_folder / CHECKPOINTS, self.model, every)
        if self._optimizer_options:
            callbacks.append(OptimizerOptions(self._optimizer_options))
        if not training and asked.get("enable_checkpointing") is None:
            kwargs["enable_checkpointing"] = any(isinstance(one, Checkpoint) for one in as_list(asked.get("callbacks")))
        self.trainer_defaults = {"callbacks": not_named(callbacks, asked.get("callbacks"))}
        trainer = super().instantiate_trainer(**kwargs)
        if is_terminable():
            leave_sigterm(trainer)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeFiles()
        if isinstance(trainer.strategy, ModelParallelStrategy):
            keep_shards_whole(trainer.strategy)
        return trainer

    @contextmanager
    def folder_if_used(self) -> Iterator[None]:
        """Record in the run folder's status if a context fails; remove the folder if that is before the first step."""
        try:
            yield
        except BaseException as error:
            began = getattr(self, "trainer", None) is not None and self.trainer.global_step > (self._resumed_step or 0)
            if self.run_folder is not None and self._status is not None:
                with suppress(OSError):  # the error itself may be a full disk
                    self._status.interrupt(why_interrupted(error), began=began)
                if not began:
                    discard_if_unused(self.run_folder)
            raise

    def finish(self) -> None:
        """Record in the run folder's status that the command is done."""
        if self._status is not None:
            self._status.finish("the command was done")

    def _set_seed(self) -> None:
        """Check the numbers that Lightning does not check, and set the seed."""
        check_numbers(self._options())
        for content in self._given.contents:
            check_empty(content, self._options())
        super()._set_seed()

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if kwargs.get("weights_only", True) is None:
            kwargs["weights_only"] = True
        if subcommand == "predict":
            kwargs["return_predictions"] = False
        if subcommand in ("validate", "test"):
            self._verbose, kwargs["verbose"] = kwargs.get("verbose", True), False
        if kwargs.pop("ckpt_path", None) is not None:  # models read it in `setup`, before Lightning restores it
            self.trainer.ckpt_path = str(self._checkpoint)
        return kwargs

    def _run_subcommand(self, subcommand: str) -> None:
        if not self._execute:
            return
        if self.run_folder is not None and self.trainer.is_global_zero and not self._quiet:
            print(printable(f"run folder: {self.run_folder}"), flush=True)
        try:
            with warnings.catch_warnings(), self.folder_if_used(), told_as(self._run_error):
                if subcommand != "fit":  # the callbacks of training are not needed for scoring
                    warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`, callbacks used to create")
                super()._run_subcommand(subcommand)
                self.finish()
        except SystemExit as stop:
            if (status := stop_status(stop)) is None:
                raise
            self._print_end(continue_it=True)
            raise SystemExit(status) from None
        self._print_end(continue_it=False)

    def _run_error(self, error: Exception) -> LitSparseError | None:
        """Return the message for an error of a command, or None for one that has its traceback."""
        if self._checkpoint is not None and is_restoring(error):
            return restoring_error(repr(str(self._checkpoint)), error)
        text, continued = str(error), self._next("fit", "last")
        own = cause_of(error, DiskError)
        if isinstance(error, OSError) and (own is not None or self._is_ours(error)):
            reason = f"Expected to write to {str(self.run_folder)!r} but got: {text}. Free space, or move what is there."
            return DiskError(f"{own or reason} {continued}".rstrip())
        if is_lost(error):
            reason = (text.partition("] ")[2] or text).partition(". ")[0]  # without the place in gloo's source
            return LitSparseError(
                f"Expected an answer of all processes of this run but got: {reason}. The output of the process that ended first"
                f" has the cause. {continued}".rstrip()
            )
        return refusal(error, self.trainer.callback_metrics)

    def _is_ours(self, error: OSError) -> bool:
        """Return whether the disk is full, or a file of the run folder, or a logger's folder, cannot be written."""
        if error.errno not in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EROFS):
            return error.errno in DISK_IS_FULL
        names = [Path(name).resolve() for name in (error.filename, error.filename2) if isinstance(name, str | Path)]
        folder = None if self.run_folder is None else self.run_folder.resolve()
        logs = [Path(logger.save_dir).resolve() for logger in self.trainer.loggers if logger.save_dir]
        files = [path for name in names for path in (name, *name.parents) if path.is_file()]  # in the place of a folder
        in_logs = any(log.is_relative_to(path) or path.is_relative_to(log) for path in files for log in logs)
        return in_logs or any(folder in name.parents for name in names)

    def _next(self, command: str, *names: str) -> str:
        if self.run_folder is None:
            return ""
        saver = self.trainer.checkpoint_callback  # Lightning broadcasts its folder; other processes only guess the run folder
        folder = None if self.trainer.is_global_zero else getattr(saver, "dirpath", None)
        return next_command(Path(folder).parent if folder else self.run_folder, command, names)

    def _print_end(self, *, continue_it: bool) -> None:
        """Print the results, the next command and the run folder."""
        if not self.trainer.is_global_zero:
            return
        if self.command in ("validate", "test") and self._verbose and not continue_it:
            scores = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            title = f"{'test' if self.command == 'test' else 'validation'} scores:"
            print("\n".join([title, *table(scores, ordered(scores, self.model))]))
        if self.run_folder is None or not self.run_folder.is_dir():
            return
        if self.command == "fit":
            if not continue_it:
                for line in best_metrics(read_metrics(self.run_folder), *monitor_of(self.model), self.model):
                    print(line)
            line = self._next("fit", "last") if continue_it else self._next("test", "best", "last")
            print(printable(line or "no checkpoint was written"))
        if self.command == "predict":
            for path in sorted(self.run_folder.glob("predictions*")):
                print(printable(f"predictions: {path}"))
        print(printable(f"run folder: {self.run_folder}"), flush=True)
