"""Properties of the regularized argmax: any Omega, solved by iteration."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.func import functional_call

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, RegularizedArgmax
from lit_sparse.mappings import functional as F
from lit_sparse.testing import check_mapping

Omega = Callable[[Tensor], Tensor]


def negative_entropy(y: Tensor) -> Tensor:
    return (y * y.log()).sum(-1)


def half_squares(y: Tensor) -> Tensor:
    return 0.5 * y.square().sum(-1)


def squared_norm(y: Tensor, p: float = 1.5) -> Tensor:
    return 0.5 * (y**p).sum(-1) ** (2 / p)


def rough(y: Tensor) -> Tensor:
    """Neighbours matter, and so does how many entries there are."""
    return half_squares(y) + 0.4 * y.diff(dim=-1).square().sum(-1) + 0.3 * negative_entropy(y) / y.shape[-1]


def scores(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bisected(x: Tensor, p: float, gamma: float) -> Tensor:
    """sq-pnorm-max by bisection on its threshold."""
    z = (x - x.amax(-1, keepdim=True)) / gamma
    low, high = -torch.ones_like(z[..., :1]), torch.full_like(z[..., :1], -(z.shape[-1] ** (-2 * (p - 1) / p)))
    for _ in range(100):
        tau = 0.5 * (low + high)
        u = (z - tau).clamp_min(0) ** (1 / (p - 1))
        y = u / u.sum(-1, keepdim=True)
        small = (y**p).sum(-1, keepdim=True) ** ((2 - p) / p) > u.sum(-1, keepdim=True) ** (p - 1)
        low, high = torch.where(small, low, tau), torch.where(small, tau, high)
    return y


def proposition_1(y: Tensor, v: Tensor, hessian: Callable[[Tensor], Tensor], gamma: float) -> Tensor:
    """J v of one row, by the equations as they are printed, on the support."""
    inside = y > 0
    a = torch.eye(int(inside.sum()), dtype=y.dtype) - 1 / inside.sum()
    b = gamma * hessian(y)[inside][:, inside]
    result = torch.zeros_like(y)
    result[inside] = torch.linalg.solve(
        torch.eye(len(a), dtype=y.dtype) + a @ (b - torch.eye(len(a), dtype=y.dtype)), a @ v[inside]
    )
    return result


@pytest.mark.cases(quick=9)
@pytest.mark.parametrize("gamma", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("d", [1, 2, 5, 13, 30])
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "sq_pnorm_max"])
def test_reproduces_the_mappings_with_a_formula(name: str, d: int, gamma: float) -> None:
    x = torch.cat([scores(60, d, seed=d, scale=gamma * scale) for scale in (0.1, 1.0, 3.0)]).requires_grad_()
    v = scores(180, d, seed=1)
    omega = {"softmax": negative_entropy, "sparsemax": half_squares, "sq_pnorm_max": squared_norm}[name]
    y = F.regularized_argmax(x, omega, gamma=gamma, max_iter=25)  # a warning, too few iterations, would be an error
    (got,) = torch.autograd.grad(y, x, v)
    if name == "sq_pnorm_max":
        expected = bisected(x.detach(), 1.5, gamma)
        hessian = torch.func.hessian(squared_norm)
        slopes = torch.stack([proposition_1(row, w, hessian, gamma) for row, w in zip(expected, v, strict=True)])
    else:
        expected = {"softmax": F.softmax, "sparsemax": F.sparsemax}[name](x, gamma=gamma)
        (slopes,) = torch.autograd.grad(expected, x, v)
    torch.testing.assert_close(y, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(gamma * got, gamma * slopes, atol=1e-5, rtol=0)


@pytest.mark.cases(quick=1)
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "sq_pnorm_max"])
def test_reference_cases(name: str, shared: Path) -> None:
    for case in json.loads((shared / "reference" / "mappings.json").read_text()):
        if case["mapping"] == name:
            x, y = torch.tensor(case["x"], dtype=torch.float64), torch.tensor(case["y"], dtype=torch.float64)
            gamma, p = case["params"]["gamma"], case["params"].get("p", 1.5)
            omega = {"softmax": negative_entropy, "sparsemax": half_squares}.get(name, lambda y, p=p: squared_norm(y, p))
            torch.testing.assert_close(F.regularized_argmax(x, omega, gamma=gamma), y, atol=1e-6, rtol=0)


@pytest.mark.parametrize("d", [2, 6, 11])
def test_quadratics_against_a_generic_solver(d: int) -> None:
    for seed in range(15):
        root = scores(d, d, seed=seed)
        matrix = root @ root.T / d + 0.01 * torch.eye(d, dtype=torch.float64)
        x = scores(d, seed=100 + seed)
        y = F.regularized_argmax(x, lambda y, m=matrix: 0.5 * ((y @ m) * y).sum(-1), gamma=0.7)
        q, c = 0.7 * matrix.numpy(), x.numpy()
        generic = scipy.optimize.minimize(
            lambda p, q=q, c=c: 0.5 * p @ q @ p - c @ p,
            np.full(d, 1 / d),
            jac=lambda p, q=q, c=c: q @ p - c,
            method="SLSQP",
            bounds=[(0, 1)] * d,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(y.numpy(), generic.x, atol=2e-6)


REGULARIZERS: dict[str, Omega] = {
    "barrier": lambda y: -0.05 * y.log().sum(-1),
    "square roots": lambda y: -y.sqrt().sum(-1),
    "fourth powers": lambda y: y.pow(4).sum(-1),
    "nearly linear norm": lambda y: squared_norm(y, 1.05),
    "stiff": lambda y: half_squares(y) + torch.logsumexp(50 * y, -1) / 50,
    "groups": lambda y: (y[..., ::2].square().sum(-1) + 1e-8).sqrt() + (y[..., 1::2].square().sum(-1) + 1e-8).sqrt(),
    "rough": rough,
    "linear": lambda y: y[..., 0],
    "nothing": lambda y: 0 * y.sum(-1),
}


@pytest.mark.cases(quick=6)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_no_vertex_is_a_way_down(name: str, dtype: torch.dtype) -> None:
    omega = REGULARIZERS[name]
    for scale in (0.1, 1.0, 3.0):
        x = scores(40, 12, scale=scale).to(dtype)
        y = F.regularized_argmax(x, omega).double().clamp_min(1e-12).requires_grad_()
        (slope,) = torch.autograd.grad((omega(y) - (y * x.double()).sum(-1)).sum(), y)
        gap = ((y * slope).sum(-1) - slope.amin(-1)).max()
        assert float(gap.detach()) < (1e-6 if dtype == torch.float64 else 1e-4), (
            "the duality gap, which bounds the error of the value"
        )


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("omega", [rough, negative_entropy, lambda y: squared_norm(y, 1.2)])
def test_masked_entries_are_dropped(omega: Omega) -> None:
    x, v = scores(40, 9, scale=2.0).requires_grad_(), scores(40, 9, seed=2)
    mask = scores(40, 9, seed=1) > 0.3
    mapping = RegularizedArgmax(omega, gamma=0.8)
    y, value = mapping(x, mask), mapping.value(x, mask)
    (got,) = torch.autograd.grad(y, x, v)
    for i, keep in enumerate(mask):
        row = x[i, keep].detach().requires_grad_()
        alone = mapping(row)
        torch.testing.assert_close(y[i, keep], alone, atol=1e-12, rtol=0)
        if keep.any():
            torch.testing.assert_close(value[i], mapping.value(row), atol=1e-12, rtol=0)
            torch.testing.assert_close(got[i, keep], *torch.autograd.grad(alone, row, v[i, keep]), atol=1e-8, rtol=0)
    assert bool((y[~mask] == 0).all() and (got[~mask] == 0).all())


@pytest.mark.cases(quick=2)
@pytest.mark.parametrize("omega", [negative_entropy, squared_norm, lambda y: squared_norm(y, 1.1)])
@pytest.mark.parametrize("d", [6, 40])
def test_rows_do_not_disturb_each_other(omega: Omega, d: int) -> None:
    x = scores(20, d, scale=2.0)
    x[3], x[5, 0], x[7, 1:] = math.nan, math.inf, -math.inf
    x[9] *= 20
    leaf = x.clone().requires_grad_()
    y = F.regularized_argmax(leaf, omega)
    (got,) = torch.autograd.grad(y.square().sum(), leaf)
    for i in range(20):
        row = x[i].clone().requires_grad_()
        alone = F.regularized_argmax(row, omega)
        torch.testing.assert_close(y[i], alone, atol=1e-12, rtol=0, equal_nan=True)
        torch.testing.assert_close(got[i], *torch.autograd.grad(alone.square().sum(), row), equal_nan=True)
    assert bool(y[[3, 5]].isnan().all() and got[[3, 5]].isnan().all())
    assert bool(y[[i for i in range(20) if i not in (3, 5)]].isfinite().all())


def test_warns_once_when_steps_were_too_few() -> None:
    x = scores(30, 8)
    mask = scores(30, 8, seed=1) > -0.5
    with pytest.warns(
        RuntimeWarning, match=r"residual of up to .* after max_iter=2 .* above tol=1.0e-07.*Raise max_iter"
    ) as caught:
        F.regularized_argmax(x, squared_norm, max_iter=2, mask=mask)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.regularized_argmax(x, squared_norm, max_iter=2, tol=10.0, mask=mask)


def test_an_omega_that_is_not_convex_is_told() -> None:
    for omega in (lambda y: torch.special.entr(y).sum(-1), lambda y: -squared_norm(y)):
        with pytest.warns(RuntimeWarning, match="not convex for 30 row"):
            F.regularized_argmax(scores(30, 8), omega)


@pytest.mark.slow
def test_derivatives_of_an_omega_that_does_not_separate() -> None:
    matrix = scores(4, 4, seed=1)

    def omega(y: Tensor) -> Tensor:
        return half_squares(y @ matrix) + 0.2 * negative_entropy(y) + (1 + y.prod(-1)).log()

    for regularizer in (omega, rough, lambda y: half_squares(y @ matrix)):
        x = scores(2, 4, seed=2).requires_grad_()
        mapping = RegularizedArgmax(regularizer, gamma=0.6)
        torch.autograd.gradcheck(mapping, x, check_forward_ad=True)
        torch.autograd.gradgradcheck(mapping, x)
        jacobian = torch.autograd.functional.jacobian(mapping, x[0])
        torch.testing.assert_close(jacobian, jacobian.T, atol=1e-10, rtol=0)


def test_vertices_do_not_move() -> None:
    x = torch.tensor([[9.0, 0.0, 1.0], [0.0, 30.0, -30.0]], requires_grad=True)
    for omega in (half_squares, squared_norm, REGULARIZERS["nothing"]):
        y = F.regularized_argmax(x, omega)
        (got,) = torch.autograd.grad(y, x, torch.ones(2, 3).cumsum(-1))
        assert y.tolist() == [[1, 0, 0], [0, 1, 0]] and bool((got == 0).all())


class Learnt(nn.Module):
    """Roughness, entropy and squares, each with a strength to learn; the first as a product with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.tensor(-0.5))
        self.roughness = nn.Parameter(torch.tensor([0.3, 0.7]))

    def forward(self, y: Tensor) -> Tensor:
        rough = y.diff(dim=-1) @ (self.roughness[:1] * torch.ones_like(y[0, 1:])).diag()
        return 0.5 * rough.square().sum(-1) + self.b.exp() * negative_entropy(y) + self.roughness[1] ** 2 * half_squares(y)


@pytest.mark.slow
def test_parameters_of_omega_are_learnt() -> None:
    mapping = RegularizedArgmax(Learnt(), gamma=0.7).double()
    names, values = zip(*mapping.named_parameters(), strict=True)
    assert names == ("omega.b", "omega.roughness")
    values = tuple(value.detach().clone().requires_grad_() for value in values)
    x = scores(2, 4).requires_grad_()

    def solution(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(mapping, dict(zip(names, values, strict=True)), (x,))

    torch.autograd.gradcheck(solution, (x, *values), check_forward_ad=True)
    torch.autograd.gradgradcheck(solution, (x, *values), atol=1e-10, rtol=1e-5, fast_mode=True)

    target = torch.softmax(scores(2, 4, seed=3), -1)
    optimizer = torch.optim.SGD(mapping.parameters(), 0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(FenchelYoungLoss(mapping)(x, target))
        losses[-1].backward()
        optimizer.step()
    assert bool(losses[-1] < losses[0])


def test_the_loss_has_the_gradient_of_omegas_parameters() -> None:
    mapping = RegularizedArgmax(Learnt(), gamma=0.7).double()
    x, target = scores(3, 5), torch.softmax(scores(3, 5, seed=3), -1)
    FenchelYoungLoss(mapping)(x, target).backward()
    for parameter in mapping.parameters():
        with torch.no_grad():
            for i in range(parameter.numel()):
                sides = []
                for h in (1e-5, -2e-5):
                    parameter.view(-1)[i] += h
                    sides.append(float(FenchelYoungLoss(mapping)(x, target)))
                parameter.view(-1)[i] += 1e-5
                assert math.isclose((sides[0] - sides[1]) / 2e-5, float(parameter.grad.view(-1)[i]), abs_tol=1e-7)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(0.4))

    def forward(self, y: Tensor) -> Tensor:
        return self.strength.exp() * squared_norm(y, 1.7)


@pytest.mark.slow
def test_a_learnt_omega_passes_every_check() -> None:
    check_mapping(RegularizedArgmax(Scaled()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_omega_with_narrow_tensors(dtype: torch.dtype) -> None:
    matrix, x = scores(6, 6), scores(30, 6, seed=1)
    wide = F.regularized_argmax(x, lambda y: half_squares(y @ matrix) + half_squares(y))
    leaf = x.to(dtype).requires_grad_()
    narrow = F.regularized_argmax(leaf, lambda y: half_squares(y @ matrix.float()) + half_squares(y))
    narrow.square().sum().backward()
    assert narrow.dtype == leaf.grad.dtype == dtype
    torch.testing.assert_close(narrow.double(), wide, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0)


def test_inference_mode_and_autocast() -> None:
    layer, x = nn.Linear(6, 4).requires_grad_(False), scores(5, 6).float()

    def omega(y: Tensor) -> Tensor:
        return half_squares(y) + half_squares(layer(y.to(layer.weight.dtype)))

    expected = F.regularized_argmax(x, omega)
    with torch.inference_mode():
        assert torch.equal(F.regularized_argmax(x.clone(), omega), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(F.regularized_argmax(x, omega), expected)


@pytest.mark.parametrize(
    ("omega", "got"),
    [
        (lambda y: y.sum(), r"shape \(\)"),
        (lambda y: y, r"shape \(\d, 4\)"),
        (lambda y: 1.0, "float"),
        (lambda y: None, "NoneType"),
    ],
)
def test_an_omega_of_the_wrong_shape(omega: Omega, got: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"one number per row, shape \(\d,\) for .*, but got {got}"):
        F.regularized_argmax(scores(3, 4), omega)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("omega", None),
        ("omega", "entropy"),
        ("max_iter", 0),
        ("max_iter", 2.0),
        ("tol", 0.0),
        ("tol", math.nan),
        ("tol", -1e-7),
    ],
)
def test_bad_arguments(name: str, value: object) -> None:
    arguments = {"omega": half_squares, name: value}
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        RegularizedArgmax(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        F.regularized_argmax(scores(2, 3), **arguments)  # type: ignore[arg-type]
