"""The command of sweeps."""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError, printable
from lit_sparse.ground.commands import command_parser
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import read_yaml
from lit_sparse.runs.config_files import find_config
from lit_sparse.runs.folders import experiment_name, next_command
from lit_sparse.studies.jobs.cluster import Cluster
from lit_sparse.studies.jobs.logged import directions_of, kind_and_name
from lit_sparse.studies.pages.figures import draw_front
from lit_sparse.studies.pages.tables import markdown
from lit_sparse.studies.plan.load import check_names, study_of
from lit_sparse.studies.plan.presentation import check_value
from lit_sparse.studies.plan.study import Study
from lit_sparse.studies.search.sweep import PROGRAM, Sweep
from lit_sparse.studies.settings import setting_text, short_names

__all__ = ["main", "parser"]


def _direction(metric: str, mode: str | None) -> str:
    check_value("--metric", metric)
    found = directions_of(metric) if mode is None else [f"{mode}imize"]
    if len(found) != 1:
        raise ConfigurationError(f"Expected --mode min or --mode max for {metric}, whose direction is not known.")
    return found[0]


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(f"expected a name, or YAML, but got {text!r}: {error}") from error


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse sweep``."""
    found = command_parser("sweep", "Search over the values of a config, or over the options of a program, with Optuna.")
    add = found.add_argument
    add("-c", "--config", action="append", default=[], help="file or name of a config, followed by its overlays")
    add("-s", "--space", type=Path, required=True, help="YAML file with options and their values, or a program and its space")
    add("--metric", action="append", required=True, help="logged value to optimize, such as val/nelbo; two give a Pareto front")
    add("--mode", action="append", choices=("min", "max"), help="direction of each metric; known for common metrics")
    add("--trials", type=int, help="number of trials; 30 by default, or all of a grid")
    samplers = "tpe, random, grid, or a class of optuna.samplers, such as GPSampler, with init_args in YAML; tpe by default"
    add("--sampler", type=_yaml, default="tpe", help=samplers)
    pruners = "stop trials that are worse than others: median (by default), hyperband, or a class of optuna.pruners"
    add("--prune", type=_yaml, nargs="?", const="median", help=pruners)
    add("--folds", type=int, default=1, help="number of folds of the training and validation data; values are means over them")
    add("--jobs", type=int, default=1, help="number of trials at a time; they share the cores")
    add("--submit", metavar="CLUSTER[,KEY=VALUE]", help="submit the runs, such as slurm,timeout_min=600")
    add("--storage", help="URL of an Optuna storage, for several machines; a file in the folder by default")
    add("--output", type=Path, default=Path("runs/sweep"), help="folder of the sweeps")
    return found


def _write(sweep: Sweep) -> list[Path]:
    """Write the table of all trials, the config of the best, and for two metrics a picture of the front."""
    import optuna

    trials = [t for t in sweep.study.get_trials(deepcopy=False) if t.state == optuna.trial.TrialState.COMPLETE]
    if not trials:
        return []
    best = {trial.number for trial in sweep.study.best_trials}
    sign = -1.0 if sweep.directions[0] == "maximize" else 1.0
    trials.sort(key=lambda trial: sign * trial.values[0])
    whole = [["trial", *sweep.space, *sweep.metrics]]
    lines = [["trial", *short_names([*sweep.space]).values(), *sweep.metrics]]
    for trial in trials:
        texts = [f"{value:.6g}" for value in trial.values]
        marked = [f"**{text}**" for text in texts] if trial.number in best else texts
        values = sweep.params(trial).values()
        whole.append([str(trial.number), *map(str, values), *texts])
        lines.append([str(trial.number), *map(setting_text, values), *marked])
    text, first = markdown(lines, aligned=True), next(trial.number for trial in trials if trial.number in best)
    files = [sweep.folder / "sweep.md", sweep.folder / "sweep.csv", sweep.folder / "best.yaml"]
    with replaced(files[0], "w") as file:
        file.write("\n".join(text) + "\n")
    with replaced(files[1], "w") as file:
        csv.writer(file, lineterminator="\n").writerows(whole)
    with replaced(files[2], "w") as file:
        file.write(sweep.config(first))
    if len(sweep.metrics) == 2:
        files.append(sweep.folder / "front.png")
        draw_front([trial.values for trial in trials], [t.number in best for t in trials], sweep.metrics, files[-1])
    print("\n".join(text))
    if len(sweep.metrics) == 1:
        print(printable(f"best trial: trial_{first}, with the {'largest' if sign < 0 else 'least'} {sweep.metrics[0]}"))
    else:
        print("in bold: trials that no other trial beats in both")
    run = sweep.folder / f"trial_{first}/seed_0/0"
    summary = kind_and_name(sweep.metrics[0])[0]  # a plain metric is the one of the last epoch
    if not sweep.base.program and (line := next_command(run, "test", ("last",) if summary == "last" else ("best", "last"))):
        print(printable(line))
    return files


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse sweep``; the exit status is 1 if a trial failed."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    options = parser().parse_args(words[:place])
    configs = [str(find_config(name)) for name in options.config]
    if not options.space.is_file():
        raise ConfigurationError(f"There is no file {str(options.space)!r}. Give a file of options and their values with -s.")
    given = read_yaml(options.space)
    if not given:
        raise ConfigurationError(f"Expected options and their values in {options.space} but got {given!r}.")
    space, base = given, Study()
    if "program" in given:
        space = given.pop("space", None)
        check_names(given, PROGRAM, f"the keys of {options.space} besides `space`")
        if not isinstance(space, dict) or not space:
            raise ConfigurationError(f"Expected `space` of {options.space} to be options and their values but got {space!r}.")
        base = study_of({"cells": {"trial": {}}, "tests": {}} | given, options.space)
    elif not configs:
        raise ConfigurationError(f"Expected a config with -c, or a `program` in {options.space}, but got none.")
    if len(options.mode or []) > len(options.metric):
        raise ConfigurationError(f"Expected at most one --mode per --metric but got {len(options.mode)} modes.")
    sweep = Sweep(
        configs,
        space,
        options.metric,
        [_direction(metric, mode) for metric, mode in zip_longest(options.metric, options.mode or [])],
        options.output / (options.space.stem if base.program else experiment_name(configs[0], "")),
        storage=options.storage,
        sampler=options.sampler,
        prune=options.prune,
        folds=options.folds,
        cluster=None if options.submit is None else Cluster(options.submit),
        extra=words[place + 1 :],
        base=base,
    )
    grid = sweep.grid_size if options.sampler == "grid" else None
    trials = (grid or 30) if options.trials is None else check_count("--trials", options.trials)
    failed = sweep.run(min(trials, grid or trials), check_count("--jobs", options.jobs))
    written = _write(sweep)
    if written:
        print(*written, sep="\n")
        more = " --storage URL" if options.storage else ""
        print(printable(f"see all trials side by side with: lit-sparse report {shlex.quote(str(sweep.folder))}{more}"))
    elif not failed and any(trial.state.name == "FAIL" for trial in sweep.study.get_trials(deepcopy=False)):
        failed = [
            f"No trial has a value: all that ended have failed; see their logs in {sweep.folder}. Raise --trials to run"
            " others, or remove the folder to begin again."
        ]
    for message in failed:
        print(printable(message), file=sys.stderr)
    return 1 if failed else 0
