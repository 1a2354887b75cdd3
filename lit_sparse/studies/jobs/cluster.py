"""Commands as jobs on a cluster such as SLURM, submitted with submitit."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.ground.files import open_to_append, replaced, user_cache
from lit_sparse.ground.stored import read_text
from lit_sparse.studies.jobs.processes import Process, locked

__all__ = ["Cluster", "forget_job"]


class Cluster:
    """A cluster such as SLURM, with the options of its jobs.

    Args:
        text: name of a cluster of submitit, ``slurm`` or ``local``, and options of its jobs, separated by commas, such as
            ``slurm,timeout_min=600,gpus_per_node=1,slurm_partition=gpu``.

    Raises:
        ConfigurationError: if the cluster or an option is not known, or the cluster cannot be reached.
        MissingExtraError: without submitit.
    """

    def __init__(self, text: str) -> None:
        try:
            import submitit
        except ImportError as error:
            raise MissingExtraError("Jobs of a cluster", "slurm") from error
        self.name, *pairs = text.split(",")
        self.options: dict[str, Any] = {}
        for pair in pairs:
            key, given, value = pair.partition("=")
            if not given:
                raise ConfigurationError(f"Expected --submit CLUSTER,KEY=VALUE,... but got {text!r}.")
            self.options[key] = yaml.safe_load(value)
        try:
            submitit.AutoExecutor("unused", cluster=self.name).update_parameters(**self.options)
        except Exception as error:  # of any cluster
            raise ConfigurationError(f"Jobs cannot be submitted to {text!r}: {error}") from error

    def start(self, arguments: Sequence[str], log: Path) -> Process:
        """Submit a command as a job, with its output appended to a file."""
        import submitit

        ticket = uuid.uuid4().hex
        executor = submitit.AutoExecutor(_folder() / ticket, cluster=self.name)  # a new one: nothing can wait in it
        executor.update_parameters(**{"timeout_min": 24 * 60} | self.options)
        with replaced(_ticket(log), "w") as file:
            file.write(ticket)
        return _Job(executor.submit(_execute, list(arguments), str(log.absolute()), ticket, str(Path.cwd())))


class _Job:
    """A submitted command."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def poll(self) -> int | None:
        """Return the exit status, or None while the job waits or runs."""
        if not self._job.done():
            return None
        return 1 if self._job.exception() is not None else int(self._job.result())

    def terminate(self) -> None:
        self._job.cancel()


def _execute(arguments: list[str], log: str, ticket: str, folder: str) -> int:
    """Run a command on a machine of the cluster, unless another job has taken its place."""
    os.chdir(folder)
    with locked(_lock(Path(log))), open_to_append(Path(log)) as output:
        if read_text(_ticket(Path(log)), Path(log).parent) != ticket:
            return 0
        return subprocess.run(arguments, stdout=output, stderr=subprocess.STDOUT).returncode


def forget_job(log: Path) -> None:
    """Cancel a job that an interrupted command left behind if it has not started, and wait for it otherwise."""
    if _lock(log).is_file() or _ticket(log).is_file():
        _ticket(log).unlink(missing_ok=True)
        with locked(_lock(log)):
            pass


def _folder() -> Path:
    """Return a folder that only this user can write to: submitit pickles its jobs, and reading a pickle runs code."""
    folder = (user_cache() or Path(os.devnull)) / "jobs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022
        private &= not any(above.stat().st_mode & 0o1002 == 0o002 for above in folder.resolve().parents)
    except OSError as error:
        raise ConfigurationError(f"Expected a folder {str(folder)!r} for jobs but got: {error}. Set XDG_CACHE_HOME.") from error
    if not private:
        raise ConfigurationError(
            f"Expected {str(folder)!r}, where jobs are pickled, to be writable and replaceable only by you. Run"
            " chmod 700 on it, and chmod o-w on the folders above it, or set XDG_CACHE_HOME."
        )
    return folder


def _ticket(log: Path) -> Path:
    return log.with_suffix(".job")


def _lock(log: Path) -> Path:
    return log.with_suffix(".job.lock")
