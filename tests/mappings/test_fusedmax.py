"""Properties of fusedmax: neighbours share weights, also next to forbidden and low entries, and lam is differentiable."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, jvp, vmap

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, Fusedmax, LearnableFusedmax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import central_difference, dense_jacobian, grouped_jacobian, maximized, random_rows
from tests.support.versions import needs_custom_operators


def solved(x: np.ndarray, lam: float, gamma: float, allowed: np.ndarray) -> np.ndarray:
    """The same by a generic solver: forbidden entries are dropped, and with them the penalties that they take part in."""
    kept = np.flatnonzero(allowed)
    steps = np.flatnonzero(np.diff(kept) == 1)
    pieces = np.zeros((len(steps), 2, len(kept)))
    for k, i in enumerate(steps):
        pieces[k, :, i], pieces[k, :, i + 1] = (1, -1), (-1, 1)
    y = np.zeros(len(x))
    y[kept] = maximized(x[kept], gamma, lam, pieces)
    return y


def assert_optimal(y: np.ndarray, z: np.ndarray, lam: float, slack: float = 1e-9) -> None:
    """Find the multipliers that prove y optimal for ``<y, z> - 1/2 ||y||^2 - lam sum |y_(i+1) - y_i|``, or fail.

    With v_i a subgradient of ``|t|`` at ``y_(i+1) - y_i``, optimal means ``lam v_i = lam v_(i-1) + y_i - z_i + tau`` on the
    support and <= outside, where v is 0 before the first entry and after the last. The interval in which lam v_i can lie is
    followed from left to right; tau is read off a run of the support.
    """
    d = len(y)
    step = np.diff(y)
    first = np.flatnonzero(y > 0)[0]
    last = first
    while last + 1 < d and step[last] == 0:
        last += 1
    left = np.sign(step[first - 1]) if first > 0 else 0.0
    right = np.sign(step[last]) if last < d - 1 else 0.0
    run = slice(first, last + 1)
    tau = (lam * (right - left) - (y[run] - z[run]).sum()) / (last + 1 - first)
    low = high = 0.0
    for i in range(d):
        high = high + y[i] - z[i] + tau
        low = low + y[i] - z[i] + tau if y[i] > 0 else -np.inf
        if i == d - 1:
            bottom = top = 0.0
        elif step[i] != 0:
            bottom = top = lam * np.sign(step[i])
        else:
            bottom, top = -lam, lam
        low, high = max(low, bottom), min(high, top)
        assert low <= high + slack, f"no multipliers beyond entry {i}"


@pytest.mark.parametrize("lam", [0.0, 0.01, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 5.0])
def test_equals_a_generic_solver(lam: float, gamma: float) -> None:
    rng = np.random.default_rng(0)
    for trial in range(12):
        d = int(rng.integers(1, 31))
        x = rng.standard_normal(d) * rng.choice([0.1, 1.0])
        if trial % 3 == 0:
            x = x.round(1)
        allowed = np.full(d, True) if trial % 2 else rng.random(d) < 0.7
        allowed[rng.integers(d)] = True
        y = F.fusedmax(torch.from_numpy(x), lam, gamma=gamma, mask=torch.from_numpy(allowed)).numpy()
        np.testing.assert_allclose(y, solved(x, lam, gamma, allowed), atol=1e-5)


@pytest.mark.parametrize("lam", [0.003, 0.1, 0.7, 4.0])
def test_rows_have_multipliers_that_prove_them_optimal(lam: float) -> None:
    for d in (1, 2, 3, 10, 100):
        for x in random_rows(30, d, seed=d):
            assert_optimal(F.fusedmax(x, lam, gamma=0.5).numpy(), x.numpy() / 0.5, lam)


@pytest.mark.parametrize("lam", [1e-4, 0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("kind", ["noise", "walk", "steps", "slope"])
def test_long_rows_are_optimal(lam: float, kind: str) -> None:
    rng = np.random.default_rng(0)
    d = 5000
    x = {
        "noise": rng.standard_normal(d),
        "walk": rng.standard_normal(d).cumsum() / 20,
        "steps": np.repeat(rng.standard_normal(50), 100) + 0.1 * rng.standard_normal(d),
        "slope": np.linspace(-1, 1, d) + 1e-3 * rng.standard_normal(d),
    }[kind]
    y = F.fusedmax(torch.from_numpy(x), lam).numpy()
    assert abs(y.sum() - 1) < 1e-12
    assert_optimal(y, x, lam, slack=1e-7 * max(1.0, lam))
    single = F.fusedmax(torch.from_numpy(x).float(), lam)
    rounded = F.fusedmax(torch.from_numpy(x).float().double(), lam)
    torch.testing.assert_close(single.double(), rounded, atol=1e-6, rtol=0)


def test_the_optimality_check_finds_what_is_not_optimal() -> None:
    x = random_rows(1, 12, seed=0)[0]
    y = F.fusedmax(x, 0.2).numpy()
    for other in (F.fusedmax(x, 0.21), F.sparsemax(x), F.fusedmax(x + 0.01 * torch.arange(12), 0.2)):
        with pytest.raises(AssertionError, match="no multipliers"):
            assert_optimal(other.numpy(), x.numpy(), 0.2)
    assert_optimal(y, x.numpy(), 0.2)


@pytest.mark.parametrize("lam", [0.05, 0.5, 3.0])
def test_a_hole_separates(lam: float) -> None:
    """Entries on two sides of a forbidden one do not see each other."""
    x = torch.tensor([1.0, 0.9, 5.0, 0.8, 0.0], dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, True])
    y = F.fusedmax(x, lam, mask=mask)
    np.testing.assert_allclose(y.numpy(), solved(x.numpy(), lam, 1.0, mask.numpy()), atol=1e-5)
    alone = F.fusedmax(x[mask], lam)
    if lam < 1:
        assert float((y[mask] - alone).abs().max()) > 1e-3


def valleys(depth: float) -> list[list[float]]:
    """Rows whose low entries lie between and around the support."""
    low = -depth
    return [
        [0.0, low, 0.0],
        [low, 0.0, low],
        [0.0, low, low, -0.1, low],
        [low, low, 0.0],
        [0.0, -0.2, low, -0.1, -0.3, low, low, -0.05],
        [0.0, 0.0, low, 0.0, 0.0, 0.0, low],
        [0.0, *[-0.5] * 5, low, *[-0.4] * 5],
        [-0.9, 0.0, -0.9, low, -0.9, -0.1, -0.9],
        [*[-0.5] * 6, 0.0, *[-0.5] * 6],
        [0.0, low, *[-0.9] * 4, low],
    ]


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.3, 1.0, 10.0])
def test_valleys_of_every_depth_are_optimal(lam: float) -> None:
    """Depths around 1 + 4 lam, where an entry is first left out of the computation, and around the threshold."""
    for depth in [0.5, 1.0, 1 + lam, 1 + 2 * lam, 1 + 3.9 * lam, 1 + 4 * lam, 1 + 4.1 * lam, 3 + 8 * lam, 1e3, 1e8]:
        for row in valleys(depth):
            x = np.array(row)
            y = F.fusedmax(torch.from_numpy(x), lam).numpy()
            np.testing.assert_allclose(y, solved(x, lam, 1.0, np.full(len(x), True)), atol=1e-5)


def test_nothing_deep_is_looked_at() -> None:
    x = random_rows(20, 30, seed=0)
    x[:, [3, 4, 11, 29]] = -100.0
    deeper = x.clone()
    deeper[:, [3, 4, 11, 29]] = -1e12
    for lam in (0.0, 0.1, 2.0, 20.0):
        torch.testing.assert_close(F.fusedmax(x, lam), F.fusedmax(deeper, lam), atol=0, rtol=0)


def test_ties_are_one_run_and_reversal_reverses() -> None:
    x = random_rows(100, 12, seed=0).round(decimals=1)
    for lam in (0.0, 0.05, 0.1, 0.3):
        y = F.fusedmax(x, lam)
        torch.testing.assert_close(F.fusedmax(x.flip(-1), lam).flip(-1), y, atol=1e-13, rtol=0)
        tied = (x.diff() == 0) & (lam > 0)
        assert bool((y.diff()[tied] == 0).all())


def test_without_a_penalty_it_is_sparsemax() -> None:
    for x in (random_rows(30, 12, seed=0), random_rows(30, 12, seed=0).round(decimals=1)):
        direction = random_rows(30, 12, seed=1)
        gradients = []
        for mapping in (lambda x: F.fusedmax(x, 0.0, gamma=0.7123), lambda x: F.sparsemax(x, gamma=0.7123)):
            torch.testing.assert_close(mapping(x), F.sparsemax(x, gamma=0.7123), atol=1e-15, rtol=0)
            leaf = x.clone().requires_grad_()
            gradients.append(torch.autograd.grad(mapping(leaf), leaf, direction)[0])
        torch.testing.assert_close(gradients[0], gradients[1], atol=1e-14, rtol=0)


@pytest.mark.parametrize("lam", [20.0, 1e3, 1e6, 1e12])
def test_a_strong_penalty_gives_equal_weights(lam: float) -> None:
    x = random_rows(20, 9, seed=0)
    torch.testing.assert_close(F.fusedmax(x, lam), torch.full_like(x, 1 / 9), atol=1e-15, rtol=0)
    mask = torch.tensor([True, True, False, True, True, True, False, True, False])
    y = F.fusedmax(x, lam, mask=mask)  # one weight for each stretch: the projection of their sums
    stretches = [[0, 1], [3, 4, 5], [7]]
    sizes = torch.tensor([2.0, 3.0, 1.0], dtype=torch.float64)
    means = torch.stack([x[:, s].mean(-1) for s in stretches], -1)
    for row, mean in zip(y, means, strict=True):
        weights = torch.stack([row[s].mean() for s in stretches])
        assert all(bool((row[s] == row[s[0]]).all()) for s in stretches)
        taus = (mean - weights)[weights > 0]
        torch.testing.assert_close(taus, taus[:1].expand_as(taus), atol=1e-12, rtol=0)
        torch.testing.assert_close((weights * sizes).sum(), torch.tensor(1.0, dtype=torch.float64))
        assert bool((mean[weights == 0] <= taus[0]).all())


@pytest.mark.parametrize("gamma", [0.4, 1.0])
@pytest.mark.parametrize("lam", [0.02, 0.1, 0.3])
def test_jacobian_averages_the_runs_that_are_seen(lam: float, gamma: float) -> None:
    """Rebuilt from equal neighbours in the result alone."""
    fused = 0
    for x in random_rows(25, 14, seed=1, scale=0.15):
        y = F.fusedmax(x, lam, gamma=gamma).numpy()
        got = dense_jacobian(lambda row: F.fusedmax(row, lam, gamma=gamma), x)
        np.testing.assert_allclose(got, grouped_jacobian(y, gamma, adjacent=True), atol=1e-12)
        fused += int((np.diff(y[y > 0]) == 0).sum())
    assert fused > 3


def test_jacobian_and_slope_in_lam_equal_differences() -> None:
    x, direction = random_rows(200, 14, seed=2, scale=0.7), random_rows(200, 14, seed=3)
    lam = torch.full((200, 1), 0.15, dtype=torch.float64)
    along = jvp(lambda x: F.fusedmax(x, 0.15), (x,), (direction,))[1]
    torch.testing.assert_close(along, central_difference(lambda x: F.fusedmax(x, 0.15), x, direction), atol=1e-8, rtol=0)
    slope = jvp(lambda lam: F.fusedmax(x, lam), (lam,), (torch.ones_like(lam),))[1]
    change = central_difference(lambda lam: F.fusedmax(x, lam), lam, torch.ones_like(lam), 1e-7)
    torch.testing.assert_close(slope, change, atol=1e-7, rtol=0)
    assert int((slope.abs() > 0.01).any(-1).sum()) > 100


def test_derivatives_in_scores_and_lam() -> None:
    x = random_rows(6, 8, seed=4).requires_grad_()
    lam = torch.tensor([0.01, 0.05, 0.1, 0.2, 0.4, 0.8], dtype=torch.float64).unsqueeze(-1).requires_grad_()

    def function(x: Tensor, lam: Tensor) -> Tensor:
        return F.fusedmax(x, lam, gamma=0.6)

    torch.autograd.gradcheck(function, (x, lam), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, (x, lam))
    shared = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(F.fusedmax, (x, shared), check_forward_ad=True)


def test_lam_has_a_slope_under_masks_and_beside_pruned_entries() -> None:
    x = random_rows(50, 10, seed=5, scale=0.6)
    x[:, 4] = -30.0
    mask = random_rows(50, 10, seed=6) > -0.8
    lam = torch.full((50, 1), 0.2, dtype=torch.float64, requires_grad=True)
    weights = random_rows(50, 10, seed=7)
    (got,) = torch.autograd.grad(F.fusedmax(x.masked_fill(~mask, math.nan), lam, mask=mask), lam, weights)
    change = central_difference(lambda lam: F.fusedmax(x, lam, mask=mask), lam.detach(), torch.ones_like(lam), 1e-7)
    torch.testing.assert_close(got, (change * weights).sum(-1, keepdim=True), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("shape", "dim"), [((), -1), ((3, 1), -1), ((2, 1, 1), -1), ((1, 6), 1), ((2, 1, 6), 1), ((3, 6), 0)])
def test_a_lam_for_each_row(shape: tuple[int, ...], dim: int) -> None:
    scores = random_rows(6, 6, seed=0).view(2, 3, 6)
    lam = 0.4 * torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = scores.movedim(dim, -1).flatten(0, -2)
    lams = lam.expand_as(scores.narrow(dim, 0, 1)).flatten()
    expected = torch.stack([F.fusedmax(row, float(one)) for row, one in zip(rows, lams, strict=True)])
    y = F.fusedmax(scores, lam, dim=dim)
    torch.testing.assert_close(y.movedim(dim, -1).flatten(0, -2), expected, atol=1e-14, rtol=0)
    mapping = Fusedmax(lam, dim=dim)
    value = torch.stack([Fusedmax(float(one)).value(row) for row, one in zip(rows, lams, strict=True)])
    torch.testing.assert_close(mapping.value(scores).flatten(), value)
    leaf = lam.clone().requires_grad_()
    assert torch.autograd.grad(F.fusedmax(scores, leaf, dim=dim), leaf, scores)[0].shape == shape


def test_transforms_over_lam() -> None:
    x = random_rows(4, 7, seed=0)
    lams = torch.tensor([0.0, 0.05, 0.2, 0.6], dtype=torch.float64)
    each = torch.stack([F.fusedmax(x, lam) for lam in lams])
    torch.testing.assert_close(vmap(lambda lam: F.fusedmax(x, lam))(lams), each)
    torch.testing.assert_close(vmap(F.fusedmax)(x, lams), torch.stack([each[i, i] for i in range(4)]))
    column = lams[1:].unsqueeze(-1)
    jacobian = jacrev(lambda lam: F.fusedmax(x[1:], lam))(column)
    change = central_difference(lambda lam: F.fusedmax(x[1:], lam), column, torch.ones_like(column), 1e-7)
    torch.testing.assert_close(jacobian.sum((2, 3)), change, atol=1e-7, rtol=0)


@pytest.mark.gate
@needs_custom_operators
def test_compiled_with_a_tensor_lam() -> None:
    torch._dynamo.reset()
    x, weights = random_rows(4, 7, seed=0), random_rows(4, 7, seed=1)

    def total(x: Tensor, lam: Tensor) -> Tensor:
        return (F.fusedmax(x, lam, gamma=0.5) * weights).sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    lam = torch.tensor([[0.0], [0.05], [0.2], [0.6]], dtype=torch.float64)
    results = []
    for function in (total, compiled):
        ours, theirs = x.clone().requires_grad_(), lam.clone().requires_grad_()
        result = function(ours, theirs)
        results.append([result, *torch.autograd.grad(result, (ours, theirs))])
    torch.testing.assert_close(results[0], results[1])


def test_gradient_of_the_value_in_lam_is_minus_the_variation() -> None:
    x = random_rows(6, 8, seed=4)
    lam = torch.linspace(0.02, 0.5, 6, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    (got,) = torch.autograd.grad(Fusedmax(lam, gamma=0.7).value(x).sum(), lam)
    y = F.fusedmax(x, lam.detach(), gamma=0.7)
    torch.testing.assert_close(got, -0.7 * y.diff().abs().sum(-1, keepdim=True))
    change = central_difference(lambda lam: Fusedmax(lam, gamma=0.7).value(x), lam.detach(), torch.ones_like(lam))
    torch.testing.assert_close(got.squeeze(-1), change, atol=1e-8, rtol=0)


def test_second_derivatives_of_the_value_against_differences() -> None:
    x, lam = torch.tensor([0.3, 0.1, -0.4, 0.25], dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)

    def value(lam: Tensor, x: Tensor) -> Tensor:
        return Fusedmax(lam).value(x)

    in_lam, in_x = jacrev(value), jacrev(value, argnums=1)
    change = central_difference(lambda lam: in_lam(lam, x), lam, torch.ones_like(lam))
    assert float(change.abs()) > 0.1
    torch.testing.assert_close(hessian(value)(lam, x), change, atol=1e-7, rtol=0)
    change = central_difference(lambda lam: in_x(lam, x), lam, torch.ones_like(lam))
    torch.testing.assert_close(jacrev(in_x)(lam, x), change, atol=1e-7, rtol=0)
    torch.testing.assert_close(jacrev(in_lam, argnums=1)(lam, x), change, atol=1e-7, rtol=0)


def test_loss_trains_lam() -> None:
    scores = random_rows(12, 5, seed=0).view(3, 4, 5).movedim(-1, 1)
    target = random_rows(12, 5, seed=1).softmax(-1).view(3, 4, 5).movedim(-1, 1)
    loss = FenchelYoungLoss(Fusedmax(nn.Parameter(torch.full((1, 1, 4), 0.1, dtype=torch.float64)), gamma=0.8))

    def total(lam: Tensor) -> Tensor:
        return functional_call(loss, {"mapping.lam": lam}, (scores, target))

    lam = torch.tensor([0.05, 0.1, 0.2, 0.4], dtype=torch.float64).view(1, 1, 4)
    gradient = torch.func.grad(total)(lam)
    for unit in torch.eye(4, dtype=torch.float64):
        expected = central_difference(total, lam, unit.view(1, 1, 4))
        torch.testing.assert_close((gradient * unit).sum(), expected, atol=1e-8, rtol=1e-6)


def test_value_leaves_out_steps_over_holes() -> None:
    x = torch.tensor([1.0, 9.0, 0.9, 0.2], dtype=torch.float64)
    mask = torch.tensor([True, False, True, True])
    y = F.fusedmax(x, 0.1, mask=mask)
    expected = (x * y).sum() - 0.5 * y.square().sum() - 0.1 * (y[2] - y[3]).abs()
    torch.testing.assert_close(Fusedmax(0.1).value(x, mask), expected)


def test_rows_without_a_valid_lam_are_nan_and_alone() -> None:
    x = random_rows(5, 4, seed=0)
    lam = torch.tensor([0.1, -0.1, math.nan, math.inf, 0.0], dtype=torch.float64).unsqueeze(-1)
    y, pull = torch.func.vjp(F.fusedmax, x, lam)  # nothing can be read here, so that nothing is refused
    broken = torch.tensor([False, True, True, True, False])
    assert bool(y[broken].isnan().all())
    torch.testing.assert_close(y[0], F.fusedmax(x[0], 0.1))
    torch.testing.assert_close(y[4], F.sparsemax(x[4]))
    in_x, in_lam = pull(x)
    assert bool(in_x[~broken].isfinite().all())
    assert bool(in_lam[~broken].isfinite().all())


@pytest.mark.parametrize("lam", [-0.1, math.nan, math.inf, 1e13, "1", None, True])
def test_lam_out_of_range(lam: object) -> None:
    for call in (Fusedmax, lambda lam: F.fusedmax(torch.zeros(3), lam)):
        with pytest.raises(ConfigurationError, match="`lam` to be a number"):
            call(lam)  # type: ignore[operator]


def test_a_tensor_lam_out_of_range() -> None:
    with pytest.raises(ConfigurationError, match="every `lam`"):
        Fusedmax(torch.tensor([0.1, -0.1]))
    with pytest.raises(ConfigurationError, match="with size 1 along dimension -1"):
        F.fusedmax(torch.zeros(2, 3), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learnt_lam_starts_where_it_is_told_and_stays_positive(dtype: torch.dtype) -> None:
    for start in (1e-3, 0.1, 1.0, 30.0):
        mapping = LearnableFusedmax((3, 1), start=start).to(dtype)
        torch.testing.assert_close(mapping.lam.detach(), torch.full((3, 1), start, dtype=dtype), rtol=1e-4, atol=0)
    mapping = LearnableFusedmax(start=0.01).to(dtype)
    x = random_rows(5, 8, seed=0).to(dtype)
    optimizer = torch.optim.SGD(mapping.parameters(), lr=5.0)
    for _ in range(5):
        optimizer.zero_grad()
        (-mapping(x).square().sum()).backward()
        optimizer.step()
    assert 0 < float(mapping.lam.detach()) < 0.01
    assert bool(mapping(x).isfinite().all())


@pytest.mark.parametrize("options", [{"start": 0.0}, {"start": -1.0}, {"shape": 4}, {"shape": (-1,)}])
def test_a_learnt_lam_out_of_range(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=f"`{next(iter(options))}`"):
        LearnableFusedmax(**options)  # type: ignore[arg-type]
