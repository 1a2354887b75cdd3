"""Structures given by a function: rows, batches, processes, known solutions, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SparseMAP
from lit_sparse.mappings import functional as F
from lit_sparse.structures import FromSolver, ShortestPath

GRID = ShortestPath.grid(4, 4)


def path(scores: np.ndarray) -> Any:
    return GRID.maximize(torch.from_numpy(scores).unsqueeze(0))[0]


def paths(scores: np.ndarray) -> Any:
    return GRID.maximize(torch.from_numpy(scores)).numpy() - 1e-6


def ending(scores: np.ndarray) -> Any:
    os._exit(3)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_best_of_random_sets() -> None:
    """500 sets of up to 20 vectors, with forbidden entries that leave at least one."""
    for case in range(500):
        draw = np.random.default_rng(case)
        d = int(draw.integers(1, 10))
        every = draw.integers(0, 2, (int(draw.integers(1, 21)), d))
        structure = FromSolver(lambda scores, every=every: every[(every @ scores).argmax()], d, cache=case % 5)
        scores = draw.normal(size=(4, d))
        scores[:, (every[0] == 0) & (draw.random(d) < 0.3)] = -np.inf
        allowed = every[~(every[:, scores[0] == -np.inf] == 1).any(-1)]
        found = structure.maximize(torch.from_numpy(scores)).numpy()
        assert (found[:, None] == allowed).all(-1).any(-1).all()
        kept = np.where(scores > -np.inf, scores, 0.0)
        np.testing.assert_allclose((kept * found).sum(-1), (kept @ allowed.T).max(-1))


@pytest.mark.parametrize("options", [{}, {"cache": 3}, {"cache": 1000}], ids=str)
@pytest.mark.parametrize("solve", [path, paths], ids=lambda solve: solve.__name__)
def test_marginals_and_gradients_are_those_of_the_structure(solve: Callable[..., Any], options: dict[str, int]) -> None:
    structure = FromSolver(solve, 24, batched=solve is paths, **options)
    for seed in range(3):  # the second and third start from known solutions
        scores = 5 * draw(20, 24, seed=seed)
        scores[:10, [1, 5]] = -torch.inf
        own, same = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        with torch.enable_grad():
            got, expected = SparseMAP(structure, gamma=0.5)(own), SparseMAP(GRID, gamma=0.5)(same)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
            (got * draw(20, 24, seed=9)).sum().backward()
            (expected * draw(20, 24, seed=9)).sum().backward()
        torch.testing.assert_close(own.grad, same.grad, rtol=0, atol=1e-6)


def test_known_solutions_save_calls_and_gaps_are_those_of_the_solver() -> None:
    calls = 0

    def counted(scores: np.ndarray) -> Any:
        nonlocal calls
        calls += 1
        return path(scores)

    plain, cached = FromSolver(counted, 24), FromSolver(counted, 24, cache=100)
    scores = draw(30, 24, seed=1)
    F.sparsemap(scores, plain, gamma=0.1)
    without, calls = calls, 0
    F.sparsemap(scores, cached, gamma=0.1)
    first, calls = calls, 0
    out = F.sparsemap(scores + 0.01 * draw(30, 24, seed=2), cached, gamma=0.1)
    assert calls < first < without
    assert calls <= 40  # one a row, which confirms the end
    assert float(out.gap.max()) < 1e-8
    with pytest.warns(RuntimeWarning, match="max_iter=1 "):
        short = F.sparsemap(draw(30, 24, seed=5), cached, gamma=0.1, max_iter=1)
    residual = draw(30, 24, seed=5) - 0.1 * short.marginals
    torch.testing.assert_close(short.gap, (residual * (GRID.maximize(residual) - short.marginals)).sum(-1))


def test_the_cache_keeps_the_last_solutions() -> None:
    structure = FromSolver(path, 24, cache=2)
    structure.maximize(draw(9, 24))
    last = structure.maximize(draw(2, 24, seed=3))
    assert len({tuple(row) for row in last.tolist()}) == 2
    assert torch.equal(structure.recall(draw(2, 24, seed=3)), last)
    assert structure.recall(draw(2, 24).masked_fill(last.sum(0) > 0, -torch.inf)) is None


def test_processes() -> None:
    scores = draw(5, 24)
    structure = FromSolver(path, 24, processes=2)
    assert torch.equal(structure.maximize(scores), GRID.maximize(scores))
    assert structure.maximize(scores[:0]).shape == (0, 24)
    with pytest.raises(ConfigurationError, match="ended early"):
        FromSolver(ending, 24, processes=1).maximize(scores)


def returns(value: Any) -> Callable[[], Any]:
    return lambda: FromSolver(lambda scores: value, 3).maximize(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (returns([1, 0]), r"shape \(3,\) but got shape \(2,\)"),
        (returns([1, 0, 2]), "zeros and ones but got 2"),
        (returns([1, 0, 0.5]), "but got 0.5"),
        (returns([1, 0, float("nan")]), "but got nan"),
        (returns([1, 0, float("inf")]), "but got inf"),
        (returns(None), "shape"),
        (returns("abc"), "values of shape"),
        (returns([1, [0], 0]), "values of shape"),
        (returns(([1, 0, 0], 1.0)), "values of shape"),
        (lambda: FromSolver(path, 24).maximize(torch.full((1, 24), torch.nan)), "NaN"),
        (lambda: FromSolver(path, 24).maximize(torch.full((1, 24), -torch.inf)), "row 0 of the batch has none"),
        (lambda: FromSolver(lambda scores: path(-scores), 24).maximize(draw(4, 24)), "minimizes"),
        (lambda: FromSolver(path, 24).maximize(torch.zeros(1, 23)), "length 24"),
        (lambda: FromSolver(3, 24), "`solve`"),  # type: ignore[arg-type]
        (lambda: FromSolver(path, 0), "`size`"),
        (lambda: FromSolver(path, 24, processes=-1), "`processes`"),
        (lambda: FromSolver(path, 24, cache=10**9), "`cache`"),
        (lambda: FromSolver(path, 24, batched=1), "`batched`"),  # type: ignore[arg-type]
        (lambda: FromSolver(lambda scores: scores, 24, processes=1), "top level"),
    ],
)
def test_bad_input_is_explained(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
