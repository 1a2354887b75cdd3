"""A selection on several processes: each selects from its share of the vectors, and compares with all of them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from lit_sparse.coresets import (
    AcceleratedIHT,
    CoresetSelector,
    FileVectors,
    NonnegativeOMP,
    SelectionState,
    ShardedVectors,
    select_by_group,
)
from lit_sparse.errors import ConfigurationError
from lit_sparse.testing import concrete_subclasses


def in_memory(rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(101, 30, generator=generator, dtype=torch.float64) + 0.1
    for share in (vectors[:60] if rank == 0 else vectors[60:], vectors if rank == 0 else vectors[:0]):
        sharded = ShardedVectors(share)
        assert sharded.shape == vectors.shape
        indices = torch.tensor([3, 59, 60, 100])
        torch.testing.assert_close(sharded.rows(indices), vectors[indices], rtol=0, atol=0)
        for selector in (example for kind in concrete_subclasses(CoresetSelector) for example in kind.examples()):
            torch.manual_seed(rank)  # their own randomness differs
            found = selector(sharded, 20, torch.Generator().manual_seed(rank))
            alone = selector(vectors, 20, torch.Generator().manual_seed(0))
            assert torch.equal(found.indices, alone.indices), (selector, found.indices, alone.indices)
            torch.testing.assert_close(found.weights, alone.weights, rtol=1e-7, atol=1e-9)
            both = [torch.zeros_like(found.weights) for _ in range(2)]
            dist.all_gather(both, found.weights)
            assert torch.equal(both[0], both[1]), "the same to the last bit on both"
        groups = torch.arange(101) % 3
        found = select_by_group(selector, sharded, 20, groups, torch.Generator().manual_seed(rank))
        alone = select_by_group(selector, vectors, 20, groups, torch.Generator().manual_seed(0))
        assert torch.equal(found.indices, alone.indices)
    try:
        ShardedVectors(torch.zeros(3, 4 + rank))
    except ConfigurationError as error:
        assert "(3, 4)" in str(error) and "(3, 5)" in str(error)
    else:
        raise AssertionError("vectors of two lengths were taken")


def in_files(rank: int, world: int, folder: Path) -> None:
    """All numbers are the same to the last bit as in one process."""
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(6001, 30, generator=generator) * torch.rand(6001, 1, generator=generator) + 0.02
    for dtype in (torch.float32, torch.bfloat16):
        path = folder / f"{dtype}.npy"
        if rank == 0:
            FileVectors.save(given, path, dtype=dtype)
        dist.barrier()
        whole = FileVectors(path)
        size = whole.shape[0]
        sharded = ShardedVectors(whole.part(size * rank // world, size * (rank + 1) // world))
        assert torch.equal(sharded.total, whole.total)
        assert torch.equal(sharded.norms, whole.norms)
        for selector in (AcceleratedIHT(debias=True, max_iter=30), NonnegativeOMP()):
            alone = selector(whole, 25)
            state = folder / f"state-{dtype}"
            for stopped in (True, False):
                found = selector(sharded, 25, state=Stopped(state) if stopped else SelectionState(state))
                assert torch.equal(found.indices, alone.indices), selector
                assert torch.equal(found.weights, alone.weights), selector
                assert torch.equal(found.trace, alone.trace), selector
                dist.barrier()
                assert state.is_file() == stopped
                dist.barrier()
            groups = torch.arange(size) % 3
            found, alone = (select_by_group(selector, vectors, 30, groups) for vectors in (sharded, whole))
            assert torch.equal(found.indices, alone.indices), selector
            assert torch.equal(found.weights, alone.weights), selector
            assert found.objective == alone.objective, selector


class Stopped(SelectionState):
    """The state of a selection that is killed at its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, every=3)

    def close(self) -> None:
        """Keep the file."""


def select(rank: int, folder: str, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    if world == 2:
        in_memory(rank)
    else:
        in_files(rank, world, Path(folder))
    dist.destroy_process_group()
