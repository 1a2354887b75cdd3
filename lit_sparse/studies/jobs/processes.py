"""Commands in separate processes: one at a time for each cell, several cells at a time, with their output in log files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Protocol, TextIO

from lit_sparse.errors import LitSparseError, Terminated, refusal_of_system, terminable
from lit_sparse.ground.files import make_folder, open_to_append

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "JobFailedError",
    "JobInterruptedError",
    "JobKilledError",
    "Process",
    "call",
    "descriptors",
    "locked",
    "naming_failure",
    "run_all",
    "say",
    "try_lock",
]


def say(text: str, stream: TextIO | None = None) -> None:
    """Print text immediately, by default to standard output; a closed terminal is ignored."""
    stream = sys.stdout if stream is None else stream
    try:
        print(text, file=stream, flush=True)
    except OSError:  # Python would write the rest at its end, and exit with 120
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


class JobFailedError(LitSparseError):
    """Error for a command that failed, or a run that was started with other settings."""


class JobInterruptedError(JobFailedError):
    """Error for a command that was interrupted by Ctrl-C or SIGTERM."""


class JobKilledError(JobFailedError):
    """Error for a command that the machine ended, such as one without memory left, whatever the command's options are."""


#: Path -> lock between the threads of this process, on systems without locks of files.
_LOCKS: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
#: Bytes at the end of a log that a message is made of.
TAIL = 10_000
#: Exit statuses of commands that were killed, or had a file that the disk did not hold; and last words of a failing machine.
KILLED = (-9, 137, -7, 135)
FULL = (errno.ENOSPC, errno.EDQUOT)
FAULTS = [os.strerror(code) for code in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE)]
#: Commands that run on this machine.
_RUNNING: set[subprocess.Popen[bytes]] = set()
#: Whether the tasks are being interrupted, so that a command fails for it, whatever its exit status is.
_INTERRUPTED = threading.Event()


def try_lock(path: Path) -> IO[str] | None:
    """Return an open file whose lock this process now holds, or None if another process holds it.

    A command that inherits the file keeps the lock when this process is killed, so no second command works on the same
    cell.
    """
    make_folder(path.parent)
    file = open_to_append(path)
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # a file system without locks
            pass
    return file


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a file within a context, and provide the file descriptors with which a command inherits it.

    Args:
        path: file of the lock.
        waiting: function that is called once before waiting, if another process holds the lock.
    """
    while (file := try_lock(path)) is None:
        if waiting is not None:
            waiting()
            waiting = None
        time.sleep(0.1)
    with file, nullcontext() if fcntl is not None else _LOCKS[path]:
        yield descriptors(file)


def descriptors(file: IO[str]) -> tuple[int, ...]:
    """Return the file descriptors that a command must inherit to hold the lock of a file."""
    return () if fcntl is None else (file.fileno(),)


class Process(Protocol):
    """Protocol of a running command."""

    def poll(self) -> int | None:
        """Return the exit status of the command, or None while it runs."""

    def terminate(self) -> None:
        """Terminate the command."""


def call(
    arguments: Sequence[str],
    log: Path,
    threads: int,
    inherited: Sequence[int] = (),
    stops: Callable[[], bool] | None = None,
    start: Callable[[Sequence[str], Path], Process] | None = None,
) -> None:
    """Run a command with its output appended to a file, and wait for its end.

    Args:
        arguments: the command.
        log: path of the log file.
        threads: number of the command's threads.
        inherited: file descriptors that the command inherits.
        stops: function that is called periodically; if it returns True, the command gets SIGTERM.
        start: function that starts the command elsewhere, such as on a cluster; by default it runs on this machine.

    Raises:
        JobFailedError: if the command fails.
        OSError: if it fails because the disk is full.
    """
    make_folder(log.parent)
    with open_to_append(log) as output:
        begin = os.fstat(output.fileno()).st_size
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if start is not None:
            status, stopped = _wait(start(arguments, log), stops)
        else:
            try:
                local = subprocess.Popen(
                    arguments, stdout=output, stderr=subprocess.STDOUT, env=environment, pass_fds=tuple(inherited)
                )
            except OSError as error:
                raise JobKilledError(f"The command cannot be run: {error.strerror}: {arguments[0]!r}.") from error
            _RUNNING.add(local)
            try:
                status, stopped = _wait(local, stops)
            finally:
                _RUNNING.discard(local)
    if status != 0 and not stopped:
        interrupted = status in (130, 143, -2, -15) or _INTERRUPTED.is_set()
        with log.open("rb") as written:
            written.seek(max(begin, written.seek(0, os.SEEK_END) - TAIL))
            text = written.read(TAIL).decode(errors="replace")
        tail = "\n".join(text.splitlines()[-5:])
        last = text.rstrip().rpartition("\n")[2]
        full = [code for code in FULL if os.strerror(code) in last]
        if full and not interrupted:
            raise OSError(full[0], f"{os.strerror(full[0])}, as {str(log)!r} says")
        with open_to_append(log) as output:  # which fails if not even a message fits on the disk
            output.write("" if interrupted else f"exit status {status}\n")
        killed = status in KILLED or any(fault in last for fault in FAULTS)
        kind = JobInterruptedError if interrupted else JobKilledError if killed else JobFailedError
        raise kind(f"{' '.join(arguments)}\nfailed; the end of {log}:\n{tail}")


def _wait(process: Process, stops: Callable[[], bool] | None) -> tuple[int, bool]:
    """Return the exit status of a command, and whether it was ended because ``stops`` said so."""
    stopped, asked = False, time.monotonic()
    while (status := process.poll()) is None:
        time.sleep(0.05)
        if stops is not None and not stopped and time.monotonic() > asked + 2:
            stopped, asked = stops(), time.monotonic()
            if stopped:
                process.terminate()
    return status, stopped


@contextmanager
def naming_failure(place: str) -> Iterator[None]:
    """Print immediately, within a context, that a command failed; its message follows when all commands have ended."""
    try:
        yield
    except JobInterruptedError:
        raise
    except Exception:
        say(f"{place}: failed")
        raise


def run_all(tasks: Sequence[Callable[[int], None]], at_once: int) -> list[str]:
    """Run tasks, several at a time, each with its share of the cores; return the messages of those that failed.

    The environment variable ``OMP_NUM_THREADS`` overrides the number of threads of each task. SIGTERM is passed on to
    commands on this machine.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(asked) if asked.isdigit() and int(asked) else max(1, (os.cpu_count() or 1) // at_once)
    failed: list[str] = []
    lost: list[str] = []

    def attempt(task: Callable[[int], None]) -> None:
        try:
            if not lost:
                task(threads)
        except LitSparseError as error:
            failed.append(str(error))
        except Exception as error:  # the others go on, unless nothing can be written
            reason = refusal_of_system(error)
            (lost if reason else failed).append(reason or f"{type(error).__name__}: {error}")

    _INTERRUPTED.clear()
    pool = ThreadPoolExecutor(at_once)
    try:
        with terminable():
            futures = [pool.submit(attempt, task) for task in tasks]
            while not all(future.done() for future in futures):
                time.sleep(0.1)  # Ctrl-C is received between two waits
    except KeyboardInterrupt as interrupt:  # commands stop after their last step; they have received Ctrl-C, too
        _INTERRUPTED.set()
        ending = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True})
        ending.start()
        ended: set[subprocess.Popen[bytes]] = set()
        while isinstance(interrupt, Terminated) and ending.is_alive():
            for process in {*_RUNNING} - ended:  # some may start only now
                process.terminate()
                ended.add(process)
            time.sleep(0.1)
        say("interrupted: give the same command again to continue", sys.stderr)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return [*dict.fromkeys(failed), *lost[:1]]
