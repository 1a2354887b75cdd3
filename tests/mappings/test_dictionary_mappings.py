"""BatchTopK in training, and JumpReLU's thresholds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import shard
from lit_sparse.mappings import BatchTopK, JumpReLU
from lit_sparse.mappings import functional as F
from tests.support.processes import run_processes


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_largest_scores_of_a_batch_are_kept() -> None:
    """Any dimension and batch shape, masked and broken rows, ties, and gradients of those that are kept."""
    x = scores(3, 4, 5)
    x[0, 0] += 3
    expected = torch.where(x >= x.flatten().topk(12 * 2).values[-1], x, 0.0)
    torch.testing.assert_close(F.batch_topk(x, 2), expected)
    torch.testing.assert_close(F.batch_topk(x.mT, 2, dim=-2), expected.mT)
    assert F.batch_topk(x.half(), 2).dtype == torch.float16
    mask = scores(3, 4, 5, seed=1) > 0
    mask[2, 1:] = False
    expected = torch.where(x * mask >= (x * mask).flatten().topk(int(mask.any(-1).sum())).values[-1], x * mask, 0.0)
    torch.testing.assert_close(F.batch_topk(x.masked_fill(~mask, torch.nan), 1, mask=mask), expected)
    broken = x.clone()
    broken[1, 1, 2], broken[2, 2, 0] = torch.nan, torch.inf
    y = F.batch_topk(broken, 2)
    assert y[1, 1].isnan().all() and y[2, 2].isnan().all() and int(y.isnan().sum()) == 10
    assert int((y.nan_to_num() != 0).sum()) == 24
    assert F.batch_topk(torch.ones(2, 3), 1).tolist() == [[1, 1, 0], [0, 0, 0]]
    assert F.batch_topk(-torch.ones(2, 3), 1).count_nonzero() == 0
    assert F.batch_topk(torch.ones(0, 3), 1).shape == (0, 3)
    assert torch.autograd.gradcheck(lambda x: F.batch_topk(x, 1), x.clone().requires_grad_())
    with pytest.raises(ConfigurationError, match="`k` to be an integer"):
        BatchTopK(0)


DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda u: torch.special.ndtri(u),
    "rows of different size": lambda u: torch.special.ndtri(u) * u[:, :1].exp(),
    "far from zero": lambda u: 10 + 0.3 * torch.special.ndtri(u),
    "heavy tail": lambda u: u**-0.5 - 1,
    "few positive": lambda u: torch.where(u < 0.1, 1 + u, -1.0),
    "half precision": lambda u: torch.special.ndtri(u).bfloat16(),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_the_cutoff_of_evaluation_keeps_k_on_average(kind: str) -> None:
    """Within 1 % for other rows, whatever the distribution; in the dtype of a half-precision model too."""
    excess = []
    for seed, rows in enumerate((5, 50, 200, 800)):
        generator = torch.Generator().manual_seed(seed)

        def draw(rows: int, generator: torch.Generator = generator) -> Tensor:
            return DRAWN[kind](torch.rand(rows, 40, generator=generator, dtype=torch.float64))

        mapping = BatchTopK(3).to(draw(1).dtype)
        for _ in range(300):
            mapping(draw(rows))
        assert int(mapping.batches) == 300
        excess.append(float((mapping.eval()(draw(20_000)) != 0).sum(1).double().mean()) / 3 - 1)
    assert sum(excess) / len(excess) == pytest.approx(0, abs=0.01)


def test_evaluation_learns_nothing() -> None:
    """The cutoff is a part of the state, and does not depend on the batch."""
    mapping = BatchTopK(3)
    mapping(scores(500, 40))
    mapping(-scores(500, 40).abs())
    mapping(scores(0, 40))
    x, cutoff = scores(1000, 40, seed=9), float(mapping.cutoff)
    mapping.eval()
    y = mapping(x)
    torch.testing.assert_close(mapping(x[:1]), y[:1])
    assert float(mapping.cutoff) == cutoff > 0
    other = BatchTopK(3).eval()
    other.load_state_dict(mapping.state_dict())
    torch.testing.assert_close(other(x), y)


def test_padding_has_no_share() -> None:
    """Rows without an allowed entry neither add to the number of kept ones nor move the cutoff."""
    x, kinds = scores(50, 40), [BatchTopK(3), BatchTopK(3)]
    padded = torch.cat([x, scores(30, 40, seed=1) + 5])
    mask = torch.arange(80).unsqueeze(1) < 50
    for _ in range(3):
        torch.testing.assert_close(kinds[1](padded, mask)[:50], kinds[0](x))
    assert kinds[0].state_dict() == kinds[1].state_dict()


def _process(rank: int, store: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.save(_trained(rank), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def _sharded(rank: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 40), BatchTopK(3))
    names = ("data_parallel", "tensor_parallel")
    shard(model, torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=names), [])
    model(torch.randn(20, 4))
    assert float(model[1].cutoff) > 0 and int(model[1].batches) == 1
    torch.distributed.destroy_process_group()


@pytest.mark.gate
def test_a_sharded_model_keeps_its_cutoff(tmp_path: Path) -> None:
    run_processes(_sharded, (str(tmp_path / "store"),), 1)


def _trained(rank: int | None) -> list[Tensor]:
    """Return what is kept of the last of three batches, and the state; with ties, and a process with few or no scores."""
    mapping = BatchTopK(3)
    for seed in range(3):
        x = scores(20, 40, seed=seed).mul(4).round() / 4
        x[:8] -= seed
        mine = x if rank is None else (x[: 8 * seed // 2], x[8 * seed // 2 :])[rank]
        y = mapping(mine)
    return [y, *mapping.state_dict().values()]


@pytest.mark.gate
def test_two_processes_share_a_batch(tmp_path: Path) -> None:
    run_processes(_process, (str(tmp_path / "store"), str(tmp_path)), 2)
    whole = _trained(None)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert torch.equal(torch.cat([part[0] for part in parts]), whole[0])
    for part in parts:
        torch.testing.assert_close(part[1:], whole[1:])


def test_slopes_of_thresholds() -> None:
    """In training they are averages over the band, by hand; the derivative in scores is exact; evaluation has none."""
    mapping = JumpReLU(2, shape=(5,), start=0.5, bandwidth=0.3).double()
    x, weights = scores(400, 5).requires_grad_(), scores(400, 5, seed=1)
    y = mapping(x)
    slope_x, slope_t = torch.autograd.grad((y * weights).sum(), [x, mapping.weight], retain_graph=True)
    torch.testing.assert_close(slope_x, weights * (x > 0.5))
    near = (x.detach() - 0.5).abs() < 0.15
    torch.testing.assert_close(slope_t, 10 * 0.5 * (-0.5 / 0.3 * near * weights).sum(0), rtol=1e-6, atol=1e-6)
    moved = mapping.map(x.mT, None, 0)
    torch.testing.assert_close(moved, y.mT)
    torch.testing.assert_close(torch.autograd.grad((moved * weights.mT).sum(), mapping.weight)[0], slope_t)
    mean = float((x > 0.5).double().sum(1).mean())
    penalty = mapping.penalty(x)
    assert float(penalty.detach()) == pytest.approx((mean / 2 - 1) ** 2)
    (slope,) = torch.autograd.grad(penalty, mapping.weight)
    torch.testing.assert_close(slope, 10 * 0.5 * (mean / 2 - 1) * (-near.double() / 0.3).mean(0), rtol=1e-6, atol=1e-6)
    mapping.eval()
    assert torch.equal(mapping(x), y)
    value = mapping.value(x)
    torch.testing.assert_close(value, 0.5 * torch.where(x > 0.5, x.square() - 0.25, 0.0).sum(1), rtol=1e-6, atol=1e-6)
    (slope,) = torch.autograd.grad(value.sum(), mapping.weight)
    torch.testing.assert_close(slope, -10 * 0.25 * (x > 0.5).double().sum(0), rtol=1e-6, atol=1e-6)
