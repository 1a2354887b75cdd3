"""The studies of the package."""

from __future__ import annotations

import functools
from pathlib import Path

import yaml

from lit_sparse.studies.plan.load import load_study
from lit_sparse.studies.plan.study import Study
from tests.conftest import CONFIGS

STUDIES = sorted((CONFIGS / "studies").glob("*.yaml"))


@functools.cache
def packaged(path: Path) -> Study:
    """Read a study once in a process, which takes up to a second."""
    return load_study(path)


def schedules_of(path: Path) -> list[str]:
    """Return the names of a study's schedules without reading the rest of it."""
    return [*yaml.safe_load(path.read_text())["schedules"]]
