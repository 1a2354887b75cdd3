"""The space that a sweep searches, and what a storage may hold: whoever can write to the storage may have changed it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError, MissingExtraError

__all__ = ["check_database", "check_journal", "distribution_of", "draw_rest", "import_optuna", "matching"]

#: Largest journal in bytes.
LARGEST = 2**28


def import_optuna() -> Any:
    """Return Optuna.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("Sweeps", "sweep") from error
    return optuna


def distribution_of(key: str, values: Any) -> Any:
    """Return Optuna's distribution of an option's values.

    Raises:
        ConfigurationError: unless the values are a list, or a range.
    """
    distributions = import_optuna().distributions
    if isinstance(values, list) and values:
        return distributions.CategoricalDistribution(values)
    if isinstance(values, dict) and {"low", "high"} <= set(values) <= {"low", "high", "log", "step"}:
        kind = distributions.IntDistribution if _is_whole(values) else distributions.FloatDistribution
        try:
            return kind(**values)
        except ValueError as error:
            raise ConfigurationError(f"The space of {key!r} is wrong: {error}") from error
    raise ConfigurationError(
        f"Expected a list of values, or low and high with log or step, for {key!r} of the space but got {values!r}."
    )


def matching(values: Any, stored: Any) -> list[Any]:
    """Return the value of an option's space that a stored one equals, in a list, or an empty list."""
    if isinstance(values, list):
        return [value for value in values if type(value) is type(stored) and value == stored]
    low, high, step = values["low"], values["high"], values.get("step")
    kinds = (int,) if _is_whole(values) else (int, float)
    if isinstance(stored, bool) or not isinstance(stored, kinds) or not low <= stored <= high:
        return []
    steps = (stored - low) / step if step else 0.0
    return [stored] if abs(steps - round(steps)) < 1e-6 else []


def draw_rest(trial: Any, space: Mapping[str, Any]) -> None:
    """Draw the values of a space that an Optuna trial does not have yet."""
    for key, values in space.items():
        if isinstance(values, list):
            trial.suggest_categorical(key, values)
        elif _is_whole(values):
            trial.suggest_int(key, **values)
        else:
            trial.suggest_float(key, **values)


def check_journal(journal: Path) -> None:
    """Check that a journal fits into memory.

    Raises:
        ConfigurationError: with its largest size.
    """
    if journal.is_file() and journal.stat().st_size > LARGEST:
        raise ConfigurationError(f"Expected {str(journal)!r} to have at most {LARGEST:,} bytes. Choose another --output.")


def check_database(path: Path) -> None:
    """Check that a database of SQLite computes nothing when it is read or written: it has no view, trigger or virtual table.

    Raises:
        ConfigurationError: naming what it has.
    """
    if not path.is_file():
        return
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        listed = database.execute("select type, name, sql from sqlite_master").fetchall()
    for kind, name, text in listed:
        if kind not in ("table", "index") or "virtual" in str(text).lower().split()[:2]:
            raise ConfigurationError(
                f"Expected tables and indices in {str(path)!r} but got a {kind} {str(name)[:80]!r}, which Optuna never makes."
                " Choose another --storage."
            )


def _is_whole(values: Mapping[str, Any]) -> bool:
    """Return whether a range is one of integers."""
    return all(isinstance(values[end], int) for end in ("low", "high"))
