"""Encoders and decoders of sequence-to-sequence models."""

from lit_sparse.nn.encoder_decoder.base import EncoderDecoder, State, length_mask
from lit_sparse.nn.encoder_decoder.recurrent import RecurrentBody
from lit_sparse.nn.encoder_decoder.transformer import TransformerBody

__all__ = ["EncoderDecoder", "RecurrentBody", "State", "TransformerBody", "length_mask"]
