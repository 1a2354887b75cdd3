"""Plain torch modules for serving, made of the parts of trained models."""

from __future__ import annotations

from torch import Tensor, nn

from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import check_mapping
from lit_sparse.nn.encoder_decoder import EncoderDecoder, State
from lit_sparse.nn.entailment import EntailmentNetwork
from lit_sparse.nn.inputs import embedded

__all__ = ["ClassPredictor", "EntailmentPredictor", "Seq2SeqPredictor", "SourceEncoder"]


class ClassPredictor(nn.Module):
    """Plain torch module that predicts class probabilities (B, K) of inputs (B, D), by a network and any mapping.

    Args:
        network: network from inputs to scores.
        mapping: mapping from scores to probabilities.
    """

    def __init__(self, network: nn.Module, mapping: SparseMapping) -> None:
        check_mapping(mapping)
        super().__init__()
        self.network, self.mapping = network, mapping

    def forward(self, inputs: Tensor) -> Tensor:
        """Return class probabilities (B, K) of inputs (B, D)."""
        return self.mapping.map(self.network(inputs), None, -1)


class EntailmentPredictor(nn.Module):
    """Plain torch module that predicts class scores (B, C) and attention (B, S) of sentence pairs, given as word ids.

    Args:
        words: embedding of the words.
        network: network of word vectors.
    """

    def __init__(self, words: nn.Module, network: EntailmentNetwork) -> None:
        super().__init__()
        self.words, self.network = words, network

    def forward(
        self, premise: Tensor, premise_length: Tensor, hypothesis: Tensor, hypothesis_length: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return class scores (B, C) and attention (B, S); arguments as for :class:`lit_sparse.models.EntailmentClassifier`."""
        found: tuple[Tensor, Tensor] = self.network(
            embedded("ids of premises", premise, self.words),
            premise_length,
            embedded("ids of hypotheses", hypothesis, self.words),
            hypothesis_length,
        )
        return found


class SourceEncoder(nn.Module):
    """Plain torch module that encodes sources, for a :class:`Seq2SeqPredictor`.

    Args:
        embedding: embedding of the source's tokens.
        body: encoder and decoder.
    """

    def __init__(self, embedding: nn.Module, body: EncoderDecoder) -> None:
        super().__init__()
        self.embedding, self.body = embedding, body

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[State, State]:
        """Return the memory and the decoder's initial state, for sources (B, S) with lengths (B,)."""
        memory = self.body.encode(embedded("ids of sources", source, self.embedding), lengths)
        return self.body.prepare(memory), self.body.start(memory)


class Seq2SeqPredictor(nn.Module):
    """Plain torch module that computes one decoding step of a sequence-to-sequence model.

    Its attribute ``encoder`` returns the arguments of the first step.

    Args:
        source_embedding: embedding of the source's tokens.
        body: encoder and decoder.
        embedding: embedding of the target's tokens.
        output: layer from hidden vectors to scores of the next token.
        mapping: mapping from these scores to probabilities; None for softmax.
    """

    def __init__(
        self,
        source_embedding: nn.Module,
        body: EncoderDecoder,
        embedding: nn.Module,
        output: nn.Module,
        mapping: SparseMapping | None = None,
    ) -> None:
        super().__init__()
        self.encoder = SourceEncoder(source_embedding, body)
        self.embedding, self.output, self.mapping = embedding, output, mapping

    def forward(self, tokens: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        """Return log-probabilities (R, V) of the next token after tokens (R,), attention (R, heads, S) and the next state."""
        hidden, weights, state = self.encoder.body.step(embedded("ids of tokens", tokens, self.embedding), memory, state)
        scores = self.output(hidden).float()
        if self.mapping is None:
            return scores.log_softmax(-1), weights, state
        return self.mapping.map(scores, None, -1).log(), weights, state
