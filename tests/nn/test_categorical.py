"""The likelihood without its logits against the one with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

from lit_sparse.errors import ConfigurationError
from lit_sparse.nn import SharedCategorical
from lit_sparse.nn import categorical as shared_categorical


def naive(layer: SharedCategorical, features: Tensor, values: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(features, layer.weight, layer.bias)
    return torch.distributions.Categorical(logits=logits).log_prob(values).sum(-1)


def case(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[SharedCategorical, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = SharedCategorical(4, 9).to(dtype)
    return layer, (torch.randn(7, 13, 4, dtype=dtype) * scale).requires_grad_(), torch.randint(9, (7, 13))


def functional(layer: SharedCategorical, values: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the layer as a function of features, weight and bias."""
    return lambda h, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, (h, values))


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_value_and_gradients_equal_those_of_the_naive_form(scale: float) -> None:
    layer, features, values = case(scale=scale)
    inputs = [features, layer.weight, layer.bias]
    weights = torch.linspace(-1.0, 2.0, 7, dtype=torch.float64)
    expected = naive(layer, features, values)
    got = layer(features, values)
    torch.testing.assert_close(got, expected)
    with torch.no_grad():
        torch.testing.assert_close(layer(features, values), expected)
    for ours, theirs in zip(
        torch.autograd.grad(got @ weights, inputs), torch.autograd.grad(expected @ weights, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("most", [1, 300, 10**6])
def test_mean(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_categorical, "MOST_LOGITS", most)
    layer, features, _ = case()
    probs = torch.nn.functional.linear(features, layer.weight, layer.bias).softmax(-1)
    torch.testing.assert_close(layer.mean(features), (probs * torch.arange(9)).sum(-1).detach())


def test_derivatives_of_both_orders() -> None:
    layer, features, values = case()
    inputs = (features, layer.weight, layer.bias)
    torch.autograd.gradcheck(functional(layer, values), inputs, check_forward_ad=True)
    torch.autograd.gradgradcheck(functional(layer, values), inputs)


def test_second_derivative_of_a_part_of_the_inputs() -> None:
    layer, features, values = case()
    layer.requires_grad_(False)
    torch.autograd.gradgradcheck(lambda h: layer(h, values), features)


@pytest.mark.parametrize("transform", [lambda f: f, grad, hessian], ids=["value", "grad", "hessian"])
def test_vmap_equals_the_loop(transform: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> None:
    layer, features, values = case()
    weight, bias, rows = layer.weight.detach(), layer.bias.detach(), features.detach().unsqueeze(1)

    def squared(w: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        return functional(layer, seen)(h, w, bias).square().sum()

    def by_hand(w: Tensor, h: Tensor, seen: Tensor) -> Tensor:
        logs = torch.nn.functional.linear(h, w, bias).log_softmax(-1)
        return logs.gather(-1, seen.unsqueeze(-1)).sum().square()

    got = vmap(transform(squared), (None, 0, 0))(weight, rows, values.unsqueeze(1))
    expected = [transform(by_hand)(weight, h, seen) for h, seen in zip(rows, values.unsqueeze(1), strict=True)]
    torch.testing.assert_close(got, torch.stack(expected))


def test_jvp() -> None:
    layer, features, values = case()
    tangent = torch.randn_like(features)
    _, got = jvp(lambda h: layer(h, values), (features.detach(),), (tangent,))
    (slope,) = torch.autograd.grad(layer(features, values).sum(), features)
    torch.testing.assert_close(got, (slope * tangent).sum((1, 2)))


def test_vectorized_jacobian() -> None:
    layer, features, values = case()
    together = torch.autograd.functional.jacobian(lambda h: layer(h, values), features, vectorize=True)
    torch.testing.assert_close(together, torch.autograd.functional.jacobian(lambda h: layer(h, values), features))


@pytest.mark.gate
def test_graphs() -> None:
    layer, features, values = case()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (7, 3):
        h, seen = features.detach()[:rows].requires_grad_(), values[:rows]
        got, expected = compiled(h, seen), layer(h, seen)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(*[torch.autograd.grad(likelihood.sum(), h)[0] for likelihood in (got, expected)])
    exported = torch.export.export(layer, (features, values)).module()
    torch.testing.assert_close(exported(features, values), layer(features, values))


def test_half_precision_computes_in_single() -> None:
    layer, features, values = case(torch.float32)
    expected = layer(features, values)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(features, values), expected)
        plain = vmap(lambda h, seen: layer(h.unsqueeze(0), seen.unsqueeze(0))[0])(features, values)
    torch.testing.assert_close(plain, expected)
    low = features.detach().bfloat16().requires_grad_()
    layer(low, values).sum().backward()
    assert low.grad is not None
    assert low.grad.dtype == torch.bfloat16


def test_memory_kept_does_not_grow_with_the_logits() -> None:
    torch.manual_seed(0)
    layer, features = SharedCategorical(5, 256), torch.randn(4, 784, 5, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        layer(features, torch.randint(256, (4, 784)))
    inputs, slopes = features.numel() + 6 * 256 + 4 * 784, features.numel() + 4 * 6 * 256
    assert sum(kept) <= inputs + slopes


def test_a_broken_row_harms_no_other() -> None:
    layer, features, values = case()
    broken = features.detach().clone()
    broken[3, 2, 1] = torch.nan
    got = layer(broken.requires_grad_(), values)
    assert got.isnan().nonzero().tolist() == [[3]]


@pytest.mark.parametrize(("features", "values"), [((7, 13, 3), (7, 13)), ((7, 13), (7, 13)), ((7, 13, 4), (7, 12))])
def test_shapes_that_do_not_fit(features: tuple[int, ...], values: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="Expected features"):
        case()[0](torch.zeros(features, dtype=torch.float64), torch.zeros(values, dtype=torch.int64))
