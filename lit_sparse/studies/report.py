"""The command ``lit-sparse report``: one page about some runs or a study, a single file that needs no network."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lit_sparse.config_files import find_config
from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.runs import result_file
from lit_sparse.stored import read_attention, read_png, read_text, read_yaml
from lit_sparse.studies.compare import comparison, is_folder, named
from lit_sparse.studies.engine import Runner
from lit_sparse.studies.figures import svg_of
from lit_sparse.studies.load import load_study
from lit_sparse.studies.rows import Row
from lit_sparse.studies.study import Figure, Study, changes
from lit_sparse.studies.tables import by_cell

__all__ = ["main", "page_of", "parser"]

#: Options that differ between all runs.
FREE = ("output_dir", "name", "ckpt_path")
#: Largest number of bytes of all pictures of a page.
MOST = 2**27
#: Number of bytes that a cell of attention takes in it.
CELL = 50
#: In place of the settings of rows that neither the study nor a run folder has.
UNKNOWN = "Not known: the rows have other settings than the study has now, or none, and their run folders are gone."


@dataclass
class Run:
    """A section of the page.

    Attributes:
        name: name of the run, or title of the cell.
        origin: commit, versions and duration.
        config: its config.
        differences: options in which it differs from the first run, with both values.
        pictures: ``name`` and base64 ``data`` of its pictures.
        maps: attention of some examples: ``title``, ``source`` and ``output`` tokens, and ``heads`` of weights.
    """

    name: str
    origin: str = ""
    config: str = ""
    differences: list[str] = field(default_factory=list)
    pictures: list[dict[str, str]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = argparse.ArgumentParser(prog="lit-sparse report", description=__doc__, allow_abbrev=False)
    found.add_argument("source", nargs="+", metavar="[NAME=]RUN or STUDY", help="run folders, or one study")
    found.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="path of the page")
    found.add_argument("--title", help="heading of the page")
    found.add_argument("--metric", help="metric of the curves of runs; by default the usual one of the models")
    found.add_argument("--schedule", help="schedule of the study; the first by default")
    found.add_argument("--results", type=Path, default=Path("results"), help="folder with the rows of the study")
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    options = parser().parse_args(list(arguments))
    if len(options.source) == 1 and not is_folder(named(options.source[0])[1]):
        runner = Runner(load_study(find_config(options.source[0], kind="studies")), options.schedule, results=options.results)
        rows, curves, _ = runner.stored()
        study, figures, runs = runner.study, runner.study.figures, _cells(runner, rows)
        if not rows:
            raise ConfigurationError(f"{runner.rows.path} has no rows: nothing of the study is finished yet.")
    else:
        pairs = [named(text) for text in options.source]
        study, figure, rows, curves = comparison(pairs, options.metric)
        figures, runs = [figure], _runs(pairs)
    text = page_of(study, figures, rows, curves, runs, options.title or study.title)
    with result_file(options.output, "wb") as file:
        file.write(text.encode("utf-8", "replace"))  # JSON and YAML may escape half a character
    print(options.output)
    return 0


def page_of(
    study: Study, figures: Sequence[Figure], rows: Sequence[Row], curves: Sequence[Row], runs: Sequence[Run], title: str
) -> str:
    """Return the page, the same one for the same arguments.

    Raises:
        MissingExtraError: without Jinja.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("Reports", "report") from error
    drawn = [{"svg": svg_of(study, figure, rows, curves), "alt": figure.alt or study.title} for figure in figures]
    template = Environment(autoescape=True).from_string((files("lit_sparse.studies") / "report.html").read_text("utf-8"))
    return template.render(
        title=title,
        source=study.source,
        notes=study.notes,
        table=by_cell(study, rows, list(study.columns)),
        figures=[figure for figure in drawn if figure["svg"]],
        runs=runs,
    )


def _cells(runner: Runner, stored: Sequence[Row]) -> list[Run]:
    """Return a section for each cell that has rows."""
    found = []
    for name, cell in runner.study.cells.items():
        rows = [row for row in stored if row["cell"] == name]
        if rows:
            seconds = sum(float(row["seconds"] or 0) for row in rows)
            origin = dict.fromkeys(
                f"commit {row['commit']}, {row['versions']}, {row['machine']}" for row in rows if row["commit"]
            )
            settings = runner.settings_of(name, rows)
            kept = {key: value for key, value in settings.items() if value}
            text = yaml.safe_dump(kept, sort_keys=False) if kept else UNKNOWN
            found.append(Run(cell.title or name, f"{len(rows)} rows, {seconds:.0f} s. {'; '.join(origin)}", text))
    return found


def _runs(pairs: Sequence[tuple[str, Path]]) -> list[Run]:
    """Return a section for each run."""
    configs: list[Any] = []
    found, left = [], MOST
    for name, folder in pairs:
        path = folder / "config.yaml"
        config = {key: value for key, value in (read_yaml(path, folder) or {}).items() if key not in FREE}
        text = read_text(path, folder) or ""
        configs.append(config)
        pictures, maps = [], []
        for picture in sorted([*(folder / "pictures").glob("*.png"), *(folder / "pictures/attention").glob("*.json")]):
            if picture.suffix == ".png":
                data = base64.b64encode(read_png(picture, folder)).decode()
                pictures.append({"name": picture.stem.replace("_", " "), "data": data})
                left -= len(data)
            else:
                maps.append(found_map := read_attention(picture, folder))
                source, output = (["", *found_map[side]] for side in ("source", "output"))
                words = len(found_map["title"]) + 2 * sum(map(len, source)) + sum(map(len, output))
                left -= len(found_map["heads"]) * (words + CELL * len(source) * len(output))
            if left < 0:
                raise ConfigurationError(
                    f"Expected pictures of at most {MOST:,} bytes in all but got more, up to {str(picture)!r}. Remove some."
                )
        found.append(Run(name, config=text, differences=changes(configs[0], config), pictures=pictures, maps=maps))
    return found
