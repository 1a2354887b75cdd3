"""Blocks of operations of torch on several threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lit_sparse.kernels.cpu import threads as module
from lit_sparse.kernels.cpu.threads import over_blocks, over_rows


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_each_block_is_done_once(count: int) -> None:
    matrices = torch.randn(count, 60, 70)
    products, numbers = torch.zeros(count, 60, 60), []

    def block(number: int) -> None:
        torch.mm(matrices[number], matrices[number].mT, out=products[number])
        numbers.append(number)

    over_blocks(block, count)
    assert sorted(numbers) == list(range(count))
    torch.testing.assert_close(products, matrices @ matrices.mT)


def test_errors_are_raised_after_the_other_blocks(threads: int) -> None:
    numbers = []

    def block(number: int) -> None:
        numbers.append(number)
        if number == 3:
            raise ValueError("block 3")

    with pytest.raises(ValueError, match="block 3"):
        over_blocks(block, 50)
    assert len(numbers) == (4 if threads == 1 else 50)
    over_blocks(lambda number: None, 50)


def test_an_interrupt_that_ctypes_drops_is_raised(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the threads begin with the blocks, which are then not computed."""
    if threads == 1 or not isinstance(module._threads, module._Team):
        pytest.skip("there are no threads of OpenMP")
    monkeypatch.setattr(module._threads, "parallel", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        over_rows(lambda first, last: None, (100, 100), 1.0)
    with pytest.raises(KeyboardInterrupt):
        over_blocks(lambda number: None, 5)
