"""Reads the tables of logged values of the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from .pages import DOCS

STATISTICS = ("mean", "p10", "median", "p90", "total")
PAGE = DOCS / "reference" / "log_keys.md"


def documented(model: str) -> dict[str, bool]:
    """Return the documented keys of a model, and whether it always logs them."""
    keys: dict[str, bool] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## "):
        title, _, body = section.partition("\n")
        if title in ("All models", model):
            for line in body.splitlines():
                if line.startswith("| `") and line.count("|") == 5:
                    name, stages = (cell.strip(" `") for cell in line.strip("|").split("|")[:2])
                    listed, _, condition = stages.partition(", if ")
                    names = [name.replace("*", statistic) for statistic in STATISTICS] if "*" in name else [name]
                    keys |= {f"{stage}/{one}": not condition for stage in listed.split(", ") for one in names}
    return keys


def check(model: str, logged: Iterable[str], count_name: str) -> None:
    """Assert that a model logs what the page lists."""
    keys = {key.replace("/examples", f"/{count_name}"): always for key, always in documented(model).items()}
    assert len(keys) > 10, f"{PAGE.name} has no section {model}"
    unlisted, missing = set(logged) - set(keys), {key for key, always in keys.items() if always} - set(logged)
    assert not unlisted, f"{model} logs what {PAGE.name} does not list: {sorted(unlisted)}"
    assert not missing, f"{PAGE.name} lists what {model} does not log: {sorted(missing)}"
