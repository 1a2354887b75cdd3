"""The constraints of the oldest versions agree with pyproject.toml."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT

from .test_scripts import load


def test_the_constraints_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    load("lower_bounds").main()
    assert capsys.readouterr().out == (ROOT / "constraints-min.txt").read_text(encoding="utf-8")


def test_the_highest_of_two_bounds_counts() -> None:
    script = load("lower_bounds")
    assert max("1.9", "1.10", key=script._order) == "1.10"
    assert not {"triton", "sentence-transformers"} & script.lower_bounds().keys()
