"""The best assignments against scipy's, also where several are equally good."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from lit_sparse.structures.assignment import best_assignments


def grids(kind: str, rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng([rows, columns])
    scores = rng.standard_normal((40, rows, columns))
    if kind == "ties":
        return np.round(scores)
    if kind == "scales":
        return scores * 10.0 ** rng.integers(-100, 100, scores.shape)
    if kind == "forbidden":
        scores[rng.random(scores.shape) < 0.3] = -np.inf
        scores[::3, : rows // 2] = -np.inf
        scores[1::3, :, : columns // 3] = -np.inf
    return scores


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (3, 3), (4, 9), (12, 12), (30, 31)])
@pytest.mark.parametrize("kind", ["normal", "ties", "scales", "forbidden"])
def test_they_are_those_of_scipy(kind: str, rows: int, columns: int) -> None:
    scores = grids(kind, rows, columns)
    chosen, found = best_assignments(scores)
    for grid, one, there in zip(scores, chosen, found, strict=True):
        allowed = grid != -np.inf
        places = np.ix_(allowed.any(1), allowed.any(0))
        try:
            first, second = linear_sum_assignment(grid[places], maximize=True)
        except ValueError:
            first = second = np.empty(0, np.int64)
        assert there == (len(first) == len(grid[places]))
        if there:
            expected = np.zeros_like(grid)
            expected[places[0][first, 0], places[1][0, second]] = 1
            np.testing.assert_array_equal(one, expected)


def test_too_many_rows_and_none() -> None:
    assert best_assignments(np.zeros((2, 3, 2)))[1].tolist() == [0, 0]
    assert best_assignments(np.full((2, 3, 2), -np.inf))[1].tolist() == [1, 1]
    chosen, found = best_assignments(np.zeros((0, 3, 3)))
    assert chosen.shape == (0, 3, 3)
    assert found.shape == (0,)


def test_a_grid_does_not_depend_on_its_batch() -> None:
    scores = grids("ties", 5, 6)
    chosen, _ = best_assignments(scores)
    for grid, one in zip(scores, chosen, strict=True):
        np.testing.assert_array_equal(best_assignments(grid[None])[0][0], one)
