"""Layers of `torch.nn.MultiheadAttention` inside a model of transformers attend by mappings too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.errors import ConfigurationError  # noqa: E402
from lit_sparse.hf import from_pretrained, sparsify  # noqa: E402
from lit_sparse.hf.adapter import LayerMapping  # noqa: E402
from lit_sparse.mappings import HardThreshold, LearnableEntmax, Softmax, TopKSparsemax  # noqa: E402

from .own_attention import InterfaceAttention, OwnConfig, OwnModel  # noqa: E402

HEAD = "head.attention"


@pytest.fixture
def model() -> Any:
    """An encoder of images, which ends with a layer of torch."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    built = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes, image_size=32, patch_size=8)).eval()
    for parameter in built.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.5)
    return built


def pooled(model: Any) -> torch.Tensor:
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    output: torch.Tensor = model(pixel_values=pixels).pooler_output
    return output


def test_softmax_gives_what_torch_gives(model: Any) -> None:
    before, names = pooled(model), set(model.state_dict())
    report = sparsify(model, Softmax())
    assert [(layer.name, layer.heads) for layer in report.layers] == [("encoder.layers.0.self_attn", 4), (HEAD, 4)]
    torch.testing.assert_close(pooled(model), before)
    assert isinstance(model.head.attention, nn.MultiheadAttention)
    assert {name for name in model.state_dict() if ".lit_sparse." not in name} == names


def test_the_mapping_of_the_layer_is_used_and_counted(model: Any) -> None:
    before = pooled(model)
    sparsify(model, [Softmax(), TopKSparsemax(1)])
    assert (pooled(model) - before).abs().max() > 1e-2
    part = model.head.attention.lit_sparse
    part.recording = True
    pooled(model)
    nonzero, allowed, queries = part.take_counts().unbind(-1)
    assert nonzero.tolist() == queries.tolist() == [2, 2, 2, 2]
    assert allowed.tolist() == [2 * 16] * 4


def test_a_second_mapping_replaces_the_first(model: Any) -> None:
    sparsify(model, TopKSparsemax(1))
    first = pooled(model)
    assert [layer.name for layer in sparsify(model, TopKSparsemax(3)).layers][-1] == HEAD
    assert (pooled(model) - first).abs().max() > 1e-3


def test_a_refused_mapping_leaves_the_layer_alone(model: Any) -> None:
    before = pooled(model)
    for mapping in (HardThreshold(1), LearnableEntmax((7, 1, 1))):
        with pytest.raises(ConfigurationError):
            sparsify(model, mapping)
        assert type(model.head.attention) is nn.MultiheadAttention
        assert model.head.attention._qkv_same_embed_dim
        assert not any(isinstance(part, LayerMapping) for part in model.modules())
        assert torch.equal(pooled(model), before)


def test_it_is_saved_and_restored_with_its_alpha(model: Any, tmp_path: Path) -> None:
    sparsify(model, LearnableEntmax((4, 1, 1)))
    nn.init.normal_(model.head.attention.lit_sparse.mapping.weight)
    model.save_pretrained(tmp_path)
    restored: Any = from_pretrained(transformers.SiglipVisionModel, tmp_path)
    assert torch.equal(pooled(restored), pooled(model))
    pooled(restored).square().sum().backward()
    assert bool(restored.head.attention.lit_sparse.mapping.weight.grad.abs().min() > 0)


def test_a_layer_that_torch_would_fuse_is_not_fused() -> None:
    """In evaluation, torch's encoder layer reads the weights of its attention, and takes a softmax, past its forward."""
    config = OwnConfig()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)  # torch fuses even numbers of heads
    nn.init.normal_(layer.self_attn.in_proj_weight, std=3)
    model = OwnModel(config, InterfaceAttention(config), layer).eval()
    nn.init.normal_(model.embedding.weight)
    ids = torch.arange(10).unsqueeze(0)
    with torch.no_grad():
        sparsify(model, Softmax())
        before = model(ids).last_hidden_state
        report = sparsify(model, [Softmax(), TopKSparsemax(1)])
        assert [each.name for each in report.layers] == ["layers.0", "layers.1.self_attn"]
        assert (model(ids).last_hidden_state - before).abs().max() > 1e-3
