"""The command ``lit-sparse sweep``: a search over the values of a config, with Optuna."""

from __future__ import annotations

import json
import math
import reprlib
import subprocess
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from lit_sparse.errors import ConfigurationError, LitSparseError
from lit_sparse.ground.files import make_folder
from lit_sparse.ground.stored import read_yaml
from lit_sparse.runs.folders import experiment_name
from lit_sparse.runs.status import check_plain
from lit_sparse.studies.jobs import processes
from lit_sparse.studies.jobs.cluster import Cluster
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.jobs.logged import check_logged, diverged, kind_and_name, summarized
from lit_sparse.studies.plan.study import Cell, Study
from lit_sparse.studies.search.space import distribution_of, import_optuna, matching, pruner_of, sampler_of
from lit_sparse.studies.search.storage import JournalLock, check_database, read_journal
from lit_sparse.studies.settings import setting_text, short_name

__all__ = ["Sweep"]

#: Keys of the file of a program's space.
PROGRAM = ("program", "metric_files", "checkpoint_files", "options")


@dataclass
class Sweep:
    """Hyperparameter search with Optuna over values of a config, or over the options of a program.

    The storage is opened when :attr:`study` is first accessed.

    Args:
        configs: paths of a config and its overlays.
        space: option -> list of values, or a range with ``low`` and ``high``, and ``log`` or ``step``.
        metrics: one or two logged values to optimize, such as ``val/nelbo`` or ``min(val/nelbo)``.
        directions: ``minimize`` or ``maximize`` for each.
        folder: folder of the sweep.
        storage: URL of an Optuna storage; None for a file in the folder.
        sampler: ``tpe``, ``random``, ``grid``, or a class of ``optuna.samplers`` as ``class_path`` and ``init_args``.
        prune: ``median``, ``hyperband``, or a class of ``optuna.pruners``, to stop trials that are worse than others; None
            for no pruning.
        cluster: cluster that runs the trials; None for this machine.
        folds: number of folds of the training and validation data; a trial has one run for each, and the mean of their
            values.
        extra: options of every training run.
        base: study without cells, whose options, and program if it has one, are used for all trials.

    Raises:
        ConfigurationError: if options contradict each other.
    """

    configs: Sequence[str]
    space: dict[str, Any]
    metrics: Sequence[str]
    directions: Sequence[str]
    folder: Path
    _: KW_ONLY
    storage: str | None = None
    sampler: Any = "tpe"
    prune: Any = None
    folds: int = 1
    cluster: Cluster | None = None
    extra: Sequence[str] = ()
    base: Study = field(default_factory=Study)
    _killed: set[int] = field(default_factory=set, init=False)
    #: Number of trials of the running command, of those that had ended before it, and the time of its start.
    _asked: tuple[int, int, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.folds < 1:
            raise ConfigurationError(
                f"Expected --folds to be at least 1 but got {self.folds}. Leave it out to train each trial once."
            )
        if self.prune and self.folds > 1:
            raise ConfigurationError("Expected either --prune or --folds but got both: a trial's folds run one after another.")
        if self.prune and len(self.metrics) > 1:
            raise ConfigurationError("Expected one --metric with --prune but got two. Leave one of them out.")
        if self.base.program and self.folds > 1:
            raise ConfigurationError("Expected either a program or --folds but got both. Let an option divide its data.")
        if self.sampler == "grid" and not all(isinstance(values, list) for values in self.space.values()):
            raise ConfigurationError("Expected a list of values for each option of a grid. Give --sampler tpe or random.")

    @property
    def place(self) -> str:
        """Name of the storage in messages."""
        return repr(self.storage or str(self.folder))

    @property
    def grid_size(self) -> int:
        """Number of combinations of the values, for a grid search."""
        return math.prod(map(len, self.space.values()))

    @cached_property
    def distributions(self) -> dict[str, Any]:
        """Optuna's distributions of the options."""
        return {key: distribution_of(key, values) for key, values in self.space.items()}

    @cached_property
    def study(self) -> Any:
        """The Optuna study, created or opened at the first access, and checked.

        Raises:
            ConfigurationError: if the storage cannot be reached, or the sweep was started with other settings.
            MissingExtraError: without Optuna.
        """
        _ = self.distributions  # a space that is wrong is refused before anything is made
        options = {
            "sampler": sampler_of(self.sampler, self.space),
            "pruner": pruner_of(self.prune),
            "study_name": self.folder.name if self.base.program else experiment_name(self.configs[0], ""),
        }
        check_plain(self.folder, self.folder.parent)
        make_folder(self.folder)
        try:
            try:
                found = self._open(options)
            except Exception:  # two machines may have begun to make the same tables
                time.sleep(1)
                found = self._open(options)
        except Exception as error:  # of any database
            reason = str(error) or type(error).__name__
            raise ConfigurationError(f"The storage {self.place} cannot be used: {reason}") from error
        if [direction.name.lower() for direction in found.directions] != list(self.directions):
            raise ConfigurationError(f"{self.folder} was started with different metrics. Choose another --output.")
        self._check_settings(found)
        for place, trial in enumerate(stored := found.get_trials(deepcopy=False)):
            self._check_trial(place, trial)
        if stored and self.sampler != "grid":
            found.sampler.reseed_rng()  # a sampler with a seed would draw the values of the first trials again
        return found

    def _open(self, options: dict[str, Any]) -> Any:
        """Make the Optuna study, or open it if it is there."""
        optuna = import_optuna()
        storage: Any = self.storage
        for _ in read_journal(self.folder / "journal.log"):  # whose checks Optuna does not make
            pass
        if storage is None:
            lock = JournalLock(self.folder / "journal.lock")
            backend = optuna.storages.journal.JournalFileBackend(str(self.folder / "journal.log"), lock)
            storage = optuna.storages.JournalStorage(backend)
        else:
            check_database(storage)
        found = optuna.create_study(directions=self.directions, storage=storage, load_if_exists=True, **options)
        found.get_trials(deepcopy=False), found.user_attrs  # all that is stored can be read
        return found

    def _check_settings(self, study: Any) -> None:
        asked: dict[str, Any] = {"configs": [read_yaml(Path(path)) for path in self.configs], "metrics": self.metrics}
        asked |= {"extra": self.extra, "folds": self.folds}
        asked |= {key: getattr(self.base, key) for key in PROGRAM if self.base.program}
        asked = json.loads(json.dumps(asked, default=str))
        begun = study.user_attrs.get("settings")
        if begun is None and not study.get_trials(deepcopy=False):
            study.set_user_attr("settings", asked)
        elif begun != asked:
            key = next((key for key in asked if not isinstance(begun, dict) or begun.get(key) != asked[key]), "settings")
            raise ConfigurationError(f"{self.folder} was started with different {key}. Choose another --output, or remove it.")

    def _check_trial(self, place: int, trial: Any) -> None:
        """Check a stored trial, which whoever can write to the storage may have changed."""
        attributes = trial.system_attrs
        point = attributes.get("grid_id") if self.sampler == "grid" else None
        if (
            trial.number != place
            or any(key.startswith("constraints") for key in attributes)  # a sweep has none
            or not isinstance(attributes.get("fixed_params", {}), dict)
            or not all(map(_is_number, trial.intermediate_values.values()))
            or (point is not None and (attributes.get("search_space") != self.space or point not in range(self.grid_size)))
        ):
            raise ConfigurationError(
                f"Expected trial {place} in {self.place} to be one of a sweep but got number {trial.number!r:.80} with"
                f" {reprlib.repr(attributes)}. The storage was changed: choose another --output."
            )
        self.params(trial, whole=trial.state.name == "COMPLETE")
        numbers = [value for value in trial.values or () if _is_number(value) and not math.isnan(value)]
        if trial.state.name == "COMPLETE" and len(numbers) != len(self.metrics):
            raise ConfigurationError(
                f"Expected trial {trial.number} in {self.place} to have {len(self.metrics)} numbers"
                f" but got {trial.values!r:.80}. The storage was changed: choose another --output."
            )

    def params(self, trial: Any, *, whole: bool = True) -> dict[str, Any]:
        """Return the values of a stored trial by option, after a check, since others may have written to the storage.

        Args:
            trial: trial of the storage.
            whole: whether the trial must have a value for each option of the space.

        Raises:
            ConfigurationError: if a name or a value is not in the declared space.
        """
        found = {}
        missing = [key for key in self.space if whole and key not in trial.params]
        for key in (*missing, *trial.params):
            stored = trial.params.get(key, "nothing")
            accepted = matching(self.space[key], stored) if key in self.space and key not in missing else []
            if not accepted:
                raise ConfigurationError(
                    f"Expected trial {trial.number} in {self.place} to have values of the space but got"
                    f" {key[:80]!r} = {stored!r:.80}. The storage or the space was changed: choose another --output."
                )
            found[key] = accepted[0]
        return {key: found[key] for key in self.space if key in found}

    def run(self, trials: int, jobs: int = 1) -> list[str]:
        """Run trials, several at a time, until the sweep has a given number; return the messages of those that failed.

        Any other error, such as a changed storage, ends the sweep after the trials that are running.

        At the end, it waits for trials that other processes work on, such as a training run left by a killed sweep.
        """
        failed: list[str] = []
        known = self.study.get_trials(deepcopy=False)  # refused before anything runs
        self._asked = trials, sum(trial.state.is_finished() for trial in known), time.monotonic()

        def work(threads: int) -> None:
            while (taken := self._take(trials)) is not None:
                with taken[1] as lock:
                    try:
                        with processes.naming_failure(f"trial_{taken[0]}"):
                            self._finish(taken[0], threads, lock)
                    except processes.JobInterruptedError:  # the trial is left for the next command
                        return
                    except processes.JobFailedError as error:
                        failed.append(str(error))
                        if isinstance(error, processes.JobKilledError):  # it continues by the next command
                            self._killed.add(taken[0])
                        else:  # it is not taken again
                            self.study.tell(taken[0], state=import_optuna().trial.TrialState.FAIL)

        others = processes.run_all([work] * jobs, jobs)
        while held := self._held():
            why = "another process is running it, or a killed one left its training running"
            processes.say(f"{', '.join(held)}: {why}; waiting")
            while set(held) == set(self._held()):
                time.sleep(0.5)
            others += processes.run_all([work] * jobs, jobs)
        return others + failed

    def _here(self, trial: Any) -> bool:
        """Return whether a trial is not finished, and was begun on this machine."""
        return trial.state.name == "RUNNING" and (self.storage is None or self._lock(trial.number).is_file())

    def _held(self) -> list[str]:
        """Return the names of the trials that other processes work on."""
        found = []
        with processes.locked(self.folder / "queue.lock"):
            for trial in filter(self._here, self.study.get_trials(deepcopy=False)):
                if (lock := processes.try_lock(self._lock(trial.number))) is None:
                    found.append(f"trial_{trial.number}")
                else:
                    lock.close()
        return found

    def _take(self, trials: int) -> tuple[int, IO[str]] | None:
        """Return the number and the held lock of a trial that no living process works on, or of a new one."""
        import optuna

        lock = None
        with processes.locked(self.folder / "queue.lock"):
            try:
                known = self.study.get_trials(deepcopy=False)
                ended = sum(trial.state.is_finished() for trial in known)
                for trial in known if ended < trials else ():
                    mine = self._here(trial) and trial.number not in self._killed
                    if mine and (lock := processes.try_lock(self._lock(trial.number))) is not None:
                        if len(trial.params) < len(self.space):  # killed while its values were drawn
                            begun = optuna.trial.Trial(self.study, trial._trial_id)
                            for key, distribution in self.distributions.items():
                                begun._suggest(key, distribution)  # as `ask` does
                        return trial.number, lock
                if sum(trial.state != optuna.trial.TrialState.WAITING for trial in known) >= trials:
                    return None
                number = self.study.ask(self.distributions).number
            except LitSparseError:
                raise
            except ValueError as error:
                if lock is not None:
                    lock.close()
                raise ConfigurationError(
                    f"{self.folder} was started with different values: {error} Choose another --output."
                ) from error
            lock = processes.try_lock(self._lock(number))
            assert lock is not None
            return number, lock

    def _trial(self, number: int) -> Any:
        """Return the stored trial of a number."""
        trials = self.study.get_trials(deepcopy=False)
        if number >= len(trials):
            raise ConfigurationError(
                f"Expected trial {number} in {self.place} but it has {len(trials)} trials. The storage"
                " was changed: choose another --output."
            )
        return trials[number]

    def _lock(self, number: int) -> Path:
        return self.folder / f"trial_{number}" / "lock"

    def runner(self, number: int, folds: int | None = None) -> Runner:
        """Return a runner that trains a trial: of a study with one cell, or with one for each fold."""
        folds = self.folds if folds is None else folds
        params = self.params(self._trial(number))
        paths = [str(Path(path).resolve()) for path in self.configs]
        cells = {f"trial_{number}": Cell(overlays=paths, options=params)}
        if folds > 1:
            parts = {f"trial_{number}/fold_{fold}": {"data.init_args.fold": [fold, folds]} for fold in range(folds)}
            cells = {name: Cell(overlays=paths, options=params | part) for name, part in parts.items()}
        study = replace(self.base, cells=cells, seed_options=[], path=self.base.path.parent / f"{self.folder.name}.yaml")
        return Runner(study, output=self.folder.parent, results=self.folder, extra=list(self.extra), cluster=self.cluster)

    def _finish(self, number: int, threads: int, lock: IO[str]) -> None:
        """Train a trial to its end, and store its values."""
        import optuna

        name, runner = f"trial_{number}", self.runner(number)
        runs = [runner.of(cell, 0) for cell in runner.study.cells]
        frozen = self._trial(number)
        if frozen.state != optuna.trial.TrialState.RUNNING:
            return  # another process has finished it
        trial = optuna.trial.Trial(self.study, frozen._trial_id)
        drawn = ", ".join(f"{short_name(key)} {setting_text(value)}" for key, value in self.params(frozen).items())
        processes.say(f"{name}: running with {drawn}; output in {runs[0].log}")
        reported = len(frozen.intermediate_values)

        def stops() -> bool:
            nonlocal reported
            lines, name = runs[0].logged(), kind_and_name(self.metrics[0])[1]
            points = [place for place, line in enumerate(lines) if name in line]
            for place in points[reported:]:
                value = summarized(lines[: place + 1], self.metrics[0])
                trial.report(math.nan if value is None else value, int(lines[place].get("epoch", 0)))
            reported = max(reported, len(points))
            return trial.should_prune()

        for run in runs:
            run.begin()
            run.train(threads, processes.descriptors(lock), stops if self.prune else None)
        found = [run.logged() for run in runs]
        values = [_mean([summarized(lines, metric) for lines in found]) for metric in self.metrics]
        if self.prune and trial.should_prune():
            self.study.tell(number, state=optuna.trial.TrialState.PRUNED)
        elif None in values or any(map(diverged, values, self.directions)):
            self.study.tell(number, state=optuna.trial.TrialState.FAIL)
            check_logged(self.metrics, values, found[0])
        else:
            self.study.tell(number, [value for value in values if value is not None])
        texts = ["nothing" if value is None else f"{value:.6g}" for value in values]
        told = ", ".join(f"{metric} = {text}" for metric, text in zip(self.metrics, texts, strict=True))
        processes.say(f"{name}: {told}{self._progress()}")

    def _progress(self) -> str:
        """Return how many trials have ended, and the time left, estimated from the trials that this command has finished."""
        if self._asked is None:
            return ""
        trials, before, start = self._asked
        ended = sum(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))
        seconds = (time.monotonic() - start) * (trials - ended) / max(1, ended - before)
        left = f", {timedelta(seconds=round(seconds))} left" if ended < trials else ""
        return f"; {ended} of {trials} trials have ended{left}"

    def config(self, number: int) -> str:
        """Return the config of a trial, without a fold, from the sweep's configs rather than the trial's run folder.

        Raises:
            JobFailedError: if the command that prints it fails.
        """
        command = self.runner(number, folds=1).of(f"trial_{number}", 0).printing()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or f"the status {done.returncode}").splitlines()[-1]
            raise processes.JobFailedError(
                f"Expected the config of trial_{number} from {' '.join(command)} but got: {last.rstrip('.')}. The trials are"
                " stored: make the command work, such as of a program that is a LightningCLI, and start the sweep again."
            )
        return done.stdout


def _is_number(value: Any) -> bool:
    """Return whether a stored value is a number that a float can hold."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1024)


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if len(found) == len(values) else None
