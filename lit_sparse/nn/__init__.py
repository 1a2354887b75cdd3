"""Plain torch building blocks, without Lightning."""

from lit_sparse.nn.attention import MultiheadAttention, attention
from lit_sparse.nn.bases import InitialBases, NoiseBases, SampleBases, SparseCodingBases
from lit_sparse.nn.beam_search import Hypothesis, beam_search
from lit_sparse.nn.conv import ConvNet
from lit_sparse.nn.entailment import EntailmentNetwork
from lit_sparse.nn.mlp import MLP
from lit_sparse.nn.potentials import KernelPotentials, MLPPotentials, Potentials
from lit_sparse.nn.radial_bases import RadialBases
from lit_sparse.nn.recurrent_body import RecurrentBody
from lit_sparse.nn.seeded import seed_generator, seeded_normal, seeded_uniform
from lit_sparse.nn.seq2seq_body import Seq2SeqBody, State, length_mask
from lit_sparse.nn.shared_categorical import SharedCategorical
from lit_sparse.nn.signaling import Receiver, Sender
from lit_sparse.nn.tied_layer import sparse_decode, sparse_encode
from lit_sparse.nn.transformer_body import TransformerBody
from lit_sparse.nn.word_vectors import WordVectors

__all__ = [
    "MLP",
    "ConvNet",
    "EntailmentNetwork",
    "Hypothesis",
    "InitialBases",
    "KernelPotentials",
    "MLPPotentials",
    "MultiheadAttention",
    "NoiseBases",
    "Potentials",
    "RadialBases",
    "Receiver",
    "RecurrentBody",
    "SampleBases",
    "Sender",
    "Seq2SeqBody",
    "SharedCategorical",
    "SparseCodingBases",
    "State",
    "TransformerBody",
    "WordVectors",
    "attention",
    "beam_search",
    "length_mask",
    "seed_generator",
    "seeded_normal",
    "seeded_uniform",
    "sparse_decode",
    "sparse_encode",
]
