"""Reads study files, and refuses names that do not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from lit_sparse.checks import check_count, check_number
from lit_sparse.errors import CheckpointError, ConfigurationError, did_you_mean
from lit_sparse.ground.stored import read_yaml
from lit_sparse.runs.builder import plan_arguments
from lit_sparse.runs.config_files import check_empty
from lit_sparse.studies.plan.presentation import check_value
from lit_sparse.studies.plan.study import RESERVED, Study

__all__ = ["check_names", "load_study", "study_of"]

#: How a column shows the number of seeds above a number.
ABOVE = re.compile(r"above [-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def load_study(path: str | Path) -> Study:
    """Return the study that a YAML file describes.

    Args:
        path: path of a YAML file.

    Raises:
        ConfigurationError: if the file does not exist, a key in it is unknown, or a value has a wrong type.
    """
    path = Path(path)
    content = read_yaml(path)
    if content is None:
        raise ConfigurationError(f"There is no study file {str(path)!r}.")
    return study_of(content, path)


def study_of(content: dict[str, Any], path: Path) -> Study:
    """Return the study described by a YAML file's content; see :func:`load_study`.

    Raises:
        ConfigurationError: if the content does not describe a study.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Study, skip={"path"})
    try:
        given = _written_options(_for_each_test(content))
        if given.get("program"):
            given = {"seed_options": ["seed_everything"]} | given
        plan_arguments(str(path), given, Study)  # names what is wrong, where the parser lists what it tried
        parsed = parser.parse_object(given, defaults=False)
        check_empty(given, parsed)
        study = Study(**parser.instantiate(parsed).as_dict(), path=path)
    except CheckpointError as error:
        reason = str(error).removesuffix(" The file may come from another version.")
        raise ConfigurationError(f"{path} is not a study file. {reason}") from error
    except (ArgumentError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigurationError(f"{path} is not a study file: {reason}.") from error
    _check(study)
    return study


def _written_options(given: Any) -> Any:
    """Return a study with lists and mappings among its options as text: they are for the commands to read."""
    if isinstance(given, list):
        return [_written_options(entry) for entry in given]
    if not isinstance(given, dict):
        return given
    found = {key: _written_options(value) for key, value in given.items()}
    if isinstance(options := given.get("options"), dict):
        found["options"] = {key: json.dumps(v) if isinstance(v, dict | list) else v for key, v in options.items()}
    return found


def _for_each_test(given: Any) -> Any:
    """Repeat the columns and tables that hold ``{test}`` for each test."""

    def filled(entry: Any, test: str) -> Any:
        return json.loads(json.dumps(entry).replace("{test}", test))

    kinds = {"tests": dict, "columns": dict, "tables": list}
    if not all(isinstance(given.get(name) or kind(), kind) for name, kind in kinds.items()):
        return given  # its reader says what is wrong
    tests, columns, tables = (given.get(name) or kind() for name, kind in kinds.items())
    if any("{test}" in name for name in columns):
        given["columns"] = {name: column for test in tests for name, column in filled(columns, test).items()}
    if any("{test}" in json.dumps(table) for table in tables):
        given["tables"] = [filled(table, test) for test in tests for table in tables]
    return given


def _check(study: Study) -> None:
    """Refuse names that do not exist.

    Raises:
        ConfigurationError: if a cell has nothing to run, or a cell, schedule or column is unknown.
    """
    if not study.cells:
        raise ConfigurationError(f"{study.path} needs at least one entry in `cells`.")
    _check_values(study)
    for name, cell in study.cells.items():
        if not (cell.function or study.program or any(study.change_of(name, one).config for one in (None, *study.schedules))):
            raise ConfigurationError(f"{study.path}: cell {name!r} needs a `config` or a `function`, or the study a `program`.")
        check_names(cell.checkpoints.values(), study.cells, f"`checkpoints` of cell {name!r} in {study.path}")
        sources = {*cell.checkpoints.values()}
        for _ in study.cells:  # only a cycle is longer than the list of cells
            sources = {other for source in sources for other in study.cells[source].checkpoints.values()}
        if sources:
            raise ConfigurationError(f"{study.path}: the checkpoints that cell {name!r} needs depend on its own.")
        check_names(cell.schedules, study.schedules, f"`schedules` of cell {name!r} in {study.path}")
        for change in (cell, *cell.schedules.values()):
            check_names(change.published, study.columns, f"`published` of cell {name!r} in {study.path}")
    for name, given in study.schedules.items():
        check_names(given.published, study.columns, f"`published` of schedule {name!r} in {study.path}")
        check_names(given.cells, study.cells, f"`cells` of schedule {name!r} in {study.path}")
    for schedule in (None, *study.schedules):
        cells = study.scheduled(schedule).cells
        for name, cell in cells.items():
            check_names(cell.checkpoints.values(), cells, f"`checkpoints` of cell {name!r} in {study.path}")
            if taken := [key for key in (*cell.labels, *cell.grid) if key in RESERVED]:
                raise ConfigurationError(
                    f"Expected names other than {', '.join(RESERVED)} in `labels` and `grid` of cell {name!r} in {study.path}"
                    f" but got {taken[0]!r}."
                )
    for key, pattern in (("metric_files", study.metric_files), ("checkpoint_files", study.checkpoint_files or ".")):
        if not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise ConfigurationError(
                f"Expected `{key}` of {study.path} to be a pattern within a run's folder but got {pattern!r}."
            )
    columns, shows, ends = study.columns.values(), ("mean", "median", "min", "max", "range"), ("best", "last")
    compared = [comparison.column for comparison in (study.ranks, study.compare) if comparison is not None]
    least = [name for name in (*(table.least for table in study.tables), *(one.least for one in study.figures)) if name]
    shown = [name for table in study.tables for name in (*(table.columns or ()), *table.value)]
    for asked, known, where in (
        (compared, study.columns, "a comparison"),
        ([column.show for column in columns if not ABOVE.fullmatch(column.show)], shows, "`show` of a column"),
        ([column.best for column in columns if column.best], ("min", "max"), "`best` of a column"),
        ([] if study.program else [study.checkpoint], ends, "`checkpoint`"),
        (least, [name for name, one in study.columns.items() if one.best != "max"], "`least`, a column without `best: max`,"),
        (shown, study.columns, "a table"),
    ):
        check_names(asked, known, f"{where} of {study.path}")


def _check_values(study: Study) -> None:
    """Refuse values that would fail or be ignored only after everything has run, and names that lead out of a folder.

    Raises:
        ConfigurationError: naming the value.
    """

    def refuse(what: str, got: object) -> None:
        raise ConfigurationError(f"Expected {what} in {study.path} but got {got!r}.")

    needed = [*study.cells, *study.tests, *study.scores]
    for name in (*needed, *study.schedules, *(figure.suffix for figure in study.figures)):
        if not isinstance(name, str) or name in (".", "..") or {*name} & {*"/\\\0"} or (name in needed and not name):
            refuse("names that can be part of the name of a file, numbers in quotes,", name)
    changes = [study, *study.schedules.values(), *study.cells.values()]
    for change in (*changes, *(change for cell in study.cells.values() for change in cell.schedules.values())):
        if change.seeds == [] or [] in change.grid.values():
            refuse("`seeds` and lists of a `grid` that have a value", [])
    for name, column in study.columns.items():
        check_value(f"`value` of column {name!r} in {study.path}", column.value)
        try:
            format(1.0, column.form)
        except ValueError:
            refuse(f"a format of numbers, such as .2f, as `form` of column {name!r}", column.form)
    if study.ranks is not None:
        check_count("ranks.trim", study.ranks.trim, 0)
        check_number("ranks.level", study.ranks.level, 0.0, 1.0, open_low=True, open_high=True)
    for table in study.tables:
        if bool(table.value) != (table.lines is not None):
            refuse("both `value` and `lines` of a table, or neither,", table.value or table.lines)
    for figure in study.figures:
        if not figure.panels:
            refuse("`panels` of a figure", figure.panels)
        for panel in figure.panels:
            shares = [end for end in panel.band if not isinstance(end, str)]
            if len(panel.band) != 2 or (shares and not (len(shares) == 2 and 0 <= shares[0] <= shares[1] <= 1)):
                refuse("two quantiles in 0 .. 1, or two names, as `band` of a panel", panel.band)
            if panel.limits is not None and len(panel.limits) != 2:
                refuse("two ends as `limits` of a panel", panel.limits)
            if panel.log not in (False, True, "x", "both"):
                refuse("true, false, x or both as `log` of a panel", panel.log)


def check_names(asked: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise an error if some names are not among the known ones.

    Raises:
        ConfigurationError: if a name is unknown; the message lists the known ones.
    """
    for name in asked:
        if name not in known:
            raise ConfigurationError(
                f"Expected {where} to be among {', '.join(known) or 'none'} but got {name!r}.{did_you_mean(name, known)}"
            )
