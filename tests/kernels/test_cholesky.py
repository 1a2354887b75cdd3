"""The growing and shrinking Cholesky factor against numpy's, and sums of rows against products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_sparse.kernels import cholesky
from lit_sparse.kernels.row_sums import row_products, row_sum


def walk(seed: int, steps: int = 60, most: int = 12) -> None:
    """Let vectors come and go, and compare the factor and a solution with numpy's after each."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(200, 15))
    factor, members = np.zeros((most + 1, most + 1)), []
    for _ in range(steps):
        if members and (len(members) == most or rng.random() < 0.4):
            which = int(rng.integers(len(members)))
            cholesky.shrink(factor, len(members), which)
            del members[which]
        else:
            new = int(rng.integers(200))
            n = len(members)
            column = vectors[members] @ vectors[new]
            pivot = cholesky.grow(factor, n, column, float(vectors[new] @ vectors[new]), 1e-9)
            residual = vectors[new] - (
                np.linalg.lstsq(vectors[members].T, vectors[new], rcond=None)[0] @ vectors[members] if n else 0
            )
            assert pivot == pytest.approx(residual @ residual, rel=1e-6, abs=1e-9)
            if pivot <= 1e-9:
                assert new in members
                continue
            members.append(new)
        n = len(members)
        if not n:
            continue
        gram = vectors[members] @ vectors[members].T
        lower = np.tril(factor[:n, :n])
        np.testing.assert_allclose(lower @ lower.T, gram, atol=1e-9)
        assert (np.diag(lower) > 0).all()
        values = rng.normal(size=n)
        solution = values.copy()
        cholesky.solve(factor, n, solution)
        np.testing.assert_allclose(gram @ solution, values, atol=1e-6)


def gather(seed: int) -> None:
    """Some rows of a matrix, in any number and order, some of them several times."""
    rng = np.random.default_rng(seed)
    size, width, count = (int(value) for value in (rng.integers(1, 80), rng.integers(1, 40), rng.integers(0, 300)))
    dtype = torch.float64 if seed % 2 else torch.float32
    matrix = torch.from_numpy(rng.normal(size=(size, width))).to(dtype)
    indices, weights = torch.from_numpy(rng.integers(0, size, count)), torch.from_numpy(rng.normal(size=count))
    direction = torch.from_numpy(rng.normal(size=width))
    torch.testing.assert_close(row_sum(matrix, indices, weights), weights @ matrix[indices].double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        row_products(matrix, indices, direction), matrix[indices].double() @ direction, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_factor_is_that_of_the_members(seed: int) -> None:
    walk(seed)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_added_up(seed: int) -> None:
    gather(seed)


def test_sums_do_not_depend_on_threads() -> None:
    matrix, indices = torch.randn(5000, 300), torch.randint(5000, (4000,))
    weights, before = torch.randn(4000), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(row_sum(matrix, indices, weights))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
