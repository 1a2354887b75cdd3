"""Samplers: what is theirs alone, beyond the tests that all estimators share."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import (
    GumbelSoftmax,
    LatentBatch,
    LeaveOneOut,
    Sampler,
    ScoreFunction,
    SumAndSample,
)
from lit_sparse.estimators.latents import Bits, Categories
from lit_sparse.estimators.sampling import RunningMean
from lit_sparse.mappings import HoyerProjection, Softmax, Sparsemax
from lit_sparse.testing import concrete_subclasses
from tests.support.processes import run_processes


def first(latent: LatentBatch) -> Tensor:
    return latent.values[:, 0] + 1.0


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_what_is_drawn_has_its_frequency() -> None:
    probs = torch.tensor([0.0, 0.1, 0.0, 0.2, 0.7, 0.0])
    drawn = Categories(probs.repeat(1, 1)).sample(100_000)[0].mean(0)
    torch.testing.assert_close(drawn, probs, atol=0.006, rtol=0)
    assert bool((drawn[probs == 0] == 0).all())
    scores = torch.tensor([[-torch.inf, 0.0, 2.0]])
    torch.testing.assert_close(Bits(scores).sample(100_000)[0].mean(0), scores.sigmoid()[0], atol=0.006, rtol=0)


@pytest.mark.parametrize("sure", [False, True])
def test_what_is_drawn_outside_the_best(sure: bool) -> None:
    """None of them, in proportion to its probability, even where next to nothing is left."""
    count, given = 50_000, 3
    scores = torch.tensor([9.0, -8.0, 10.0, 7.0] if sure else [0.5, -0.3, 1.0, 0.2])
    bits = Bits(scores.expand(count, -1))
    best, there = bits.best(given)
    drawn, share = bits.outside(best, there)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    probs = Bits(scores.double().expand(1, -1)).log_prob(every.double().unsqueeze(0))[0].exp()
    rest = probs.clone()
    rest[(every.unsqueeze(1) == best[0]).all(-1).any(-1)] = 0.0
    torch.testing.assert_close(share[:1].double(), rest.sum().reshape(1), rtol=1e-4, atol=0)
    frequency = (drawn == every).all(-1).float().mean(0)
    torch.testing.assert_close(frequency.double(), rest / rest.sum(), atol=0.012, rtol=0)
    assert bool((frequency[rest == 0] == 0).all())


def test_k_beyond_the_number_of_values_means_all_of_them() -> None:
    scores = torch.randn(5, 4, dtype=torch.float64)
    for estimator, calls in (
        (SumAndSample(100, mapping=Softmax()), [4] * 5),
        (SumAndSample(100, "bits"), [16] * 5),
        (SumAndSample(100, mapping=Sparsemax()), (Sparsemax()(scores) > 0).sum(-1).tolist()),
    ):
        assert estimator(scores, first).decoder_calls.tolist() == calls


def test_sparse_distributions_need_no_draw() -> None:
    """If the k most probable values are all values, nothing is drawn."""
    out = SumAndSample(2, mapping=Sparsemax())(torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.9, 0.0], [0.0, 0.0, 0.0]]), first)
    assert out.decoder_calls.tolist() == [1, 2, 3]


def test_straight_through_decodes_values_and_the_relaxed_do_not() -> None:
    for latent in ("categorical", "bits"):
        for straight in (False, True):
            seen: list[Tensor] = []
            estimator = GumbelSoftmax(0.7, straight, latent)  # type: ignore[arg-type]
            scores = torch.randn(50, 4, requires_grad=True)
            if latent == "categorical":
                estimator.bind(Softmax())
            out = estimator(scores, lambda batch, seen=seen: seen.append(batch.values) or first(batch))
            whole = bool(((seen[0] == 0) | (seen[0] == 1)).all())
            assert whole == straight
            if latent == "categorical":
                torch.testing.assert_close(seen[0].sum(-1), torch.ones(50))
            (gradient,) = torch.autograd.grad(out.loss.sum(), scores)
            assert float(gradient.abs().max()) > 0


UNBIASED = [one for cls in concrete_subclasses(Sampler) if cls.unbiased for one in cls.examples()]


@pytest.mark.parametrize("estimator", UNBIASED, ids=repr)
def test_mean_gradient_of_twenty_thousand_draws(estimator: Sampler) -> None:
    """Within four standard errors of the exact one, of six categories and of four bits."""
    estimator, size = copy.deepcopy(estimator), 4 if estimator.latent == "bits" else 6
    generator = torch.Generator().manual_seed(5)
    one = torch.randn(1, size, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(size, generator=generator, dtype=torch.float64)
    if estimator.latent == "bits":
        every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64)
        probs = torch.where(every > 0, one.sigmoid(), (-one).sigmoid()).prod(-1)
    else:
        every, probs = torch.eye(6, dtype=torch.float64), one.softmax(-1)[0]
        estimator = copy.deepcopy(estimator).bind(Softmax())
    (exact,) = torch.autograd.grad((probs * ((every @ weight).square() + 2)).sum(), one)
    torch.manual_seed(1)
    scores = one.detach().expand(20_000, -1).clone().requires_grad_()
    context = torch.zeros(20_000, 3)
    out = estimator.train()(scores, lambda batch: (batch.values @ weight).square() + 2, context=context)
    (gradient,) = torch.autograd.grad(out.loss.sum(), scores)
    error = gradient.std(0) / 20_000**0.5
    assert bool(((gradient.mean(0) - exact[0]).abs() <= 4 * error + 1e-12).all())


def test_gumbel_comes_nearer_as_it_gets_colder() -> None:
    count = 20_000
    for latent in ("categorical", "bits"):
        one = torch.randn(1, 4, dtype=torch.float64).requires_grad_()
        weight = torch.randn(4, dtype=torch.float64)

        def loss(values: Tensor, weight: Tensor = weight) -> Tensor:
            return (values @ weight).square()

        if latent == "bits":
            every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64)
            probs = torch.where(every > 0, one.sigmoid(), (-one).sigmoid()).prod(-1)
        else:
            every, probs = torch.eye(4, dtype=torch.float64), one.softmax(-1)[0]
        (exact,) = torch.autograd.grad((probs * loss(every)).sum(), one)
        off = []
        for temperature in (1.0, 0.1):
            estimator = GumbelSoftmax(temperature, latent=latent)  # type: ignore[arg-type]
            if latent == "categorical":
                estimator.bind(Softmax())
            scores = one.detach().expand(count, -1).clone().requires_grad_()
            (gradient,) = torch.autograd.grad(estimator(scores, lambda batch: loss(batch.values)).loss.sum(), scores)
            off.append(float((gradient.mean(0) - exact[0]).norm()))
        assert off[1] < 0.5 * off[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_draw_by_the_same_chances(dtype: torch.dtype) -> None:
    """Noise in a half type has too few steps: unlikely values would come too often, or never."""
    scores = torch.full((40_000, 64), 0.0, dtype=dtype)
    scores[:, 7] = 5.0
    expected = float(scores[0].float().softmax(-1)[7])
    for estimator in (ScoreFunction(mapping=Softmax()), GumbelSoftmax(straight_through=True, mapping=Softmax())):
        seen: list[Tensor] = []
        estimator(scores, lambda batch, seen=seen: seen.append(batch.values) or first(batch))
        assert seen[0].dtype == dtype, "values are of the type of the scores"
        drawn = seen[0].float().mean(0)
        assert abs(float(drawn[7]) - expected) < 0.015
        others = torch.cat([drawn[:7], drawn[8:]])
        assert float(others.max() / others.min()) < 1.9, "none of those alike is preferred"
    bits = torch.tensor([[-6.9, 6.9]], dtype=dtype).expand(400_000, -1)
    drawn = Bits(bits).sample(1)[:, 0].float().mean(0)
    assert 0.0006 < float(drawn[0]) < 0.0014
    assert 0.0006 < 1 - float(drawn[1]) < 0.0014
    entropy = ScoreFunction(latent="bits")(bits[:1], first).entropy()
    torch.testing.assert_close(entropy, Bits(bits[:1].float()).entropy())


def test_a_mean_keeps_its_digits_in_a_half_model() -> None:
    mean = RunningMean().half()
    for _ in range(2000):
        mean.update(torch.full((64,), 145.0))
    assert (float(mean.value), float(mean.count)) == (145.0, 128_000.0)


def test_losses_need_not_be_floating() -> None:
    """A count of mistakes, or whether there is one."""
    scores = torch.randn(50, 3, requires_grad=True)
    for estimator in UNBIASED:
        if estimator.latent == "bits":
            continue
        ready = copy.deepcopy(estimator).bind(Softmax())
        for loss in (lambda batch: batch.values.argmax(-1) == 1, lambda batch: batch.values.argmax(-1)):
            out = ready(scores, loss, context=torch.zeros(50, 3))
            assert out.loss.is_floating_point()
            torch.autograd.grad(out.loss.sum(), scores)


@pytest.mark.parametrize("estimator", UNBIASED, ids=repr)
def test_baselines_take_away_what_all_losses_share(estimator: Sampler) -> None:
    """A large constant in the loss adds next to nothing to the variance of the gradient, once the baseline has seen it."""
    scores = torch.randn(1, 5, dtype=torch.float64).expand(4000, -1).clone().requires_grad_()
    context = torch.zeros(4000, 3)

    def spread(constant: float) -> float:
        ready = copy.deepcopy(estimator).train()
        if ready.latent == "categorical":
            ready.bind(Softmax())
        for _ in range(2):
            out = ready(scores, lambda batch: first(batch) + constant, context=context)
        (gradient,) = torch.autograd.grad(out.loss.sum(), scores)
        return float(gradient.std(0).norm())

    assert spread(1000.0) < 20 * spread(0.0) + 1e-6, "without a baseline it would be a thousand times as large"


def test_a_learnt_baseline_learns_and_leaves_all_else_alone() -> None:
    estimator = ScoreFunction("learnt", context_features=2, mapping=Softmax())
    network = estimator.network
    assert network is not None
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    weight = torch.tensor(1.0, requires_grad=True)
    context = torch.rand(256, 2, requires_grad=True)
    errors = []
    for _ in range(150):
        scores = torch.zeros(256, 3, requires_grad=True)
        target = 5 * context[:, 0] - context[:, 1]
        out = estimator(scores, lambda batch, target=target: weight * target[batch.example_index].detach(), context=context)
        torch.testing.assert_close(out.loss, target, msg="its squared error is no part of the loss")
        optimizer.zero_grad()
        for leaf in (weight, context):
            leaf.grad = None
        out.loss.mean().backward()
        assert context.grad is None
        torch.testing.assert_close(weight.grad, target.mean().detach())
        optimizer.step()
        with torch.no_grad():
            guess = estimator.mean.value + network(context).squeeze(-1)  # type: ignore[union-attr]
            errors.append(float((guess - target).square().mean()))
    assert errors[-1] < 0.05 * errors[0]


@pytest.mark.parametrize("baseline", ["mean", "learnt"])
def test_baselines_see_what_was_decoded(baseline: Literal["mean", "learnt"]) -> None:
    """Rows with nothing allowed have no loss to learn from, broken ones none worth it."""
    estimator = ScoreFunction(baseline, mapping=Softmax(), context_features=2)
    scores, context = torch.zeros(5, 3), torch.ones(5, 2)
    scores[1], scores[3] = -torch.inf, torch.nan
    out = estimator(scores.requires_grad_(), lambda latent: 4.0 + latent.example_index, context=context)
    assert float(estimator.mean.count) == 3  # type: ignore[union-attr]
    assert float(estimator.mean.value) == pytest.approx((4 + 6 + 8) / 3)  # type: ignore[union-attr]
    if baseline == "learnt":
        network = list(estimator.network.parameters())  # type: ignore[union-attr]
        got = torch.autograd.grad(out.loss[[1, 3]].sum(), network, retain_graph=True, allow_unused=True)
        assert all(gradient is None or not bool(gradient.any()) for gradient in got)


def test_evaluation_may_draw() -> None:
    scores = torch.zeros(200, 3)
    estimator = ScoreFunction(mapping=Softmax(), evaluation="sample").eval()
    assert len(estimator(scores, first).loss.unique()) == 2
    before = dict(estimator.state_dict())
    estimator(scores, first)
    assert all(torch.equal(before[name], value) for name, value in estimator.state_dict().items()), "nothing is learnt there"


def test_entropies() -> None:
    scores = torch.tensor([[0.3, -1.0, 2.0], [-torch.inf, 0.0, 40.0]], dtype=torch.float64, requires_grad=True)
    out = ScoreFunction(latent="bits")(scores, first)
    expected = torch.distributions.Bernoulli(logits=scores.detach().clamp_min(-800)).entropy().sum(-1)
    torch.testing.assert_close(out.entropy().detach(), expected)
    (gradient,) = torch.autograd.grad(out.entropy().sum(), scores)
    assert bool(gradient.isfinite().all())
    assert out.support_size is None
    out = LeaveOneOut(2, mapping=Softmax())(scores, first)
    torch.testing.assert_close(out.entropy().detach()[0], torch.distributions.Categorical(logits=scores[0].detach()).entropy())
    assert out.support_size is not None and out.support_size.tolist() == [3, 2]


def test_running_mean_leaves_out_what_is_not_finite() -> None:
    mean = RunningMean()
    mean.update(torch.tensor([1.0, torch.nan, 3.0, torch.inf]))
    mean.update(torch.zeros(0))
    mean.update(torch.tensor([8.0]))
    assert (float(mean.value), float(mean.count)) == (4.0, 3.0)


def _process(rank: int, world: int, store: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.save(_baselines(rank, world), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def _baselines(rank: int, world: int) -> dict[str, Tensor]:
    """The state after three batches, each process having its part of them; losses do not depend on what is drawn."""
    estimator = ScoreFunction(mapping=Softmax())
    numbers = torch.arange(30.0).reshape(3, 10)
    for batch in numbers:
        mine = batch[rank::world] if rank < 1 or batch[0] > 0 else batch[:0]
        mine = batch if world == 1 else mine
        estimator(torch.zeros(len(mine), 4), lambda latent, mine=mine: mine[latent.example_index])
    return {name: value.clone() for name, value in estimator.state_dict().items()}


@pytest.mark.gate
def test_baselines_agree_between_one_and_two_processes(tmp_path: Path) -> None:
    run_processes(_process, (2, str(tmp_path / "store"), str(tmp_path)), 2)
    first_rank, second_rank = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    numbers = torch.arange(30.0).reshape(3, 10)
    kept = torch.cat([numbers[0, 0::2], numbers[1], numbers[2]])
    for state in (first_rank, second_rank):
        assert float(state["mean.value"]) == pytest.approx(float(kept.mean()))
        assert float(state["mean.count"]) == 25


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScoreFunction("median"), "'self_critic'"),  # type: ignore[arg-type]
        (lambda: ScoreFunction(latent="words"), "'bits'"),  # type: ignore[arg-type]
        (lambda: ScoreFunction(evaluation="never"), "'sample'"),  # type: ignore[arg-type]
        (lambda: ScoreFunction("learnt", context_features=0), "`context_features`"),
        (lambda: ScoreFunction("learnt", context_features=3).set_context_features(4), "3 features"),
        (lambda: LeaveOneOut(1), "`k` to be an integer of at least 2"),
        (lambda: SumAndSample(0), "`k`"),
        (lambda: GumbelSoftmax(0.0), "`temperature`"),
        (lambda: ScoreFunction(mapping=HoyerProjection(0.5)), "needs a mapping onto the simplex"),
        (lambda: ScoreFunction(latent="bits", mapping=Softmax()), "takes no mapping"),
        (lambda: ScoreFunction("learnt", mapping=Softmax())(torch.zeros(2, 3), first), "`context`"),
        (lambda: ScoreFunction("learnt", context_features=2, mapping=Softmax())(torch.zeros(2, 3), first), "`context`"),
        (
            lambda: ScoreFunction("learnt", context_features=2, mapping=Softmax())(
                torch.zeros(2, 3), first, context=torch.zeros(2, 5)
            ),
            r"shape \(2, 2\)",
        ),
    ],
)
def test_bad_arguments_are_explained(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_a_sampler_warns_once_of_a_mapping_whose_zeros_it_never_draws() -> None:
    scores = torch.randn(3, 4)
    for mapping, warned in ((Sparsemax(), 1), (Softmax(), 0)):
        sampler = LeaveOneOut(2, mapping=mapping)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                sampler(scores, lambda latent: latent.values[:, 0])
        assert len(found) == warned
        assert all("Use the mapping Softmax, or the estimator Marginalize" in str(each.message) for each in found)
