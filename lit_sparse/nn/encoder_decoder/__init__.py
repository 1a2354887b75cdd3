"""Encoders and decoders of sequence-to-sequence models."""

from lit_sparse.nn.encoder_decoder.base import Seq2SeqBody, State, length_mask
from lit_sparse.nn.encoder_decoder.recurrent import RecurrentBody
from lit_sparse.nn.encoder_decoder.transformer import TransformerBody

__all__ = ["RecurrentBody", "Seq2SeqBody", "State", "TransformerBody", "length_mask"]
