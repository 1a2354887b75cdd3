"""Softmax through the interface of attention is the model's eager attention, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.errors import ConfigurationError  # noqa: E402
from lit_sparse.hf import register, sparsify  # noqa: E402
from lit_sparse.mappings import Fusedmax, Oscarmax, Softmax, Sparsemax  # noqa: E402

from . import tiny  # noqa: E402

SOFTMAX = "lit_sparse_softmax"
CAUSAL = ("llama", "gpt2", "t5", "whisper")


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.mark.parametrize("name", tiny.MODELS)
def test_outputs(name: str) -> None:
    model = tiny.MODELS[name]()
    model.set_attn_implementation("eager")
    eager = tiny.outputs_of(model)
    model.set_attn_implementation(SOFTMAX)
    assert torch.equal(tiny.outputs_of(model), eager)
    model.set_attn_implementation("lit_sparse_sparsemax")
    assert (tiny.outputs_of(model) - eager).abs().max() > 1e-3


@pytest.mark.parametrize("name", tiny.MODELS)
def test_sparsify_by_softmax_and_gradients(name: str) -> None:
    model = tiny.MODELS[name]()
    model.set_attn_implementation("eager")
    eager = tiny.outputs_of(model)
    weights = [p for p in model.parameters() if p.requires_grad]
    expected = torch.autograd.grad(eager.square().sum(), weights, allow_unused=True)
    report = sparsify(model, Softmax())
    assert all(layer.heads == 4 for layer in report.layers)
    ours = tiny.outputs_of(model)
    assert torch.equal(ours, eager)
    for one, other in zip(torch.autograd.grad(ours.square().sum(), weights, allow_unused=True), expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("name", tiny.MODELS)
def test_dropout_draws_the_same_weights(name: str) -> None:
    option = {"t5": "dropout_rate", "gpt2": "attn_pdrop"}.get(
        name, "attention_probs_dropout_prob" if name in ("bert", "vit") else "attention_dropout"
    )
    model = tiny.MODELS[name](**{option: 0.5})
    found = []
    for attention in ("eager", SOFTMAX):
        model.set_attn_implementation(attention)
        model.train()
        torch.manual_seed(3)
        found.append(tiny.outputs_of(model))
    assert torch.equal(*found)
    assert not torch.equal(found[0], tiny.outputs_of(model))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache(name: str, cache: str) -> None:
    model = tiny.MODELS[name]()
    inputs = {key: x for key, x in tiny.inputs_of(model).items() if key != "decoder_input_ids"}
    found = []
    for attention in ("eager", SOFTMAX):
        model.set_attn_implementation(attention)
        found.append(
            model.generate(
                **inputs,
                max_new_tokens=6,
                min_new_tokens=6,
                do_sample=False,
                cache_implementation=cache,
                return_dict_in_generate=True,
                output_logits=True,
            )
        )
    assert torch.equal(found[0].sequences, found[1].sequences)
    assert torch.equal(torch.stack(found[0].logits), torch.stack(found[1].logits))


@pytest.mark.gate
def test_left_padding_changes_nothing() -> None:
    model = tiny.llama()
    model.set_attn_implementation("lit_sparse_entmax15")
    inputs = tiny.tokens()
    alone = model(input_ids=inputs["input_ids"][:1, tiny.PADDING :]).logits
    padded = model(**inputs).logits[:1, tiny.PADDING :]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)
    unmasked = model(input_ids=inputs["input_ids"]).logits[:1, tiny.PADDING :]
    assert (unmasked - alone).abs().max() > 1e-2


def both(model: Any) -> tuple[Any, Any]:
    """Return a model's outputs by softmax through the interface, and by eager attention."""
    model.set_attn_implementation("eager")
    eager = tiny.outputs_of(model)
    model.set_attn_implementation(SOFTMAX)
    return tiny.outputs_of(model), eager


def test_sliding_windows() -> None:
    config = {**tiny.TEXT, "num_key_value_heads": 2, "sliding_window": 3}
    model = tiny._seeded(lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**config)))
    assert torch.equal(*both(model))
    model.set_attn_implementation("lit_sparse_sparsemax")
    weights = model(**tiny.tokens(), output_attentions=True).attentions
    assert all((layer[1, :, 6, :4] == 0).all() and (layer[1, :, 6, 4:] != 0).any() for layer in weights)


def test_a_model_that_appends_positions_to_its_mask() -> None:
    model = tiny.deepseek_v4()
    inputs = {"input_ids": torch.randint(3, 50, (1, 150), generator=torch.Generator().manual_seed(0))}
    model.set_attn_implementation("eager")
    eager = tiny.outputs_of(model, inputs)
    sparsify(model, Softmax())
    torch.testing.assert_close(tiny.outputs_of(model, inputs), eager, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation("lit_sparse_by_layer_boolean")
    assert (tiny.outputs_of(model, inputs) - eager).abs().max() > 1e-2, "boolean masks are read as numbers"


def test_a_layer_without_a_mask_sees_all_positions() -> None:
    sizes = {key: size for key, size in tiny.TEXT.items() if not key.endswith("token_id")}
    model = tiny._seeded(lambda: transformers.SplinterForQuestionAnswering(transformers.SplinterConfig(**sizes)))
    inputs = {"input_ids": torch.randint(3, 50, (1, 7), generator=torch.Generator().manual_seed(0))}
    found = []
    for attention in ("eager", SOFTMAX):
        model.set_attn_implementation(attention)
        found.append(model(**inputs).start_logits)
    assert torch.equal(*found)


def test_soft_caps() -> None:
    model = tiny.gemma2()
    ours, eager = both(model)
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (tiny.outputs_of(model) - eager).abs().max() > 1e-2


def test_sinks() -> None:
    model = tiny.gpt_oss()
    torch.testing.assert_close(*both(model), rtol=1e-4, atol=1e-4)
    weights = model(**tiny.tokens(), output_attentions=True).attentions
    assert weights[0].shape[-1] == 7
    assert (weights[0][1].sum(-1) < 0.999).all()


@pytest.mark.parametrize("mapping", [Fusedmax(), Oscarmax()])
def test_sinks_are_refused_by_mappings_that_are_not_separable(mapping: Any) -> None:
    with pytest.raises(ConfigurationError, match="attention sinks"):
        sparsify(tiny.gpt_oss(), mapping)
    report = sparsify(tiny.gpt_oss(), Sparsemax())
    assert len(report.layers) == 2


def test_a_bias_of_positions_has_a_gradient() -> None:
    model = tiny.t5()
    sparsify(model, Sparsemax())
    tiny.outputs_of(model).square().sum().backward()
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert bias.grad.abs().max() > 0


def test_upcast_attention_of_gpt2() -> None:
    model = tiny.gpt2(reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True)
    ours, eager = both(model)
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_mapped_in_float32(dtype: torch.dtype) -> None:
    model = tiny.llama().to(dtype)
    assert torch.equal(*both(model))
    report = sparsify(model, Sparsemax())
    assert report.layers
    assert tiny.outputs_of(model).dtype == dtype


def test_a_float_mask_of_the_users() -> None:
    model = tiny.llama()
    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    allowed[:, 0] = False
    allowed[0, 0] = True
    bias = torch.randn(1, 1, 7, 7)
    lowest = torch.finfo(torch.float32).min
    mask = torch.where(allowed, bias, lowest)
    ids = tiny.tokens()["input_ids"]
    model.set_attn_implementation("eager")
    eager = model(input_ids=ids, attention_mask=mask).logits
    model.set_attn_implementation(SOFTMAX)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, eager)
    model.set_attn_implementation("lit_sparse_sparsemax")
    for forbidden in (lowest, lowest * 0.75, -torch.inf):
        given = torch.where(allowed, bias, forbidden)
        weights = model(input_ids=ids, attention_mask=given, output_attentions=True).attentions
        assert all((layer[..., ~allowed] == 0).all() for layer in weights)
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 4, 7))
