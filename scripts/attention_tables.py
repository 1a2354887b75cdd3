"""Tables and curves of models that differ only in their attention, next to published ones; for reproduce_attention."""

from __future__ import annotations

import csv
import json
import logging
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import compare_runs
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_sparse.cli import build_cli
from lit_sparse.cli.arguments import differences
from lit_sparse.data.readers.text_files import read_lines
from lit_sparse.errors import LitSparseError
from lit_sparse.metrics import Bleu, paired_bootstrap

#: The test set that a run's config names.
OWN = "own"
#: Sign for a missing figure.
NONE = "-"
#: BLEU by which predictions may differ from the test: other inputs share a batch there, and rounding may choose another word.
ROUNDING = 0.05
#: Test set of summarization -> how the paper calls it.
TITLES = {"duc2003": "DUC 2003", "duc2004": "DUC 2004", "gigaword": "Gigaword"}
PUBLISHED_SETS = {"duc2003": "duc2003", "duc2004": "duc2004", "test": "gigaword"}
#: Column of Table 6 -> key of the test; W as the script ROUGE-1.5.5 computes it, which made the published figures.
ROUGE = {
    f"{part}/{kind}": f"test/{name}{'W155' if kind == 'W' else kind}"
    for part, name in (("truncated", "rouge75_"), ("whole", "rouge"))
    for kind in ("1", "2", "L", "W")
}
#: Column of Table 7 -> key of the test.
ROUGE_L = {
    f"{part}/{statistic}": f"test/{name}L{suffix}"
    for part, name in (("truncated", "rouge75_"), ("whole", "rouge"))
    for statistic, suffix in (("precision", "_precision"), ("recall", "_recall"), ("f1", ""))
}
#: Options in which runs of one table may differ.
FREE = (
    "seed_everything",
    "name",
    "output_dir",
    "ckpt_path",
    "checkpoint_every_n_steps",
    "data.init_args.seed",
    "model.init_args.mapping",
)

Row = dict[str, str]


@dataclass(frozen=True)
class Run:
    """A training that is finished, and what came of it.

    Args:
        folder: folder of the run.
        tests: test set -> folder of its test.
        predictions: the file of its predictions for the test set, one a line.
    """

    folder: Path
    tests: dict[str, Path]
    predictions: Path | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its whole config."""
        found: dict[str, Any] = yaml.safe_load((self.folder / "config.yaml").read_text())
        return found

    @cached_property
    def lines(self) -> list[dict[str, float]]:
        """Return the logged values."""
        return compare_runs.read(self.folder / "metrics.csv")

    @property
    def epochs(self) -> int:
        """How many epochs it was trained for."""
        return sum("train/seconds" in line for line in self.lines)

    @property
    def best_epoch(self) -> float | None:
        """The epoch that was tested, the first of the best accuracy in validation, counted from 1."""
        scored = [line for line in self.lines if "val/accuracy" in line]
        return max(scored, key=lambda line: line["val/accuracy"])["epoch"] + 1 if scored else None

    def score(self, key: str, test: str = OWN) -> float | None:
        """Return a number of one of its tests; None where there is none."""
        folder = self.tests.get(test)
        found: dict[str, float] = {}
        for line in compare_runs.read(folder / "metrics.csv") if folder is not None else []:
            found.update(line)
        return found.get(key)


#: Mapping -> its finished runs, one a seed; in the order of the table.
Results = dict[str, list[Run]]


@dataclass
class Page:
    """Content of the files: tables with titles, all rows for the CSV file, notes, and errors."""

    tables: list[tuple[str, list[Row]]]
    rows: list[Row]
    notes: list[str]
    problems: list[str] = field(default_factory=list)


@cache
def published(number: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return part -> column -> mapping -> figure of a table of the paper, without the figures that it has not."""
    table = json.loads(Path(__file__).with_name("published_attention.json").read_text())["tables"][str(number)]
    return {
        part: {
            column: {mapping: row[place] for mapping, row in rows.items() if row[place] is not None}
            for place, column in enumerate(table["columns"])
        }
        for part, rows in table["parts"].items()
    }


def published_bleu(key: str = "") -> dict[str, dict[str, float]]:
    """Return test set -> mapping -> BLEU of Table 4, of all test sets whose names begin with the parts of a key.

    Args:
        key: such as ``to_english``, ``to_english/benchmark`` or ``to_english/benchmark/fr``; empty for all.
    """
    sets = {f"{part}/{column}": figures for part, columns in published(4).items() for column, figures in columns.items()}
    return {name: figures for name, figures in sets.items() if not key or f"{name}/".startswith(f"{key}/")}


def spread(values: Sequence[float]) -> str:
    """Return the smallest and the largest of some values, or the only one."""
    low, high = min(values, default=None), max(values, default=None)
    if low is None or high is None:
        return NONE
    return f"{low:.2f}" if low == high else f"{low:.2f} .. {high:.2f}"


def middle(values: Iterable[float | None], form: str = ".2f", factor: float = 1.0) -> str:
    """Return the median over the seeds that have a value."""
    there = [value * factor for value in values if value is not None]
    return format(statistics.median(there), form) if there else NONE


def looks(runs: list[Run], test: str) -> Row:
    """Return what is known of the attention in a test."""
    columns = {
        "support, mean": ("test/support_size_mean", ".2f", 1),
        "support, median": ("test/support_size_median", "g", 1),
        "zeros, %": ("test/zeros", ".1f", 100),
        "groups, mean": ("test/groups_mean", ".2f", 1),
    }
    return {
        title: middle((run.score(key, test) for run in runs), form, factor) for title, (key, form, factor) in columns.items()
    }


def length(runs: list[Run]) -> Row:
    """Return for how many epochs was trained, and which was the best."""
    return {"epochs (best)": f"{middle((run.epochs for run in runs), 'g')} ({middle((run.best_epoch for run in runs), 'g')})"}


def translation(results: Results, key: str = "") -> Page:
    """Return BLEU with differences to the best, attention of each mapping, and Table 4.

    Args:
        results: the runs.
        key: which published BLEU is shown, see :func:`published_bleu`.
    """
    names = bleu_names(next(iter(results.values()))[0])
    compared = compare(results, "bleu_moses" if "bleu_moses" in names else names[0])
    sets = published_bleu(key)
    rows = []
    for mapping, runs in results.items():
        row = start(mapping, runs)
        for name in names:
            row["BLEU" if name == "bleu" else f"BLEU ({name})"] = middle(run.score(f"test/{name}") for run in runs)
        row |= compared.cells.get(mapping, {DIFFERENCE: NONE, "p": NONE})
        row["chrF"] = middle(run.score("test/chrf") for run in runs)
        row |= looks(runs, OWN) | length(runs)
        theirs = {name: figures for name, figures in sets.items() if mapping in figures}
        row["published BLEU"] = spread([figures[mapping] for figures in theirs.values()])
        row["published, less the best"] = spread([figures[mapping] - max(figures.values()) for figures in theirs.values()])
        rows.append(row)
    notes = [
        *signatures(results, [OWN]),
        compared.note,
        f"Published BLEU is that of Table 4, {key or 'from and to English'}, {len(sets)} test set{'s' * (len(sets) > 1)}, on"
        " lower-cased Moses tokens.",
    ]
    return Page([("", rows)], rows, notes, compared.problems)


def entailment(results: Results) -> Page:
    """Return accuracy and attention of each mapping, and Table 1."""
    accuracies = published(1)["snli"]["accuracy"]
    rows = []
    for mapping, runs in results.items():
        found = [100 * value for run in runs if (value := run.score("test/accuracy")) is not None]
        row = start(mapping, runs)
        row["accuracy, %"] = middle(found) + (f" ({spread(found)})" if len(found) > 1 else "")
        row |= looks(runs, OWN) | length(runs)
        row["published accuracy, %"] = f"{accuracies[mapping]:.2f}" if mapping in accuracies else NONE
        rows.append(row)
    notes = ["Accuracy is the median over seeds, with the lowest and the highest. Published is Table 1."]
    return Page([("", rows)], rows, notes)


def summarization(results: Results, tests: Sequence[str]) -> Page:
    """Return for each test set a table like 6 and one like 7, with published figures in brackets, and one of attention."""
    tables, attended, rows = [], [], []
    for test in tests:
        those = {mapping: tested for mapping, runs in results.items() if (tested := [run for run in runs if test in run.tests])}
        part = PUBLISHED_SETS.get(test)
        title = f"{test} ({{}}, {TITLES[part]})" if part else test
        of_six = {mapping: beside(runs, test, ROUGE, 6, part, mapping) for mapping, runs in those.items()}
        of_seven = {mapping: beside(runs, test, ROUGE_L, 7, part, mapping) for mapping, runs in those.items()}
        for what, table, cells in (("F1 of ROUGE", "Table 6", of_six), ("ROUGE-L", "Table 7", of_seven)):
            paired = [start(mapping, runs) | in_brackets(cells[mapping]) for mapping, runs in those.items()]
            if paired:
                tables.append((f"{what} on {title.format(table)}", paired))
        for mapping, runs in those.items():
            looked = looks(runs, test) | length(runs)
            attended.append({"test set": test} | start(mapping, runs) | looked)
            row = dict(attended[-1])
            for column, (ours, theirs) in (of_six[mapping] | of_seven[mapping]).items():
                row |= {column: ours, f"{column}, published": theirs}
            rows.append(row)
    tables.append(("Attention", attended))
    notes = [
        *signatures(results, tests),
        "Published figures stand in brackets. ROUGE-W is rougeW155, as the script ROUGE-1.5.5 computes it with weight 1.2: that"
        " which compares with them.",
    ]
    return Page(tables, rows, notes)


def beside(
    runs: list[Run], test: str, columns: dict[str, str], number: int, part: str | None, mapping: str
) -> dict[str, tuple[str, str]]:
    """Return column -> our figure and that of one part of a published table."""
    found = {}
    for column, key in columns.items():
        theirs = published(number)[part][column].get(mapping) if part else None
        found[titled(column)] = middle(run.score(key, test) for run in runs), NONE if theirs is None else f"{theirs:.2f}"
    return found


def titled(column: str) -> str:
    """Return the title of a column of Table 6 or 7."""
    part, what = column.split("/")
    name = {"precision": "P of L", "recall": "R of L", "f1": "F1 of L"}.get(what, f"ROUGE-{what}")
    return f"{name}, {'75 bytes' if part == 'truncated' else 'whole'}"


def in_brackets(cells: dict[str, tuple[str, str]]) -> Row:
    """Return our figures, each with the published one in brackets."""
    return {title: f"{ours} ({theirs})" for title, (ours, theirs) in cells.items()}


def start(mapping: str, runs: list[Run]) -> Row:
    """Return what a row begins with."""
    return {"attention": mapping.replace("_", "-"), "seeds": str(len(runs))}


def signatures(results: Results, tests: Sequence[str]) -> list[str]:
    """Return what the scores depend on, each signature once, with the test set where there are several."""
    found = []
    for test in tests:
        files = [run.tests[test] / "signatures.txt" for runs in results.values() for run in runs if test in run.tests]
        for line in (line for path in files if path.is_file() for line in path.read_text(encoding="utf-8").splitlines()):
            found.append(f"`{line}`" + (f" on {test}" if len(tests) > 1 else ""))
    return list(dict.fromkeys(found))


# Differences of BLEU

DIFFERENCE = "to the best [95 %]"


@dataclass
class Compared:
    """Mapping -> cells of its difference to the best, with what is to be said of them and what went wrong."""

    cells: dict[str, Row]
    note: str
    problems: list[str]


def bleu_names(run: Run) -> list[str]:
    """Return the names of BLEU that a run's tests have."""
    listed = run.config["model"]["init_args"].get("metrics")
    kinds = [] if listed is None else [entry for entry in listed if entry["class_path"].rsplit(".", 1)[-1] == "Bleu"]
    return [entry.get("init_args", {}).get("name", "bleu") for entry in kinds] or ["bleu"]


def texts_of(run: Run) -> tuple[dict[str, Bleu], list[list[str]]]:
    """Return name -> BLEU as a run's model has it, and the references of its test set."""
    logging.disable(logging.INFO)  # of what it builds a trainer for
    try:
        cli = build_cli(["fit", "-c", str(run.folder / "config.yaml"), "--trainer.logger=false"])  # it needs no checkpoint
    finally:
        logging.disable(logging.NOTSET)
    texts: dict[str, list[Any]] = cli.datamodule.texts("test")
    references = texts["references"] if "references" in texts else [[text] for text in texts["target"]]
    return {metric.name: metric for metric in cli.model.metrics if isinstance(metric, Bleu)}, references


def compare(results: Results, name: str) -> Compared:
    """Compare each mapping with the best by a paired bootstrap over the test inputs, in the runs of median BLEU.

    Predictions whose score differs from that of the test are reported and not compared.
    """
    chosen: dict[str, tuple[float, Run]] = {}
    for mapping, runs in results.items():
        scored = sorted(
            ((score, place, run) for place, run in enumerate(runs) if (score := run.score(f"test/{name}")) is not None)
        )
        if scored:
            score, _, run = scored[(len(scored) - 1) // 2]
            chosen[mapping] = score, run
    compared = Compared({}, "", [])
    predicted = {mapping: run.predictions for mapping, (_, run) in chosen.items() if run.predictions is not None}
    if not predicted:
        compared.note = "Nothing was predicted yet: no difference is tested."
        return compared
    try:
        metrics, references = texts_of(chosen[next(iter(predicted))][1])
    except LitSparseError as error:
        compared.problems.append(f"The references cannot be read, so no difference is tested: {error}")
        return compared
    metric, texts = metrics[name], {}
    for mapping, path in predicted.items():
        lines, (score, _) = read_lines(path), chosen[mapping]
        again = bleu(metric, lines, references) if len(lines) == len(references) else None
        if again is not None and abs(again - score) <= ROUNDING:
            texts[mapping] = lines
            continue
        what = f"{len(lines)} lines for {len(references)} inputs" if again is None else f"a {name} of {again:.2f}"
        compared.problems.append(
            f"{path} has {what}, but the test of that run found {score:.2f}: it was not made from the same data or checkpoint."
            " Remove its folder, and give the same command again."
        )
    best = max(chosen, key=lambda mapping: chosen[mapping][0])
    compared.note = (
        f"Differences of {name} have the interval and p of a paired bootstrap over the test inputs (Koehn, 2004). With several"
        f" seeds the run of median {name} is compared, or the lower middle one for an even number."
    )
    compared.cells[best] = {DIFFERENCE: "best", "p": NONE}
    for mapping, lines in texts.items():
        if mapping != best and best in texts:
            found = paired_bootstrap(metric, lines, texts[best], references, key=name)
            interval = f"{found.difference:.2f} [{found.low:.2f}, {found.high:.2f}]"
            compared.cells[mapping] = {DIFFERENCE: interval, "p": f"{found.p_value:.3f}"}
    return compared


def bleu(metric: Bleu, lines: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the score of some texts."""
    return metric.scores(metric.statistics(lines, references).sum(0), len(lines))[metric.name]


# Writing


def unlike(results: Results) -> list[str]:
    """Return the options, besides mapping and seed, in which runs differ from the first; their figures are not comparable."""
    runs = [(mapping, run) for mapping, some in results.items() for run in some]
    found = []
    for mapping, run in runs[1:]:
        keys = [key for key, *_ in differences(runs[0][1].config, run.config) if not key.startswith(FREE)]
        if keys:
            found.append(f"{mapping.replace('_', '-')} ({run.folder}) differs from the first run in {', '.join(keys)}.")
    return found


def write(page: Page, path: Path) -> list[str]:
    """Write the tables and notes to ``path`` with the ending ``.md``, their rows to ``.csv``; return the lines of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for title, rows in page.tables:
        lines += [f"### {title}", ""] if title else []
        lines += [f"| {' | '.join(cells)} |" for cells in (rows[0], *(row.values() for row in rows))]
        lines.insert(len(lines) - len(rows), "| --- |" + " ---: |" * (len(rows[0]) - 1))
        lines.append("")
    lines += [f"- {note}" for note in page.notes if note]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(page.rows[0]))
        writer.writeheader()
        writer.writerows(page.rows)
    return lines


def draw(results: Results, path: Path, curves: dict[str, str]) -> None:
    """Draw metrics of validation over epochs, the median over seeds and the range.

    Args:
        results: the runs.
        path: where the picture goes.
        curves: key -> label of each panel; those that no run logged are left out.
    """
    found = {key: {mapping: by_epoch(runs, key) for mapping, runs in results.items()} for key in curves}
    found = {key: lines for key, lines in found.items() if any(lines.values())}
    figure = Figure(figsize=(1.5 + 4.5 * len(found), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for panel, (key, lines) in zip(panels, found.items(), strict=True):
        for number, (mapping, values) in enumerate(lines.items()):
            epochs, color = list(values), compare_runs.COLORS[number]
            few = "." if len(epochs) < compare_runs.FEW else None
            medians = [statistics.median(some) for some in values.values()]
            panel.plot(epochs, medians, color=color, label=mapping.replace("_", "-"), marker=few)
            ends: list[Callable[[list[float]], float]] = [min, max]
            low, high = ([end(some) for some in values.values()] for end in ends)
            panel.fill_between(epochs, low, high, color=color, alpha=0.15, lw=0)
        panel.set(xlabel="epoch", ylabel=curves[key])
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)


def by_epoch(runs: list[Run], key: str) -> dict[int, list[float]]:
    """Return epoch, from 1 -> values of a metric, one a run."""
    found: dict[int, list[float]] = {}
    for run in runs:
        of_run = {int(line["epoch"]) + 1: line[key] for line in run.lines if key in line}
        for epoch, value in of_run.items():
            found.setdefault(epoch, []).append(value)
    return dict(sorted(found.items()))
