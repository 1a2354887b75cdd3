"""The likelihood without its logits against the one with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.nn import SharedCategorical, shared_categorical


def naive(layer: SharedCategorical, features: Tensor, values: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(features, layer.weight, layer.bias)
    return torch.distributions.Categorical(logits=logits).log_prob(values).sum(-1)


def case(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[SharedCategorical, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = SharedCategorical(4, 9).to(dtype)
    return layer, (torch.randn(7, 13, 4, dtype=dtype) * scale).requires_grad_(), torch.randint(9, (7, 13))


@pytest.fixture(params=[1, 300, 10**6], ids=lambda logits: f"{logits} logits at once")
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_categorical, "CPU_LOGITS", request.param)


@pytest.mark.usefixtures("parts")
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


@pytest.mark.usefixtures("parts")
def test_mean() -> None:
    layer, features, _ = case()
    probs = torch.nn.functional.linear(features, layer.weight, layer.bias).softmax(-1)
    torch.testing.assert_close(layer.mean(features), (probs * torch.arange(9)).sum(-1).detach())


def test_gradcheck() -> None:
    layer, features, values = case()
    assert torch.autograd.gradcheck(lambda h, w, b: shared_categorical._LogLikelihood.apply(h, w, b, values, True),
                                    (features, layer.weight, layer.bias))  # fmt: skip


def test_half_precision_computes_in_single() -> None:
    layer, features, values = case(torch.float32)
    expected = layer(features, values)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(features, values), expected)
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
    assert sum(kept) <= features.numel() + 4 * 6 * 256


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
