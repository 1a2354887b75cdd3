"""Transformer encoder and decoder whose every attention takes the mapping."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, ranges
from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.attend import MultiheadAttention
from lit_sparse.nn.encoder_decoder.base import EncoderDecoder, State, length_mask
from lit_sparse.nn.inputs import check_input, check_sentences, check_state

__all__ = ["TransformerBody"]


@ranges(heads=FEATURES, feedforward=FEATURES)
class TransformerBody(EncoderDecoder):
    """Transformer encoder and decoder whose self-attention and cross-attention use any mapping.

    Layers are residual, with layer normalization before each part and sinusoidal positions.

    Each attention has its own copy of the mapping, with its own parameters, as in ``LearnableEntmax(shape=(8, 1, 1))``. The
    returned weights belong to the cross-attention, with the heads of all layers concatenated.

    Args:
        width: E, number of features of embeddings and hidden vectors.
        layers: number of layers of the encoder, and of the decoder.
        dropout: dropout probability of attention weights and of the output of each residual branch.
        heads: number of heads of each attention; it divides the width.
        feedforward: number of hidden features of each feed-forward block.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Vaswani et al. (2017), Attention Is All You Need. Normalization first: Xiong et al. (2020), On Layer
    Normalization in the Transformer Architecture. Sparse mappings: Correia, Niculae & Martins (2019), Adaptively Sparse
    Transformers.

    Example:
        >>> from lit_sparse.mappings import Entmax
        >>> body = TransformerBody(16, layers=2, heads=4).bind(Entmax()).eval()
        >>> memory = body.encode(torch.randn(2, 5, 16), torch.tensor([5, 3]))
        >>> hidden, weights = body.decode(torch.randn(2, 4, 16), memory)
        >>> hidden.shape, weights.shape
        (torch.Size([2, 4, 16]), torch.Size([2, 8, 4, 5]))
    """

    def __init__(
        self, width: int = 512, layers: int = 6, dropout: float = 0.1, heads: int = 8, feedforward: int = 2048
    ) -> None:
        super().__init__(width, layers, dropout)
        self.heads, self.feedforward = heads, feedforward
        self.encoder = nn.ModuleList(_Layer(width, heads, feedforward, dropout, crosses=False) for _ in range(layers))
        self.decoder = nn.ModuleList(_Layer(width, heads, feedforward, dropout, crosses=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    @override
    def bind(self, mapping: SparseMapping) -> Self:
        super().bind(mapping)
        attentions = [module for module in self.modules() if isinstance(module, MultiheadAttention)]
        for attention in attentions[1:]:
            attention.mapping = copy.deepcopy(mapping)
        attentions[0].mapping = mapping
        return self

    @override
    def encode(self, embedded: Tensor, lengths: Tensor) -> State:
        check_sentences("embedded sentences", embedded, lengths, self.width, self.encoder_norm.weight)
        mask = length_mask(lengths, embedded.shape[1])
        x = self._placed(embedded, 0)
        for layer in _layers(self.encoder):
            x, _ = layer(x, None, ~mask, None)
        return {"states": self.encoder_norm(x), "mask": mask}

    @override
    def prepare(self, memory: State) -> State:
        self._check_memory(memory, "B")
        states = torch.where(memory["mask"].unsqueeze(-1), memory["states"], 0.0)  # a weight of zero does not silence a NaN
        found = dict(memory)
        for number, layer in enumerate(_layers(self.decoder)):
            found[f"keys{number}"], found[f"values{number}"] = layer.cross_attention.project_memory(states, states)
        return found

    @override
    def start(self, memory: State) -> State:
        self._check_memory(memory, "B")
        none = memory["states"].new_zeros(memory["states"].shape[0], self.heads, 0, self.width // self.heads)
        return {f"{kind}{number}": none for number in range(self.layers) for kind in ("keys", "values")}

    @override
    def step(self, embedded: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        check_input("embedded tokens", embedded, ("B", self.width), self.decoder_norm.weight)
        self._check_memory(memory, embedded.shape[0])
        check_state("state", state, self._projections(embedded.shape[0], "T"), self.decoder_norm.weight)
        x = self._placed(embedded.unsqueeze(1), state["keys0"].shape[2])
        memory = memory if "keys0" in memory else self.prepare(memory)
        mask = memory["mask"][:, None, None]
        after: State = {}
        all_weights = []
        for number, layer in enumerate(_layers(self.decoder)):
            keys, values = f"keys{number}", f"values{number}"
            normed = layer.before(x)
            key, value = layer.self_attention.project_memory(normed, normed)
            after[keys], after[values] = torch.cat([state[keys], key], 2), torch.cat([state[values], value], 2)
            x = x + layer.drop(layer.self_attention.attend_projected(normed, after[keys], after[values])[0])
            found, weights = layer.cross_attention.attend_projected(layer.before_cross(x), memory[keys], memory[values], mask)
            x = layer.widened(x + layer.drop(found))
            all_weights.append(weights)
        return self.decoder_norm(x).squeeze(1), torch.cat(all_weights, 1).squeeze(2), after

    @override
    def decode(self, embedded: Tensor, memory: State) -> tuple[Tensor, Tensor]:
        check_input("embedded sentences", embedded, ("B", "L", self.width), self.decoder_norm.weight)
        self._check_memory(memory, embedded.shape[0])
        length = embedded.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=embedded.device).triu(1)
        x = self._placed(embedded, 0)
        all_weights = []
        for layer in _layers(self.decoder):
            x, weights = layer(x, later, None, memory)
            all_weights.append(weights)
        return self.decoder_norm(x), torch.cat(all_weights, 1)

    def _check_memory(self, memory: State, batch: int | str) -> None:
        shapes: dict[str, tuple[int | str, ...]] = {"mask": (batch, "S"), "states": (batch, "S", self.width)}
        if isinstance(memory, dict) and "keys0" in memory:
            shapes |= self._projections(batch, "S")
        check_state("memory", memory, shapes, self.decoder_norm.weight)

    def _projections(self, batch: int | str, length: str) -> dict[str, tuple[int | str, ...]]:
        """Return the shapes of the projected keys and values of the first and the last layer; all layers have equal ones."""
        shape = (batch, self.heads, length, self.width // self.heads)
        return {f"{kind}{number}": shape for number in (0, self.layers - 1) for kind in ("keys", "values")}

    def _placed(self, embedded: Tensor, first: int) -> Tensor:
        """Scale embeddings (B, L, E) and add their positions, counted from ``first``."""
        position = torch.arange(first, first + embedded.shape[1], device=embedded.device).unsqueeze(-1)
        feature = torch.arange(self.width, device=embedded.device)
        angles = position * torch.exp(-math.log(10000.0) * (feature // 2 * 2) / self.width)
        waves = torch.where(feature % 2 == 0, angles.sin(), angles.cos())
        placed: Tensor = self.drop(embedded * math.sqrt(self.width) + waves.to(embedded.dtype))
        return placed


def _layers(modules: nn.ModuleList) -> Iterator[_Layer]:
    return cast("Iterator[_Layer]", iter(modules))  # also layers that a strategy has wrapped


class _Layer(nn.Module):
    """Self-attention, cross-attention if there is a memory, and two linear layers; each part is added to its input."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float, crosses: bool) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.self_attention = MultiheadAttention(width, heads, dropout, batch_first=True)
        if crosses:
            self.before_cross = nn.LayerNorm(width)
            self.cross_attention = MultiheadAttention(width, heads, dropout, batch_first=True)
        self.before_linear = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, later: Tensor | None, padding: Tensor | None, memory: State | None) -> tuple[Tensor, Tensor]:
        """Return the layer's output (B, T, E) and the weights of its cross-attention (B, heads, T, S), or its own.

        Args:
            x: (B, T, E).
            later: (T, T), True at later positions, which are masked.
            padding: (B, T), True at padding.
            memory: memory of the cross-attention; None for a layer without it.
        """
        normed = self.before(x)
        attended, weights = self.self_attention(normed, normed, normed, padding, attn_mask=later, average_attn_weights=False)
        x = x + self.drop(attended)
        if memory is not None:
            states = memory["states"]
            attended, weights = self.cross_attention(
                self.before_cross(x), states, states, ~memory["mask"], average_attn_weights=False
            )
            x = x + self.drop(attended)
        return self.widened(x), weights

    def widened(self, x: Tensor) -> Tensor:
        """Return what the layer's last part makes of (B, T, E)."""
        inner = self.drop(nnf.relu(self.wide(self.before_linear(x))))
        widened: Tensor = x + self.drop(self.narrow(inner))
        return widened
