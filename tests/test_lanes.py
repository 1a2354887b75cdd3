"""Cases of a test are divided among the lanes as its mark says."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import pytest_collection_modifyitems


class _Case:
    """A collected case that records its lane."""

    def __init__(self, nodeid: str, **lanes: int) -> None:
        self.nodeid, self.lane = nodeid, "quick"
        self.marks = {"cases": pytest.mark.cases(**lanes).mark} if lanes else {}

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.lane = mark.name


def lanes_of(number: int, **lanes: int) -> list[str]:
    cases: list[Any] = [_Case(f"test.py::test_a[{i}]", **lanes) for i in range(number)]
    pytest_collection_modifyitems(cases)
    return [case.lane for case in cases]


def test_cases_are_spread_over_the_lanes() -> None:
    found = lanes_of(12, quick=3, gate=2)
    assert found[0] == "quick"
    assert [found.count(lane) for lane in ("quick", "gate", "slow")] == [3, 2, 7]
    assert {i // 4 for i, lane in enumerate(found) if lane == "quick"} == {0, 1, 2}
    assert lanes_of(3, gate=1) == ["gate", "slow", "slow"]
    assert lanes_of(2, quick=5) == ["quick", "quick"]
    assert lanes_of(2) == ["quick", "quick"]


def test_each_test_is_divided_by_itself() -> None:
    cases: list[Any] = [
        _Case("test.py::test_b", quick=1),
        _Case("test.py::test_a[0]", quick=1),
        _Case("test.py::test_a[1]", quick=1),
    ]
    pytest_collection_modifyitems(cases)
    assert [case.lane for case in cases] == ["quick", "quick", "slow"]
