"""Models of a user: one that never calls the interface of attention, and one that does in half of its layers.

The first passes the check of transformers, which searches this file for `ALL_ATTENTION_FUNCTIONS.get_interface(`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from transformers.modeling_outputs import BaseModelOutput  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402


def fallback(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(query @ key.mT, -1)
    return (weights @ value).transpose(1, 2), weights


class OwnAttention(nn.Module):
    is_causal = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, -1) @ x


class FusedAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


class InterfaceAttention(nn.Module):
    is_causal = False

    def __init__(self, config: Any, **options: Any) -> None:
        super().__init__()
        self.config, self.options = config, options

    def forward(self, x: Tensor) -> Tensor:
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, fallback)
        heads = x.unsqueeze(1)
        return function(self, heads, heads, heads, None, **self.options)[0].squeeze(2)


class OwnConfig(transformers.PreTrainedConfig):
    model_type = "own"


class OwnModel(transformers.PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config: Any, *layers: nn.Module) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(layers)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Tensor) -> BaseModelOutput:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return BaseModelOutput(x)


class TextAndImages(OwnModel):
    """A model whose last layer runs on images alone."""

    def forward(self, input_ids: Tensor, images: Tensor | None = None) -> BaseModelOutput:
        x = super().forward(input_ids).last_hidden_state
        return BaseModelOutput(x if images is None else x + self.image_layer(images))
