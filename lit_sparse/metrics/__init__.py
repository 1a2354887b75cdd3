"""Metrics of sparse decisions, exact over any number of processes."""

from lit_sparse.metrics.counts import CountHistogram, DecoderCalls, SupportSize
from lit_sparse.metrics.means import MeanOverExamples

__all__ = ["CountHistogram", "DecoderCalls", "MeanOverExamples", "SupportSize"]
