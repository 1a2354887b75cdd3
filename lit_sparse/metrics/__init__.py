"""Metrics of sparse decisions, exact over any number of processes."""

from lit_sparse.metrics.counts import CountHistogram, DecoderCalls, SupportSize
from lit_sparse.metrics.language import (
    MessageCounts,
    MessageStructure,
    bag_of_symbols_disentanglement,
    positional_disentanglement,
    topographic_similarity,
)
from lit_sparse.metrics.likelihood import BitsPerDim
from lit_sparse.metrics.means import MeanOverExamples

__all__ = [
    "BitsPerDim",
    "CountHistogram",
    "DecoderCalls",
    "MeanOverExamples",
    "MessageCounts",
    "MessageStructure",
    "SupportSize",
    "bag_of_symbols_disentanglement",
    "positional_disentanglement",
    "topographic_similarity",
]
