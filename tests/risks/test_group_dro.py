"""GroupDRO against convex programs: its step, its limit, and a model that is trained by it."""

from __future__ import annotations

import copy

import clarabel
import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.risks import GroupDRO, Mean
from tests.support.convex import solved


def drawn(size: int, groups: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses, weights and groups; each group has an example."""
    generator = torch.Generator().manual_seed(seed)
    losses = 3 * torch.rand(size, generator=generator, dtype=torch.float64)
    weights = 2 * torch.rand(size, generator=generator, dtype=torch.float64)
    ids = torch.cat([torch.arange(groups), torch.randint(groups, (size - groups,), generator=generator)])
    return losses, weights, ids


def group_means(losses: Tensor, weights: Tensor, ids: Tensor) -> np.ndarray:
    return np.array([np.average(losses[ids == g], weights=weights[ids == g]) for g in range(int(ids.max()) + 1)])


def near(q: np.ndarray, means: np.ndarray, before: np.ndarray, step_size: float) -> float:
    return float(q @ means - (q * np.log(q / before)).sum() / step_size)


def near_weights(means: np.ndarray, before: np.ndarray, step_size: float) -> np.ndarray:
    """Return the q over the simplex that maximizes ``<q, L> - KL(q, before) / step_size``.

    The variables are q and t >= q log(q / before).
    """
    d = len(means)
    rows, bounds = [np.r_[np.ones(d), np.zeros(d)][None]], [1.0]
    for g in range(d):  # q log(q / p) <= t where (-t, q, p) lies in the exponential cone
        block = np.zeros((3, 2 * d))
        block[0, d + g], block[1, g] = 1, -1
        rows += [block]
        bounds += [0, 0, before[g]]
    cones = [clarabel.ZeroConeT(1), *[clarabel.ExponentialConeT() for _ in range(d)]]
    linear = np.r_[-means, np.full(d, 1 / step_size)]
    constraints = sparse.csc_array(np.vstack(rows))
    q = solved(sparse.csc_array((2 * d, 2 * d)), linear, constraints, np.array(bounds, dtype=float), cones)[:d]
    # The solver finds q to 1e-5; a step of Newton's method over the simplex squares this error.
    system = np.block([[np.diag(1 / (step_size * q)), np.ones((d, 1))], [np.ones((1, d)), np.zeros((1, 1))]])
    slope = means - (np.log(q / before) + 1) / step_size
    return np.asarray(q + np.linalg.solve(system, np.r_[slope, 1 - q.sum()])[:d])


@pytest.mark.parametrize("seed", range(20))
def test_a_step_and_its_limit_are_convex_programs(seed: int) -> None:
    losses, weights, ids = drawn(15, 2 + seed % 4, seed)
    means, sizes = group_means(losses, weights, ids), [10 + 7 * g for g in range(2 + seed % 4)]
    risk = GroupDRO(len(sizes), 0.7, adjustment=1.5, group_sizes=sizes).double()
    adjusted = means + 1.5 / np.sqrt(sizes)
    before = np.full(len(sizes), 1 / len(sizes))
    for _ in range(3):
        leaf = losses.clone().requires_grad_()
        found = risk(leaf, weights, ids)
        found.backward()
        q = near_weights(adjusted, before, 0.7)
        own = risk.log_weights.exp().numpy()
        assert near(own, adjusted, before, 0.7) == pytest.approx(near(q, adjusted, before, 0.7), abs=1e-6, rel=0)
        np.testing.assert_allclose(own, q, atol=1e-8, rtol=0)
        assert float(found.detach()) == pytest.approx(float(q @ adjusted) * float(weights.mean()), abs=1e-6, rel=0)
        in_group = np.array([float(weights[ids == g].sum()) for g in range(len(sizes))])[ids]
        np.testing.assert_allclose(leaf.grad, q[ids] * weights.numpy() / in_group * float(weights.mean()), atol=1e-6, rtol=0)
        before = own
    plain = GroupDRO(len(sizes), 1e4).double()
    for _ in range(20):
        found = plain(leaf, weights, ids)
    assert float(found.detach()) == pytest.approx(
        means.max() * float(weights.mean()), abs=1e-6, rel=0
    )  # the linear program over q


def least_worst(x: np.ndarray, y: np.ndarray, ids: np.ndarray) -> float:
    """Return ``min over theta of max over groups of mean (x theta - y)^2``, a second-order cone program."""
    d, rows, bounds, cones = x.shape[1], [], [], []
    for g in range(ids.max() + 1):
        a, b = x[ids == g], y[ids == g]
        scale = 2 / np.sqrt(len(b))  # |r|^2 <= t where (t + 1, t - 1, 2 r) lies in the second-order cone
        rows += [np.r_[np.zeros(d), -1], np.r_[np.zeros(d), -1], *np.c_[-scale * a, np.zeros(len(b))]]
        bounds += [1, -1, *(-scale * b)]
        cones += [clarabel.SecondOrderConeT(len(b) + 2)]
    linear = np.r_[np.zeros(d), 1.0]
    zero = sparse.csc_array((d + 1, d + 1))
    return float(solved(zero, linear, sparse.csc_array(np.vstack(rows)), np.array(bounds, dtype=float), cones)[-1])


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_is_trained_by_it_is_the_least_worst(seed: int) -> None:
    """By gradient descent over all rows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    ids = torch.arange(30) % 3
    y = (x * torch.randn(3, 2, generator=generator, dtype=torch.float64)[ids]).sum(-1)
    risk, theta = GroupDRO(3, 0.05).double(), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(4000):
        (slope,) = torch.autograd.grad(risk((x @ theta - y).square(), groups=ids), theta)
        theta = (theta - 0.05 * slope).detach().requires_grad_()
    worst = group_means((x @ theta - y).square().detach(), torch.ones(30), ids).max()
    assert worst == pytest.approx(least_worst(x.numpy(), y.numpy(), ids.numpy()), abs=1e-6, rel=0)


def test_one_group_is_the_mean() -> None:
    losses, weights, _ = drawn(9, 1, 0)
    groups = torch.zeros(9, dtype=torch.int64)
    torch.testing.assert_close(GroupDRO(1)(losses, weights, groups), Mean()(losses, weights))


def test_groups_that_a_batch_lacks_and_examples_without_a_group() -> None:
    risk = GroupDRO(3, 1.0).double()
    losses = torch.tensor([1.0, 4.0, 2.0], dtype=torch.float64, requires_grad=True)
    value = risk(losses, None, torch.tensor([0, -100, 1]))
    q = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(risk.log_weights.exp(), q)
    torch.testing.assert_close(value, q[0] + 2 * q[1])
    value = risk(losses, None, torch.full((3,), -100))
    assert float(value.detach()) == 0 and float(torch.autograd.grad(value, losses)[0].abs().sum()) == 0
    torch.testing.assert_close(risk.log_weights.exp(), q)


def test_weights_of_groups_are_learnt_in_training_alone_and_kept() -> None:
    losses, _, ids = drawn(8, 2, 1)
    leaf = losses.requires_grad_()
    risk = GroupDRO(2, 1.0)
    before = risk.log_weights.clone()
    risk.eval()(leaf, None, ids)
    risk.train()(leaf.detach(), None, ids)
    torch.func.grad(lambda values: risk(values, None, ids))(leaf.detach())
    with pytest.raises(ConfigurationError, match="groups of at most 1 but got 2 for example 3"):
        risk(leaf[:4], None, torch.tensor([0, 1, -1, 2]))
    assert torch.equal(risk.log_weights, before)
    risk(leaf, None, ids)
    assert not torch.equal(risk.log_weights, before)
    restored = GroupDRO(2, 1.0)
    restored.load_state_dict(risk.state_dict())
    assert restored.measurements() == risk.measurements()
    assert sum(risk.measurements().values()) == pytest.approx(1.0)
    assert risk.half().log_weights.dtype == torch.float32
    huge = GroupDRO(2, 1e3)
    for _ in range(3):
        huge(1e30 * leaf.float(), None, ids)
    assert bool(huge.log_weights.exp().isfinite().all())


@pytest.mark.gate
def test_a_step_that_overflows_leaves_weights_that_can_learn() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        risk = GroupDRO(2, 10.0)
        most = torch.finfo(dtype).max
        for _ in range(3):
            risk(torch.tensor([most, -most], dtype=dtype, requires_grad=True), groups=torch.tensor([0, 1]))
        assert risk.log_weights.isfinite().all()
        value = risk(torch.tensor([1.0, 2.0], dtype=dtype, requires_grad=True), groups=torch.tensor([0, 1]))
        assert value == 1.0, "the first group has all the weight"


def test_a_compiled_step_learns_as_well() -> None:
    losses, weights, ids = drawn(8, 2, 2)
    eager = GroupDRO(2, 1.0).double()
    again = copy.deepcopy(eager)
    torch.compiler.reset()
    compiled = torch.compile(again, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(
            compiled(losses.requires_grad_(), weights, ids), eager(losses.requires_grad_(), weights, ids)
        )
    torch.testing.assert_close(again.log_weights, eager.log_weights)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_groups": 0}, "num_groups"),
        ({"num_groups": 2, "step_size": 0.0}, "step_size"),
        ({"num_groups": 2, "adjustment": -1.0}, "adjustment"),
        ({"num_groups": 2, "adjustment": 1.0}, "a size per group"),
        ({"num_groups": 2, "group_sizes": [1]}, "2 sizes but got 1"),
        ({"num_groups": 2, "group_sizes": [1, 0]}, "group_sizes"),
    ],
    ids=str,
)
def test_arguments_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        GroupDRO(**options)  # type: ignore[arg-type]
