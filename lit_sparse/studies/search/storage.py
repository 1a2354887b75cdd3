"""The storage of a sweep: the lock of a journal, and what it may hold, since whoever can write to it may have changed it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.stored import open_plain
from lit_sparse.studies.jobs.processes import locked
from lit_sparse.studies.search.space import import_optuna

__all__ = ["JournalLock", "check_database", "read_journal", "stored_study"]

#: Largest journal or database in bytes, largest number of rows of a table, and of characters of an option's choices.
LARGEST, ROWS, LONGEST = 2**28, 100_000, 2**20
#: Longest time in seconds that the checks of a database take.
LONGEST_CHECK = 30
#: Largest number of trials of a database that are not finished, which Optuna reads again and again.
UNFINISHED = 5000
#: Largest sum of the squared numbers of a journal's entries of one kind for one trial. Each copies those before it.
MOST_COPIED = 10**9
#: Last bytes of a journal of SQLite that names a journal of several databases, which SQLite reads and may remove.
ENDING = bytes.fromhex("d9d505f920a163d7")
#: Table of a database, query of a number, its largest value, and what it counts.
LIMITS = (
    ("trials", "select count(*) from trials where state in ('RUNNING', 'WAITING')", UNFINISHED, "unfinished trials"),
    ("trials", "select max(n) from (select count(*) as n from trials group by study_id, number)", 1, "trial of each number"),
    ("trial_params", "select max(length(distribution_json)) from trial_params", LONGEST, "characters for the choices"),
)
#: Number of a journal's entries that change the state of a trial, and the numbers of the states in which it is finished.
ENDS, ENDED = 6, (1, 2, 3)


class JournalLock:
    """Lock of a sweep's journal file that is released when its process ends, even if it is killed.

    Optuna's own lock is a link that a killed process leaves behind.

    Args:
        path: path of the lock file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, and acquire it."""
        held = locked(self._path)
        held.__enter__()
        self._held = held
        return True

    def release(self) -> None:
        """Release the lock."""
        self._held.__exit__(None, None, None)


def read_journal(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a sweep's journal file after a check; none if there is no file.

    The check ensures that the journal fits into memory, is read in time proportional to its length, and can be appended to.

    Raises:
        ConfigurationError: if the journal is too large, its last line is cut off, or it changes a finished trial, which
            Optuna ignores.
    """
    if not journal.is_file():
        return
    with open_plain(journal, journal.parent) as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST:
            raise ConfigurationError(f"Expected {str(journal)!r} to have at most {LARGEST:,} bytes. Choose another --output.")
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):  # Optuna would append to what a full disk has cut off
            raise ConfigurationError(f"Expected complete lines in {str(journal)!r} but the last one is cut off. Remove it.")
        file.seek(0)
        counts: Counter[str] = Counter()
        ended = set()
        for number, line in enumerate(file, 1):
            entry = json.loads(line)
            trial = str(entry.get("trial_id"))
            if "trial_id" in entry and trial in ended:
                raise ConfigurationError(
                    f"Expected no change of the finished trial {trial:.80} in {str(journal)!r} but got one in line {number}."
                    " Remove the line, or choose another --output."
                )
            if entry["op_code"] == ENDS and entry.get("state") in ENDED:
                ended.add(trial)
            counts[f"{entry['op_code']} {trial}"] += 1
            yield entry
        if sum(count**2 for count in counts.values()) > MOST_COPIED:
            raise ConfigurationError(
                f"Expected fewer entries of one kind for a trial in {str(journal)!r} but got up to {max(counts.values()):,}."
                " Choose another --output."
            )


def stored_study(folder: Path, storage: str | None) -> Any:
    """Return a sweep's Optuna study for reading; nothing is created or changed.

    Args:
        folder: folder of the sweep.
        storage: URL of its database; None for the journal in its folder.

    Raises:
        ConfigurationError: if the stored data fail a check, or the file of a database does not exist.
    """
    optuna = import_optuna()
    if storage is None:  # Optuna's own class would make or change the file
        entries = [*read_journal(folder / "journal.log")]
        methods = {"read_logs": lambda _, first: entries[first:], "append_logs": None}
        backend = type("Journal", (optuna.storages.journal.BaseJournalBackend,), methods)()
        opened = optuna.storages.JournalStorage(backend)
    else:
        check_database(storage, new=False)
        opened = optuna.storages.RDBStorage(storage, skip_table_creation=True)
    name = folder.resolve().name
    return optuna.load_study(study_name=name if name in optuna.get_all_study_names(opened) else None, storage=opened)


def check_database(storage: str, *, new: bool = True) -> None:
    """Check that an SQLite database has exactly Optuna's tables, without triggers or views, and fits into memory.

    Args:
        storage: URL of the database; only SQLite is checked.
        new: whether the file may be missing.

    Raises:
        ConfigurationError: if it has anything else, or the URL contains a second one.
    """
    url = import_module("sqlalchemy").make_url(storage)
    if url.get_backend_name() != "sqlite":
        return
    path = Path(url.database or "")
    if (url.database or ":memory:").startswith(("file:", ":memory:")):
        raise ConfigurationError(f"Expected the path of a database but got {storage!r}. Give sqlite:///PATH.")
    if not path.is_file():
        if not new:
            raise ConfigurationError(f"There is no database {str(path)!r}. Give the --storage of the sweep.")
        return
    _check_beside(path.resolve())
    own = _own_tables()
    # SQLite undoes what a killed sweep has begun to write
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database, _limited(database):
        (pages,), (size,) = (database.execute(f"pragma page_{what}").fetchone() for what in ("count", "size"))
        if max(pages * size, path.stat().st_size) > LARGEST:
            raise ConfigurationError(f"Expected {str(path)!r} to have at most {LARGEST:,} bytes. Choose another --storage.")
        listed = _listed(database)
        for kind, name, text in listed:
            if (kind, name, text) not in own:
                raise ConfigurationError(
                    f"Expected Optuna's own tables and indices in {str(path)!r} but got a {kind} {name[:80]!r}, which Optuna"
                    " never creates. Choose another --storage."
                )
        (state,) = database.execute("pragma quick_check(1)").fetchone()
        if state != "ok":  # pages that refer to pages again and again are read without end
            raise ConfigurationError(f"Expected a whole database in {str(path)!r} but got: {state}. Choose another --storage.")
        tables = [name for kind, name, _ in listed if kind == "table"]
        rows = [(name, f"select count(*) from {name}", ROWS, f"rows in table {name}") for name in tables]
        for table, query, most, what in (*rows, *LIMITS):
            if table in tables and ((found := database.execute(query).fetchone()[0]) or 0) > most:
                raise ConfigurationError(
                    f"Expected at most {most:,} {what} in {str(path)!r} but got {found:,}. Choose another --storage."
                )


def _check_beside(path: Path) -> None:
    """Check the files that SQLite reads, writes and removes with a database: plain ones, of which none names another file."""
    for file in (path, *(path.with_name(path.name + ending) for ending in ("-journal", "-wal", "-shm"))):
        try:
            with open_plain(file, path.parent) as opened:
                found = os.fstat(opened.fileno())
                opened.seek(max(0, found.st_size - len(ENDING)))
                if file != path and (found.st_nlink > 1 or opened.read() == ENDING):
                    raise OSError(errno.EINVAL, "it refers to another file")
            if found.st_size > LARGEST:
                raise OSError(errno.EFBIG, f"it has more than {LARGEST:,} bytes")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(
                f"Expected an SQLite file in {str(file)!r} but got: {error.strerror}. Choose another --storage."
            ) from error


@contextmanager
def _limited(database: sqlite3.Connection) -> Iterator[None]:
    """Interrupt checks that take longer than any genuine Optuna database needs."""
    timer = Timer(LONGEST_CHECK, database.interrupt)
    timer.start()
    try:
        yield
    except sqlite3.OperationalError as error:
        if timer.is_alive():
            raise
        raise ConfigurationError(
            f"Expected a database that is checked within {LONGEST_CHECK} s but this one is damaged. Choose another --storage."
        ) from error
    finally:
        timer.cancel()


@cache
def _own_tables() -> set[tuple[str, str, str]]:
    """Return what Optuna makes in an empty database."""
    storage = import_optuna().storages.RDBStorage("sqlite://")
    found = set(_listed(storage.engine.raw_connection()))
    storage.remove_session()
    storage.engine.dispose()
    return found


def _listed(database: Any) -> list[tuple[str, str, str]]:
    """Return kind, name and definition of what a database of SQLite has."""
    found = database.cursor().execute("select type, name, sql from sqlite_master").fetchall()
    return [(str(kind), str(name), " ".join(str(text).split())) for kind, name, text in found]
