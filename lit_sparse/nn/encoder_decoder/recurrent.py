"""Recurrent encoder and decoder with global attention and input feeding (Luong et al. 2015)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.nn.encoder_decoder.base import EncoderDecoder, State, call_recurrent, length_mask, run_recurrent
from lit_sparse.nn.inputs import check_input, check_sentences, check_state

__all__ = ["RecurrentBody"]


class RecurrentBody(EncoderDecoder):
    """Recurrent encoder and decoder, LSTMs or GRUs, with attention from the decoder's state to the encoder's states.

    At each step, the decoder's top state h attends to the encoder's states s with the scores ``h^T W s``. The hidden vector
    is ``tanh(V [c; h])``, where c is the attended mean; with input feeding it is part of the next step's input. The
    defaults are the architecture of the paper. Without input feeding, a step does not depend on earlier attention, so all
    steps are computed together, and training is several times faster.

    Args:
        width: E, number of features of embeddings and hidden vectors.
        layers: number of layers of the encoder, and of the decoder.
        dropout: dropout probability between layers and of the hidden vector.
        cell: ``"lstm"`` or ``"gru"``.
        bidirectional: whether the encoder runs in both directions, each with half of the width.
        input_feeding: whether the hidden vector of a step is an input of the next.
        scaled: whether to divide scores by the square root of the width. With Adam, unscaled scores grow within a few
            steps, and sparse attention then stays on one position.

    Raises:
        ConfigurationError: for an argument outside its range, or an odd width in both directions.

    Source: Luong, Pham & Manning (2015), Effective Approaches to Attention-based Neural Machine Translation, sections 3.1,
    3.3; Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, appendix C.3.

    Example:
        >>> from lit_sparse.mappings import Sparsemax
        >>> body = RecurrentBody(8, layers=1).bind(Sparsemax())
        >>> memory = body.encode(torch.randn(2, 5, 8), torch.tensor([5, 3]))
        >>> hidden, weights = body.decode(torch.randn(2, 4, 8), memory)
        >>> hidden.shape, bool((weights[1, :, :, 3:] == 0).all())
        (torch.Size([2, 4, 8]), True)
    """

    def __init__(
        self,
        width: int = 500,
        layers: int = 2,
        dropout: float = 0.3,
        cell: Literal["lstm", "gru"] = "lstm",
        bidirectional: bool = False,
        input_feeding: bool = True,
        scaled: bool = False,
    ) -> None:
        super().__init__(width, layers, dropout)
        self.cell, self.bidirectional, self.input_feeding, self.scaled = cell, bidirectional, input_feeding, scaled
        if bidirectional and width % 2:
            raise ConfigurationError(f"Expected an even `width` for a bidirectional encoder but got {width}.")
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        options: Any = {"dropout": dropout if layers > 1 else 0.0, "batch_first": True}
        each = width // 2 if bidirectional else width
        self.encoder = kind(width, each, layers, bidirectional=bidirectional, **options)
        self.decoder = kind(2 * width if input_feeding else width, width, layers, **options)
        self.score = nn.Linear(width, width, bias=False)
        self.merge = nn.Linear(2 * width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    @override
    def encode(self, embedded: Tensor, lengths: Tensor) -> State:
        check_sentences("embedded sentences", embedded, lengths, self.width, self.score.weight)
        states, last = run_recurrent(self.encoder, embedded, lengths)
        mask = length_mask(lengths, embedded.shape[1])
        keys = self.score(states)
        memory = {"states": states, "keys": keys / math.sqrt(self.width) if self.scaled else keys, "mask": mask}
        for name, tensor in zip(("h", "c"), last, strict=False):
            parts = tensor.reshape(self.layers, -1, *tensor.shape[1:])
            both = parts.transpose(1, 2).flatten(2)  # (layers, B, E), directions side by side
            memory[name] = torch.where(mask[:, :1, None], both.transpose(0, 1), 0.0)
        return memory

    @override
    def start(self, memory: State) -> State:
        self._check_memory(memory, "B")
        state = {f"{name}{layer}": part for name in "hc" if name in memory for layer, part in enumerate(memory[name].unbind(1))}
        if self.input_feeding:
            state["fed"] = torch.zeros_like(state["h0"])
        return state

    @override
    def step(self, embedded: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        check_input("embedded tokens", embedded, ("B", self.width), self.score.weight)
        self._check_memory(memory, embedded.shape[0])
        fed = ["fed"] if self.input_feeding else []
        names = [*(f"{name}{layer}" for name in self._carried for layer in range(self.layers)), *fed]
        check_state("state", state, dict.fromkeys(names, (embedded.shape[0], self.width)), self.score.weight)
        x = torch.cat([embedded, state["fed"]], -1) if self.input_feeding else embedded
        after: State = {}
        for layer, parameters in enumerate(self.decoder.all_weights):
            if layer:
                x = self.drop(x)
            if self.cell == "lstm":
                x, after[f"c{layer}"] = torch.lstm_cell(x, (state[f"h{layer}"], state[f"c{layer}"]), *parameters)
            else:
                x = torch.gru_cell(x, state[f"h{layer}"], *parameters)
            after[f"h{layer}"] = x
        hidden, weights = self._attend(x.unsqueeze(1), memory)
        hidden = hidden.squeeze(1)
        if self.input_feeding:
            after["fed"] = hidden
        return hidden, weights, after

    @override
    def decode(self, embedded: Tensor, memory: State) -> tuple[Tensor, Tensor]:
        check_input("embedded sentences", embedded, ("B", "L", self.width), self.score.weight)
        self._check_memory(memory, embedded.shape[0])
        if not self.input_feeding:
            begin = [memory[name].transpose(0, 1).contiguous() for name in ("h", "c") if name in memory]
            outputs, _ = call_recurrent(self.decoder, embedded, tuple(begin) if len(begin) > 1 else begin[0])
            hidden, weights = self._attend(outputs, memory)
            return hidden, weights.unsqueeze(1)
        state, hiddens, all_weights = self.start(memory), [], []
        for x in embedded.unbind(1):
            hidden, weights, state = self.step(x, memory, state)
            hiddens.append(hidden)
            all_weights.append(weights)
        return torch.stack(hiddens, 1), torch.stack(all_weights, 2)

    @property
    def _carried(self) -> str:
        return "hc" if self.cell == "lstm" else "h"

    def _check_memory(self, memory: State, batch: int | str) -> None:
        each = (batch, "S", self.width)
        last = dict.fromkeys(self._carried, (batch, self.layers, self.width))
        check_state("memory", memory, {"mask": (batch, "S"), "states": each, "keys": each, **last}, self.score.weight)

    def _attend(self, queries: Tensor, memory: State) -> tuple[Tensor, Tensor]:
        """Return hidden vectors (B, T, E) and weights (B, T, S) of top states (B, T, E)."""
        weights = self.mapping.map_block(queries @ memory["keys"].mT, memory["mask"].unsqueeze(1))
        context = weights @ memory["states"]
        return self.drop(torch.tanh(self.merge(torch.cat([context, queries], -1)))), weights
