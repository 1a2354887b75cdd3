"""What a sequence-to-sequence model needs of its body, whatever it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import MOST_FEATURES, MOST_LAYERS, check_count, check_number
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SparseMapping

__all__ = ["EncoderDecoder", "State", "length_mask"]

#: Tensors whose first dimension are the rows of a batch.
State = dict[str, Tensor]


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """Return (B, size), True at the first ``lengths`` positions of each row."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


class EncoderDecoder(nn.Module, ABC):
    """From embedded sources and embedded prefixes of targets to hidden vectors, by attention with any mapping.

    It knows neither words nor vocabularies; :class:`~lit_sparse.models.Seq2Seq` puts embeddings before it and an output layer
    behind it. Training runs :meth:`decode` on whole targets, search runs :meth:`step` token by token; both give the same.

    Args:
        width: E, features of embeddings and of hidden vectors.
        layers: number of layers of encoder and of decoder.
        dropout: probability with which a feature is dropped in training.

    Raises:
        ConfigurationError: for a width or number of layers below 1, or a dropout outside [0, 1).
    """

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.width = check_count("width", width, most=MOST_FEATURES)
        self.layers = check_count("layers", layers, most=MOST_LAYERS)
        self.dropout = check_number("dropout", dropout, 0.0, 1.0, open_high=True)

    def bind(self, mapping: SparseMapping) -> Self:
        """Attend by a mapping; to be called once, before anything else.

        Raises:
            ConfigurationError: for a mapping that couples the queries, which come one by one when a target is written, or if it
                attends by a mapping already.
        """
        bound = dict(self.named_children()).get("mapping")
        if bound is not None:
            raise ConfigurationError(
                f"This {type(self).__name__} attends by {bound!r} in another model. Make one for each model: they would"
                " share their weights."
            )
        if mapping.couples_queries:
            raise ConfigurationError(
                f"Expected a mapping of each query by itself but {mapping!r} couples all of them, and a decoder asks one"
                " by one."
            )
        self.mapping = mapping
        return self

    @abstractmethod
    def encode(self, embedded: Tensor, lengths: Tensor) -> State:
        """Read sources.

        Args:
            embedded: (B, S, E); what stands behind a row's length is never looked at.
            lengths: (B,) of the sources; a row of length 0 is attended to nowhere.

        Returns:
            The memory that a decoder attends to; rows first.
        """

    def prepare(self, memory: State) -> State:
        """Return the memory with whatever all steps of a search need of it, worked out once."""
        return memory

    @abstractmethod
    def start(self, memory: State) -> State:
        """Return the decoder's state before its first token."""

    @abstractmethod
    def step(self, embedded: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        """Take in one token of each target.

        Args:
            embedded: (B, E).
            memory: of :meth:`encode`, or of :meth:`prepare`, which is faster.
            state: of :meth:`start` or of the step before.

        Returns:
            Hidden vectors (B, E), attention weights (B, heads, S), and the state after the token.
        """

    @abstractmethod
    def decode(self, embedded: Tensor, memory: State) -> tuple[Tensor, Tensor]:
        """Take in targets whole.

        Args:
            embedded: (B, T, E).
            memory: of :meth:`encode`.

        Returns:
            Hidden vectors (B, T, E), of which that at t depends on no later token, and attention weights (B, heads, T, S).
        """
