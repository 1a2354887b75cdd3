"""Interface of the encoder and decoder of a sequence-to-sequence model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import DROPOUT, FEATURES, MOST_LAYERS, Count, check_count, has_values, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import warn_off_simplex

__all__ = ["EncoderDecoder", "State", "check_lengths", "length_mask"]

#: Dtypes of lengths.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Tensors whose first dimension is the batch.
State = dict[str, Tensor]


def check_lengths(lengths: Tensor, size: int) -> None:
    """Check that the lengths (B,) of padded rows are integers in 0 .. size.

    Raises:
        ConfigurationError: unless they are integers in 0 .. size; values on a GPU are not read.
    """
    if not isinstance(lengths, Tensor) or lengths.dim() != 1 or lengths.dtype not in INTEGERS:
        got = f"{lengths.dtype} {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else full_name(lengths)
        raise ConfigurationError(f"Expected lengths (B,) that are integers but got {got}.")
    if lengths.device.type == "cpu" and has_values(lengths) and len(lengths):
        least, most = (int(end) for end in lengths.aminmax())
        if least < 0 or most > size:
            raise ConfigurationError(f"Expected lengths in 0 .. {size}, the padded length, but got {least} .. {most}.")


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
