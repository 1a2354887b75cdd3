"""Metrics of sparse decisions, exact over any number of processes."""

from lit_sparse.ground import train_extra  # noqa: F401
from lit_sparse.ground.arguments import check_types
from lit_sparse.metrics.bleu import Bleu, ChrF, PairedBootstrap, paired_bootstrap
from lit_sparse.metrics.counts import CountHistogram, DecoderCalls, SupportSize, group_counts, support_sizes, tied_groups
from lit_sparse.metrics.exact_metric import TextMetric
from lit_sparse.metrics.language import (
    MessageCounts,
    MessageStructure,
    bag_of_symbols_disentanglement,
    positional_disentanglement,
    topographic_similarity,
)
from lit_sparse.metrics.means import BitsPerDim, GroupMeans, LogMeanExp, MeanOverExamples
from lit_sparse.metrics.reconstruction import DeadFraction, ExplainedVariance, HoyerSparseness, hoyer_sparseness
from lit_sparse.metrics.rouge import Rouge

__all__ = [
    "BitsPerDim",
    "Bleu",
    "ChrF",
    "CountHistogram",
    "DeadFraction",
    "DecoderCalls",
    "ExplainedVariance",
    "GroupMeans",
    "HoyerSparseness",
    "LogMeanExp",
    "MeanOverExamples",
    "MessageCounts",
    "MessageStructure",
    "PairedBootstrap",
    "Rouge",
    "SupportSize",
    "TextMetric",
    "bag_of_symbols_disentanglement",
    "group_counts",
    "hoyer_sparseness",
    "paired_bootstrap",
    "positional_disentanglement",
    "support_sizes",
    "tied_groups",
    "topographic_similarity",
]

check_types(globals())
