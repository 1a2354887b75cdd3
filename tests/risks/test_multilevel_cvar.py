"""The expectation of the multilevel estimate, by enumeration of all batches and levels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.risks import CVaR, MultilevelCVaR

POPULATION = torch.tensor([0.3, 2.0, -1.0, 0.9], dtype=torch.float64)


def at_level(monkeypatch: pytest.MonkeyPatch, uniform: float) -> None:
    """Fix the random number that decides the level."""
    monkeypatch.setattr(torch, "rand", lambda *_: torch.tensor(uniform))


def estimates(
    risk: MultilevelCVaR, batch: Tensor, weights: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """Return the expectation of value and gradient over the levels 0, 1, 2 of a batch of four."""
    value, slope = torch.zeros(()).double(), torch.zeros_like(batch)
    for uniform, probability in ((0.25, 0.5), (0.6, 0.25), (0.9, 0.25)):
        with monkeypatch.context() as patch:
            at_level(patch, uniform)
            leaf = batch.clone().requires_grad_()
            found = risk(leaf, weights)
        value += probability * found.detach()
        slope += probability * torch.autograd.grad(found, leaf)[0]
    return value, slope


def worst_weights(losses: Tensor, weights: Tensor, level: float) -> Tensor:
    """Return the q that maximizes the mean loss, where each q is at most its share of the weights over the level."""
    bounds = [(0.0, float(share) / level) for share in weights / weights.sum()]
    return torch.from_numpy(linprog(-losses.numpy(), A_eq=np.ones((1, len(losses))), b_eq=[1.0], bounds=bounds).x)


@pytest.mark.parametrize("level", [0.1, 0.4, 0.5, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_over_all_orders_it_is_the_linear_program_of_the_population(
    level: float, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the batch is all of the data, value and gradient are exact."""
    risk = MultilevelCVaR(level, smallest=1)
    weights = torch.tensor([0.5, 2.0, 1.5, 0.5], dtype=torch.float64) if weighted else None
    given = torch.ones_like(POPULATION) if weights is None else weights
    slope = worst_weights(POPULATION, given, level) * given.mean()
    orders = [torch.tensor(order) for order in itertools.permutations(range(4))]
    mean, mean_slope = torch.zeros(()).double(), torch.zeros(4).double()
    for order in orders:
        value, part = estimates(risk, POPULATION[order], None if weights is None else weights[order], monkeypatch)
        mean += value / len(orders)
        mean_slope[order] += part / len(orders)
    torch.testing.assert_close(mean, slope @ POPULATION, atol=1e-9, rtol=0)
    torch.testing.assert_close(mean_slope, slope, atol=1e-9, rtol=0)


@pytest.mark.parametrize("smallest", [1, 2])
def test_over_all_batches_it_has_the_bias_of_the_largest(smallest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all 4^4 batches of independent draws: the mean of CVaR of four examples, which is below the population's."""
    risk, found, largest = MultilevelCVaR(0.4, smallest=smallest), [], []
    probabilities = ((0.25, 0.5), (0.6, 0.25), (0.9, 0.25)) if smallest == 1 else ((0.25, 0.5), (0.9, 0.5))
    for draw in itertools.product(range(4), repeat=4):
        batch = POPULATION[torch.tensor(draw)]
        largest.append(float(CVaR(0.4)(batch)))
        for uniform, probability in probabilities:
            with monkeypatch.context() as patch:
                at_level(patch, uniform)
                found.append(probability * float(risk(batch)))
    assert sum(found) == pytest.approx(sum(largest), abs=1e-10)
    assert sum(largest) / 256 < float(CVaR(0.4)(POPULATION)) - 0.05


def test_levels_are_halved_in_probability_and_capped() -> None:
    torch.manual_seed(0)
    risk = MultilevelCVaR(0.5, smallest=16)
    sizes = []
    for _ in range(4000):
        rows = risk.draw_rows(200)
        assert rows is not None
        sizes.append(len(rows))
    counts = [sizes.count(size) / 4000 for size in (16, 32, 64, 128)]
    assert sum(counts) == 1
    assert counts == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.03)
    assert sum(sizes) / 4000 == pytest.approx(16 * (1 + 3 / 2), rel=0.06)
    few = risk.draw_rows(5)
    assert few is not None and sorted(few.tolist()) == [0, 1, 2, 3, 4]


def test_rows_that_were_drawn_are_all_used_once() -> None:
    """The level is not drawn again for them."""
    torch.manual_seed(1)
    risk = MultilevelCVaR(0.5, smallest=2)
    for _ in range(20):
        rows = risk.draw_rows(64)
        assert rows is not None
        losses = torch.randn(len(rows), dtype=torch.float64).requires_grad_()
        state = torch.get_rng_state()
        risk(losses)
        assert torch.equal(torch.get_rng_state(), state)
    risk(torch.randn(64))
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.gate
def test_the_variance_is_larger() -> None:
    """Than for CVaR of a batch of the largest size, whose expectation it has, and of the average size, which is biased."""
    generator = torch.Generator().manual_seed(2)
    torch.manual_seed(2)
    population = torch.randn(100_000, generator=generator, dtype=torch.float64).exp()
    risk, cvar = MultilevelCVaR(0.1, smallest=8), CVaR(0.1)
    batches = population[torch.randint(len(population), (6000, 256), generator=generator)]
    several = torch.stack([risk(batch) for batch in batches])
    whole, small = (torch.stack([cvar(batch[:size]) for batch in batches]) for size in (256, 28))
    error = float(several.std()) / 6000**0.5
    assert abs(float(several.mean() - whole.mean())) < 4 * error
    assert float(small.mean()) < float(whole.mean()) - 4 * error
    assert float(several.var()) > 2 * float(small.var()) > 4 * float(whole.var())


def test_evaluation_is_cvar_and_arguments_are_checked() -> None:
    losses = torch.rand(100)
    torch.testing.assert_close(MultilevelCVaR(0.2, smallest=4).eval()(losses), CVaR(0.2)(losses))
    for options in ({"level": 0.0}, {"level": 0.5, "smallest": 0}):
        with pytest.raises(ConfigurationError, match=r"`(level|smallest)`"):
            MultilevelCVaR(**options)  # type: ignore[arg-type]
