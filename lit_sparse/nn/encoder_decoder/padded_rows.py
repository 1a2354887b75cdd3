"""Recurrent networks over padded rows: packed, or as a loop over time in an exported program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lit_sparse.ground.torch_internals import is_exporting, lacks_autocast_dtype, scan
from lit_sparse.nn.encoder_decoder.base import check_lengths, length_mask

__all__ = ["call_recurrent", "run_recurrent"]


def run_recurrent(
    rnn: nn.GRU | nn.LSTM, inputs: Tensor, lengths: Tensor, start: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return a recurrent network's states over padded rows, of the last layer, and the final states of all layers.

    Args:
        rnn: recurrent network with ``batch_first``.
        inputs: (B, L, E).
        lengths: (B,) lengths of the rows; a length of 0 counts as 1.
        start: (layers * directions, B, H) initial states h; None for zeros.

    Returns:
        States (B, L, directions * H), zero beyond the lengths, and final h, for an LSTM also c, (layers * directions, B,
        H).
    """
    check_lengths(lengths, inputs.shape[1])
    lengths = lengths.clamp_min(1)
    if is_exporting():  # packing reads the lengths
        return _scanned(rnn, inputs, lengths, start)
    packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, last = call_recurrent(rnn, packed, start)
    states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return states, last if isinstance(last, tuple) else (last,)


def call_recurrent(rnn: nn.GRU | nn.LSTM, inputs: Any, start: Any = None) -> tuple[Any, Any]:
    """Return the output of a recurrent network, in float32 if the processor does not support autocast's dtype.

    Args:
        rnn: recurrent network.
        inputs: tensor or packed sequence.
        start: initial states, a tensor or a tuple of them; None for zeros.
    """
    if not inputs.is_cuda and lacks_autocast_dtype():  # torch fails there
        with torch.autocast("cpu", enabled=False):
            start = start if start is None else start.float() if isinstance(start, Tensor) else tuple(x.float() for x in start)
            return rnn(inputs.float(), start)  # type: ignore[no-any-return]
    return rnn(inputs, start)  # type: ignore[no-any-return]


def _scanned(rnn: nn.GRU | nn.LSTM, inputs: Tensor, lengths: Tensor, start: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the result of :func:`run_recurrent` by a loop over time, in which states do not change at padding."""
    directions, kinds = 2 if rnn.bidirectional else 1, 2 if isinstance(rnn, nn.LSTM) else 1
    mask = length_mask(lengths, inputs.shape[1]).unsqueeze(-1).transpose(0, 1)
    x, finals, outputs = inputs.transpose(0, 1), [], []
    for number, weights in enumerate(rnn.all_weights):
        backward = number % directions == 1
        first = x.new_zeros(x.shape[1], rnn.hidden_size) if start is None else start[number]
        carried = [first, torch.zeros_like(first)][:kinds]
        series = [tensor.flip(0) if backward else tensor for tensor in (x, mask)]
        *final, states = _scan(carried, series, tuple(weights))
        finals.append(final)
        outputs.append(states.flip(0) if backward else states)
        if len(outputs) == directions:
            x, outputs = nnf.dropout(torch.cat(outputs, -1), rnn.dropout, rnn.training), []
    states = torch.where(mask, x, 0.0).transpose(0, 1)
    return states, tuple(torch.stack(kind) for kind in zip(*finals, strict=True))


def _scan(carried: list[Tensor], series: list[Tensor], weights: tuple[Tensor, ...]) -> Any:
    """Return final states and all states h (L, B, H): one operator if the length is dynamic, else unrolled.

    Args:
        carried: first states, each (B, H).
        series: inputs (L, B, E) and mask (L, B, 1).
        weights: weights and biases of the cell.
    """
    kinds = len(carried)

    def step(*tensors: Tensor) -> list[Tensor]:
        before, (x, mask), parameters = tensors[:kinds], tensors[kinds : kinds + 2], tensors[kinds + 2 :]
        cell = torch.lstm_cell(x, before, *parameters) if kinds == 2 else (torch.gru_cell(x, before[0], *parameters),)
        after = [torch.where(mask, new, old) for new, old in zip(cell, before, strict=True)]
        return [*after, after[0].clone()]

    length: Any = series[0].shape[0]
    if not isinstance(length, int):
        return scan(step, carried, series, weights)
    states = []
    for values in zip(*series, strict=True):
        *carried, state = step(*carried, *values, *weights)
        states.append(state)
    return [*carried, torch.stack(states)]
