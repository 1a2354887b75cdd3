"""The shared tester of estimators: what every estimator promises, as functions that raise when it is not so.

Which promises apply is read from the class (``exact``), never from a list.
"""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor, nn

from lit_sparse.estimators import Estimator, Expectation, LatentBatch
from lit_sparse.mappings import Softmax, SparseMapping, Sparsemax
from lit_sparse.testing.promises import Promises, refuses

__all__ = ["ESTIMATOR_CHECKS", "check_estimator"]

#: Name -> check. Each takes an estimator without a mapping and raises an AssertionError.
ESTIMATOR_CHECKS: Promises[Estimator] = Promises()

EXAMPLES, VALUES = 7, 5


def check_estimator(estimator: Estimator) -> None:
    """Run every check on an estimator that was built without a mapping.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    ESTIMATOR_CHECKS.hold_for(estimator)


class Decoder(nn.Module):
    """A small decoder that counts the rows it was given."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(VALUES, 3, generator=generator, dtype=torch.float64))
        self.inputs = torch.randn(EXAMPLES, 3, generator=generator, dtype=torch.float64)
        self.rows = 0
        self.calls = 0

    def forward(self, latent: LatentBatch) -> Tensor:
        assert latent.values.is_floating_point(), "values are floating"
        assert latent.rows.dtype == torch.int64, "rows are int64"
        assert bool((latent.rows.diff() >= 0).all()), "rows are sorted"
        self.rows += len(latent.rows)
        self.calls += 1
        return (latent.values @ self.weight - self.inputs[latent.rows]).square().sum(-1)


def _scores() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(EXAMPLES, VALUES, generator=generator, dtype=torch.float64)
    scores[0, 2] = 9.0  # one value alone in the support of a sparse mapping
    scores[1] = 0.0  # all of them
    return scores.requires_grad_()


def _dense(mapping: SparseMapping, scores: Tensor, decoder: Decoder) -> Tensor:
    """The expected loss by a loop over all values of all examples."""
    probs = mapping.map(scores, None, -1)
    losses = torch.zeros(EXAMPLES, dtype=scores.dtype)
    for b in range(EXAMPLES):
        for k in range(VALUES):
            value = torch.nn.functional.one_hot(torch.tensor([k]), VALUES).to(scores.dtype)
            losses[b] = losses[b] + probs[b, k] * decoder(LatentBatch(value, torch.tensor([b])))[0]
    return losses


def _run(estimator: Estimator, mapping: SparseMapping, scores: Tensor, decoder: Decoder) -> Expectation:
    out = copy.deepcopy(estimator).bind(mapping)(scores, decoder)
    assert isinstance(out, Expectation), "an Expectation comes back"
    return out


@ESTIMATOR_CHECKS.add
def _interface(estimator: Estimator) -> None:
    """Shapes and types of what comes back; rows counted as they were decoded."""
    for mapping in (Sparsemax(), Softmax()):
        decoder = Decoder()
        out = _run(estimator, mapping, _scores(), decoder)
        assert out.loss.shape == (EXAMPLES,), f"loss has shape {tuple(out.loss.shape)}"
        assert out.decoder_calls.shape == (EXAMPLES,), "one count of decoder calls an example"
        assert not out.decoder_calls.is_floating_point(), "counts are integers"
        assert int(out.decoder_calls.sum()) == decoder.rows == len(out.rows), "counts equal the rows that were decoded"
        assert torch.equal(torch.bincount(out.rows, minlength=EXAMPLES), out.decoder_calls), "rows belong to their examples"


@ESTIMATOR_CHECKS.add
def _value_and_gradient(estimator: Estimator) -> None:
    """An exact estimator's value and gradients, in scores and decoder, equal those of the dense loop."""
    if not type(estimator).exact:
        return
    for mapping in (Sparsemax(), Softmax(), Sparsemax(gamma=0.3)):
        decoder, scores = Decoder(), _scores()
        out = _run(estimator, mapping, scores, decoder)
        expected = _dense(mapping, scores, Decoder())
        torch.testing.assert_close(out.loss, expected)
        weights = torch.arange(1.0, EXAMPLES + 1, dtype=torch.float64)
        got = torch.autograd.grad((out.loss * weights).sum(), [scores, decoder.weight])
        decoder, scores = Decoder(), _scores()
        loop = torch.autograd.grad((_dense(mapping, scores, decoder) * weights).sum(), [scores, decoder.weight])
        for ours, theirs in zip(got, loop, strict=True):
            torch.testing.assert_close(ours, theirs)


@ESTIMATOR_CHECKS.add
def _cost(estimator: Estimator) -> None:
    """An exact estimator decodes the support and nothing else, in one call."""
    if not type(estimator).exact:
        return
    for mapping in (Sparsemax(), Softmax()):
        decoder = Decoder()
        out = _run(estimator, mapping, _scores(), decoder)
        support = (mapping(_scores()) > 0).sum(-1)
        assert out.support_size is not None, "support sizes are reported"
        assert torch.equal(out.support_size, support), "support sizes are those of the mapping"
        assert torch.equal(out.decoder_calls, support), "each value of the support costs one decoder call"
        assert decoder.rows == int(support.sum()), "nothing else is decoded"
        assert decoder.calls == 1, "the decoder runs once"
    sparse = _run(estimator, Sparsemax(), _scores(), Decoder())
    assert int(sparse.decoder_calls[0]) == 1, "one value in the support costs one decoder call"
    assert int(sparse.decoder_calls[1]) == VALUES, "a uniform row costs all of them"


@ESTIMATOR_CHECKS.add
def _odd_scores(estimator: Estimator) -> None:
    """A NaN row stays in its row; a row with nothing allowed costs and weighs nothing."""
    if not type(estimator).exact:
        return
    for mapping in (Sparsemax(), Softmax()):
        scores = _scores().detach().clone()
        scores[2, 1], scores[3] = torch.nan, -torch.inf
        out = _run(estimator, mapping, scores, Decoder())
        others = torch.tensor([0, 1, 4, 5, 6])
        assert bool(out.loss[2].isnan()), "NaN scores give a NaN loss"
        torch.testing.assert_close(out.loss[others], _run(estimator, mapping, _scores(), Decoder()).loss[others])
        assert float(out.loss[3].detach()) == 0, "nothing allowed, nothing lost"
        assert int(out.decoder_calls[3]) == 0, "nothing allowed, nothing decoded"


@ESTIMATOR_CHECKS.add
def _objects(estimator: Estimator) -> None:
    """Pickle and deepcopy keep what an estimator does in evaluation; an empty batch is no error."""
    bound = copy.deepcopy(estimator).bind(Sparsemax()).eval()
    expected = bound(_scores(), Decoder()).loss
    for twin in (pickle.loads(pickle.dumps(bound)), copy.deepcopy(bound)):
        torch.testing.assert_close(twin(_scores(), Decoder()).loss, expected)
    empty = bound(torch.zeros(0, VALUES, dtype=torch.float64), Decoder())
    assert empty.loss.shape == (0,), "an empty batch has an empty loss"


class _Unbounded(Sparsemax):
    on_simplex = False


@ESTIMATOR_CHECKS.add
def _bad_input(estimator: Estimator) -> None:
    """Wrong shapes, a missing mapping, two of them, or one without probabilities raise, saying what was expected."""

    def unbound() -> Estimator:
        return copy.deepcopy(estimator)

    refuses(lambda: unbound()(_scores(), Decoder()), "has no mapping")
    refuses(lambda: unbound().bind(Sparsemax()).bind(Softmax()), "Give the mapping to the model alone")
    refuses(lambda: unbound().bind(_Unbounded()), "needs probabilities")
    bound = unbound().bind(Sparsemax())
    refuses(lambda: bound(torch.zeros(4), Decoder()), "(batch, values)")
    refuses(lambda: bound(_scores(), lambda latent: torch.zeros(3)), "one loss for each of the")
    refuses(lambda: bound(_scores(), lambda latent: 1.0), "one loss for each of the")
