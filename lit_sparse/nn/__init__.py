"""Plain torch building blocks, without Lightning."""

from lit_sparse.ground.arguments import check_types
from lit_sparse.nn.attend import MultiheadAttention, attention
from lit_sparse.nn.beams import Hypothesis, beam_search
from lit_sparse.nn.categorical import SharedCategorical
from lit_sparse.nn.encoder_decoder import EncoderDecoder, RecurrentBody, State, TransformerBody, length_mask
from lit_sparse.nn.entailment import EntailmentNetwork
from lit_sparse.nn.initial_bases import InitialBases, NoiseBases, SampleBases, SparseCodingBases
from lit_sparse.nn.networks import MLP, ConvNet
from lit_sparse.nn.output_layer.layer import LinearFenchelYoungLoss
from lit_sparse.nn.predictors import ClassPredictor, EntailmentPredictor, Seq2SeqPredictor, SourceEncoder
from lit_sparse.nn.signaling import Receiver, Sender
from lit_sparse.nn.sparse_encoding import sparse_decode, sparse_encode
from lit_sparse.nn.word_vectors import WordVectors

__all__ = [
    "MLP",
    "ClassPredictor",
    "ConvNet",
    "EncoderDecoder",
    "EntailmentNetwork",
    "EntailmentPredictor",
    "Hypothesis",
    "InitialBases",
    "LinearFenchelYoungLoss",
    "MultiheadAttention",
    "NoiseBases",
    "Receiver",
    "RecurrentBody",
    "SampleBases",
    "Sender",
    "Seq2SeqPredictor",
    "SharedCategorical",
    "SourceEncoder",
    "SparseCodingBases",
    "State",
    "TransformerBody",
    "WordVectors",
    "attention",
    "beam_search",
    "length_mask",
    "sparse_decode",
    "sparse_encode",
]

check_types(globals())
