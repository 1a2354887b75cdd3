"""Shared checks of estimators: functions that raise an AssertionError for an estimator that fails.

Which checks apply is read from the estimator (``exact``, ``latent``), never from a list.
"""

from __future__ import annotations

import copy
import itertools
import pickle

import torch
from torch import Tensor, nn

from lit_sparse.estimators import Estimator, Expectation, LatentBatch
from lit_sparse.estimators.base import LossFunction
from lit_sparse.mappings import Softmax, Sparsemax
from lit_sparse.testing.checks import Checks, check_copies, random_scores, refuses

__all__ = ["ESTIMATOR_CHECKS", "check_estimator"]

#: Name -> check. Each takes an estimator without a mapping and raises an AssertionError.
ESTIMATOR_CHECKS: Checks[Estimator] = Checks(Estimator)

EXAMPLES, VALUES = 7, 5  # VALUES categories, or as many bits
DRAWS = 20_000  # of samplers, to tell their mean


def check_estimator(estimator: Estimator) -> None:
    """Run every shared check on an estimator that was built without a mapping.

    The estimator is called with scores of 5 categories, or of 5 bits if it is over bit vectors.

    Raises:
        AssertionError: if a check fails; the message names it.
    """
    ESTIMATOR_CHECKS.run(estimator)


class Decoder(nn.Module):
    """Small decoder that counts the rows it was given."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(VALUES, 3, generator=generator, dtype=torch.float64))
        self.inputs = torch.randn(EXAMPLES, 3, generator=generator, dtype=torch.float64)
        self.rows = 0
        self.calls = 0

    def forward(self, latent: LatentBatch) -> Tensor:
        assert latent.values.is_floating_point(), "values are floating"
        assert latent.example_index.dtype == torch.int64, "example indices are int64"
        assert bool((latent.example_index.diff() >= 0).all()), "example indices are sorted"
        self.rows += len(latent.example_index)
        self.calls += 1
        return (latent.values @ self.weight - self.inputs[latent.example_index]).square().sum(-1)


def _scores() -> Tensor:
    scores = random_scores(EXAMPLES, VALUES, seed=1, scale=1.0)
    scores[0] = torch.tensor([-9.0, -9.0, 9.0, -9.0, -9.0])  # one value alone in the support of a sparse distribution
    scores[1] = 0.0  # all categories
    return scores.requires_grad_()


def _ready(estimator: Estimator) -> list[Estimator]:
    """Copies that can be called: with each of some mappings, if the variable is categorical."""
    if estimator.latent == "bits":
        return [copy.deepcopy(estimator)]
    return [copy.deepcopy(estimator).bind(mapping) for mapping in (Sparsemax(), Softmax(), Sparsemax(gamma=0.3))]


def _values(estimator: Estimator) -> Tensor:
    """All values of the latent variable, (V, 5)."""
    if estimator.latent == "bits":
        return torch.tensor(list(itertools.product((0.0, 1.0), repeat=VALUES)), dtype=torch.float64)
    return torch.eye(VALUES, dtype=torch.float64)


def _run(estimator: Estimator, scores: Tensor, loss_fn: LossFunction, seed: int | None = None) -> Expectation:
    """Call an estimator; with a seed, its samples are the same each time."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        context = torch.linspace(-1.0, 1.0, 3 * len(scores), dtype=torch.float64).reshape(-1, 3).float()  # of a baseline
        out = estimator(scores, loss_fn, context=context)
    assert isinstance(out, Expectation), "an Expectation comes back"
    return out


def _source(estimator: Estimator) -> str:
    """Return where the probabilities come from, for messages."""
    return "the probabilities of its mapping" if estimator.latent == "categorical" else "its probabilities"


def _same(actual: Tensor | None, expected: Tensor | None, what: str) -> None:
    """Check that two results are close; a failure begins with what was expected."""
    torch.testing.assert_close(actual, expected, msg=lambda detail: f"{what}: {detail}")


def _table(estimator: Estimator, scores: Tensor) -> Tensor:
    """The probability of every value, (B, V), with a gradient: by the mapping, or else as the estimator reports it."""
    if estimator.mapping is not None:
        return estimator.mapping.map(scores, None, -1)
    values, decoder = _values(estimator), _Recorder()
    out = _run(estimator, scores, decoder)
    match = (decoder.latent.values.unsqueeze(1) == values).all(-1)
    assert bool((match.sum(-1) == 1).all()), "every decoded row is a value of the variable"
    pairs = out.example_index * len(values) + match.long().argmax(-1)
    assert int(pairs.bincount().max()) == 1, "no value is decoded twice for an example"
    return torch.zeros(len(scores) * len(values), dtype=scores.dtype).index_add(0, pairs, out.probs).view(len(scores), -1)


def _dense(estimator: Estimator, scores: Tensor, decoder: Decoder) -> Tensor:
    """The expected loss by a loop over all values of all examples."""
    probs, values = _table(estimator, scores), _values(estimator)
    losses = torch.zeros(EXAMPLES, dtype=scores.dtype)
    for b in range(EXAMPLES):
        for v in range(len(values)):
            losses[b] = losses[b] + probs[b, v] * decoder(LatentBatch(values[v : v + 1], torch.tensor([b])))[0]
    return losses


class _Recorder(Decoder):
    """A decoder that keeps what it was given."""

    latent: LatentBatch

    def forward(self, latent: LatentBatch) -> Tensor:
        self.latent = latent
        return super().forward(latent)


@ESTIMATOR_CHECKS.add
def _interface(estimator: Estimator) -> None:
    """Shapes and types of what comes back; rows counted as they were decoded."""
    for ready in _ready(estimator):
        decoder = Decoder()
        out = _run(ready, _scores(), decoder)
        assert out.loss.shape == (EXAMPLES,), f"loss has shape {tuple(out.loss.shape)}"
        assert out.decoder_calls.shape == (EXAMPLES,), "one count of decoder calls an example"
        assert not out.decoder_calls.is_floating_point(), "counts are integers"
        assert int(out.decoder_calls.sum()) == decoder.rows == len(out.example_index), "counts equal the rows that were decoded"
        decoded = torch.bincount(out.example_index, minlength=EXAMPLES)
        assert torch.equal(decoded, out.decoder_calls), "rows belong to their examples"
        shape = out.example_index.shape if ready.latent == "bits" else (EXAMPLES, VALUES)
        hint = "" if ready.latent == "bits" else "; for categories, call `over_support` without values: None"
        assert out.probs.shape == shape, f"probabilities have shape {tuple(out.probs.shape)} instead of {tuple(shape)}{hint}"


@ESTIMATOR_CHECKS.add
def _value_and_gradient(estimator: Estimator) -> None:
    """An exact estimator's value and gradients, in scores and decoder, equal the dense loop's and finite differences."""
    if not type(estimator).exact:
        return
    for ready in _ready(estimator):
        decoder, scores = Decoder(), _scores()
        out = _run(ready, scores, decoder)
        expected = _dense(ready, scores, Decoder())
        _same(out.loss, expected, f"the loss is the sum over all values, weighted by {_source(ready)}")
        _same(_table(ready, scores).sum(-1), torch.ones(EXAMPLES, dtype=scores.dtype), "probabilities sum to one")
        weights = torch.arange(1.0, EXAMPLES + 1, dtype=torch.float64)
        got = torch.autograd.grad((out.loss * weights).sum(), [scores, decoder.weight], allow_unused=True)
        decoder, scores = Decoder(), _scores()
        loop = torch.autograd.grad(
            (_dense(ready, scores, decoder) * weights).sum(), [scores, decoder.weight], allow_unused=True
        )
        for ours, theirs, of in zip(got, loop, ("scores", "decoder"), strict=True):
            _same(ours, theirs, f"the sum over all values has the gradient in the {of}")
        assert _is_its_own_gradient(ready), "the gradient in scores is not the gradient of the loss"


def _is_its_own_gradient(estimator: Estimator) -> bool:
    """Whether the gradient of the loss in scores equals finite differences, where no two scores are equal."""
    decoder, generic = Decoder(), _scores().detach()[2:].requires_grad_()
    decoder.inputs = decoder.inputs[2:]
    return torch.autograd.gradcheck(lambda scores: _run(estimator, scores, decoder).loss, generic, raise_exception=False)


@ESTIMATOR_CHECKS.add
def _unbiased(estimator: Estimator) -> None:
    """Over many draws, loss and gradients agree on average with the expected loss under the distribution."""
    if type(estimator).exact or not type(estimator).unbiased:
        return
    generator = torch.Generator().manual_seed(2)
    for ready in _ready(estimator):
        one = torch.randn(1, VALUES, generator=generator, dtype=torch.float64).requires_grad_()
        probs = _probabilities(ready, one)
        values = _values(ready)
        weight = Decoder().weight.detach().requires_grad_()

        def losses(drawn: Tensor, weight: Tensor = weight) -> Tensor:
            return (drawn @ weight).square().sum(-1) + 3.0

        exact = (probs * losses(values)).sum()
        expected = torch.autograd.grad(exact, [one, weight], retain_graph=True)
        scores = one.detach().expand(DRAWS, -1).clone().requires_grad_()
        out = _run(ready.train(), scores, lambda latent: losses(latent.values), seed=3)
        _is_mean(out.loss.detach(), exact.detach(), "the loss")
        (per_row,) = torch.autograd.grad(out.loss.sum(), scores, retain_graph=True)
        _is_mean(per_row, expected[0][0], "the gradient in the scores")
        (of_decoder,) = torch.autograd.grad(out.loss.sum(), weight)
        near = (of_decoder / DRAWS - expected[1]).abs().max() / expected[1].abs().max()
        assert float(near) < 0.1, "the gradient in the decoder is the gradient of the expected loss"


def _is_mean(draws: Tensor, expected: Tensor, what: str) -> None:
    """Check that the mean of draws (N, ...) is within 4.5 standard errors of what is expected."""
    error = draws.std(0) / len(draws) ** 0.5
    off = (draws.mean(0) - expected).abs()
    assert bool((off <= 4.5 * error + 1e-9).all()), f"{what} is off on average: by {off.tolist()}, errors {error.tolist()}"


def _probabilities(estimator: Estimator, scores: Tensor) -> Tensor:
    """The probability of every value (B, V) that a sampler draws from, with a gradient."""
    if estimator.mapping is not None:
        return estimator.mapping.map(scores, None, -1)
    on, off = scores.sigmoid().unsqueeze(1), (-scores).sigmoid().unsqueeze(1)
    return torch.where(_values(estimator) > 0, on, off).prod(-1)


@ESTIMATOR_CHECKS.add
def _evaluation(estimator: Estimator) -> None:
    """In evaluation the result is always the same; estimators that are not exact decode the most probable value alone."""
    if getattr(estimator, "evaluation", None) == "sample":
        return  # as asked for
    for ready in _ready(estimator):
        ready.eval()
        decoder = _Recorder()
        first, second = _run(ready, _scores(), decoder), _run(ready, _scores(), Decoder())
        assert torch.equal(first.loss, second.loss), "the same loss twice in evaluation"
        if type(estimator).exact:
            assert torch.equal(first.loss, _run(ready.train(), _scores(), Decoder()).loss), "nor do exact estimators change"
            continue
        assert bool((first.decoder_calls == 1).all()), "one decoder call in evaluation"
        probs = _probabilities(ready, _scores())
        best = _values(ready)[probs.argmax(-1)]
        mine = (probs * (decoder.latent.values.unsqueeze(1) == _values(ready)).all(-1)).sum(-1)
        assert torch.allclose(mine, probs.amax(-1)), f"the most probable values are {best.tolist()}"


@ESTIMATOR_CHECKS.add
def _state(estimator: Estimator) -> None:
    """The state holds all that an estimator learns or counts, so a copy that loads it continues identically."""
    for ready in _ready(estimator):
        buffers = [name for name, _ in ready.named_buffers() if not name.startswith("mapping.")]
        assert not buffers, (
            f"no buffers such as {', '.join(buffers)}, which distributed models broadcast at every call: keep what changes in a"
            " RunningMean, or in parameters without a gradient that are the same on all processes"
        )
        fresh = copy.deepcopy(ready)
        ready.train()
        for _ in range(3):
            _run(ready, _scores(), Decoder())
        fresh.load_state_dict(ready.state_dict())
        for name, kept in ready.state_dict().items():
            loaded = fresh.state_dict()[name]
            if isinstance(kept, Tensor):
                assert loaded.dtype == kept.dtype, f"{name} was {loaded.dtype} and has become {kept.dtype}: change it in place"
        both = zip(ready.modules(), fresh.modules(), strict=True)
        own = [(part, loaded, name) for part, loaded in both for name in vars(part) if name not in vars(torch.nn.Module())]
        lost = [name for part, loaded, name in own if _differ(vars(part)[name], vars(loaded).get(name))]
        hint = f"; {', '.join(lost)} changed outside of it: keep such things in a RunningMean or in parameters" if lost else ""
        results = []
        for trained in (ready, fresh.train()):
            scores = _scores()
            out = _run(trained, scores, Decoder(), seed=5)
            (gradient,) = torch.autograd.grad(out.loss.sum(), scores, allow_unused=True)
            results.append((out.loss.detach(), torch.zeros(()) if gradient is None else gradient))
        for ours, theirs in zip(*results, strict=True):
            assert torch.equal(ours, theirs), f"the state holds all that training has changed{hint}"


def _differ(one: object, other: object) -> bool:
    """Return whether the pickles of two attributes differ; False if one cannot be pickled."""
    try:
        return pickle.dumps(one) != pickle.dumps(other)
    except Exception:
        return False


@ESTIMATOR_CHECKS.add
def _entropy(estimator: Estimator) -> None:
    """The entropy that is reported equals the distribution's, with its gradient."""
    for ready in _ready(estimator):
        scores = _scores()
        probs = _table(ready, scores) if type(estimator).exact else _probabilities(ready, scores)
        inside = torch.where(probs > 0, probs, 1.0)
        expected = -(inside * inside.log()).sum(-1)
        got = _run(ready, scores, Decoder()).entropy()
        _same(got, expected, f"the entropy belongs to {_source(ready)}")
        generic = torch.arange(EXAMPLES) > 1  # in the others scores are equal, or a probability at its end
        ours, theirs = (  # a distribution over one value has no gradient of its own
            torch.autograd.grad(value[generic].sum() + 0 * scores.sum(), scores, retain_graph=True)[0]
            for value in (got, expected)
        )
        _same(ours, theirs, "the gradient of the entropy")


@ESTIMATOR_CHECKS.add
def _cost(estimator: Estimator) -> None:
    """An exact estimator decodes the support and nothing else, or everything if it says so, in one call."""
    if not type(estimator).exact:
        return
    for ready in _ready(estimator):
        support = (_table(ready, _scores()) > 0).sum(-1)
        decoder = Decoder()
        out = _run(ready, _scores(), decoder)
        assert out.support_size is not None, "support sizes are reported"
        assert torch.equal(out.support_size, support), "support sizes fit the distribution"
        calls = support if ready.ragged else torch.full_like(support, VALUES)
        assert torch.equal(out.decoder_calls, calls), "each value of the support costs one decoder call"
        assert decoder.rows == int(calls.sum()), "nothing else is decoded"
        assert decoder.calls == 1, "the decoder runs once"
    if not estimator.ragged:
        return
    sparse = _run(_ready(estimator)[0], _scores(), Decoder())
    assert int(sparse.decoder_calls[0]) == 1, "one value in the support costs one decoder call"
    if estimator.latent == "categorical":
        assert int(sparse.decoder_calls[1]) == VALUES, "a uniform row costs all of them"


@ESTIMATOR_CHECKS.add
def _invalid_scores(estimator: Estimator) -> None:
    """A NaN row stays in its row; what is forbidden costs and weighs nothing."""
    for ready in _ready(estimator):
        scores = _scores().detach().clone()
        scores[2, 1] = torch.nan
        scores[3, : 1 if ready.latent == "bits" else VALUES] = -torch.inf
        scores.requires_grad_()
        decoder = _Recorder()
        out = _run(ready, scores, decoder)
        others = torch.tensor([0, 1, 4, 5, 6])
        assert bool(out.loss[2].isnan()), "NaN scores give a NaN loss"
        if type(estimator).exact:
            torch.testing.assert_close(out.loss[others], _run(ready, _scores(), Decoder()).loss[others])
        assert bool(out.loss[others].isfinite().all()), "a NaN row harms no other"
        values = decoder.latent.values[decoder.latent.example_index == 3]
        if ready.latent == "bits":
            assert len(values), "without one bit, the others are left"
            assert not bool(values[:, 0].any()), "a forbidden bit is never set"
            assert bool(out.loss[3].isfinite()), "a forbidden bit does not make the loss infinite or NaN"
        else:
            assert float(out.loss[3].detach()) == 0, "nothing allowed, nothing lost"
            assert len(values) == (0 if ready.ragged else VALUES), "nothing allowed, nothing decoded"
        (gradient,) = torch.autograd.grad(out.loss[others].sum() + out.loss[3], scores, allow_unused=True)
        assert gradient is None or bool(gradient[[0, 1, 3, 4, 5, 6]].isfinite().all()), "a NaN row harms no gradient"


@ESTIMATOR_CHECKS.add
def _objects(estimator: Estimator) -> None:
    """Pickled and deep-copied estimators give the same results in evaluation; an empty batch is allowed."""
    ready = _ready(estimator)[0].eval()
    check_copies(ready, lambda copied: _run(copied, _scores(), Decoder(), seed=5).loss)
    empty = _run(ready.train(), torch.zeros(0, VALUES, dtype=torch.float64), Decoder())
    assert empty.loss.shape == (0,), "an empty batch has an empty loss"


class _Unbounded(Sparsemax):
    on_simplex = False


@ESTIMATOR_CHECKS.add
def _bad_input(estimator: Estimator) -> None:
    """Wrong shapes, a missing mapping, two of them, or one without probabilities raise, saying what was expected."""

    def unbound() -> Estimator:
        return copy.deepcopy(estimator)

    if estimator.latent == "bits":
        refuses(lambda: unbound().bind(Sparsemax()), "takes no mapping")
    else:
        refuses(lambda: unbound()(_scores(), Decoder()), "has no mapping")
        refuses(lambda: unbound().bind(Sparsemax()).bind(Softmax()), "Give the mapping only to the model")
        refuses(lambda: unbound().bind(_Unbounded()), "needs a mapping onto the simplex")
    ready = _ready(estimator)[0]
    refuses(lambda: ready(torch.zeros(4), Decoder()), "of shape (batch, ")
    refuses(lambda: ready(torch.zeros(EXAMPLES, VALUES, dtype=torch.int64), Decoder()), "floating scores")
    refuses(lambda: ready(_scores(), lambda latent: torch.zeros(3)), "one loss per row")
    refuses(lambda: ready(_scores(), lambda latent: 1.0), "one loss per row")
