"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with reference answers and real data that travels with CI."""
    folder = Path(os.environ.get("LIT_SPARSE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no folder with reference answers and data; LIT_SPARSE_SHARED names one")
    return folder
