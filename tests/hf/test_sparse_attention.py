"""Models with sparse attention generate, train, compile, and are adapted by LoRA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.hf import register, sparsify
from lit_sparse.mappings import Entmax, Fusedmax, LearnableEntmax, Sparsemax, TopKSparsemax

from . import tiny

#: peft reads an attribute that transformers renames.
FORMER = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
MAPPINGS = {"sparsemax": Sparsemax(), "entmax": Entmax(1.5), "learnable": LearnableEntmax((4, 1, 1)), "fusedmax": Fusedmax()}


@pytest.mark.cases(quick=5)
@pytest.mark.parametrize("cache", [False, "dynamic", "static"])
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_generation_is_the_same_with_and_without_a_cache(name: str, mapping: str, cache: str | bool) -> None:
    model = tiny.MODELS[name]().double()
    sparsify(model, MAPPINGS[mapping])
    inputs = {key: x for key, x in tiny.inputs_of(model).items() if key != "decoder_input_ids"}
    options: dict[str, Any] = {"use_cache": False} if cache is False else {"cache_implementation": cache}
    found = model.generate(
        **inputs,
        **options,
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    if model.config.is_encoder_decoder:
        logits = model(**inputs, decoder_input_ids=found.sequences[:, :-1]).logits
    else:
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 5, dtype=torch.long)], 1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        logits = model(input_ids=found.sequences[:, :-1], attention_mask=mask, position_ids=positions).logits[:, -6:]
    torch.testing.assert_close(torch.stack(found.logits, 1), logits.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_weights_are_exactly_zero_and_sum_to_one(name: str) -> None:
    model = tiny.MODELS[name]()
    sparsify(model, TopKSparsemax(2))
    outputs = model(**tiny.inputs_of(model), output_attentions=True)
    key = "encoder_attentions" if model.config.is_encoder_decoder else "attentions"
    layers = outputs[key]
    assert len(layers) == 2
    for weights in layers:
        assert ((weights != 0).sum(-1) <= 2).all()
        real = weights.sum(-1)[1]
        torch.testing.assert_close(real, torch.ones_like(real))


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_gradient_checkpointing_gives_the_same_gradients(name: str) -> None:
    model = tiny.MODELS[name](**{"llama": {"use_cache": False}, "t5": {"use_cache": False, "dropout_rate": 0.0}}.get(name, {}))
    sparsify(model, LearnableEntmax((4, 1, 1)))
    model.train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)  # its former name
            enable()
        model.zero_grad()
        tiny.outputs_of(model).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    alphas = [p for key, p in model.named_parameters() if "lit_sparse" in key]
    assert alphas and all(p.grad.abs().max() > 0 for p in alphas)
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_whole_model_compiles_without_a_break(mapping: str) -> None:
    model = tiny.llama()
    sparsify(model, MAPPINGS[mapping])
    eager = tiny.outputs_of(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(tiny.outputs_of(compiled), eager, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.MODELS)
def test_all_models_compile_and_train_without_a_break(name: str) -> None:
    model = tiny.MODELS[name]()
    sparsify(model, Entmax(1.5))
    parameters = [p for p in model.parameters() if p.requires_grad]
    eager = tiny.outputs_of(model)
    expected = torch.autograd.grad(eager.square().sum(), parameters, allow_unused=True)
    torch._dynamo.reset()
    output = tiny.outputs_of(torch.compile(model, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(output, eager, rtol=1e-4, atol=1e-4)
    largest = max(float(grad.abs().max()) for grad in expected if grad is not None)  # a key's bias has only a rounding error
    for ours, theirs in zip(torch.autograd.grad(output.square().sum(), parameters, allow_unused=True), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5 * largest)


@pytest.mark.slow
def test_a_model_compiles_to_machine_code() -> None:
    model = tiny.llama()
    sparsify(model, Entmax(1.5))
    eager = tiny.outputs_of(model)
    torch._dynamo.reset()
    torch.testing.assert_close(tiny.outputs_of(torch.compile(model, fullgraph=True)), eager, rtol=1e-4, atol=1e-4)


@pytest.mark.gate
def test_a_name_compiles_without_a_break() -> None:
    register()
    model = tiny.llama(num_hidden_layers=1)
    model.set_attn_implementation("lit_sparse_sparsemax")
    eager = tiny.outputs_of(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(tiny.outputs_of(compiled), eager, rtol=1e-4, atol=1e-4)


@FORMER
def test_lora_trains_the_alphas_that_are_named() -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    found = {}
    for saved in (None, ["lit_sparse"]):
        model = tiny.llama()
        sparsify(model, LearnableEntmax((4, 1, 1)))
        config = peft.LoraConfig(target_modules=["q_proj"], r=2, modules_to_save=saved, task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(model, config)
        tiny.outputs_of(adapted).square().sum().backward()
        found[saved is None] = {key for key, p in adapted.named_parameters() if "lit_sparse" in key and p.grad is not None}
    assert not found[True]
    assert len(found[False]) == 2


@FORMER
def test_lora_saves_the_alphas(tmp_path: Any) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, modules_to_save=["lit_sparse"], task_type="CAUSAL_LM")
    model = tiny.llama()
    sparsify(model, LearnableEntmax((4, 1, 1)))
    adapted = peft.get_peft_model(model, config)
    for key, p in adapted.named_parameters():
        if "lit_sparse.modules_to_save" in key:
            p.data += 3.0
    adapted.eval()
    expected = tiny.outputs_of(adapted)
    adapted.save_pretrained(tmp_path)
    again = tiny.llama()
    sparsify(again, LearnableEntmax((4, 1, 1)))
    assert not torch.equal(tiny.outputs_of(again), expected)
    again = peft.PeftModel.from_pretrained(again, tmp_path).eval()
    assert torch.equal(tiny.outputs_of(again), expected)


def test_one_mapping_per_layer_and_a_choice_of_layers() -> None:
    model = tiny.llama(num_hidden_layers=3)
    report = sparsify(model, [TopKSparsemax(1), TopKSparsemax(2)], layers=[0, "model.layers.2.self_attn"])
    assert [layer.mapping.split("(")[0] for layer in report.layers] == ["TopKSparsemax", "Softmax", "TopKSparsemax"]
    weights = model(**tiny.tokens(), output_attentions=True).attentions
    assert [int((layer[1] != 0).sum(-1).max()) for layer in weights] == [1, 7, 2]
    assert "model.layers.2.self_attn" in str(report) and "TopKSparsemax(k=2" in str(report)


@pytest.mark.gate
def test_heads_have_alphas_of_their_own() -> None:
    model = tiny.llama(num_hidden_layers=1)
    sparsify(model, LearnableEntmax((4, 1, 1), low=1.0, high=4.0))
    alphas = model.model.layers[0].self_attn.lit_sparse.mapping
    alphas.weight.data = torch.tensor([-50.0, -1.0, 1.0, 50.0]).view(4, 1, 1)
    weights = model(**tiny.tokens(), output_attentions=True).attentions[0][1, :, -1]
    support = (weights != 0).sum(-1)
    assert support[0] == 7 and support[3] < 7


def test_layers_do_not_share_their_mapping() -> None:
    model, mapping = tiny.llama(), LearnableEntmax()
    mapping.weight.data.fill_(0.3)
    sparsify(model, mapping)
    parts = [layer.self_attn.lit_sparse.mapping for layer in model.model.layers]
    assert parts[0].weight is not parts[1].weight and parts[0].weight is not mapping.weight
    assert all(torch.equal(part.weight, mapping.weight) for part in parts)


def test_a_second_call_replaces_the_first() -> None:
    model = tiny.llama()
    sparsify(model, LearnableEntmax())
    sparsify(model, TopKSparsemax(1))
    assert not [key for key, _ in model.named_parameters() if "lit_sparse" in key]
    weights = model(**tiny.tokens(), output_attentions=True).attentions
    assert all(((layer[1] != 0).sum(-1) == 1).all() for layer in weights)
