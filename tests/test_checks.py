"""Arguments that are numbers, in Python, numpy and torch, and those that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.checks import (
    check_count,
    check_integer,
    check_number,
    check_parameter,
    check_positive,
    check_shape,
    check_widths,
)
from lit_sparse.data import RadialBases
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import functional as F
from lit_sparse.metrics import hoyer_sparseness
from lit_sparse.nn import RecurrentBody, TransformerBody


@pytest.mark.parametrize(
    "three", [np.int64(3), np.uint8(3), np.array(3)[()], torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
)
def test_integers_of_numpy_and_torch_are_taken(three: Any) -> None:
    for found in (check_count("k", three), check_integer("k", three), check_shape("shape", (three,))[0]):
        assert type(found) is int
        assert found == 3
    x = torch.tensor([0.3, 0.1, 0.2, -4.0])
    torch.testing.assert_close(F.topk_sparsemax(x, three), F.topk_sparsemax(x, 3))


@pytest.mark.parametrize(
    "half", [np.float32(0.5), np.float16(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor(0.5).half()]
)
def test_numbers_of_numpy_and_torch_are_taken(half: Any) -> None:
    for found in (check_positive("gamma", half), check_number("rho", half, 0.0, 1.0)):
        assert type(found) is float
        assert found == 0.5
    x = torch.tensor([0.3, 0.1, -4.0])
    torch.testing.assert_close(F.sparsemax(x, gamma=half), F.sparsemax(x, gamma=0.5))


@pytest.mark.parametrize(
    "bad",
    [
        np.bool_(True),
        np.float64("nan"),
        np.array([3]),
        torch.tensor(True),
        torch.tensor([3]),
        torch.tensor(math.nan),
        np.complex64(3),
    ],
)
def test_other_things_of_numpy_and_torch_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="`k`"):
        check_count("k", bad)
    with pytest.raises(ConfigurationError, match="`gamma`"):
        check_positive("gamma", bad)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize(
    "check", [check_count, check_integer, check_positive, partial(check_number, low=-math.inf, high=math.inf)]
)
def test_an_integer_beyond_all_floats_is_refused(check: Callable[..., object], digits: int) -> None:
    bad = 10**digits
    with pytest.raises(ConfigurationError, match=f"`k` .* but got one of {bad.bit_length()} bits"):
        check("k", bad)


def test_a_number_that_would_lose_its_gradient_or_has_no_value_is_refused() -> None:
    for tensor in (torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, device="meta")):
        with pytest.raises(ConfigurationError, match="`gamma`"):
            check_positive("gamma", tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [F.entmax, F.fusedmax])
def test_a_tensor_below_the_range_is_refused_where_it_can_be_read(function: Any) -> None:
    x = torch.zeros(2, 3)
    below = torch.tensor([[1.5], [-0.1]])
    with pytest.raises(ConfigurationError, match=r"Expected every `\w+` to be (at least|above) .* but got \[-0\.1"):
        function(x, below)
    y = torch.func.vmap(function)(x, below)
    assert bool(y[0].isfinite().all())
    assert bool(y[1].isnan().all())
    assert check_parameter("alpha", below.to("meta"), 1.0, 2.0) is not None


def test_vectors_have_the_dimension_that_is_asked_for() -> None:
    x = torch.rand(2, 3)
    torch.testing.assert_close(hoyer_sparseness(x, np.int64(1)), hoyer_sparseness(x))  # type: ignore[arg-type]
    for dim in (2, (0, -3)):
        with pytest.raises(ConfigurationError, match="2 dimensions of the vectors"):
            hoyer_sparseness(x, dim)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda many: TransformerBody(16, layers=many), "layers"),
        (lambda many: RecurrentBody(16, layers=many), "layers"),
        (lambda many: TransformerBody(16, heads=many), "heads"),
        (lambda many: RadialBases(per_scale=many), "per_scale"),
    ],
)
def test_a_billion_parts_are_refused(build: Callable[[int], object], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}` to be an integer of at most"):
        build(10**9)


@pytest.mark.parametrize("bad", [None, 3, "64", [64, 0]])
def test_widths_are_a_list_of_integers(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="`hidden`"):
        check_widths("hidden", bad)
