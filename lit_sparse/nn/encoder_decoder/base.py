"""Interface of the encoder and decoder of a sequence-to-sequence model, and recurrent networks over padded rows.

The rows are packed, or, in an exported program, run through by a loop over time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from typing_extensions import Self

from lit_sparse.checks import DROPOUT, FEATURES, MOST_LAYERS, Count, check_count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.torch_internals import is_exporting, lacks_autocast_dtype, scan
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import check_mapping, warn_off_simplex
from lit_sparse.nn.inputs import check_lengths

__all__ = ["EncoderDecoder", "State", "call_recurrent", "length_mask", "run_recurrent"]

#: Tensors whose first dimension is the batch.
State = dict[str, Tensor]


@checked
def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a boolean mask (B, size), True at the first ``lengths`` positions of each row.

    Raises:
        ConfigurationError: unless the lengths are integers in 0 .. size; values on a GPU are not read.
    """
    if isinstance(size, int):  # a traced size is none
        check_count("size", size, 0)
    check_lengths(lengths, size)
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


@ranges(width=FEATURES, layers=Count(most=MOST_LAYERS), dropout=DROPOUT)
class EncoderDecoder(nn.Module, ABC):
    """Base class of the encoder and decoder of a sequence-to-sequence model, whose attention uses any mapping.

    It maps embedded sources and target prefixes to hidden vectors.

    :class:`~lit_sparse.models.Seq2Seq` adds the embeddings and the output layer. Training calls :meth:`decode` on complete
    targets, while a search calls :meth:`step` for one token at a time; the results are equal.

    Args:
        width: E, number of features of embeddings and hidden vectors.
        layers: number of layers of the encoder, and of the decoder.
        dropout: dropout probability.

    Raises:
        ConfigurationError: for a width or number of layers below 1, or a dropout outside [0, 1).
    """

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.width, self.layers, self.dropout = width, layers, dropout

    def bind(self, mapping: SparseMapping) -> Self:
        """Set the mapping of the attention; call it once, before other methods.

        Raises:
            ConfigurationError: for a mapping that couples queries, which a decoder processes one at a time, or if a mapping
                is already set.
        """
        check_mapping(mapping)
        bound = dict(self.named_children()).get("mapping")
        if bound is not None:
            raise ConfigurationError(
                f"Expected a new {type(self).__name__} but got one that another model uses with {bound!r}. Make one for each"
                " model."
            )
        if mapping.couples_queries:
            raise ConfigurationError(
                f"Expected a mapping that treats queries separately but got {mapping!r}, which couples them. Use another: a"
                " decoder computes one query at a time."
            )
        warn_off_simplex(mapping)
        self.mapping = mapping
        return self

    @abstractmethod
    def encode(self, embedded: Tensor, lengths: Tensor) -> State:
        """Return the memory of encoded sources, to which the decoder attends.

        Args:
            embedded: (B, S, E); entries beyond the length of a row are ignored.
            lengths: (B,) lengths of the sources; a row of length 0 gets no attention.

        Returns:
            The memory, a tuple of tensors (B, ...).
        """

    def prepare(self, memory: State) -> State:
        """Return the memory with values precomputed for all steps of a search."""
        return memory

    @abstractmethod
    def start(self, memory: State) -> State:
        """Return the decoder's state before the first token."""

    @abstractmethod
    def step(self, embedded: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        """Return the hidden vector after one more token of each target, with attention weights and the decoder's new state.

        Args:
            embedded: (B, E).
            memory: result of :meth:`encode`, or of :meth:`prepare`, which is faster.
            state: result of :meth:`start` or of the previous step.

        Returns:
            Hidden vectors (B, E), attention weights (B, heads, S), and the state after the token.
        """

    @abstractmethod
    def decode(self, embedded: Tensor, memory: State) -> tuple[Tensor, Tensor]:
        """Return the hidden vectors and attention weights of complete targets.

        Args:
            embedded: (B, T, E).
            memory: result of :meth:`encode`.

        Returns:
            Hidden vectors (B, T, E), each independent of later tokens, and attention weights (B, heads, T, S).
        """


def run_recurrent(
    rnn: nn.GRU | nn.LSTM, inputs: Tensor, lengths: Tensor, start: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return a recurrent network's states over padded rows, of the last layer, and the final states of all layers.

    Args:
        rnn: recurrent network with ``batch_first``.
        inputs: (B, L, E).
        lengths: (B,) checked lengths of the rows; a length of 0 counts as 1.
        start: (layers * directions, B, H) initial states h; None for zeros.

    Returns:
        States (B, L, directions * H), zero beyond the lengths, and final h, for an LSTM also c, (layers * directions, B,
        H).
    """
    lengths = lengths.clamp_min(1)
    if is_exporting():  # packing reads the lengths
        return _scanned(rnn, inputs, lengths, start)
    packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, last = call_recurrent(rnn, packed, start)
    states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return states, last if isinstance(last, tuple) else (last,)


def call_recurrent(rnn: nn.GRU | nn.LSTM, inputs: Any, start: Any = None) -> tuple[Any, Any]:
    """Return a recurrent network's outputs and final states, in float32 if the processor does not support autocast's dtype.

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
