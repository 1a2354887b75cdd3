"""Draws that are a function of (seed, index)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_sparse.errors import ConfigurationError
from lit_sparse.random import example_keys, seeded_normal, seeded_uniform


def test_draws_do_not_depend_on_the_batch() -> None:
    index = torch.tensor([5, 0, 123456, 5])
    for draw in (seeded_uniform, seeded_normal):
        all_at_once = draw(3, index, (4, 2))
        assert all_at_once.shape == (4, 4, 2)
        for i in range(4):
            assert torch.equal(draw(3, index[i : i + 1], (4, 2))[0], all_at_once[i])
        assert torch.equal(all_at_once[0], all_at_once[3])
        assert not torch.equal(draw(4, index, (4, 2)), all_at_once)
        assert not torch.equal(draw(3, index, (4, 2), stream=1), all_at_once)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("0", torch.tensor([1])), "`seed`"), ((0, torch.tensor([True])), "index"), ((0, torch.tensor([1.0])), "index")],
)
def test_bad_arguments(arguments: Any, words: str) -> None:
    for draw in (seeded_uniform, seeded_normal):
        with pytest.raises(ConfigurationError, match=words):
            draw(*arguments)
        with pytest.raises(ConfigurationError, match="`stream`"):
            draw(0, torch.tensor([1]), stream="a")  # type: ignore[arg-type]


def test_uniform_moments() -> None:
    x = seeded_uniform(0, torch.arange(2000), (500,)).double()
    assert 0 <= float(x.min()) < 1e-5 < 1 - 1e-5 < float(x.max()) < 1
    standard_error = (1 / 12) ** 0.5 / 1000
    assert abs(float(x.mean()) - 0.5) < 4 * standard_error
    correlations = torch.corrcoef(x[:, :50].T) - torch.eye(50, dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / 2000**0.5


def test_normal_moments() -> None:
    x = seeded_normal(1, torch.arange(2000), (500,)).double()
    assert bool(x.isfinite().all())
    assert abs(float(x.mean())) < 4e-3
    assert abs(float(x.var()) - 1) < 6e-3
    assert abs(float((x**4).mean()) - 3) < 0.05
    assert abs(float((x > 1.96).double().mean()) - 0.025) < 7e-4


@pytest.mark.gate
@pytest.mark.parametrize("draw", [seeded_uniform, seeded_normal, example_keys], ids=lambda draw: draw.__name__)
def test_compiled_draws_are_the_eager_ones(draw: Any) -> None:
    """To the last bit, in machine code, for seeds of any size."""
    index = torch.tensor([5, 0, 123456])
    rest = (2,) if draw is example_keys else ((3, 4),)
    for seed in (0, 1, -3, 2**62 + 5, 2**80 + 1):
        torch._dynamo.reset()
        compiled = torch.compile(lambda index: draw(seed, index, *rest), fullgraph=True)  # noqa: B023
        assert torch.equal(compiled(index), draw(seed, index, *rest))
