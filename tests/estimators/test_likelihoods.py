"""Estimated likelihoods against the sum over all latent values."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import LatentBatch, MarginalLikelihood, marginal_likelihood

BITS, EXAMPLES = 8, 40
ALL = torch.tensor(list(itertools.product((0.0, 1.0), repeat=BITS)))
CODES = 2.0 ** torch.arange(BITS - 1, -1, -1)


class Table:
    """A model whose log-likelihoods (B, 2^D) are given."""

    def __init__(self, spread: float) -> None:
        generator = torch.Generator().manual_seed(3)
        self.logs = spread * torch.randn(EXAMPLES, 2**BITS, generator=generator, dtype=torch.float64) - 2000
        self.exact = self.logs.logsumexp(-1) - BITS * math.log(2)
        self.rows = 0

    def __call__(self, latent: LatentBatch) -> Tensor:
        self.rows += len(latent.example_index)
        return -self.logs[latent.example_index, (latent.values @ CODES).long()]

    def best(self, size: int) -> LatentBatch:
        """The values of largest likelihood, for each example."""
        chosen = self.logs.topk(size).indices if size else torch.zeros(EXAMPLES, 0, dtype=torch.int64)
        return LatentBatch(ALL[chosen].reshape(-1, BITS), torch.arange(EXAMPLES).repeat_interleave(size))


def estimate(table: Table, size: int, **options: int) -> MarginalLikelihood:
    return marginal_likelihood(table, table.best(size), torch.arange(EXAMPLES), **options)


@pytest.mark.cases(quick=4)
@pytest.mark.parametrize("spread", [0.3, 1.5])
@pytest.mark.parametrize("size", [0, 1, 10, 100, 250])
def test_agrees_with_the_exact_sum(size: int, spread: float) -> None:
    """Within three standard errors, which three of a thousand estimates miss, and the errors are no larger than needed."""
    table = Table(spread)
    found = estimate(table, size)
    off = (found.log_likelihood - table.exact) / found.standard_error
    assert int((off.abs() > 3).sum()) <= 1
    assert 0.6 < float(off.square().mean().sqrt()) < 1.4
    assert abs(float(off.mean())) < 4 / EXAMPLES**0.5
    if size == 0:  # plain importance sampling; the error is the one that all values give
        weights = (table.logs - table.logs.amax(-1, keepdim=True)).exp()
        expected = weights.std(-1) / weights.mean(-1) / 1024**0.5
        torch.testing.assert_close(found.standard_error, expected, rtol=0.5, atol=0)


def test_a_mean_over_many_examples_is_corrected_for_the_logarithm() -> None:
    """Single errors cancel in it, the bias of the logarithm does not."""
    count, spread = 4000, 2.0
    table = Table(spread)
    table.logs = spread * torch.randn(count, 2**BITS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    exact = table.logs.logsumexp(-1) - BITS * math.log(2)
    nothing = LatentBatch(torch.zeros(0, BITS), torch.zeros(0).long())
    found = marginal_likelihood(table, nothing, torch.arange(count), samples=256)
    error = found.standard_error.square().sum().sqrt() / count
    assert float((found.log_likelihood - exact).mean()) < -4 * float(error)
    assert abs(float((found.corrected - exact).mean())) < 3 * float(error)


def test_all_values_in_the_support_are_exact() -> None:
    table = Table(1.5)
    found = estimate(table, 2**BITS)
    torch.testing.assert_close(found.log_likelihood, table.exact)
    assert not found.standard_error.any()
    assert table.rows == EXAMPLES * 2**BITS, "nothing is drawn"


def test_without_rejection_the_support_would_count_twice() -> None:
    """Ten values hold most of the likelihood: counted again among the draws, they would be seen."""
    table = Table(3.0)
    found = estimate(table, 10)
    assert bool(((found.log_likelihood - table.exact).abs() <= 3 * found.standard_error).all())
    inside = torch.logsumexp(table.logs.topk(10).values, -1) - BITS * math.log(2)
    rejecting_nothing = torch.logaddexp(inside, math.log1p(-10 / 2**BITS) + table.exact)
    assert bool((rejecting_nothing - table.exact > 5 * found.standard_error).all())


def test_supports_of_different_sizes() -> None:
    table = Table(1.0)
    parts = [table.best(size) for size in (0, 3, 256, 20)]
    sizes = torch.arange(EXAMPLES) % 4
    kept = [(part.example_index[:, None] == (sizes == i).nonzero()[:, 0]).any(-1) for i, part in enumerate(parts)]
    values = torch.cat([part.values[keep] for part, keep in zip(parts, kept, strict=True)])
    rows, order = torch.cat([part.example_index[keep] for part, keep in zip(parts, kept, strict=True)]).sort(stable=True)
    found = marginal_likelihood(table, LatentBatch(values[order], rows), torch.arange(EXAMPLES))
    for i, size in enumerate((0, 3, 256, 20)):
        alone = estimate(table, size)
        torch.testing.assert_close(found.log_likelihood[sizes == i], alone.log_likelihood[sizes == i])
        torch.testing.assert_close(found.standard_error[sizes == i], alone.standard_error[sizes == i])


def test_draws_depend_on_index_and_seed_alone() -> None:
    table = Table(1.0)
    whole = estimate(table, 5, samples=64)
    for rows_at_once in (1, 50, 64, 200):
        again = estimate(table, 5, samples=64, rows_at_once=rows_at_once)
        torch.testing.assert_close(again.log_likelihood, whole.log_likelihood, rtol=1e-12, atol=0)
    support = table.best(5)
    table.logs = table.logs[7:9]
    part = marginal_likelihood(
        table, LatentBatch(support.values[35:45], support.example_index[35:45] - 7), torch.tensor([7, 8]), samples=64
    )
    torch.testing.assert_close(part.log_likelihood, whole.log_likelihood[7:9], rtol=1e-12, atol=0)
    alike = Table(1.0)
    alike.logs = alike.logs[:1].expand(EXAMPLES, -1)
    assert len(estimate(alike, 5, samples=64).log_likelihood.unique()) == EXAMPLES, "each example has draws of its own"
    other = estimate(Table(1.0), 5, samples=64, seed=1)
    assert bool((other.log_likelihood != whole.log_likelihood).all())


def test_likelihoods_of_zero() -> None:
    """If no draw explains the data, only the support counts."""
    table = Table(1.0)
    support = table.best(4)
    inside = torch.full_like(table.logs, -torch.inf).scatter(1, table.logs.topk(4).indices, table.logs.topk(4).values)
    table.logs = inside
    found = marginal_likelihood(table, support, torch.arange(EXAMPLES))
    torch.testing.assert_close(found.log_likelihood, inside.logsumexp(-1) - BITS * math.log(2))
    assert not found.standard_error.any()
    assert torch.equal(found.corrected, found.log_likelihood)
    table.logs = torch.full_like(table.logs, -torch.inf)
    nothing = marginal_likelihood(table, support, torch.arange(EXAMPLES))
    assert bool((nothing.corrected == -torch.inf).all())


def test_no_examples_and_many_bits() -> None:
    empty = marginal_likelihood(Table(1.0), LatentBatch(torch.zeros(0, BITS), torch.zeros(0).long()), torch.zeros(0).long())
    assert empty.log_likelihood.shape == empty.standard_error.shape == (0,)
    values = torch.zeros(1, 500)
    found = marginal_likelihood(lambda latent: latent.values.sum(-1), LatentBatch(values, torch.tensor([0])), torch.tensor([3]))
    assert bool(found.log_likelihood.isfinite())


def test_one_draw_has_no_error() -> None:
    with pytest.raises(ConfigurationError, match="`samples` to be at least 2"):
        estimate(Table(1.0), 1, samples=1)


def _posterior(seed: int) -> Tensor:
    """Logits of bits, far from even."""
    return 2 * torch.randn(EXAMPLES, BITS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Shaped(Table):
    """A model whose posterior has nearly independent bits."""

    def __init__(self, logits: Tensor, spread: float) -> None:
        super().__init__(spread)
        chances = torch.where(ALL > 0, logits.sigmoid().unsqueeze(1), (-logits).sigmoid().unsqueeze(1)).log().sum(-1)
        self.logs = self.logs + chances
        self.exact = self.logs.logsumexp(-1) - BITS * math.log(2)


@pytest.mark.parametrize("size", [0, 1, 10, 256])
def test_draws_from_a_posterior_agree_with_the_exact_sum(size: int) -> None:
    logits = _posterior(5)
    table = Shaped(logits, 0.5)
    found = marginal_likelihood(table, table.best(size), torch.arange(EXAMPLES), posterior=logits)
    if size == 256:
        torch.testing.assert_close(found.log_likelihood, table.exact)
        return
    off = (found.log_likelihood - table.exact) / found.standard_error
    assert int((off.abs() > 3).sum()) <= 1
    assert 0.6 < float(off.square().mean().sqrt()) < 1.4
    from_prior = marginal_likelihood(table, table.best(size), torch.arange(EXAMPLES))
    assert float(found.standard_error.mean()) < 0.7 * float(from_prior.standard_error.mean()), "draws there say more"


def test_forbidden_bits_of_a_posterior_are_never_drawn_and_weigh_nothing() -> None:
    """The posterior must reach all that matters: what it forbids is left out, and no NaN comes of it."""
    logits = _posterior(6)
    logits[:, 0] = -torch.inf
    table = Shaped(_posterior(6), 0.5)
    found = marginal_likelihood(table, table.best(0), torch.arange(EXAMPLES), posterior=logits)
    allowed = table.logs[:, :128].logsumexp(-1) - BITS * math.log(2)
    assert bool(((found.log_likelihood - allowed).abs() <= 4 * found.standard_error).all())


@pytest.mark.parametrize("values", [[[0.0, 1.0], [0.0, 1.0]], [[0.0, 0.5]]])
def test_a_support_holds_each_vector_of_bits_once(values: list[list[float]]) -> None:
    support = LatentBatch(torch.tensor(values), torch.zeros(len(values), dtype=torch.int64))
    with pytest.raises(ConfigurationError, match="vectors of 0 and 1, each once per example"):
        marginal_likelihood(lambda latent: latent.values.sum(-1), support, torch.tensor([0]))
