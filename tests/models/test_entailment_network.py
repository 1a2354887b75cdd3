"""The network for entailment equals its formulas."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import Entmax, Softmax, SparseMAP, SparseMapping
from lit_sparse.nn import EntailmentNetwork, WordVectors
from lit_sparse.structures import Sequence as Chain

from .test_entailment import MAPPINGS, vectors

approx = functools.partial(pytest.approx, abs=0.1)


PREMISES, HYPOTHESES = torch.tensor([5, 3, 1, 4, 0]), torch.tensor([2, 6, 1, 0, 3])


def network(mapping: SparseMapping, width: int = 7) -> EntailmentNetwork:
    torch.manual_seed(0)
    return EntailmentNetwork(copy.deepcopy(mapping), 6, width).double().eval()


def naive(net: EntailmentNetwork, mapping: SparseMapping, premise: Tensor, hypothesis: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (C,) and weights (S,) of one pair (S, E), (T, E), word by word, from the formulas and the parameters."""

    def read(gru: nn.GRU, words: Tensor, state: Tensor) -> list[Tensor]:
        states = []
        for word in words:
            x = net.project.weight @ word + net.project.bias
            from_word = (gru.weight_ih_l0 @ x + gru.bias_ih_l0).chunk(3)
            from_state = (gru.weight_hh_l0 @ state + gru.bias_hh_l0).chunk(3)
            reset, update = (torch.sigmoid(from_word[i] + from_state[i]) for i in (0, 1))
            new = torch.tanh(from_word[2] + reset * from_state[2])
            state = (1 - update) * new + update * state
            states.append(state)
        return states

    zero = torch.zeros(net.width, dtype=premise.dtype)
    rows = read(net.premise, premise, zero)
    after = rows[-1] if rows else zero
    last = [after, *read(net.hypothesis, hypothesis, after)][-1]
    context, weights = zero, zero[:0]
    if rows:
        scores = [net.score.weight[0] @ torch.tanh(net.key.weight @ row + net.query.weight @ last) for row in rows]
        weights = mapping(torch.stack(scores))
        context = sum(weight * row for weight, row in zip(weights, rows, strict=True))
    w_p, w_x = net.merge.weight[:, : net.width], net.merge.weight[:, net.width :]
    return net.output.weight @ torch.tanh(w_p @ context + w_x @ last) + net.output.bias, weights


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_the_network_equals_its_formulas(mapping: SparseMapping) -> None:
    net, (premise, hypothesis) = network(mapping), vectors()
    scores, weights = net(premise, PREMISES, hypothesis, HYPOTHESES)
    pairs = [(premise[i, : PREMISES[i]], hypothesis[i, : HYPOTHESES[i]]) for i in range(5)]
    found = [naive(net, mapping, *pair) for pair in pairs]
    torch.testing.assert_close(scores, torch.stack([expected for expected, _ in found]))
    for i, (_, expected) in enumerate(found):
        torch.testing.assert_close(weights[i, : PREMISES[i]], expected)
        assert not weights[i, PREMISES[i] :].any()
    ours, theirs = (torch.autograd.grad(value.square().sum(), list(net.parameters())) for value in
                    (scores, torch.stack([expected for expected, _ in found])))  # fmt: skip
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
        assert bool(one.any())


@pytest.mark.parametrize("mapping", [*MAPPINGS, Entmax(1.3), SparseMAP(Chain(select=1))], ids=repr)
def test_padding_and_other_rows_change_nothing(mapping: SparseMapping) -> None:
    net, (premise, hypothesis) = network(mapping), vectors()
    scores, weights = net(premise, PREMISES, hypothesis, HYPOTHESES)
    changed = [premise.clone(), hypothesis.clone()]
    for side, lengths in zip(changed, (PREMISES, HYPOTHESES), strict=True):
        for row, length in enumerate(lengths.tolist()):
            side[row, length:] = torch.nan if length else 1e3  # of an empty row one word is read, and thrown away
    again, looked = net(changed[0], PREMISES, changed[1], HYPOTHESES)
    torch.testing.assert_close(again, scores)
    torch.testing.assert_close(looked, weights)
    order = torch.tensor([3, 0, 4, 1])
    mixed, _ = net(premise[order], PREMISES[order], hypothesis[order], HYPOTHESES[order])
    torch.testing.assert_close(mixed, scores[order])
    for row in range(5):
        p, h = (max(1, int(lengths[row])) for lengths in (PREMISES, HYPOTHESES))
        alone, looked = net(
            premise[row : row + 1, :p], PREMISES[row : row + 1], hypothesis[row : row + 1, :h], HYPOTHESES[row : row + 1]
        )
        torch.testing.assert_close(alone[0], scores[row], atol=1e-6, rtol=0)
        torch.testing.assert_close(looked[0], weights[row, :p], atol=1e-6, rtol=0)


@pytest.mark.parametrize("bias", [0.0, -2.0, None])
def test_the_bias_of_the_update_gates(bias: float | None) -> None:
    """It is added to torch's initialization in the second third of the entries, by default 1."""
    torch.manual_seed(0)
    net = EntailmentNetwork(Softmax(), 6, 7, **({} if bias is None else {"gate_bias": bias}))
    torch.manual_seed(0)
    nn.Linear(6, 7)  # drawn first
    for gru in (net.premise, net.hypothesis):
        plain = nn.GRU(7, 7).bias_ih_l0
        added = torch.tensor([0.0, 1.0 if bias is None else bias, 0.0]).repeat_interleave(7)
        torch.testing.assert_close(gru.bias_ih_l0, plain + added, rtol=0, atol=0)
    with pytest.raises(ConfigurationError, match="`gate_bias` to be a number"):
        EntailmentNetwork(Softmax(), 6, 7, gate_bias=float("nan"))


def test_dropout_is_of_inputs_and_of_the_last_layer() -> None:
    """Half of them are zero in training, none elsewhere; the states that are attended to are whole."""
    torch.manual_seed(0)
    net, seen = EntailmentNetwork(Softmax(), 6, 64, dropout=0.5), {}
    for name in ("premise", "hypothesis", "key", "merge", "output"):

        def keep(_: nn.Module, inputs: tuple[Any, ...], name: str = name) -> None:
            seen[name] = float((getattr(inputs[0], "data", inputs[0]) == 0).float().mean())

        getattr(net, name).register_forward_pre_hook(keep)
    whole = torch.full((5,), 5), torch.full((5,), 6)
    premise, hypothesis = (side.float() for side in vectors())
    net(premise, whole[0], hypothesis, whole[1])
    assert seen == {"premise": approx(0.5), "hypothesis": approx(0.5), "key": 0, "merge": 0, "output": approx(0.5)}
    net.eval()(premise, whole[0], hypothesis, whole[1])
    assert set(seen.values()) == {0}


def test_word_vectors_are_learnt_or_fixed() -> None:
    words = WordVectors(4, 3, padding=1)
    assert words.weight.requires_grad
    assert not words.weight[1].any()
    words.fix(torch.arange(12.0).view(4, 3))
    assert words(torch.tensor([[0, 1, 3]])).tolist() == [[[0, 1, 2], [0, 0, 0], [9, 10, 11]]]
    loaded = WordVectors(4, 3, padding=1)
    for state, learnt in ((words.state_dict(), False), (WordVectors(4, 3, padding=1).state_dict(), True)):
        loaded.load_state_dict(state)
        assert loaded.weight.requires_grad is learnt
    with pytest.raises(ConfigurationError, match=r"shape \(4, 3\), words and features, but got \(4, 2\)"):
        words.fix(torch.zeros(4, 2))
