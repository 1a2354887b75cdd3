"""The command ``lit-sparse report``: one page about runs, a sweep or a study, a single file that needs no network."""

from __future__ import annotations

import argparse
import base64
import math
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.ground.commands import command_parser
from lit_sparse.ground.files import result_file
from lit_sparse.ground.stored import LARGEST, is_file, read_text
from lit_sparse.runs.config_files import find_config
from lit_sparse.runs.folders import CHECKPOINTS, next_command
from lit_sparse.runs.result_files import read_attention, read_png
from lit_sparse.studies.compare import CURVES, Source, comparison, configs_of, is_folder, named, sources, table_of
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.jobs.logged import directions_of, kind_and_name
from lit_sparse.studies.jobs.processes import say
from lit_sparse.studies.jobs.rows import Row
from lit_sparse.studies.pages.figures import COLORS, history_svg, svg_of
from lit_sparse.studies.pages.tables import cell_text, condensed, machines, numbers, summary
from lit_sparse.studies.plan.load import load_study
from lit_sparse.studies.plan.presentation import Figure
from lit_sparse.studies.plan.study import Study, changes
from lit_sparse.studies.search.space import import_optuna
from lit_sparse.studies.search.storage import stored_study
from lit_sparse.studies.settings import config_file, settings_of, short_name

__all__ = ["main", "parser"]

#: Largest number of bytes of all pictures of a page.
MOST = 2**27
#: Number of bytes that a cell of attention takes in it.
CELL = 50
#: Largest number of trials times choices of all options from which the importance of options is computed.
VALUES = 10**5
#: Dashes of the lines in the legend, as in the figures.
DASHES = ("none", "6 3", "2 2")
#: Parts of the names of columns, and what they mean.
GLOSSARY = {
    "nelbo": "negative evidence lower bound (ELBO) in nats per example, smaller is better",
    "decoder_calls": "evaluations of the decoder per example",
    "support_size": "values with a probability above zero",
    "classification": "loss of the class on labelled examples, smaller is better",
}
#: In place of the settings of rows that neither the study nor a run folder has.
UNKNOWN = "Not known: the rows have other settings than the study has now, or none, and their run folders are gone."


@dataclass
class Run:
    """Content of the report page about a run, or about a cell of a study.

    Attributes:
        name: name of the run, or title of the cell.
        origin: commit, versions and duration, or the run folder.
        config: config of the run.
        settings: name -> value of the settings that differ between runs.
        differences: options in which it differs from the first run, with both values.
        pictures: name -> base64 data of each picture.
        maps: name -> attention map of an example: ``title``, ``source`` and ``output`` tokens, and ``heads`` of weights.
        hint: the command that tests it; empty without a checkpoint.
    """

    name: str
    origin: str = ""
    config: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)
    maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    hint: str = ""


@dataclass
class Search:
    """Content of the report page about the trials of a sweep.

    Attributes:
        name: name of the sweep.
        metric: its first metric.
        mode: ``"min"`` or ``"max"``.
        values: index and value of each complete trial.
        importances: option -> fraction of the values' variance that it explains, by fANOVA; empty if it cannot be computed.
    """

    name: str
    metric: str
    mode: str
    values: list[tuple[int, float]]
    importances: dict[str, float]


#: A study with its figures, rows and curves, and further content about each cell that has rows, in their order.
Content = tuple[Study, Sequence[Figure], list[Row], list[Row], dict[str, Run]]


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse report``."""
    found = command_parser("report", "Write one page about runs, a sweep or a study: a single file that needs no network.")
    what = "run folders, or the folder of a sweep or study, or a study file"
    found.add_argument("source", nargs="+", metavar="[NAME=]RUN or STUDY", help=what)
    found.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="path of the page to write")
    found.add_argument("--title", help="heading of the page")
    found.add_argument("--metric", help="metric of the curves and of the choice of the best run; by default the models' own")
    found.add_argument("--schedule", help="schedule of the study; the first by default")
    found.add_argument("--results", type=Path, help="folder with the rows of the study; by default results")
    found.add_argument("--storage", help="URL of the Optuna storage of the sweep; the file in its folder by default")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse report``: write the page, which is identical for the same input.

    Raises:
        MissingExtraError: without Jinja.
    """
    options = parser().parse_args(list(arguments))
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("Reports", "report") from error
    alone, search = named(options.source[0])[1] if len(options.source) == 1 else None, None
    of_study = alone is not None and not is_folder(alone)
    if options.storage and (of_study or not alone):
        raise ConfigurationError("Expected the folder of one sweep with --storage but got other runs. Leave it out.")
    for name in ("schedule", "results"):
        if getattr(options, name) is not None and not of_study:
            raise ConfigurationError(f"Expected one study with --{name} but got run folders. Leave it out.")
    if of_study:
        study, figures, rows, curves, runs = _of_study(options.source[0], options.schedule, options.results or Path("results"))
        if options.metric is not None:
            raise ConfigurationError(f"Expected run folders with --metric but got the study {alone}. Leave it out.")
    else:
        search = _search(alone, options.storage) if alone else None
        study, figures, rows, curves, runs = _of_runs(sources(options.source), options.metric, search)
        if alone:
            study = replace(study, title=f"Sweep of {search.name}" if search else alone.resolve().name)
    looks: dict[str, int] = {}
    drawn = []
    for figure in figures:
        panels = [svg_of(study, replace(figure, panels=[panel]), rows, curves, looks) for panel in figure.panels]
        drawn.append({"alt": figure.alt or study.title, "panels": list(filter(None, panels))})
    common = {panel.value for figure in figures for panel in figure.panels if len(runs) > 1}
    for run in runs.values():
        run.pictures = {name: data for name, data in run.pictures.items() if CURVES.get(name) not in common}
        if run.pictures or run.maps:
            looks.setdefault(run.name, len(looks))
    _, best, reason = _best(study, rows)
    if options.metric and not any(column.best for column in study.columns.values()):
        reason = f"whether {options.metric} should be large or small is not known"
    table, same = condensed(table_of(study, rows, {name: run.settings for name, run in runs.items()}))
    template = Environment(autoescape=True).from_string((files("lit_sparse.studies") / "report.html").read_text("utf-8"))
    text = template.render(
        title=options.title or study.title,
        source=study.source,
        notes=[*same, *study.notes],
        table=table,
        unit="cell" if of_study else "run",
        spread=any("\u00b1" in cell for line in table for cell in line),
        glossary={word: text for word, text in GLOSSARY.items() if any(word in head for head in table[0])},
        figures=[figure for figure in drawn if figure["panels"]],
        looks=looks,
        lines=[(name, COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]) for name, i in looks.items()],
        runs=[*runs.values()],
        best=runs.get(best),
        reason=reason,
        pictures=list(dict.fromkeys(name for run in runs.values() for name in run.pictures)),
        maps={key: one["title"] or " ".join(one["source"]) for run in runs.values() for key, one in run.maps.items()},
        search=search,
        history=history_svg(search.values, search.metric, search.mode) if search and search.values else "",
    )
    with result_file(options.output, "wb") as file:
        file.write(text.encode("utf-8", "replace"))  # JSON and YAML may escape half a character
    print(options.output)
    return 0


def _of_study(name: str, schedule: str | None, results: Path) -> Content:
    """Return the content of the page about a study."""
    runner = Runner(load_study(find_config(name, kind="studies")), schedule, results=results)
    rows, curves, _ = runner.stored()
    if not rows:
        raise ConfigurationError(f"{runner.rows.path} has no rows: nothing of the study is finished yet.")
    runs = {}
    for cell in dict.fromkeys(row["cell"] for row in rows):
        own = [row for row in rows if row["cell"] == cell]
        seconds = sum(float(row["seconds"] or 0) for row in own)
        made = dict.fromkeys(f"commit {row['commit']}, {row['versions']}, {row['machine']}" for row in own if row["commit"])
        settings = {key: value for key, value in runner.settings_of(cell, own).items() if value}
        text = yaml.safe_dump(settings, sort_keys=False) if settings else UNKNOWN
        runs[cell] = Run(runner.study.title_of(cell), f"{len(own)} rows, {seconds:.0f} s. {'; '.join(made)}", text)
    order = list(dict.fromkeys([*_best(runner.study, rows)[0], *runner.study.cells]))  # the best cell first
    study = replace(runner.study, cells={cell: runner.study.cells[cell] for cell in order})
    return study, study.figures, rows, curves, {cell: runs[cell] for cell in order if cell in runs}


def _of_runs(found: Mapping[str, Sequence[Source]], metric: str | None, search: Search | None) -> Content:
    """Return the content of the page about runs, the best first."""
    configs = configs_of(found)
    study, figure, rows, curves = comparison(found, metric, partial(_monitor, search, configs.values(), metric))
    if search is not None:  # only what the sweep compared can be its best
        complete = {f"trial_{number}" for number, _ in search.values}
        value = next(iter(study.columns.values())).value
        rows = [row if row["cell"] in complete else row | {value: ""} for row in rows]
    order = list(dict.fromkeys([*_best(study, rows)[0], *study.cells]))
    study = replace(study, cells={name: study.cells[name] for name in order})
    curves = sorted(curves, key=lambda row: order.index(row["cell"]))  # the legend has the order of the table
    runs = _runs({name: found[name][0] for name in order}, {name: configs[name] for name in order})
    return study, [figure], rows, curves, runs


def _best(study: Study, rows: Sequence[Row]) -> tuple[list[str], str, str]:
    """Return the cells, best first by the first column that declares what is best, the best cell, and why it is best.

    Without such a column there are none. If several tie, there is no best one.
    """
    key, column = next(((key, one) for key, one in study.columns.items() if one.best), ("", None))
    if column is None or study.series or len(machines(rows)) > 1 or any(cell.grid for cell in study.cells.values()):
        return [], "", ""
    found = {name: numbers((row for row in rows if row["cell"] == name), column) for name in study.cells}
    scores = {name: score for name, some in found.items() if some and math.isfinite(score := summary(some, column))}
    ranked = sorted(scores, key=scores.__getitem__, reverse=column.best == "max")
    if len(ranked) < 2:
        return ranked, "", ""
    end, title = "largest" if column.best == "max" else "smallest", column.title or key
    if tied := sum(score == scores[ranked[0]] for score in scores.values()) - 1:
        return ranked, "", f"{tied + 1} of {len(scores)} tie for the {end} {title}, in bold below"
    what, percent, _ = title.partition(", %")
    texts = [cell_text(found[name], column) + percent[1:] for name in ranked[:2]]
    one, two = (found[name] for name in ranked[:2])
    doubt = "The ranges over their seeds overlap" if max(min(one), min(two)) <= min(max(one), max(two)) else ""
    doubt = "Each has one seed, so a small difference may be chance" if max(len(one), len(two)) == 1 else doubt
    reason = f"{what} is {texts[0]}, the {end} of {len(scores)}; next is {study.title_of(ranked[1])} with {texts[1]}"
    return ranked, ranked[0], f"{reason}. {doubt}" if doubt else reason


def _monitor(
    search: Search | None, configs: Iterable[dict[Any, Any]], asked: str | None, metric: str, logged: Collection[str]
) -> tuple[str, str] | None:
    """Return the value by which the best run is chosen, and its mode: the metric asked for, a sweep's, or the models' own."""
    if search is not None and (not asked or metric == kind_and_name(search.metric)[1]):
        return search.metric, search.mode
    from lit_sparse import models

    known = [config["model"].get("class_path") for config in configs if isinstance(config.get("model"), dict)]
    classes = [getattr(models, str(path).removeprefix("lit_sparse.models."), None) for path in known]
    monitors = {getattr(one, "monitor", ("val/loss", "min")) for one in classes}
    key, mode = monitors.pop() if len(monitors) == 1 and not asked else ("", "")
    if key not in logged:
        modes = [direction[:3] for direction in directions_of(metric)]
        key, mode = (metric, modes[0]) if len(modes) == 1 else ("", "")
    return (f"{mode}({key})", mode) if key else (metric, "") if asked else None


def _search(folder: Path, storage: str | None) -> Search | None:
    """Return the content of a sweep's database, or of the journal in its folder; None without either, or without Optuna.

    Raises:
        ConfigurationError: if it is none of a sweep.
        MissingExtraError: without Optuna for a database.
    """
    journal = folder / "journal.log"
    if storage is None and not is_file(journal):
        if is_file(folder / "queue.lock"):
            say("note: the trials of this sweep are in a database; --storage URL adds their history and importance", sys.stderr)
        return None
    try:
        optuna = import_optuna()
    except MissingExtraError:
        if storage is not None:
            raise
        return None
    try:
        study = stored_study(folder, storage)
        metric, mode = study.user_attrs["settings"]["metrics"][0], study.directions[0].name.lower()[:3]
        trials = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        values = [(trial.number, float(trial.values[0])) for trial in trials if abs(trial.values[0]) <= LARGEST]
        if not isinstance(metric, str):
            raise ValueError(f"its metric is {metric!r:.80}")
    except Exception as error:  # Optuna checks nothing
        reason = " ".join((str(error) if isinstance(error, ConfigurationError) else repr(error)).split())[:300].rstrip(".")
        raise ConfigurationError(
            f"Expected the trials of a sweep in {storage or str(journal)!r} but got: {reason}. Restore it."
        ) from error
    choices = [sum(len(getattr(one, "choices", "1")) for one in trial.distributions.values()) for trial in trials]
    importances = {}
    if len(trials) * max(choices, default=0) <= VALUES:
        with warnings.catch_warnings(), suppress(Exception):  # too few trials, no scikit-learn, or values that are all equal
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            importances = optuna.importance.get_param_importances(
                study, evaluator=evaluator, target=lambda trial: trial.values[0]
            )
    return Search(study.study_name, metric, mode, values, {short_name(key): share for key, share in importances.items()})


def _runs(first: Mapping[str, Source], configs: dict[str, dict[Any, Any]]) -> dict[str, Run]:
    """Return what is shown of each run."""
    settings, base = settings_of(configs), next(iter(configs.values()))
    found, left = {}, MOST
    for name, (folder, root) in first.items():
        there = [which for which in ("best", "last") if (folder / CHECKPOINTS / f"{which}.ckpt").exists()]
        text, hint = read_text(config_file(folder), root) or "", next_command(folder, "test", there)
        run = found[name] = Run(name, f"run folder: {folder}", text, settings[name], changes(base, configs[name]), hint=hint)
        for picture in sorted([*(folder / "pictures").glob("*.png"), *(folder / "pictures/attention").glob("*.json")]):
            if picture.suffix == ".png":
                data = run.pictures[picture.stem.replace("_", " ")] = base64.b64encode(read_png(picture, root)).decode()
                left -= len(data)
            else:
                found_map = run.maps[picture.stem] = read_attention(picture, root)
                source, output = (["", *found_map[side]] for side in ("source", "output"))
                words = len(found_map["title"]) + 2 * sum(map(len, source)) + sum(map(len, output))
                left -= len(found_map["heads"]) * (words + CELL * len(source) * len(output))
            if left < 0:
                raise ConfigurationError(
                    f"Expected pictures of at most {MOST:,} bytes in all but got more, up to {str(picture)!r}. Remove some."
                )
    return found
