"""Activations are read and replaced in place, what that costs, and the files that SAELens reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.hf import activations, loss_recovered, save_for_sae_lens, spliced
from lit_sparse.mappings import BatchTopK, HardThreshold, JumpReLU, SparseMapping, Sparsemax
from lit_sparse.models import SparseAutoencoder

from .tiny import bert, gpt2, llama, tokens


@pytest.mark.parametrize(
    ("make", "layer"), [(bert, "bert.encoder.layer.0"), (gpt2, "transformer.h.0"), (llama, "model.layers.0")]
)
def test_a_module_is_replaced_in_place(make: object, layer: str) -> None:
    """By itself nothing changes; skipped tokens stay; after the context the model is as before."""
    model, inputs = make(), tokens()  # type: ignore[operator]
    with torch.no_grad():
        whole = model(**inputs).logits
        found = activations(model, layer, inputs)
        assert found.shape == (2, 7, 32)
        seen: list[Tensor] = []
        with spliced(model, layer, lambda x: seen.append(x) or x, skipped=[0]):  # type: ignore[func-returns-value]
            torch.testing.assert_close(model(**inputs).logits, whole)
        assert torch.equal(seen[0], found[inputs["input_ids"] != 0])
        with spliced(model, layer, torch.zeros_like):
            assert not torch.allclose(model(**inputs).logits, whole)
        torch.testing.assert_close(model(**inputs).logits, whole)
    model.train()  # as the Trainer leaves it
    half = loss_recovered(model, layer, lambda x: x, lambda: model(**inputs).logits.square().mean())
    assert half["recovered"] == pytest.approx(1.0) and half["clean"] == pytest.approx(half["spliced"])
    assert model.training
    with pytest.raises(ConfigurationError, match="Did you mean"):
        activations(model, f"{layer}0", inputs)
    with pytest.raises(ConfigurationError, match="by name"), spliced(model, layer, torch.zeros_like):
        model(inputs["input_ids"])


@pytest.mark.parametrize(
    "mapping", [HardThreshold(4, nonneg=True), BatchTopK(4), JumpReLU(4, shape=(24,), start=1.2)], ids=repr
)
def test_files_of_sae_lens(mapping: SparseMapping, tmp_path: Path) -> None:
    """Read back by the formula of its classes: scores of centered input, the largest or those above a threshold, one sum."""
    from safetensors.torch import load_file

    torch.manual_seed(0)
    x = 3 * torch.randn(50, 8) + 1
    model = SparseAutoencoder(mapping, in_features=8, width=24)
    model.start_from(x)
    with torch.no_grad():
        model.encoder.bias.normal_()
        model.decoder *= 2
        model.encode(x)
        model.eval()
        save_for_sae_lens(model, tmp_path / "sae", hook_name="layer")
        config, part = (
            json.loads((tmp_path / "sae" / "cfg.json").read_text()),
            load_file(tmp_path / "sae" / "sae_weights.safetensors"),
        )
        assert (config["d_in"], config["d_sae"], config["apply_b_dec_to_input"]) == (8, 24, True)
        assert config["metadata"]["hook_name"] == "layer"
        scores = (x - part["b_dec"]) @ part["W_enc"] + part["b_enc"]
        if config["architecture"] == "topk":
            values, places = scores.topk(config["k"], 1)
            y = torch.zeros_like(scores).scatter(1, places, values.relu())
        else:
            y = torch.where(scores > part["threshold"], scores.relu(), 0.0)
        torch.testing.assert_close(y, model.scale * model.encode(x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(y @ part["W_dec"] + part["b_dec"], model(x), atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigurationError, match="SAELens"):
        save_for_sae_lens(SparseAutoencoder(Sparsemax(), in_features=8, width=24), tmp_path)
