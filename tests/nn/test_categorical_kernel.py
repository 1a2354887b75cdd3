"""The compiled pass over categorical variables against plain torch operations in float64."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lit_sparse.errors import ConfigurationError
from lit_sparse.nn import categorical as shared_categorical
from lit_sparse.nn.categorical import Likelihood, log_likelihood
from tests.kernels.rows import fixed_settings

TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5}


def case(seed: int, variables: int, width: int, values: int, scale: float = 1.0, rows: int = 5) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    seen = torch.randint(values, (rows, variables), generator=generator)
    return scale * normal(rows, variables, width), normal(values, width), normal(values), seen


def by_torch(h: Tensor, weight: Tensor, bias: Tensor, seen: Tensor) -> Likelihood:
    """Return the log-softmax's entries and what autograd makes of them, one layer for each row."""
    rows = len(h)
    h, weight, bias = (x.clone().requires_grad_() for x in (h, weight.expand(rows, -1, -1), bias.expand(rows, -1)))
    logits = h @ weight.transpose(1, 2) + bias.unsqueeze(1)
    likelihood = torch.log_softmax(logits, -1).gather(-1, seen.unsqueeze(-1)).sum((1, 2))
    slopes, of_weight, of_bias = torch.autograd.grad(likelihood.sum(), (h, weight, bias))
    return Likelihood(likelihood.detach(), slopes, torch.cat([of_bias.unsqueeze(1), of_weight.transpose(1, 2)], 1))


def same(got: Likelihood, expected: Likelihood, tolerance: float, scale: float = 1.0) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=tolerance * scale, rtol=tolerance, equal_nan=True)


@fixed_settings(60)
@given(
    st.integers(0, 10**6),
    st.integers(0, 13),
    st.integers(0, 13),
    st.sampled_from([1, 2, 17, 40, 256]),
    st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_equals_torch(seed: int, variables: int, width: int, values: int, scale: float, dtype: torch.dtype) -> None:
    *floats, seen = case(seed, variables, width, values, scale)
    floats = [x.to(dtype) for x in floats]  # rounded, the same for both
    expected = by_torch(*[x.double() for x in floats], seen)
    got = log_likelihood(*floats, seen, slopes=True)
    # Rounding a logit of that size changes probabilities, and so the derivatives, by this much.
    size = 1.0 + scale * max(1, width)
    same(got, expected, TOLERANCES[dtype] * size, size)
    torch.testing.assert_close(log_likelihood(*floats, seen, slopes=False).values, got.values, atol=0, rtol=0)


@pytest.mark.parametrize("level", [-100.0, -70.0, 70.0, 100.0, 600.0])
def test_all_logits_far_from_zero(level: float) -> None:
    h, weight, bias, seen = case(6, 9, 2, 40)
    expected = by_torch(h, weight, bias, seen)
    got = log_likelihood(*(x.float() for x in (h, weight, bias + level)), seen, slopes=True)
    same(got, expected, 1e-4)


def test_equals_the_reference() -> None:
    *floats, seen = case(0, 13, 4, 9)
    got = log_likelihood(*floats, seen, slopes=True)
    expected = Likelihood(*[torch.empty_like(x) for x in got])
    shared_categorical._likelihood_reference(*floats, seen, expected)
    same(got, expected, 1e-12)


@pytest.mark.parametrize("most", [1, 300])
def test_the_reference_in_parts(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_categorical, "OTHER_LOGITS", most)
    test_equals_the_reference()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("place", [0, 5, 8])
@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf, -torch.inf, 1e38, -1e38])
def test_a_bad_variable_changes_its_row_only(bad: float, place: int, size: float, dtype: torch.dtype) -> None:
    """For all places in a tile, and for neighbours with small and with large logits."""
    *floats, seen = case(1, 9, 3, 7, size)
    h, weight, bias = (x.to(dtype) for x in floats)
    good = log_likelihood(h, weight, bias, seen, slopes=True)
    h[2, place, 1] = bad * (1e200 if dtype == torch.float64 and abs(bad) == 1e38 else 1)
    got = log_likelihood(h, weight, bias, seen, slopes=True)
    expected = by_torch(h, weight, bias, seen)
    others = torch.arange(len(h)) != 2
    for ours, before, torchs in zip(got, good, expected, strict=True):
        assert torch.equal(ours[others], before[others])
        assert torch.equal(ours[2].isnan(), torchs[2].isnan())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_forbidden_values(dtype: torch.dtype) -> None:
    *floats, seen = case(2, 9, 3, 7)
    h, weight, bias = (x.to(dtype) for x in floats)
    bias[3] = -torch.inf
    seen[seen == 3] = 2
    seen[1, 4] = 3
    got = log_likelihood(h, weight, bias, seen, slopes=True)
    assert got.values.isinf().nonzero().tolist() == [[1]]
    same(got, by_torch(*(x.double() for x in (h, weight, bias)), seen), TOLERANCES[dtype])
    bias[:] = -torch.inf
    assert all(bool(part.isnan().all()) for part in log_likelihood(h, weight, bias, seen, slopes=True))


def test_a_row_does_not_depend_on_others() -> None:
    *floats, seen = case(3, 50, 5, 256, rows=20)
    h, weight, bias = (x.float() for x in floats)
    together = log_likelihood(h, weight, bias, seen, slopes=True)
    assert together.slopes is not None
    assert together.layer_slopes is not None
    for row in range(len(h)):
        alone = log_likelihood(h[row : row + 1], weight, bias, seen[row : row + 1], slopes=True)
        for ours, part in zip(alone, together, strict=True):
            assert torch.equal(ours[0], part[row])


@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("entry", [None, 0, 1])
def test_a_bad_layer(entry: int | None, bad: float) -> None:
    """In the bias, or in a weight. An infinite weight times a probability of zero is NaN to torch, infinite here."""
    h, weight, bias, seen = (x.float() if x.is_floating_point() else x for x in case(5, 9, 2, 7))
    (bias[:] if entry is None else weight[:, entry])[4] = bad
    got = log_likelihood(h, weight, bias, seen, slopes=True)
    expected = by_torch(h, weight, bias, seen)
    assert torch.equal(got.values.isnan(), expected.values.isnan())
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite())


@pytest.mark.parametrize("wrong", [-1, 7])
def test_a_value_out_of_range(wrong: int) -> None:
    h, weight, bias, seen = case(4, 9, 3, 7)
    seen[3, 8] = wrong
    for context in (nullcontext(), FlopCounterMode(display=False)):  # the kernel runs under a dispatch mode, too
        with context, pytest.raises(ConfigurationError, match=rf"Expected values in 0 \.\. 6 but got .*{wrong}"):
            log_likelihood(h, weight, bias, seen, slopes=False)
