"""Sender and receiver of the game: parts of a batch and both orders of the products give the same scores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.nn import signaling
from lit_sparse.nn.signaling import Receiver, Sender


@pytest.mark.parametrize(("messages", "relaxed"), [(1, False), (40, False), (40, True), (0, False)])
def test_the_receiver_scores_inner_products_of_embeddings(messages: int, relaxed: bool) -> None:
    generator = torch.Generator().manual_seed(messages)
    receiver = Receiver(7, vocabulary=3, embedding=5).double()
    candidates = torch.randn(4, 6, 7, generator=generator, dtype=torch.float64)
    games = torch.randint(4, (messages,), generator=generator).sort().values
    said = torch.rand(messages, 3, generator=generator, dtype=torch.float64)
    said = said if relaxed else nn.functional.one_hot(said.argmax(1), 3).double() if messages else said
    scores = receiver(candidates, said, games)
    assert scores.shape == (messages, 6)
    for score, message, game in zip(scores, said, games.tolist(), strict=True):
        assert torch.allclose(score, receiver.see(candidates[game]) @ receiver.hear(message), rtol=1e-12)


def test_the_sender_does_not_depend_on_the_parts_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, images = Sender(6, vocabulary=4, embedding=5, filters=3).double(), torch.rand(11, 6, dtype=torch.float64)
    whole = sender(images)
    monkeypatch.setattr(signaling, "CACHED", 1)  # one image at a time
    assert torch.allclose(sender(images), whole, rtol=1e-13)
    embedded = images @ sender.embed.weight.T
    filtered = torch.sigmoid(embedded.unsqueeze(-1) * sender.widen.weight[:, 0] + sender.widen.bias)
    pooled = torch.sigmoid(filtered @ sender.narrow.weight[0] + sender.narrow.bias)
    assert torch.allclose(whole, (pooled @ sender.score.weight.T + sender.score.bias) / 10, rtol=1e-12)


def test_symbols_start_as_an_embedding_or_as_a_linear_layer() -> None:
    normal, linear = (Receiver(7, vocabulary=256, init=init).hear.weight.detach() for init in ("normal", "linear"))
    assert float(normal.std()) == pytest.approx(1, abs=0.02)
    assert float(linear.abs().max()) <= 256**-0.5
    with pytest.raises(ConfigurationError, match=r"init.*normal.*linear.*but got 'uniform'"):
        Receiver(7, init="uniform")  # type: ignore[arg-type]
