"""Each number on a page of results comes from rows or from a publication."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from lit_sparse.studies.jobs.rows import Row
from lit_sparse.studies.pages.tables import cell_text, numbers, selected
from lit_sparse.studies.plan.presentation import Column
from tests.conftest import CONFIGS, ROOT
from tests.support.studies import packaged
from tests.test_configs import RESULTS

SOURCES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("results.yaml").read_text())
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
#: What is neither a table nor prose: code, includes, pictures, and the targets of links.
OTHER = re.compile(r"^```.*?^```$|!\[.*?\)|\]\([^)]*\)|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@cache
def rows_of(name: str) -> list[Row]:
    with (ROOT / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def attention() -> dict[str, dict[str, str]]:
    with (CONFIGS / "studies" / "published_attention.csv").open(newline="") as file:
        return {line["key"]: line for line in csv.DictReader(file)}


def text_of(source: dict[str, Any]) -> str:
    """Return the text of a number by its source."""
    if "published" in source:
        study, column, cell = source["published"]
        found = attention()[column][cell] if study == "attention" else RESULTS[study][column][cell]
        return str(found.split("(")[source.get("part", 0)].strip(" )"))
    if "ranks" in source:
        table = (ROOT / "results" / f"{source['ranks']}.md").read_text()
        return re.findall(rf"^\| {re.escape(source['cell'])} \| \d+ \|.* ([\d.]+) \|$", table, re.MULTILINE)[0]
    if "ahead" in source:
        return str(max(ahead_from(source, problem) for problem in source["problems"]))
    where = {key: value if isinstance(value, list) else [value] for key, value in source["where"].items()}
    rows = selected(rows_of(source["rows"]), where)
    if source.get("show") == "total":
        return f"{sum(float(row[source['value']]) for row in rows):g}"
    options = {key: value for key, value in source.items() if key not in ("rows", "where")}
    column = Column(**{"show": "median", **options})
    found = numbers(rows, column)
    return cell_text(found, column).split()[0]


def ahead_from(source: dict[str, Any], problem: str) -> int:
    """Return the smallest size of a coreset from which one method's medians are smaller than another's."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(source["rows"]):
        if row["problem"] == problem:
            found[row["selector"]][int(row["k"])].append(float(row[source["value"]]))
    one, two = (found[selector] for selector in source["ahead"])
    both = one.keys() & two.keys()
    behind = max((k for k in both if median(one[k]) >= median(two[k])), default=0)
    return min(k for k in both if k > behind)


def value(text: str) -> float:
    return float(text.replace(",", ""))


TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def first_table(page: str) -> list[list[str]]:
    """Return the lines of a page's first table, without its head."""
    lines = TABLE.findall(page)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if "table" in source])
def test_numbers_of_verdicts_are_those_of_rows(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    cells = [(line[0], cell) for line in first_table(page) for cell in line[1:] if NUMBER.fullmatch(cell)]
    assert len(cells) == len(SOURCES[name]["table"])
    for (line, cell), source in zip(cells, SOURCES[name]["table"], strict=True):
        assert value(cell) == value(text_of(source)), (line, cell, source)


@pytest.mark.parametrize("name", SOURCES)
def test_numbers_of_the_text_stand_in_a_table(name: str) -> None:
    """Those with decimals; each committed table is made from its rows, as other tests show."""
    page = (ROOT / "docs" / f"{name}.md").read_text()
    source = SOURCES[name]
    included = re.findall(r"\.\./\.\./results/(\w+)\.md", page) + source.get("sources", [])
    known = {number for table in included for number in NUMBER.findall((ROOT / "results" / f"{table}.md").read_text())}
    known |= {*source.get("settings", [])} | {cell for line in first_table(page) for cell in line if "table" in source}
    values = {abs(value(number)) for number in known if NUMBER.fullmatch(number)}
    text = OTHER.sub(" ", TABLE.sub("", page, count=1) if "table" in source else page)
    assert {number for number in NUMBER.findall(text) if "." in number and abs(value(number)) not in values} == set()


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if "says" in source])
def test_sentences_have_the_numbers_of_rows(name: str) -> None:
    page = " ".join((ROOT / "docs" / f"{name}.md").read_text().split())
    for said in SOURCES[name]["says"]:
        assert said["text"].format(*map(text_of, said["of"])) in page


def test_published_results_of_studies_are_those_of_the_publications() -> None:
    for study in ("ssvae", "game", "bitvector"):
        cells = packaged(CONFIGS / "studies" / f"{study}.yaml").cells
        (column,) = RESULTS[study]
        assert {name: str(cell.published[column]) for name, cell in cells.items() if cell.published} == RESULTS[study][column]
