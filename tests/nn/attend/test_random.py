"""Sparse attention equals dense attention on many random problems."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.mappings import Entmax, LearnableEntmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.nn import attention

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
#: Scores of a problem, at most: 3,000 keys have 8 queries or more.
SCORES = 24_000


def check(number: int, device: str = "cpu") -> None:
    """Compare outputs, weights and gradients of the problem of a number; the result of the other method is the CPU's."""
    draw, generator = random.Random(number), torch.Generator().manual_seed(number)
    dtype = draw.choice([torch.float32, torch.float64])
    heads, shared = draw.choice([(1, 1), (2, 2), (2, 1), (4, 2)])
    size = int(3000 ** draw.random())
    length = min(int(3000 ** draw.random()), max(1, SCORES // (size * heads)))
    width = draw.choice([1, 4, 16])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    query, key, value = normal(heads, length, width), normal(shared, size, width), normal(shared, size, 3)
    if draw.random() < 0.5:  # products without rounding: ties, and scores as large as one likes
        query, key = ((2 * x).round() for x in (query, key))
        query = query * 2.0 ** draw.choice([-40, -6, -1, 0, 4, 10])
    else:
        query = query * 10 ** draw.uniform(-6, 0 if dtype == torch.float32 else 3)
    options: dict[str, Any] = {"scale": 2.0 ** draw.choice([-4, -1, 0]), "is_causal": draw.random() < 0.25}
    if draw.random() < 0.5:
        shape = draw.choice([(size,), (length, size), (heads, 1, size), (heads, length, size), (length, 1)])
        options["mask"] = torch.rand(shape, generator=generator) < draw.choice([0.02, 0.3, 0.9])
    if draw.random() < 0.25:
        bias = normal(*draw.choice([(length, size), (heads, 1, size), (1, length, size)])).round()
        options["bias"] = bias.masked_fill(torch.rand(bias.shape, generator=generator) < 0.2, -torch.inf)
    if draw.random() < 0.2:
        options["softcap"] = draw.choice([0.5, 2.0])
    mapping = mapping_of(draw, heads, dtype).to(dtype)
    broken = (draw.randrange(heads), draw.randrange(length))
    if draw.random() < 0.1:
        query[broken] = torch.nan
    exact = [x.requires_grad_() for x in (query, key, value)]
    expected, dense = attention(*exact, mapping, method="dense", **options)

    given = [x.detach().to(device).requires_grad_() for x in exact]
    there = copy.deepcopy(mapping).to(device)
    options |= {name: x.to(device) for name, x in options.items() if isinstance(x, Tensor)}
    attended, weights = attention(*given, there, method="sparse", **options)
    output = attended.cpu()
    near: dict[str, Any] = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype], "equal_nan": True}
    torch.testing.assert_close(output, expected, **near)
    finite = expected.isfinite().all(-1)
    assert int((~finite).sum()) <= 1
    finite[broken] = True
    assert bool(finite.all())
    attended_to = weights.to_dense().nan_to_num().cpu()
    torch.testing.assert_close(attended_to, dense.nan_to_num(), **near)
    if bool(expected.isfinite().all()):
        slope = normal(*output.shape)
        if device != "cpu":  # where a score at the threshold may fall on either side, and the derivatives differ
            alike = ((attended_to != 0) == (dense != 0)).all(-1)
            assert float(alike.double().mean()) > 0.9
            slope *= alike.unsqueeze(-1)
        ours = torch.autograd.grad(attended, [*given, *there.parameters()], slope.to(device))
        theirs = torch.autograd.grad(expected, [*exact, *mapping.parameters()], slope)
        for one, other in zip(ours, theirs, strict=True):
            largest = max(1.0, float(other.abs().amax()))
            far = 10 * TOLERANCE[dtype]
            torch.testing.assert_close(one.cpu() / largest, other / largest, rtol=far, atol=far)


def mapping_of(draw: random.Random, heads: int, dtype: torch.dtype) -> SparseMapping:
    """Draw a mapping; derivatives of steep ones, with alpha above 2, need float64."""
    gamma = draw.choice([0.25, 1.0, 2.0])
    return draw.choice(
        [
            Sparsemax(gamma=gamma),
            TopKSparsemax(draw.choice([1, 3, 100]), gamma=gamma),
            Entmax(1.5, gamma=gamma),
            Entmax(draw.choice([1.25, 1.75, 2.5 if dtype == torch.float64 else 2.0]), gamma=gamma),
            LearnableEntmax((heads, 1, 1), gamma=gamma),
        ]
    )


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_problems(first: int) -> None:
    for number in range(first, first + 50):
        check(number)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_problems() -> None:
    for number in range(300, 20_000):
        check(number)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_random_problems_on_each_gpu() -> None:
    for index in range(torch.cuda.device_count()):
        for number in range(100):
            check(number, f"cuda:{index}")
