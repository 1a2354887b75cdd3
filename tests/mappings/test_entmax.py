"""Properties of alpha-entmax: one curve from softmax to sparsemax and beyond, and a derivative in alpha."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, hessian, jacfwd, jacrev, jvp, vmap

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import Entmax, FenchelYoungLoss, LearnableEntmax
from lit_sparse.mappings import functional as F
from tests.mappings.second_opinions import bisected, central_difference, random_rows
from tests.support.versions import needs_custom_operators

ALPHAS = [0.1, 0.5, 0.95, 1.0, 1.0001, 1.01, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 10.0]


def by_bisection(x: Tensor, alpha: float, gamma: float = 1.0) -> np.ndarray:
    """``y = m^(1 / eps)`` with ``m = eps (z - least) + rest``, eps = alpha - 1, ``least`` the smallest score of the support.

    Bisection finds the size of the support, then what is left for its smallest entry, ``rest``: to all digits of a float even
    where eps is large and m close to zero.
    """
    z = x.numpy() / gamma
    if alpha == 1:
        return np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    if alpha < 1:  # all are in the support, and the largest score has the smallest m, its own rest
        far = (1 - alpha) * (z.max() - z)
        rest = bisected(lambda rest: ((rest + far) ** (1 / (alpha - 1))).sum() - 1, 1.0, 2.0 * len(z))
        return (rest + far) ** (1 / (alpha - 1))
    order = np.argsort(-z)
    ranked = z[order]

    def powers(size: int, rest: float) -> np.ndarray:
        return ((alpha - 1) * (ranked[:size] - ranked[size - 1]) + rest) ** (1 / (alpha - 1))

    size, too_large = 1, len(z) + 1
    while too_large - size > 1:
        middle = (size + too_large) // 2
        size, too_large = (middle, too_large) if powers(middle, 0.0).sum() < 1 else (size, middle)
    y = np.zeros_like(z)
    y[order[:size]] = powers(size, bisected(lambda rest: 1 - powers(size, rest).sum(), 0.0, 1.0))
    return y


def from_the_right(function: object, start: float, h: float) -> Tensor:
    """Return the one-sided derivative of a function of a number, to second order in h."""
    first, second, third = (function(start + i * h) for i in range(3))  # type: ignore[operator]
    return (4 * second - 3 * first - third) / (2 * h)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gamma", [0.3, 1.0, 4.0])
def test_equals_bisection(alpha: float, gamma: float) -> None:
    for d in (2, 3, 17, 130):
        for x in random_rows(6, d, seed=d, scale=2.0):
            expected = by_bisection(x, alpha, gamma)
            np.testing.assert_allclose(F.entmax(x, alpha, gamma=gamma).numpy(), expected, atol=1e-8)
            tensor = torch.tensor(alpha, dtype=torch.float64)
            np.testing.assert_allclose(F.entmax(x, tensor, gamma=gamma).numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("scale", [1e-3, 0.1, 3.0])
def test_equals_bisection_on_long_rows(alpha: float, scale: float) -> None:
    """At small scales all of the row is in the support, at large ones hardly anything."""
    for x in random_rows(2, 4001, seed=1, scale=scale):
        y = F.entmax(x, alpha).numpy()
        np.testing.assert_allclose(y, by_bisection(x, alpha), atol=1e-8)
        np.testing.assert_allclose(F.entmax(x.float(), alpha).numpy(), y, atol=2e-5)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.75, 2.5])
def test_equals_bisection_on_two_clusters(alpha: float) -> None:
    """Between clusters the support stays the same while the threshold moves: a step of a solver must not end there."""
    torch.manual_seed(0)
    for gap in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        for upper, lower in ((9, 382), (29, 234), (14, 264), (13, 75)):
            x = torch.cat([torch.zeros(upper), torch.full((lower,), -gap)]).double() + 1e-4 * torch.randn(upper + lower)
            y = F.entmax(x, alpha)
            np.testing.assert_allclose(y.numpy(), by_bisection(x, alpha), atol=1e-8)
            torch.testing.assert_close(F.entmax(x.float(), alpha).double(), y, rtol=0, atol=2e-6)


def test_an_exact_answer_with_a_support_of_two() -> None:
    x = torch.tensor([0.25, 0.0, -9.0], dtype=torch.float64)
    # alpha = 1.5: y = (x / 2 - tau)^2 with a + b = 1 for the squares, a difference of the roots of 1/8
    low = (math.sqrt(2 - 1 / 64) - 1 / 8) / 2
    torch.testing.assert_close(F.entmax(x), torch.tensor([(low + 1 / 8) ** 2, low**2, 0.0], dtype=torch.float64))


def test_continuous_towards_softmax() -> None:
    """The distance is eps times the derivative in alpha, ``y (sum y L^2 - L^2) / 2`` with L = log y, and no more."""
    x = random_rows(20, 9, seed=0, scale=2.0)
    y = torch.softmax(x, -1)
    square = y.log().square()
    slope = 0.5 * y * ((y * square).sum(-1, keepdim=True) - square)
    for eps in (1e-2, 1e-4, 1e-6, 3e-9, 1e-9, 9e-10, 1e-12):
        distance = (F.entmax(x, 1 + eps) - y - eps * slope).abs().max()
        assert float(distance) <= 3 * eps**2 + 2e-14 + (eps if eps < 1e-9 else 0.0)
        torch.testing.assert_close(
            F.entmax(x, torch.tensor([1 + eps], dtype=torch.float64)), F.entmax(x, 1 + eps), atol=2e-9, rtol=0
        )


def test_continuous_through_sparsemax() -> None:
    x = random_rows(20, 9, seed=0)
    y = F.sparsemax(x)
    torch.testing.assert_close(F.entmax(x, torch.tensor(2.0)), y, atol=1e-14, rtol=0)
    for eps in (1e-2, 1e-4, 1e-6, 1e-9, 1e-12):
        for alpha in (2 - eps, 2 + eps):
            assert float((F.entmax(x, alpha) - y).abs().max()) <= eps + 1e-14


def test_larger_alphas_are_sparser() -> None:
    x = random_rows(50, 30, seed=0)
    sizes = [int((F.entmax(x, alpha) > 0).sum()) for alpha in (1.0, 1.2, 1.5, 2.0, 3.0, 10.0, 100.0)]
    assert sizes[0] == 50 * 30
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((), -1),
        ((1,), -1),
        ((3, 1), -1),
        ((4, 1, 1), -1),
        ((2, 1, 1, 1), -1),
        ((2, 4, 3, 1), 3),
        ((), 1),
        ((1, 3, 5), 1),
        ((2, 1, 1, 5), 1),
        ((1, 1, 3, 1), -3),
        ((1, 4, 3, 5), 0),
        ((4, 1, 5), 2),
    ],
)
def test_an_alpha_for_each_row_or_head(shape: tuple[int, ...], dim: int) -> None:
    scores = random_rows(24, 5, seed=0, scale=2.0).view(2, 4, 3, 5)
    alpha = 1 + 2 * torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = scores.movedim(dim, -1)
    alphas = alpha.expand_as(scores.narrow(dim, 0, 1)).movedim(dim, -1).flatten()
    expected = torch.stack([F.entmax(row, float(a)) for row, a in zip(rows.flatten(0, -2), alphas, strict=True)])
    y = F.entmax(scores, alpha, dim=dim)
    torch.testing.assert_close(y.movedim(dim, -1).flatten(0, -2), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(Entmax(alpha, dim=dim)(scores), y, atol=0, rtol=0)

    leaf = alpha.clone().requires_grad_()
    (got,) = torch.autograd.grad(F.entmax(scores, leaf, dim=dim), leaf, scores)
    assert got.shape == shape
    direction = torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    change = central_difference(lambda a: F.entmax(scores, a, dim=dim), alpha, direction)
    torch.testing.assert_close((got * direction).sum(), (change * scores).sum(), atol=1e-7, rtol=1e-7)


def test_a_mask_hides_from_alpha_too() -> None:
    x, mask = random_rows(4, 6, seed=0), random_rows(4, 6, seed=1) > -0.5
    alpha = torch.tensor([[1.2], [1.5], [2.0], [2.6]], dtype=torch.float64, requires_grad=True)
    y = F.entmax(x.masked_fill(~mask, torch.nan), alpha, mask=mask)
    weights = x.masked_fill(~mask, torch.nan)
    (got,) = torch.autograd.grad(y, alpha, weights)
    for row in range(4):
        one = alpha[row].detach().clone().requires_grad_()
        kept = x[row][mask[row]]
        torch.testing.assert_close(torch.autograd.grad(F.entmax(kept, one), one, kept)[0], got[row])


def test_derivatives_in_scores_and_alpha() -> None:
    """First and second, mixed ones included, in both modes."""
    x = random_rows(10, 6, seed=0).requires_grad_()
    alpha = (
        torch.tensor([0.2, 0.8, 1.05, 1.3, 1.5, 1.8, 2.0, 2.2, 2.5, 4.0], dtype=torch.float64).unsqueeze(-1).requires_grad_()
    )
    for gamma in (1.0, 0.6):

        def function(x: Tensor, alpha: Tensor, gamma: float = gamma) -> Tensor:
            return F.entmax(x, alpha, gamma=gamma)

        torch.autograd.gradcheck(function, (x, alpha), check_forward_ad=True, check_batched_grad=True)
        torch.autograd.gradgradcheck(function, (x, alpha), atol=2e-5)
    shared = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(F.entmax, (x, shared), check_forward_ad=True)
    torch.autograd.gradgradcheck(F.entmax, (x, shared))


@pytest.mark.parametrize("start", [1.0, 1 + 1e-9, 1 + 1e-7, 1 + 1e-4, 2 - 1e-7, 2.0])
def test_derivatives_in_alpha_near_softmax_and_sparsemax(start: float) -> None:
    """Against one-sided differences: below 1 there is nothing."""
    x, weights = random_rows(5, 7, seed=3, scale=1.5), random_rows(5, 7, seed=4)

    def gradients(number: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Derivatives of the weighted sum: in alpha, in x, twice in alpha, and in x and alpha."""
        leaf, alpha = x.clone().requires_grad_(), torch.tensor(number, dtype=torch.float64, requires_grad=True)
        total = (weights * F.entmax(leaf, alpha)).sum()
        in_x, in_alpha = torch.autograd.grad(total, (leaf, alpha), create_graph=True)
        mixed, twice = torch.autograd.grad(in_alpha, (leaf, alpha), retain_graph=True)
        return in_alpha.detach(), in_x.detach(), twice, mixed

    h = 1e-4
    in_alpha, _, twice, mixed = gradients(start)
    change = from_the_right(lambda a: F.entmax(x, torch.tensor(a, dtype=torch.float64)), start, h)
    torch.testing.assert_close(in_alpha, (weights * change).sum(), atol=1e-6, rtol=0)
    tangent = jvp(lambda a: F.entmax(x, a), (torch.tensor(start).double(),), (torch.tensor(1.0).double(),))[1]
    torch.testing.assert_close(tangent, change, atol=1e-6, rtol=0)
    torch.testing.assert_close(twice, from_the_right(lambda a: gradients(a)[0], start, h), atol=1e-6, rtol=0)
    torch.testing.assert_close(mixed, from_the_right(lambda a: gradients(a)[1], start, h), atol=1e-6, rtol=0)


def test_float32_derivatives_in_alpha_agree_with_float64() -> None:
    x, weights = random_rows(60, 40, seed=0, scale=3.0).float(), random_rows(60, 40, seed=1).float()
    for number in (1.0, 1 + 2**-20, 1.001, 1.5, 1.9, 2.0, 3.0, 6.0):
        got = []
        for dtype in (torch.float32, torch.float64):
            alpha = torch.full((60, 1), number, dtype=dtype, requires_grad=True)
            got.append(torch.autograd.grad(F.entmax(x.to(dtype), alpha), alpha, weights.to(dtype))[0])
        torch.testing.assert_close(got[0].double(), got[1], atol=2e-5, rtol=2e-4)


def test_transforms_over_alpha() -> None:
    x = random_rows(5, 6, seed=0)
    alphas = torch.tensor([1.0, 0.6, 1.5, 2.0, 2.7], dtype=torch.float64)
    each = torch.stack([F.entmax(x, alpha) for alpha in alphas])
    torch.testing.assert_close(vmap(lambda a: F.entmax(x, a))(alphas), each)
    torch.testing.assert_close(vmap(F.entmax)(x, alphas), each.diagonal().T)
    torch.testing.assert_close(vmap(F.entmax, in_dims=(None, 0))(x[0], alphas), each[:, 0])
    torch.testing.assert_close(vmap(vmap(F.entmax, in_dims=(0, None)), in_dims=(None, 0))(x, alphas), each)

    column = alphas[1:].unsqueeze(-1)
    jacobian = jacrev(lambda a: F.entmax(x[1:], a))(column)
    assert jacobian.shape == (4, 6, 4, 1)
    torch.testing.assert_close(jacobian, jacfwd(lambda a: F.entmax(x[1:], a))(column))
    for row, unit in enumerate(torch.eye(4, dtype=torch.float64)):
        change = central_difference(lambda a: F.entmax(x[1:], a), column, unit.unsqueeze(-1))
        torch.testing.assert_close(jacobian[:, :, row, 0], change, atol=1e-7, rtol=0)

    def total(alpha: Tensor) -> Tensor:
        return (F.entmax(x[1:], alpha) * x[1:].flip(1)).sum()

    second = central_difference(lambda a: jacrev(total)(a), column, torch.ones_like(column))
    torch.testing.assert_close(hessian(total)(column).sum((2, 3)), second, atol=1e-6, rtol=0)


@pytest.mark.gate
@needs_custom_operators
def test_compiled_with_a_tensor_alpha() -> None:
    torch._dynamo.reset()
    x = random_rows(5, 6, seed=0)
    weights = random_rows(5, 6, seed=1)

    def total(x: Tensor, alpha: Tensor) -> Tensor:
        return (F.entmax(x, alpha, gamma=0.5) * weights).sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for alpha in (
        torch.tensor([[1.0], [1.0 + 1e-7], [1.5], [2.0], [3.0]], dtype=torch.float64),
        torch.tensor([[1.7]]),
        torch.tensor([[0.6]]),
    ):
        results = []
        for function in (total, compiled):
            ours, theirs = x.clone().requires_grad_(), alpha.clone().requires_grad_()
            result = function(ours, theirs)
            results.append([result, *torch.autograd.grad(result, (ours, theirs))])
        torch.testing.assert_close(results[0], results[1])


@pytest.mark.gate
@needs_custom_operators
def test_compiled_with_a_mask_on_a_broken_row() -> None:
    torch._dynamo.reset()
    x, mask = torch.tensor([[0.0, 1.0, math.nan]]), torch.tensor([[True, False, True]])
    for mapping in (Entmax(1.5), LearnableEntmax()):
        compiled = torch.compile(lambda x, mask, m=mapping: m(x, mask), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, mask), mapping(x, mask), equal_nan=True)
        assert float(compiled(x, mask)[0, 1].detach()) == 0.0


def test_third_derivatives_by_nested_forward_mode_are_refused() -> None:
    """torch would take the inner tangent for constant."""
    x = random_rows(1, 4, seed=0)[0]

    def total(x: Tensor) -> Tensor:
        return F.entmax(x).pow(3).sum()

    with pytest.raises(ConfigurationError, match="forward mode once"):
        jacfwd(jacfwd(jacrev(total)))(x)
    torch.testing.assert_close(jacfwd(jacrev(jacrev(total)))(x), jacrev(jacrev(jacrev(total)))(x))


@needs_custom_operators
@pytest.mark.slow
@pytest.mark.parametrize("of_value", [False, True], ids=["mapping", "value"])
def test_compiled_second_derivatives_in_alpha(of_value: bool) -> None:
    torch._dynamo.reset()
    x, mapping = random_rows(1, 5, seed=0)[0], LearnableEntmax().double()
    loss = FenchelYoungLoss(mapping)

    def total(weight: Tensor, x: Tensor) -> Tensor:
        if of_value:
            return functional_call(loss, {"mapping.weight": weight}, (x, torch.tensor(2)))
        return functional_call(mapping, {"weight": weight}, (x,)).square().sum()

    def second(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return jacrev(jacrev(total), argnums=(0, 1))(weight, x)

    weight = torch.tensor(0.3, dtype=torch.float64)
    compiled = torch.compile(second, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(weight, x), second(weight, x))


def test_gradient_of_the_value_in_alpha() -> None:
    """By the envelope theorem it is minus gamma times the derivative of Omega at the result."""
    x = random_rows(9, 6, seed=0)
    alpha = torch.tensor([0.3, 0.8, 1.0, 1.2, 1.5, 1.8, 2.0, 2.5, 4.0], dtype=torch.float64).unsqueeze(-1)
    leaf = alpha.clone().requires_grad_()
    (got,) = torch.autograd.grad(Entmax(leaf, gamma=0.7).value(x).sum(), leaf)
    change = from_the_right(lambda step: Entmax(alpha + step, gamma=0.7).value(x), 0.0, 1e-4)
    torch.testing.assert_close(got.squeeze(-1), change, atol=1e-7, rtol=1e-6)

    mapping = Entmax(alpha, gamma=0.7)
    y = mapping(x)
    omega = from_the_right(lambda step: Entmax(alpha + step).regularizer(y), 0.0, 1e-4)
    torch.testing.assert_close(got.squeeze(-1), -0.7 * omega, atol=1e-7, rtol=1e-6)


def test_derivatives_of_the_value_in_scores_and_alpha() -> None:
    x = random_rows(8, 5, seed=0).requires_grad_()
    alpha = torch.tensor([0.4, 0.9, 1.1, 1.3, 1.5, 2.0, 2.5, 4.0], dtype=torch.float64).unsqueeze(-1).requires_grad_()

    def value(x: Tensor, alpha: Tensor) -> Tensor:
        return Entmax(alpha, gamma=0.7).value(x)

    torch.autograd.gradcheck(value, (x, alpha), check_forward_ad=True)
    torch.autograd.gradgradcheck(value, (x, alpha))


def test_second_derivatives_of_the_value_against_differences() -> None:
    x, alpha = random_rows(1, 5, seed=0)[0], torch.tensor(1.5, dtype=torch.float64)

    def value(alpha: Tensor, x: Tensor) -> Tensor:
        return Entmax(alpha).value(x)

    in_alpha, in_x = jacrev(value), jacrev(value, argnums=1)
    step = torch.ones_like(alpha)
    change = central_difference(lambda a: in_alpha(a, x), alpha, step)
    torch.testing.assert_close(hessian(value)(alpha, x), change, atol=1e-7, rtol=0)
    change = central_difference(lambda a: in_x(a, x), alpha, step)
    torch.testing.assert_close(jacrev(in_x)(alpha, x), change, atol=1e-7, rtol=0)
    torch.testing.assert_close(jacrev(in_alpha, argnums=1)(alpha, x), change, atol=1e-7, rtol=0)


def test_value_against_the_formula() -> None:
    x = random_rows(9, 6, seed=0)
    for alpha in (alpha for alpha in ALPHAS if alpha != 1):
        y = torch.from_numpy(np.stack([by_bisection(row, alpha, 0.5) for row in x]))
        expected = (y * x).sum(-1) - 0.5 * (y.pow(alpha).sum(-1) - 1) / (alpha * (alpha - 1))
        torch.testing.assert_close(Entmax(alpha, gamma=0.5).value(x), expected, atol=1e-9 / abs(alpha - 1), rtol=0)
    torch.testing.assert_close(Entmax(1.0, gamma=0.5).value(x), 0.5 * torch.logsumexp(x / 0.5, -1))
    shifted = F.sparsemax(x, gamma=0.5)
    expected = (shifted * x).sum(-1) - 0.25 * shifted.square().sum(-1) + 0.25
    torch.testing.assert_close(Entmax(2.0, gamma=0.5).value(x), expected)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(), (1, 1, 4), (3, 1, 1)])
def test_loss_trains_alpha(soft: bool, shape: tuple[int, ...]) -> None:
    """The gradient of the learnt parameter and of the scores, against differences."""
    scores = random_rows(3 * 4, 5, seed=0).view(3, 4, 5).movedim(-1, 1)
    mapping = LearnableEntmax(shape, start=1.6, low=1.0, high=3.0, gamma=0.8).double()
    target = random_rows(3 * 4, 5, seed=1).softmax(-1).view(3, 4, 5).movedim(-1, 1)
    labels = torch.arange(12).view(3, 4) % 5
    loss = FenchelYoungLoss(mapping, label_smoothing=0.0 if soft else 0.1, weight=torch.arange(1.0, 6.0).double())

    def total(weight: Tensor) -> Tensor:
        return functional_call(loss, {"mapping.weight": weight}, (scores, target if soft else labels))

    weight = mapping.weight.detach() + 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradient = torch.func.grad(total)(weight)
    assert gradient.shape == shape
    assert bool((gradient != 0).all())
    direction = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    expected = central_difference(total, weight, direction)
    torch.testing.assert_close((gradient * direction).sum(), expected, atol=1e-8, rtol=1e-6)


def test_one_hot_targets_pull_alpha_through_the_value_alone() -> None:
    """Omega of a one-hot target is zero for every alpha."""
    x = random_rows(6, 4, seed=0)
    mapping = LearnableEntmax().double()
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    (got,) = torch.autograd.grad(FenchelYoungLoss(mapping, reduction="sum")(x, labels), mapping.weight)
    (expected,) = torch.autograd.grad(mapping.value(x).sum(), mapping.weight)
    torch.testing.assert_close(got, expected)
