"""The status of a run, in its folder: which process runs it, or how it ended. A folder has one process at a time."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.files import PART, STATUS, below, replaced
from lit_sparse.ground.stored import open_plain, unique_keys
from lit_sparse.runs.result_files import read_metrics

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunStatus", "check_plain", "logged", "read_status", "take"]

#: Bytes of the largest status that is read.
LARGEST = 65536
STATES = ("running", "interrupted", "finished")
#: Entries that every status has, and their types.
TYPES = {"state": str, "why": str, "host": str, "process": int, "started": str, "since": str}
#: Entries that tell one process from all others.
OWNER = ("host", "process", "started")
#: Subfolders with the run folders of other commands, which may be running.
OTHERS = ("validate", "test", "predict")
LEFTOVER = re.compile(rf"\..+\.[0-9a-f]{{16}}{re.escape(PART)}")

Fields = dict[str, Any]


@checked
def read_status(folder: Path) -> Fields | None:
    """Return the status of a run, or None if it has none; a run whose process was killed counts as interrupted.

    A process on another machine cannot be checked, so its run counts as running.

    Args:
        folder: the run folder.

    Raises:
        ConfigurationError: if the file does not hold a status.
    """
    status = _read(folder / STATUS)
    if status is not None and status["state"] == "running" and _is_here(status) and not _lives(status):
        status |= {"state": "interrupted", "why": f"process {status['process']} was killed"}
    return status


def logged(run: Path, within: Path | None = None) -> list[dict[str, float]]:
    """Return the values that a run logged, after checking that a finished run's log is complete.

    Args:
        run: the run folder.
        within: see :func:`lit_sparse.runs.result_files.read_metrics`.

    Raises:
        ConfigurationError: if rows are missing, or the file is invalid; see
            :func:`lit_sparse.runs.result_files.read_metrics`.
    """
    lines, status = read_metrics(run, within), _read(run / STATUS)
    rows = None if status is None else status.get("rows")
    if rows is not None and rows != len(lines):
        raise ConfigurationError(
            f"Expected the {rows!r:.80} rows of a finished run in {str(run / 'metrics.csv')!r} but got {len(lines)}. Restore"
            " the file."
        )
    return lines


class RunStatus:
    """Status of a run that this process works on, stored in the run folder.

    Args:
        path: path of the status file.
        former: earlier content of the file, or None if there was none.
    """

    def __init__(self, path: Path, former: Fields | None) -> None:
        self.path = path
        self._former = former
        kept = {name: value for name, value in (former or {}).items() if name in ("epoch", "step", "limits")}
        job = os.environ.get("SLURM_JOB_ID")
        self._fields: Fields = {
            **{"state": "running", "why": "", "epoch": None, "step": None, "limits": {}},
            **kept,
            **{"host": socket.gethostname(), "process": os.getpid(), "started": _start_of(os.getpid()) or ""},
            **({"job": job} if job else {}),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        _write(path, self._fields)

    def update(self, **changes: Any) -> None:
        """Change entries of the status file, unless it was removed or another process has taken the run."""
        with suppress(ConfigurationError):
            if (now := _read(self.path)) is not None:
                if any(now[name] != self._fields[name] for name in OWNER):
                    return
                self._fields = now
        self._fields |= changes
        _write(self.path, self._fields)

    def finish(self, why: str) -> None:
        """Record that the run ended by itself, with the number of rows that it logged.

        Args:
            why: reason, unless the file already has one.
        """
        self.update(state="finished", rows=len(read_metrics(self.path.parent)))
        if not self._fields["why"]:
            self.update(why=why)

    def interrupt(self, why: str, *, began: bool) -> None:
        """Record that the run was interrupted or, if it made no step, restore its earlier status."""
        former = self._former if self._former and self._former["state"] == "finished" and not began else None
        changes = former or {"state": "interrupted", "why": why}
        try:
            self.update(**changes)
        except OSError:  # such as of a full disk, on which the file itself leaves room for the next one
            self.path.unlink(missing_ok=True)
            self.update(**changes)


def take(folder: Path) -> RunStatus:
    """Return the status of a run folder that this process takes over, after removing files left half written.

    An empty folder in which no status can be written is removed.

    Raises:
        ConfigurationError: if another process has taken it, or it holds anything but files and folders.
    """
    path = folder / STATUS
    try:
        with _alone(folder):
            check_plain(folder)
            former = _read(path)
            if former is not None and former["state"] == "running":
                _check_ended(folder, former)
            for inner in below(folder, OTHERS):
                if LEFTOVER.fullmatch(inner.name) and inner.is_file():
                    inner.unlink(missing_ok=True)
            return RunStatus(path, former)
    except OSError as error:
        with suppress(OSError):  # it is not empty
            folder.rmdir()
        raise ConfigurationError(
            f"Expected to write {str(path)!r} but got: {error.strerror or error}. Free space on the disk, or check the"
            " permissions."
        ) from error


def check_plain(folder: Path, output: Path | None = None) -> None:
    """Check that a run folder holds only files and folders, and no link to a place outside of it.

    Args:
        folder: the run folder; nothing is wrong with one that does not exist.
        output: folder of all runs, in which the run folder is no link; None for a run folder that the user names.

    Raises:
        ConfigurationError: if it holds anything else; the message names it.
    """
    root = folder.resolve()
    if output is not None and folder.is_symlink():
        raise ConfigurationError(
            f"Expected a folder but {str(folder)!r} is a link. Make {str(output)!r} the link, or remove it."
        )
    for path in below(root):
        found = None
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found = None if _leads_inside(path, root) else f"a link to {str(path.readlink())!r}, outside of it"
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                found = "neither a file nor a folder"
            elif stat.S_ISREG(mode) and path.lstat().st_nlink > 1:
                found = "a hard link to a file that has another name"
        except FileNotFoundError:  # another command may have removed it
            pass
        except OSError as error:  # such as folders so deep that the system refuses their path
            found = f"what the system refuses to read: {error.strerror}"
        if found:
            raise ConfigurationError(
                f"Expected only files and folders in the run folder {str(folder)!r} but {str(path.relative_to(root))!r} is"
                f" {found}. Remove it, or put a copy of the file in its place, and give the command again."
            )


def _leads_inside(link: Path, root: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # nothing is there, or a circle of links
        return False


def _check_ended(folder: Path, status: Fields) -> None:
    """Check that no process runs a run whose status says so.

    Raises:
        ConfigurationError: naming the process.
    """
    who = f"process {status['process']} on host {status['host']!r}, since {status['since']!r}"
    if _is_here(status):
        if _lives(status):
            other = "this process" if status["process"] == os.getpid() else "another process"
            raise ConfigurationError(
                f"Expected {str(folder)!r} to be free but {other} is running it: {who}. Wait for it to end, or stop it."
            )
    elif status.get("job") is None or status["job"] != os.environ.get("SLURM_JOB_ID"):  # else the job was queued again
        raise ConfigurationError(
            f"Expected {str(folder)!r} to be free but another process seems to be running it: {who}. If that process has ended,"
            f" remove {str(folder / STATUS)!r} and give the command again."
        )


def _is_here(status: Fields) -> bool:
    """Return whether this machine can check the process of a status."""
    return bool(status["host"] == socket.gethostname() and status["started"])


def _lives(status: Fields) -> bool:
    """Return whether the process of a status runs on this machine; another one may have got its number."""
    return _start_of(status["process"]) == str(status["started"])


def _start_of(process: int) -> str | None:
    """Return when a process started, in the words of the system; None if it has ended, empty if the system does not say."""
    if Path("/proc/self/stat").exists():
        try:
            state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in "ZX" else fields[18]  # in ticks since the machine started
    try:
        words = ["ps", "-o", "lstart=", "-p", str(process)]
        listed = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C", "TZ": "UTC0"})
    except OSError:
        return ""
    return listed.stdout.strip() or None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, if the system and the file system support locks."""
    with ExitStack() as stack:
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Fields | None:
    """Return a status, or None if there is none.

    Raises:
        ConfigurationError: if the file does not hold a status.
    """
    try:
        with open_plain(path, path.parent) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST} bytes")
        status = json.loads(content, object_pairs_hook=unique_keys)
        if not isinstance(status, dict):
            raise ValueError(f"it is a {type(status).__name__}")
        for name, kind in TYPES.items():
            if type(status.get(name)) is not kind:
                raise ValueError(f"its entry {name!r} is a {type(status.get(name)).__name__}")
        if status["state"] not in STATES:
            raise ValueError(f"its state is {status['state'][:50]!r}")
        if status["process"] < 1:
            raise ValueError(f"its process is {status['process']}")
        status = {name: value for name, value in status.items() if name in {*TYPES, "epoch", "step", "limits", "job", "rows"}}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"Expected {str(path)!r} to say whether a process runs this run but it is damaged: {error}. If no process does,"
            " remove the file and give the command again."
        ) from error
    return status


def _write(path: Path, status: Fields) -> None:
    with replaced(path, "w") as file:
        json.dump(status, file, indent=2)
        file.write("\n")
