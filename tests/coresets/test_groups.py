"""Selection within groups: whose shares, and that each group's part is a coreset of that group."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_sparse.coresets import AcceleratedIHT, BlockVectors, NonnegativeOMP, Uniform, select_by_group
from lit_sparse.coresets.state import SelectionState
from lit_sparse.errors import CheckpointError, ConfigurationError

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=9)


def labels(sizes: list[int], seed: int = 0) -> torch.Tensor:
    groups = torch.repeat_interleave(3 * torch.arange(len(sizes)) - 4, torch.tensor(sizes))
    return groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))]


@given(sizes=SIZES, data=st.data())
@settings(max_examples=150)
def test_shares(sizes: list[int], data: st.DataObject) -> None:
    """They add up to k; each has at least one, at most all, and within one of its proportion where no group is too small."""
    total = sum(sizes)
    k = data.draw(st.integers(len(sizes), total))
    groups = labels(sizes)
    coreset = select_by_group(Uniform(), torch.ones(total, 1), k, groups, torch.Generator().manual_seed(1))
    names, shares = torch.unique(groups[coreset.indices], return_counts=True)
    assert names.tolist() == groups.unique().tolist()
    found = shares.tolist()
    assert sum(found) == k == len(coreset)
    assert all(1 <= share <= size for share, size in zip(found, sizes, strict=True))
    exact = [Fraction(k * size, total) for size in sizes]
    if min(exact) >= 1:
        assert all(abs(share - its) < 1 for share, its in zip(found, exact, strict=True))
    pairs = sorted(zip(sizes, found, strict=True))
    assert all(share <= other for (size, share), (bigger, other) in pairwise(pairs) if size < bigger)
    for name, size in zip(names, sizes, strict=True):
        assert float(coreset.weights[groups[coreset.indices] == name].sum()) == pytest.approx(size, rel=1e-5)


@pytest.mark.parametrize(
    ("sizes", "k", "shares"),
    [
        ([2, 8], 5, [1, 4]),
        ([100, 900], 100, [10, 90]),
        ([1, 1, 98], 10, [1, 1, 8]),
        ([1, 999], 1000, [1, 999]),
        ([5, 5, 5], 3, [1, 1, 1]),
        ([5, 5, 5], 4, [2, 1, 1]),
        ([7], 4, [4]),
    ],
)
def test_shares_by_hand(sizes: list[int], k: int, shares: list[int]) -> None:
    groups = labels(sizes)
    coreset = select_by_group(Uniform(), torch.ones(len(groups), 1), k, groups)
    assert torch.unique(groups[coreset.indices], return_counts=True)[1].tolist() == shares


@pytest.mark.parametrize("selector", [NonnegativeOMP(), AcceleratedIHT()], ids=repr)
@pytest.mark.parametrize("blocks", [False, True])
def test_each_part_is_the_coreset_of_its_group(selector: torch.nn.Module, blocks: bool) -> None:
    vectors = torch.randn(60, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    groups = labels([20, 30, 10])
    given = BlockVectors(lambda indices: vectors[indices], 60, block_size=7) if blocks else vectors
    union = select_by_group(selector, given, 12, groups)  # type: ignore[arg-type]
    objective = 0.0
    for name, share in zip(groups.unique(), (4, 6, 2), strict=True):
        members = (groups == name).nonzero().squeeze(1)
        alone = selector(vectors[members], share)
        mine = groups[union.indices] == name
        assert torch.equal(union.indices[mine], members[alone.indices])
        torch.testing.assert_close(union.weights[mine], alone.weights, rtol=1e-9, atol=1e-12)
        objective += float((vectors[members].sum(0) - union.weights[mine] @ vectors[union.indices[mine]]).square().sum())
    assert union.objective == pytest.approx(objective, rel=1e-9)
    assert union.size == 60
    assert len(union.trace) == 0
    assert bool((union.indices.diff() > 0).all())


def test_generators_decide() -> None:
    vectors, groups = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), labels([20, 20])
    drawn = [select_by_group(Uniform(), vectors, 6, groups, torch.Generator().manual_seed(seed)).indices for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_what_cannot_be_shared() -> None:
    vectors = torch.randn(6, 2)
    for k in (1, 7, 0, -1):
        with pytest.raises(ConfigurationError, match=rf"`k` in 2 \.\. 6, at least one example per group, but got {k}\."):
            select_by_group(Uniform(), vectors, k, torch.tensor([0, 0, 0, 1, 1, 1]))
    for groups in (torch.zeros(5).long(), torch.zeros(6, 1).long(), torch.full((6,), torch.nan), [0] * 6):
        with pytest.raises(ConfigurationError, match="integer tensor with a group per example, 6 of them"):
            select_by_group(Uniform(), vectors, 3, groups)


def test_a_group_without_vectors_keeps_its_share_at_random() -> None:
    vectors = torch.cat([torch.randn(40, 5, dtype=torch.float64), torch.zeros(10, 5, dtype=torch.float64)])
    groups = torch.arange(50) // 40
    coreset = select_by_group(NonnegativeOMP(), vectors, 10, groups, torch.Generator().manual_seed(0))
    chosen = coreset.indices >= 40
    assert int(chosen.sum()) == 2
    assert coreset.weights[chosen].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("indices", [[0, 2, 4, 6], [0, 2, 4, 6, 1], [0, 2], []])
def test_a_state_whose_examples_are_not_of_the_finished_groups_is_refused(indices: list[int], tmp_path: Path) -> None:
    path, arguments = tmp_path / "state.pt", (Uniform(), torch.ones(20, 1), 6, torch.arange(20) % 2)
    with pytest.MonkeyPatch.context() as patch:  # killed at the end
        patch.setattr(SelectionState, "close", lambda state: None)
        coreset = select_by_group(*arguments, state=SelectionState(path))
    state = torch.load(path)
    assert select_by_group(*arguments, state=SelectionState(path)).indices.equal(coreset.indices)
    state["state"].update(indices=torch.tensor(indices, dtype=torch.int64), weights=torch.ones(len(indices)))
    torch.save(state, path)
    with pytest.raises(CheckpointError, match="examples of 2 groups"):
        select_by_group(*arguments, state=SelectionState(path))


def test_a_state_whose_objective_is_not_that_of_its_weights_is_refused(tmp_path: Path) -> None:
    path, arguments = tmp_path / "state.pt", (Uniform(), torch.randn(20, 3), 6, torch.arange(20) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SelectionState, "close", lambda state: None)
        select_by_group(*arguments, state=SelectionState(path))
    state = torch.load(path)
    state["state"]["objective"] += 100.0
    torch.save(state, path)
    with pytest.raises(CheckpointError, match="the objective of the groups"):
        select_by_group(*arguments, state=SelectionState(path))
