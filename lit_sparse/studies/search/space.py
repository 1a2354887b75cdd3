"""The space that a sweep searches, and the parts of Optuna that search it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from lit_sparse.errors import ConfigurationError, MissingExtraError

__all__ = ["distribution_of", "import_optuna", "matching", "pruner_of", "sampler_of"]


def import_optuna() -> Any:
    """Return the module ``optuna``, imported when it is first used.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("Sweeps", "sweep") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distribution_of(key: str, values: Any) -> Any:
    """Return Optuna's distribution for the values of an option, a list or a range.

    Raises:
        ConfigurationError: unless the option is a text, and its values are a list that a storage keeps, or a range.
    """
    distributions, stored = import_optuna().distributions, False
    with suppress(TypeError, ValueError):  # a date; NaN, which equals nothing, has no error
        stored = isinstance(key, str) and json.loads(json.dumps(values)) == values
    if stored and isinstance(values, list) and values:
        alike = [value for value in values if repr(value) != repr(values[values.index(value)])]
        if alike:  # Optuna stores the first of equal values in place of each
            raise ConfigurationError(
                f"Expected different values of {key!r} in the space but got {alike[0]!r}, which equals"
                f" {values[values.index(alike[0])]!r}. Remove one of them."
            )
        return distributions.CategoricalDistribution(values)
    ranged = isinstance(values, dict) and {"low", "high"} <= set(values) <= {"low", "high", "log", "step"}
    numbers = [values[name] for name in ("low", "high", "step") if name in values] if ranged else []
    finite = all(type(number) in (int, float) and abs(number) < math.inf for number in numbers)
    if stored and ranged and finite and isinstance(values.get("log", False), bool):
        kind = distributions.IntDistribution if _is_whole(values) else distributions.FloatDistribution
        try:
            return kind(**values)
        except ValueError as error:
            raise ConfigurationError(f"The space of {key!r} is wrong: {error}") from error
    raise ConfigurationError(
        "Expected a list of values, or numbers low and high with log or step, as JSON stores them, for the option"
        f" {key!r} of the space but got {values!r}."
    )


def matching(values: Any, stored: Any) -> list[Any]:
    """Return the value in an option's search space that equals a stored one, as a list of one; an empty list without it."""
    if isinstance(values, list):
        return [value for value in values if type(value) is type(stored) and value == stored]
    low, high, step = values["low"], values["high"], values.get("step")
    kinds = (int,) if _is_whole(values) else (int, float)
    if isinstance(stored, bool) or not isinstance(stored, kinds) or not low <= stored <= high:
        return []
    steps = (stored - low) / step if step else 0.0
    return [stored] if abs(steps - round(steps)) < 1e-6 else []


def sampler_of(given: Any, space: Mapping[str, Any]) -> Any:
    """Return an Optuna sampler given by name, or by class path and arguments; see :class:`Sweep`.

    Raises:
        ConfigurationError: if there is no such class, or it stores its state as a pickle.
    """
    samplers = import_optuna().samplers
    if given == "grid":
        found = samplers.GridSampler(space)
        found.after_trial = lambda *_: None  # it would stop `optimize`, which is not called here
        return found
    found = _part(samplers.BaseSampler, "--sampler", {"tpe": "TPESampler", "random": "RandomSampler"}, given)
    part = found
    while isinstance(part, samplers.PartialFixedSampler):
        part = part._base_sampler
    if isinstance(part, samplers.CmaEsSampler):  # whoever can write to the storage could run code by it
        raise ConfigurationError(
            f"Expected a --sampler that stores plain data but got {type(part).__name__}, which unpickles its state from the"
            " storage. Give optuna.samplers.GPSampler or tpe."
        )
    return found


def pruner_of(given: Any) -> Any:
    """Return an Optuna pruner given by name, or by class path and arguments; None for no pruning."""
    names = {"median": "MedianPruner", "hyperband": "HyperbandPruner"}
    return _part(import_optuna().pruners.BasePruner, "--prune", names, given or "NopPruner")


def _part(base: type, option: str, names: Mapping[str, str], given: Any) -> Any:
    """Build a part of Optuna.

    Raises:
        ConfigurationError: if there is no such class, or it refuses its arguments.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("part", type=base)
    try:
        described = {"class_path": names.get(given, given)} if isinstance(given, str) else given
        return parser.instantiate(parser.parse_object({"part": described})).part
    except (ArgumentError, TypeError, ValueError) as error:
        known = f"{', '.join(names)}, or a class of {base.__module__.rpartition('.')[0]} with its init_args"
        unknown = re.findall(r"Option '([^']+)'|Parser key \"([^\"]+)\"", str(error))
        wrong = [name or key for name, key in unknown if (name or key) != "part"]
        why = f": see {wrong[-1]!r}" if wrong else "" if isinstance(error, ArgumentError) else f": {error}".rstrip(".")
        raise ConfigurationError(f"Expected {option} to be {known}, but got {given!r}{why}.") from error


def _is_whole(values: Mapping[str, Any]) -> bool:
    """Return whether a range is one of integers."""
    return all(isinstance(values[end], int) for end in ("low", "high")) and float(values.get("step", 1)).is_integer()
