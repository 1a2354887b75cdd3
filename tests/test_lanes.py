"""Cases of a test are divided among the lanes as its mark says."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import pytest_collection_modifyitems


class _Case:
    """A collected case that records its lane."""

    def __init__(self, nodeid: str, *own: str, **lanes: int) -> None:
        self.nodeid, self.lane = nodeid, "quick"
        self.marks = dict.fromkeys(own, pytest.mark.slow.mark)
        if lanes:
            self.marks["cases"] = pytest.mark.cases(**lanes).mark

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.lane = mark.name


def lanes_of(number: int, **lanes: int) -> list[str]:
    cases: list[Any] = [_Case(f"test.py::test_a[{i}]", **lanes) for i in range(number)]
    pytest_collection_modifyitems(cases)
    return [case.lane for case in cases]


def test_cases_are_divided_among_the_lanes() -> None:
    found = lanes_of(100, quick=30, gate=20)
    assert found[0] == "quick"
    assert [found.count(lane) for lane in ("quick", "gate", "slow")] == [30, 20, 50]
    assert all("quick" in found[place::5] for place in range(5)), "each value of another parameter has a quick case"
    assert found == lanes_of(100, quick=30, gate=20)
    assert lanes_of(3, gate=1) == ["gate", "slow", "slow"]
    assert lanes_of(2, quick=5) == ["quick", "quick"]
    assert lanes_of(2) == ["quick", "quick"]
    with pytest.raises(TypeError, match="quik"):
        lanes_of(2, quik=5)


def test_each_test_is_divided_by_itself() -> None:
    cases: list[Any] = [_Case("test.py::test_b", quick=1), *(_Case(f"test.py::test_a[{i}]", quick=1) for i in (0, 1))]
    pytest_collection_modifyitems(cases)
    assert [case.lane for case in cases] == ["quick", "quick", "slow"]


def test_cases_with_a_mark_of_their_own_take_no_place() -> None:
    cases: list[Any] = [_Case("test.py::test_a[0]", "slow", gate=1), _Case("test.py::test_a[1]", gate=1)]
    pytest_collection_modifyitems(cases)
    assert [case.lane for case in cases] == ["quick", "gate"], "the first has its own mark and gets no other"
