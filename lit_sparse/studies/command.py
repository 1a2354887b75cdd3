"""The command ``lit-sparse study``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from lit_sparse.checks import check_count
from lit_sparse.errors import ConfigurationError, printable
from lit_sparse.ground.commands import command_parser
from lit_sparse.ground.files import result_file
from lit_sparse.runs.config_files import config_names, find_config
from lit_sparse.studies.jobs.cluster import Cluster
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.jobs.processes import say
from lit_sparse.studies.pages.figures import draw
from lit_sparse.studies.pages.statistics import draw_ranks, ranks_page
from lit_sparse.studies.pages.tables import numbers, page
from lit_sparse.studies.plan.load import load_study

__all__ = ["main", "parser", "write"]


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse study``: a study and its tables; the exit status is 1 if a run failed."""
    arguments = list(arguments)
    place = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser().parse_args(arguments[:place])
    if options.study is None:
        if arguments:
            raise ConfigurationError(f"Expected the name of a study with {' '.join(arguments)}. `lit-sparse study` lists them.")
        print("\n".join(listed()))
        return 0
    for name in ("cells", "seeds", "submit"):
        if options.tables and getattr(options, name) is not None:
            raise ConfigurationError(f"Expected --tables, which runs nothing, without --{name}. Leave one of them out.")
    runner = Runner(
        load_study(find_config(options.study, kind="studies")),
        options.schedule,
        output=options.output,
        results=options.results,
        inputs=dict(_pair(text) for text in options.input),
        extra=arguments[place + 1 :],
        cluster=None if options.submit is None else Cluster(options.submit),
        jobs=check_count("--jobs", options.jobs),
    )
    failed = [] if options.tables else runner.run(options.cells, options.seeds)
    for message in runner.changed() if options.tables else failed:
        say(printable(message), sys.stderr)
    written = write(runner)
    if not written and options.tables:
        raise ConfigurationError(f"{runner.rows.path} has no rows: nothing is finished yet.")
    if written:
        print(*written, sep="\n")
        table = page(replace(runner.study, notes=[], source=""), runner.stored()[0], aligned=True)
        given = {"--schedule": options.schedule, "--results": str(options.results)}
        words = [word for pair in given.items() if pair[1] not in (None, "results") for word in pair]
        more = f"see all cells side by side with: lit-sparse report {shlex.join([options.study, *words])}"
        print(printable("\n".join([*table, more])))
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse study``."""
    found = command_parser(
        "study",
        "Run what is not finished of a study, and write its tables and figures.",
        "Options after -- are given to every training: lit-sparse study STUDY -- --trainer.accelerator gpu",
    )
    found.add_argument("study", nargs="?", help="path of a study file, or the name of a study; without it all names are listed")
    found.add_argument("--cells", nargs="+", help="cells to run; all by default")
    found.add_argument("--seeds", nargs="+", type=int, help="seeds to use instead of the study's own")
    found.add_argument("--schedule", help="schedule of the study, which sets how long to train; the first by default")
    found.add_argument("--jobs", type=int, default=1, help="number of cells at a time; they share the cores")
    found.add_argument("--submit", metavar="CLUSTER[,KEY=VALUE]", help="submit the runs, such as slurm,timeout_min=600")
    found.add_argument("--input", action="append", default=[], metavar="NAME=PATH", help="a file or folder of data")
    found.add_argument("--output", type=Path, default=Path("runs/studies"), help="folder of the runs")
    found.add_argument("--results", type=Path, default=Path("results"), help="folder of rows, tables and figures")
    found.add_argument("--tables", action="store_true", help="run nothing; write the tables and figures")
    return found


def listed() -> list[str]:
    """Return a line for each study of the package: its name, title, schedules and inputs."""
    lines = []
    for name in (name for name in config_names() if name.startswith("studies/")):
        given = yaml.safe_load(find_config(name, folder=None).read_text(encoding="utf-8"))
        parts = {"schedules": given.get("schedules", {}), "inputs": given.get("inputs", {})}
        more = "; ".join(f"{key} {', '.join(filter(None, names))}" for key, names in parts.items() if any(names))
        lines.append(f"{name.removeprefix('studies/'):<20}  {given['title']}{f' ({more})' if more else ''}")
    return [*lines, "", "`lit-sparse study NAME --schedule SCHEDULE --input NAME=PATH` runs one."]


def _pair(text: str) -> tuple[str, str]:
    name, given, path = text.partition("=")
    if not given:
        raise ConfigurationError(f"Expected --input NAME=PATH but got {text!r}.")
    return name, path


def write(runner: Runner) -> list[Path]:
    """Write the tables and figures of the stored results; return the paths of the files, none without results."""
    study = runner.study
    rows, curves, samples = runner.stored()
    if not rows:
        return []
    empty = [f"{name} ({column.value})" for name, column in study.columns.items() if not numbers(rows, column)]
    if empty:
        print(f"Columns are left out, because no row has a value for them: {', '.join(empty)}.", file=sys.stderr)
    path = runner.results / f"{runner.name}.md"
    with result_file(path, "w") as file:
        file.write("\n".join(page(study, rows, samples, ranks_page(study, rows))) + "\n")
    written = [runner.rows.path, path]
    for figure in study.figures:
        picture = path.with_name(f"{runner.name}{figure.suffix}.png")
        if draw(study, figure, rows, curves, picture):
            written.append(picture)
    picture = path.with_name(f"{runner.name}_ranks.png")
    if draw_ranks(study, rows, picture):
        written.append(picture)
    return written
