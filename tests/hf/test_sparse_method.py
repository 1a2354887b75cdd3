"""Models of transformers attend by the sparse method where their weights are not asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.hf import adapter, sparsify
from lit_sparse.hf.adapter import attend
from lit_sparse.kernels.gpu.triton_lists import ranges_of
from lit_sparse.mappings import Entmax, Sparsemax
from lit_sparse.nn.attend import function

from . import tiny


@pytest.mark.parametrize("name", tiny.MODELS)
def test_models_attend_sparsely_without_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.MODELS[name]().double()
    sparsify(model, Entmax(1.5))
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in tiny.inputs_of(model).items()}
    expected = model(**inputs)[0]
    parameters = [p for p in model.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(expected.square().sum(), parameters, allow_unused=True)
    calls = 0
    sparse = function.attend_to_listed

    def count(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return sparse(*args, **options)

    monkeypatch.setattr(function, "attend_to_listed", count)
    monkeypatch.setattr(function, "LEAST_KEYS", 1)
    monkeypatch.setattr(function, "LEAST_SCORES", 1)
    output = model(**inputs)[0]
    assert calls >= 2
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(torch.autograd.grad(output.square().sum(), parameters, allow_unused=True), slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    before = calls
    torch.testing.assert_close(model(**inputs, output_attentions=True)[0], expected)
    assert calls == before


def test_packed_and_padded_batches_are_ranges_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that are packed as one give what they give alone, and programs of a GPU can leave out what they do not see."""
    model = tiny.llama()
    sparsify(model, Entmax(1.5))
    masks: list[torch.Tensor] = []
    attention = adapter.attention

    def keep(*args: Any, **options: Any) -> Any:
        masks.append(args[4])
        return attention(*args, **options)

    monkeypatch.setattr(adapter, "attention", keep)
    ids = torch.randint(3, 50, (1, 12))
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = model(ids, position_ids=positions, use_cache=False).logits  # with a cache, transformers does not unpack
    ranges, whole = ranges_of(masks[0], 12, False)
    assert whole
    assert ranges[0, 0, :, 0].tolist() == [0] * 5 + [5] * 7
    assert ranges[0, 0, :, 1].tolist() == list(range(1, 13))
    torch.testing.assert_close(packed, torch.cat([model(part).logits for part in ids.split([5, 7], 1)], 1))
    masks.clear()
    model(**tiny.tokens())
    assert ranges_of(masks[0], masks[0].shape[-2], False)[1]


def test_weights_are_returned_where_they_may_be_read() -> None:
    from transformers.utils.output_capturing import _active_collector

    def weights(**options: Any) -> torch.Tensor | None:
        x = torch.randn(1, 2, 3, 4)
        return attend(torch.nn.Identity(), x, x, x, None, Sparsemax(), **options)[1]

    assert weights() is not None, "nobody says what the model returns"
    for names, asked in ((["hidden_states"], False), (["hidden_states", "cross_attentions"], True)):
        token = _active_collector.set({name: [] for name in names})
        try:
            assert (weights() is not None) == asked
            assert weights(output_attentions=True) is not None
        finally:
            _active_collector.reset(token)
