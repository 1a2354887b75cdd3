"""Trainings by ``lit-sparse fit``: done once, some at a time, continued where they were killed; used by other scripts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

try:
    import fcntl
except ImportError:
    fcntl = None

__all__ = ["Job", "JobFailedError", "call", "exit_with", "parse_own", "run_all"]


class JobFailedError(RuntimeError):
    """A command failed, or is not the one that was begun."""


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        config: path of its config.
        name: name of the run, a path in the folder of all runs.
        output: folder of all runs.
        options: more options of ``lit-sparse fit``.
        every: steps between checkpoints.
    """

    config: str
    name: str
    output: Path
    options: Sequence[str]
    every: int = 2000

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.output / self.name / "0"

    @property
    def log(self) -> Path:
        """File with the output of its commands."""
        return self.output / f"{self.name}.log"

    @property
    def last(self) -> Path:
        """Its last checkpoint."""
        return self.folder / "checkpoints" / "last.ckpt"

    def command(self) -> list[str]:
        """Return the command that starts it, or continues it where there is something to continue."""
        return [
            *(sys.executable, "-m", "lit_sparse", "fit", "-c", self.config, *self.options),
            *("--output_dir", str(self.output), "--name", self.name),
            *("--checkpoint_every_n_steps", str(self.every), "--trainer.enable_progress_bar", "false"),
            *(("--ckpt_path", "last") if self.last.is_file() else ()),
        ]

    def train(self, threads: int) -> None:
        """Train to the end, unless that is done.

        Raises:
            JobFailedError: if it fails, or was begun with other options.
        """
        with self.alone() as lock:
            self._same_as_begun()
            if (self.folder / "finished").is_file():
                return
            if self.folder.is_dir() and not self.last.is_file():  # killed before there was anything to continue
                number = len(list(self.folder.parent.glob("cut_*")))
                self.folder.rename(self.folder.parent / f"cut_{number}")
            print(f"{self.name}: {'goes on' if self.last.is_file() else 'begins'}; it writes to {self.log}", flush=True)
            began = time.monotonic()
            call(self.command(), self.log, threads, lock)
            if not self.last.is_file():
                raise JobFailedError(f"{self.folder} has no last checkpoint at its end; see {self.log}")
            (self.folder / "finished").touch()
            print(f"{self.name}: trained, {(time.monotonic() - began) / 60:.1f} min", flush=True)

    @contextmanager
    def alone(self) -> Iterator[tuple[int, ...]]:
        """Hold a lock that the training inherits, so that a second command cannot write to its folder, even if this one dies.

        Raises:
            JobFailedError: if another process holds it.
        """
        if fcntl is None:  # Windows
            yield ()
            return
        path = self.output / f"{self.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JobFailedError(f"{self.folder} is being trained by another process. Wait for it, or end it.") from error
            except OSError:  # a file system without locks
                yield ()
                return
            yield (file.fileno(),)

    def _same_as_begun(self) -> None:
        behind = [path for flag, path in pairwise(self.options) if flag == "-c"]
        config, *overlays = (yaml.safe_load(Path(path).read_text()) for path in (self.config, *behind))
        asked = {"config": config, "overlays": overlays, "options": list(self.options)}
        path = self.output / f"{self.name}.json"
        if path.is_file() and self.last.is_file():  # else there is nothing that others would have made
            begun = {"overlays": overlays, **json.loads(path.read_text())}  # older files have none
            if begun != asked:
                key = next(key for key in asked if begun[key] != asked[key])
                raise JobFailedError(
                    f"{self.folder} was begun with other {key}: {begun[key]}, now {asked[key]}. Choose another --output, or"
                    f" remove it with {path}."
                )
        else:
            path.write_text(json.dumps(asked))


def call(arguments: Sequence[str], log: Path, threads: int, inherited: Sequence[int] = ()) -> None:
    """Run a command with its output appended to a file; it inherits some open files.

    Raises:
        JobFailedError: if it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        found = subprocess.run(
            arguments, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False, pass_fds=tuple(inherited)
        )
    if found.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-5:])
        raise JobFailedError(f"{' '.join(arguments)}\nfailed; the end of {log}:\n{tail}")


def run_all(tasks: Sequence[Callable[[int], None]], at_once: int) -> list[str]:
    """Run tasks, some at a time, each with its share of the cores; return the messages of those that failed.

    The environment variable ``OMP_NUM_THREADS`` gives each another number of threads.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(asked) if asked.isdigit() and int(asked) else max(1, (os.cpu_count() or 1) // at_once)
    failed: list[str] = []

    def attempt(task: Callable[[int], None]) -> None:
        try:
            task(threads)
        except JobFailedError as error:
            failed.append(str(error))
        except Exception as error:  # the others go on
            failed.append(f"{type(error).__name__}: {error}")

    pool = ThreadPoolExecutor(at_once)
    try:
        list(pool.map(attempt, tasks))
    except KeyboardInterrupt:  # what runs has got it too, and stops after its last step
        print("interrupted: give the same command again to go on", file=sys.stderr, flush=True)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


def parse_own(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return a script's own options, and those behind ``--``, which every lit-sparse command gets."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    own, unknown = parser.parse_known_args(arguments[:place])
    if unknown:
        parser.error(f"there is no option {unknown[0]}; those of every lit-sparse command stand at the end, behind --")
    return own, arguments[place + 1 :]


def exit_with(main: Callable[[], int]) -> None:
    """End a script with the status that its main function returns, quietly if it is interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
