"""Each line of the table of replacements computes the same in both columns."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch

from .pages import DOCS, blocks

PAGE = DOCS / "how_to" / "coming_from.md"
#: The first section, whose table the tests compute.
TABLE = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
ROWS = re.findall(r"^\| `(.+)` \| `(.+)` \|$", TABLE, re.MULTILINE)


def names() -> dict[str, Any]:
    """Return what the page imports, and the same inputs each time: some functions change them."""
    found: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^(?:from|import) .*$", blocks(PAGE)[0].text, re.MULTILINE)), found)
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 7, 4, generator=generator)
    return {**found, "x": torch.randn(6, 5, generator=generator), "labels": torch.arange(6) % 5, "q": q, "k": k, "v": v}


def test_all_lines_are_read() -> None:
    assert len(ROWS) == sum(line.startswith("| `") for line in TABLE.splitlines()) > 10


@pytest.mark.parametrize(("theirs", "ours"), ROWS)
def test_a_replacement_computes_the_same(theirs: str, ours: str) -> None:
    package = theirs.partition(".")[0]
    pytest.importorskip(package, reason="the package that is replaced is not installed; a slow test installs it")
    if package == "pytorch_tabnet":
        importlib.import_module("pytorch_tabnet.sparsemax")
    expected = eval(theirs, {package: importlib.import_module(package), **names()})
    torch.testing.assert_close(eval(ours, names()), expected, rtol=0, atol=1e-6)
