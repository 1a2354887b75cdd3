"""Properties of all encoder-decoders, each compared with a second implementation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import Entmax, Fusedmax, LearnableEntmax, Softmax, SparseMAP, Sparsemax
from lit_sparse.nn import EncoderDecoder, RecurrentBody, TransformerBody
from lit_sparse.nn.encoder_decoder import base
from lit_sparse.structures import Assignment, Sequence

BODIES = {
    "published": lambda: RecurrentBody(8),
    "gru": lambda: RecurrentBody(8, 1, cell="gru"),
    "both ends": lambda: RecurrentBody(8, 2, bidirectional=True),
    "not fed": lambda: RecurrentBody(8, 2, input_feeding=False),
    "gru, not fed": lambda: RecurrentBody(8, 2, cell="gru", bidirectional=True, input_feeding=False),
    "transformer": lambda: TransformerBody(8, 2, heads=2, feedforward=16),
}
LENGTHS = torch.tensor([5, 3, 0, 1])


@pytest.fixture(params=BODIES, ids=str)
def body(request: pytest.FixtureRequest) -> EncoderDecoder:
    torch.manual_seed(0)
    return BODIES[request.param]().bind(Sparsemax(gamma=0.3)).eval().double()


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(4, 5, 8, generator=generator, dtype=torch.float64),
        torch.randn(4, 6, 8, generator=generator, dtype=torch.float64),
    )


def test_steps_give_what_the_whole_gives(body: EncoderDecoder) -> None:
    source, target = inputs()
    memory = body.encode(source, LENGTHS)
    hidden, weights = body.decode(target, memory)
    state = body.start(memory)
    for t in range(target.shape[1]):
        one, looked, state = body.step(target[:, t], memory, state)
        torch.testing.assert_close(one, hidden[:, t])
        torch.testing.assert_close(looked, weights[:, :, t])


def test_a_prepared_memory_gives_the_same_steps(body: EncoderDecoder) -> None:
    memory = body.encode(inputs()[0], LENGTHS)
    prepared = body.prepare(memory)
    states = [body.start(memory), body.start(prepared)]
    for _ in range(4):
        x = torch.randn(4, 8, dtype=torch.float64)
        found = [body.step(x, some, state) for some, state in zip((memory, prepared), states, strict=True)]
        states = [one[2] for one in found]
        for left, right in zip(found[0][:2], found[1][:2], strict=True):
            torch.testing.assert_close(left, right)


def test_no_token_depends_on_a_later_one(body: EncoderDecoder) -> None:
    source, target = inputs()
    memory = body.encode(source, LENGTHS)
    changed = target.clone()
    changed[:, 3:] += 1.0
    torch.testing.assert_close(body.decode(changed, memory)[0][:, :3], body.decode(target, memory)[0][:, :3])


def test_padding_and_other_rows_change_nothing(body: EncoderDecoder) -> None:
    source, target = inputs()
    hidden, weights = body.decode(target, body.encode(source, LENGTHS))
    other = source.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = 1e3
        assert (weights[row, :, :, length:] == 0).all()
    torch.testing.assert_close(body.decode(target, body.encode(other, LENGTHS))[0], hidden)
    for row, length in enumerate(LENGTHS.tolist()):
        short = source[row : row + 1, : max(1, length)]
        alone, looked = body.decode(target[row : row + 1], body.encode(short, LENGTHS[row : row + 1]))
        torch.testing.assert_close(alone[0], hidden[row])
        torch.testing.assert_close(looked[0], weights[row, :, :, : max(1, length)])


def test_every_parameter_gets_a_gradient(body: EncoderDecoder) -> None:
    source, target = inputs()
    hidden, _ = body.train().decode(target, body.encode(source, LENGTHS))
    hidden.square().sum().backward()
    assert [name for name, parameter in body.named_parameters() if parameter.grad is None] == []


def test_a_body_that_is_trained_is_random_and_one_that_is_not_is_not(body: EncoderDecoder) -> None:
    source, target = inputs()

    def run() -> Tensor:
        return body.decode(target, body.encode(source, LENGTHS))[0]

    assert torch.equal(run(), run())
    body.train()
    if body.layers > 1 or isinstance(body, RecurrentBody):
        assert not torch.equal(run(), run())


def test_recurrence_is_that_of_cells_written_out() -> None:
    torch.manual_seed(1)
    body = RecurrentBody(6, 2, 0.0).bind(Softmax()).double()
    source, target = torch.randn(1, 4, 6).double(), torch.randn(1, 3, 6).double()
    states, (h, c) = body.encoder(source)
    cells = []
    for layer, parameters in enumerate(body.decoder.all_weights):
        cell = nn.LSTMCell(12 if layer == 0 else 6, 6).double()
        for name, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), parameters, strict=True):
            getattr(cell, name).data = value.data
        cells.append(cell)
    h, c, fed = list(h.unbind(0)), list(c.unbind(0)), torch.zeros(1, 6).double()
    expected = []
    for t in range(3):
        x = torch.cat([target[:, t], fed], -1)
        for layer in range(2):
            h[layer], c[layer] = cells[layer](x, (h[layer], c[layer]))
            x = h[layer]
        scores = torch.stack([x[0] @ body.score.weight @ states[0, s] for s in range(4)])
        context = (scores.softmax(0).unsqueeze(-1) * states[0]).sum(0)
        fed = torch.tanh(body.merge.weight @ torch.cat([context, x[0]])).unsqueeze(0)
        expected.append(fed[0])
    found, _ = body.decode(target, body.encode(source, torch.tensor([4])))
    torch.testing.assert_close(found[0], torch.stack(expected))


def test_the_transformer_is_torchs_with_softmax() -> None:
    torch.manual_seed(2)
    ours = TransformerBody(8, 1, 0.0, heads=2, feedforward=16).bind(Softmax()).double()
    theirs = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True).double()
    layer = ours.decoder[0]
    names = {
        "self_attn": layer.self_attention,
        "multihead_attn": layer.cross_attention,
        "linear1": layer.wide,
        "linear2": layer.narrow,
        "norm1": layer.before,
        "norm2": layer.before_cross,
        "norm3": layer.before_linear,
    }
    for name, module in names.items():
        getattr(theirs, name).load_state_dict(module.state_dict())
    source, target = inputs()
    lengths = torch.tensor([5, 3, 2, 1])
    memory = ours.encode(source, lengths)
    place = torch.arange(6).double()
    waves = torch.stack(
        [
            (place / 10000 ** (2 * i / 8)).sin() if k == 0 else (place / 10000 ** (2 * i / 8)).cos()
            for i in range(4)
            for k in (0, 1)
        ],
        -1,
    )
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = theirs(target * math.sqrt(8) + waves, memory["states"], later, memory_key_padding_mask=~memory["mask"])
    torch.testing.assert_close(ours.decode(target, memory)[0], ours.decoder_norm(expected))


def test_mappings_of_all_kinds_attend() -> None:
    source, target = inputs()
    for mapping in (Fusedmax(), SparseMAP(Sequence(tags=2, select=1), learn_potentials=True), Entmax(1.5)):
        for make in (BODIES["published"], BODIES["transformer"]):
            body = make().bind(mapping).double()
            hidden, _ = body.decode(target, body.encode(source, LENGTHS))
            assert hidden.isfinite().all()


def test_each_attention_of_a_transformer_learns_its_own_mapping() -> None:
    body = TransformerBody(8, 2, 0.0, heads=2, feedforward=16).bind(LearnableEntmax(shape=(2, 1, 1)))
    source, target = (x.float() for x in inputs())
    body.decode(target, body.encode(source, torch.tensor([5, 3, 2, 4])))[0].square().sum().backward()
    alphas = [parameter for name, parameter in body.named_parameters() if "mapping" in name]
    assert len(alphas) == 6
    assert all(alpha.grad is not None for alpha in alphas)


@pytest.mark.parametrize("make", [BODIES["published"], BODIES["transformer"]])
def test_a_mapping_that_couples_queries_is_refused(make: object) -> None:
    with pytest.raises(ConfigurationError, match="couples them"):
        make().bind(SparseMAP(Assignment()))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RecurrentBody(0), "width"),
        (lambda: RecurrentBody(7, bidirectional=True), "even"),
        (lambda: RecurrentBody(8, cell="rnn"), "cell"),  # type: ignore[arg-type]
        (lambda: RecurrentBody(8, dropout=1.0), "dropout"),
        (lambda: TransformerBody(9, heads=2), "divide"),
        (lambda: TransformerBody(8, heads=2, feedforward=0), "feedforward"),
    ],
)
def test_bad_arguments_are_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_without_instructions_for_bfloat16_networks_are_in_float32(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's LSTM fails on such processors under autocast."""
    torch.manual_seed(0)
    body = RecurrentBody(8, 2, cell=cell, bidirectional=True, input_feeding=False).bind(Sparsemax()).eval()  # type: ignore[arg-type]
    source, target = (x.float() for x in inputs())
    expected = body.encode(source, LENGTHS)
    monkeypatch.setattr(base, "lacks_autocast_dtype", lambda: True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = body.encode(source.bfloat16(), LENGTHS)
        hidden, _ = body.decode(target.bfloat16(), memory)
    assert memory["h"].dtype == torch.float32
    torch.testing.assert_close(memory["h"], expected["h"], atol=0.02, rtol=0.02)
    assert bool(hidden.isfinite().all())


@pytest.mark.parametrize(
    "lengths", [[5, -1, 0, 1], [6, 3, 0, 1], [2.5, 3.0, 0.0, 1.0], [True, True, False, True], [[5], [3], [0], [1]]], ids=str
)
def test_lengths_are_integers_up_to_the_padded_length(body: EncoderDecoder, lengths: Any) -> None:
    with pytest.raises(ConfigurationError, match="Expected lengths"):
        body.encode(inputs()[0], torch.tensor(lengths))


def test_the_memory_of_another_model_or_batch_is_refused(body: EncoderDecoder) -> None:
    source, target = inputs()
    memory = body.encode(source, LENGTHS)
    foreign = TransformerBody(8, 1, heads=2).bind(Sparsemax()).double().encode(source, LENGTHS)
    if isinstance(body, TransformerBody):  # which needs no more of a memory than this one has, and lets others have more
        foreign = {"states": memory["states"]}
        assert torch.equal(body.decode(target, memory | {"topic": source})[0], body.decode(target, memory)[0])
    state, half = body.start(memory), body.encode(source[:1], LENGTHS[:1])
    narrow: Any = {name: tensor if name == "mask" else tensor[..., :4] for name, tensor in memory.items()}
    for wrong in (foreign, half, narrow, memory | {"states": memory["states"].float()}, None):
        for call in (lambda: body.decode(target, wrong), lambda: body.step(target[:, 0], wrong, state)):  # noqa: B023
            with pytest.raises(ConfigurationError, match="memory"):
                call()
    with pytest.raises(ConfigurationError, match="state"):
        body.step(target[:, 0], memory, body.start(half))
