"""Callbacks: thin hooks that log, draw and write what the models return."""

from lit_sparse.callbacks.counts import CountLogger
from lit_sparse.callbacks.pictures import ClassSamplesPlot, DecoderCallsPlot, NegativeELBOPlot, ReconstructionPlot
from lit_sparse.callbacks.predictions import PredictionWriter

__all__ = ["ClassSamplesPlot", "CountLogger", "DecoderCallsPlot", "NegativeELBOPlot", "PredictionWriter", "ReconstructionPlot"]
