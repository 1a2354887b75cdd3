"""Exact expectations over categories: what is theirs alone, beyond the tests that all estimators share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import LatentBatch, Marginalize
from lit_sparse.mappings import Softmax
from tests.support.versions import needs_custom_operators


def test_probabilities_too_small_for_the_type_cost_nothing() -> None:
    scores = torch.tensor([[0.0, -200.0, -1.0]])
    for decode, calls in (("support", 2), ("all", 3)):
        out = Marginalize(Softmax(), decode=decode)(scores, lambda latent: latent.values[:, 0])  # type: ignore[arg-type]
        assert out.support_size is not None and out.support_size.tolist() == [2]
        assert out.decoder_calls.tolist() == [calls]


@pytest.mark.gate
@needs_custom_operators
def test_decoding_all_compiles_whole() -> None:
    layer, weight = Marginalize(Softmax(), decode="all"), torch.randn(6, dtype=torch.float64)

    def expected(scores: Tensor) -> Tensor:
        def loss_fn(latent: LatentBatch) -> Tensor:
            return (latent.values @ weight).square() * (1 + latent.example_index)

        return layer(scores, loss_fn).loss

    compiled = torch.compile(expected, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (3, 5):
        scores = torch.randn(batch, 6, dtype=torch.float64, requires_grad=True)
        values = compiled(scores), expected(scores)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(value.sum(), scores)[0] for value in values))


def test_a_wrong_choice_is_explained() -> None:
    with pytest.raises(ConfigurationError, match="'support', 'all'"):
        Marginalize(decode="some")  # type: ignore[arg-type]


def test_without_a_mapping_it_says_where_to_give_one() -> None:
    with pytest.raises(ConfigurationError, match=r"Marginalize\(mapping=Softmax\(\)\), or a sparse one .*`bind\(mapping\)`"):
        Marginalize()(torch.zeros(2, 3), lambda latent: latent.values.sum(-1))
