"""Tiny random models of transformers, with inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

TEXT: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Number of tokens of padding before the first of two sentences.
PADDING = 3


def tokens() -> dict[str, Tensor]:
    """Return two sentences, the first with padding at its left."""
    ids = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :PADDING] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def _seeded(model: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    built = model().eval()
    for parameter in built.parameters():  # scores of the initial weights hardly differ: amplify
        if parameter.dim() == 2:
            parameter.data *= 8
    return built


def llama(**options: Any) -> Any:
    config = transformers.LlamaConfig(**{**TEXT, "num_key_value_heads": 2, **options})
    return _seeded(lambda: transformers.LlamaForCausalLM(config))


def bert(**options: Any) -> Any:
    config = transformers.BertConfig(**{**TEXT, **options})
    return _seeded(lambda: transformers.BertForSequenceClassification(config))


def gpt2(**options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **options
    )
    return _seeded(lambda: transformers.GPT2LMHeadModel(config))


def t5(**options: Any) -> Any:
    config = transformers.T5Config(
        **{
            "vocab_size": 50,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            **options,
        }
    )
    return _seeded(lambda: transformers.T5ForConditionalGeneration(config))


def vit(**options: Any) -> Any:
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=12, patch_size=4, **options
    )
    return _seeded(lambda: transformers.ViTForImageClassification(config))


def modernbert(**options: Any) -> Any:
    special = {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2}
    config = transformers.ModernBertConfig(**{**TEXT, **special, **options})
    return _seeded(lambda: transformers.ModernBertForMaskedLM(config))


def whisper(**options: Any) -> Any:
    config = transformers.WhisperConfig(
        **{
            "vocab_size": 50,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            **options,
        }
    )
    return _seeded(lambda: transformers.WhisperForConditionalGeneration(config))


def gemma2(**options: Any) -> Any:
    special = {"num_key_value_heads": 2, "head_dim": 8, "attn_logit_softcapping": 0.3, "sliding_window": 3}
    config = transformers.Gemma2Config(**{**TEXT, **special, **options})
    return _seeded(lambda: transformers.Gemma2ForCausalLM(config))


def gpt_oss(**options: Any) -> Any:
    special = {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3}
    config = transformers.GptOssConfig(**{**TEXT, **special, **options})
    model = _seeded(lambda: transformers.GptOssForCausalLM(config))
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def deepseek_v4(**options: Any) -> Any:
    """Return a model that appends positions to its mask."""
    special = {"num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 16, "o_lora_rank": 16, "moe_intermediate_size": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "index_n_heads": 2, "index_head_dim": 16}
    kinds = {"layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"], "mlp_layer_types": ["moe", "moe"]}
    config = transformers.DeepseekV4Config(**{**TEXT, **special, **experts, **kinds, **options})
    return _seeded(lambda: transformers.DeepseekV4ForCausalLM(config))


MODELS: dict[str, Callable[..., Any]] = {
    "llama": llama,
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
    "vit": vit,
    "modernbert": modernbert,
    "whisper": whisper,
}


def inputs_of(model: Any) -> dict[str, Tensor]:
    """Return arguments of the forward pass."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 12, 12, generator=generator)}
    decoder = {"decoder_input_ids": torch.randint(3, 50, (2, 5), generator=generator)}
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(2, 8, 32, generator=generator), **decoder}
    return {**tokens(), **(decoder if model.config.is_encoder_decoder else {})}


def outputs_of(model: Any, inputs: dict[str, Tensor] | None = None) -> Tensor:
    """Return the logits, at tokens that are not padding."""
    inputs = inputs_of(model) if inputs is None else inputs
    logits = model(**inputs).logits
    per_token = "attention_mask" in inputs and logits.shape[:2] == inputs["attention_mask"].shape
    return logits[inputs["attention_mask"].bool()] if per_token else logits
