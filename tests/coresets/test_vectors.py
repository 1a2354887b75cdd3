"""Vectors in memory, in blocks and on several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.coresets import (
    AcceleratedIHT,
    BlockVectors,
    CoresetSelector,
    DenseVectors,
    FileVectors,
    NonnegativeOMP,
    Selection,
    ShardedVectors,
    Vectors,
)
from lit_sparse.errors import ConfigurationError
from tests.coresets.processes import select
from tests.support.processes import run_processes


@pytest.mark.slow
@pytest.mark.parametrize(("world", "how"), [(2, "spawn"), (3, None), (8, "spawn")])
def test_processes_select_what_one_does(world: int, how: str | None, tmp_path: Path) -> None:
    """Vectors in memory on two processes, and vectors in files on more."""
    run_processes(select, (str(tmp_path), world), world, how)


def test_any_device_selects_what_the_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the paths of other devices, in plain torch, which a test can take here."""
    from lit_sparse.coresets import vectors as module

    generator = torch.Generator().manual_seed(0)
    given = torch.randn(80, 25, generator=generator, dtype=torch.float64) + 0.1

    class Elsewhere(DenseVectors):
        """Vectors that claim not to be on the CPU."""

        def correlate_some(self, indices: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
            return self.rows(indices) @ direction

        def combine(self, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return weights @ self.rows(indices)

        def correlate_roughly(self, direction: torch.Tensor) -> tuple[torch.Tensor, float]:
            return self.correlate(direction), 0.0

    assert module.DenseVectors is DenseVectors
    for selector in (AcceleratedIHT(debias=True), NonnegativeOMP()):
        here, there = selector(given, 12), selector(Elsewhere(given), 12)
        assert torch.equal(here.indices, there.indices)
        torch.testing.assert_close(here.weights, there.weights)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_cuda_selects_what_the_cpu_does() -> None:
    given = torch.randn(80, 25, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    for selector in (AcceleratedIHT(debias=True), NonnegativeOMP()):
        here, there = selector(given, 12), selector(given.cuda(), 12)
        assert torch.equal(here.indices, there.indices.cpu())
        torch.testing.assert_close(here.weights, there.weights.cpu())


def test_vectors_in_a_file_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32))
    mapped = torch.from_numpy(np.load(path, mmap_mode="c"))
    vectors = DenseVectors(mapped)
    assert vectors.vectors.data_ptr() == mapped.data_ptr()
    assert len(NonnegativeOMP()(vectors, 8)) <= 8


def test_blocks_are_made_when_they_are_looked_at_and_not_kept() -> None:
    given = torch.randn(100, 6, dtype=torch.float64)
    largest: list[int] = []

    def rows(indices: torch.Tensor) -> torch.Tensor:
        largest.append(len(indices))
        return given[indices]

    vectors = BlockVectors(rows, 100, block_size=32)
    torch.testing.assert_close(vectors.correlate(torch.ones(6, dtype=torch.float64)), given.sum(1))
    torch.testing.assert_close(vectors.total, given.sum(0))
    torch.testing.assert_close(vectors.norms, given.norm(dim=1))
    assert max(largest) == 32
    with pytest.raises(ConfigurationError, match="4, 6"):
        BlockVectors(lambda indices: given[: min(len(indices), 1)], 100).rows(torch.arange(4))


def test_rough_products_find_the_exact_best_one() -> None:
    """Two nearly equal candidates that are equal in float32."""
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(300, 40, generator=generator, dtype=torch.float64)
    given[7] = given.sum(0) + 1e-11 * torch.randn(40, generator=generator, dtype=torch.float64)
    given[8] = given[7] * (1 + 1e-12) + 1e-11 * torch.randn(40, generator=generator, dtype=torch.float64)
    exact = given @ given.sum(0) / given.norm(dim=1)
    assert NonnegativeOMP()(given, 1).indices.item() == int(exact.argmax())


@pytest.mark.parametrize("indices", [[5], [0, 6], [-1], [4, 5], [-1, 0], [1000], [2**40]])
def test_no_index_leaves_the_vectors(indices: list[int], tmp_path: Path) -> None:
    matrix = torch.randn(5, 3, dtype=torch.float64)
    ones, some = torch.ones(3, dtype=torch.float64), torch.tensor(indices)
    kinds = (
        DenseVectors(matrix),
        ShardedVectors(matrix),
        BlockVectors(lambda at: matrix[at.clamp(0, 4)], 5),
        FileVectors.save(matrix, tmp_path / "x.npy", dtype=torch.float64),
    )
    for vectors in (*kinds, *(kind.scaled(2.0) for kind in kinds)):
        with pytest.raises(IndexError):
            vectors.rows(some)
        with pytest.raises(IndexError):
            vectors.correlate_some(some, ones)
        with pytest.raises(IndexError):
            vectors.combine(some, torch.ones(len(some), dtype=torch.float64))
        with pytest.raises(IndexError):
            vectors.subset(some).rows(torch.arange(len(some)))
        with pytest.raises((IndexError, RuntimeError)):
            vectors.combine(torch.tensor([0.0]), ones[:1])


@pytest.mark.parametrize(
    ("indices", "weights", "text"),
    [
        (torch.tensor([0, 5]), torch.ones(2), "indices in 0 .. 4 but got 5"),
        (torch.tensor([0, -1]), torch.ones(2), "indices >= 0"),
        (torch.tensor([1, 1]), torch.ones(2), "different indices"),
        (torch.tensor([0, 1, 2]), torch.ones(3), "at most 2 indices but got 3"),
        (torch.tensor([0.0, 1.0]), torch.ones(2), r"\(n,\) int64"),
        (torch.tensor([[0], [1]]), torch.ones(2), r"\(n,\) int64"),
        ([0, 1], torch.ones(2), r"\(n,\) int64"),
        (torch.tensor([0, 1]), torch.ones(3), "2 floating weights"),
        (torch.tensor([0, 1]), torch.ones(2, dtype=torch.int64), "2 floating weights"),
        (torch.tensor([0, 1]), torch.tensor([1.0, -1.0]), "nonnegative weights of a selection but got -1"),
        (torch.tensor([0, 1]), torch.tensor([1.0, torch.nan]), "nonnegative weights of a selection but got nan"),
    ],
)
def test_a_wrong_selection_of_a_subclass_is_refused(indices: Any, weights: torch.Tensor, text: str) -> None:
    class Mine(CoresetSelector):
        def select(self, vectors: Vectors, k: int, generator: torch.Generator) -> Selection:
            return Selection(indices, weights.to(vectors.dtype) if weights.is_floating_point() else weights)

    with pytest.raises(ConfigurationError, match=text):
        Mine()(torch.randn(5, 3, dtype=torch.float64), 2)


@pytest.mark.parametrize("kind", [DenseVectors, lambda x: BlockVectors(lambda i: x[i], len(x)), None])
def test_wrong_directions_weights_and_indices_are_refused(kind: Any, tmp_path: Path) -> None:
    rows, some = torch.randn(6, 3), torch.tensor([0, 2])
    vectors = FileVectors.save(rows, tmp_path / "x.npy") if kind is None else kind(rows)
    for direction in (torch.ones(2), torch.ones(5), torch.ones(3, 2), torch.ones(3, dtype=torch.complex64)):
        for product in (vectors.correlate, vectors.correlate_roughly, lambda given: vectors.correlate_some(some, given)):
            with pytest.raises(ConfigurationError, match=r"direction \(3,\) but got"):
                product(direction)
    for weights in (torch.ones(1), torch.ones(3), torch.ones(2, 2)):
        with pytest.raises(ConfigurationError, match=r"weights \(2,\).* but got"):
            vectors.combine(some, weights)
    for indices in (torch.tensor([-1]), torch.tensor([6]), torch.tensor([True]), torch.tensor([[0]])):
        with pytest.raises(IndexError, match="Expected indices"):
            vectors.rows(indices)


@pytest.mark.parametrize("kind", [DenseVectors, lambda x: BlockVectors(lambda i: x[i], len(x)), None])
def test_directions_and_weights_of_another_dtype_are_converted(kind: Any, tmp_path: Path) -> None:
    rows, some = torch.randn(6, 3), torch.tensor([0, 2])
    vectors = FileVectors.save(rows, tmp_path / "x.npy") if kind is None else kind(rows)
    for dtype in (torch.float64, torch.float16):
        direction, weights = torch.tensor([1.0, 2.0, -0.5]).to(dtype), torch.tensor([0.5, 2.0]).to(dtype)
        torch.testing.assert_close(vectors.correlate(direction), rows @ direction.float())
        torch.testing.assert_close(vectors.correlate_some(some, direction), rows[some] @ direction.float())
        torch.testing.assert_close(vectors.combine(some, weights), weights.float() @ rows[some])
