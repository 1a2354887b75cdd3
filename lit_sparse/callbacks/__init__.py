"""Callbacks: thin hooks that log, draw and write what the models return."""

from lit_sparse.callbacks.attention import AttentionPlot, draw_attention
from lit_sparse.callbacks.counts import CountLogger
from lit_sparse.callbacks.language import LanguageLogger
from lit_sparse.callbacks.pictures import (
    ClassSamplesPlot,
    DecoderCallsPlot,
    NegativeELBOPlot,
    ReconstructionPlot,
    SuccessPlot,
    SupportSizePlot,
)
from lit_sparse.callbacks.predictions import PredictionWriter
from lit_sparse.callbacks.seconds import SecondsLogger
from lit_sparse.callbacks.temperature import TemperatureAnnealing
from lit_sparse.callbacks.text_predictions import TextPredictionWriter

__all__ = [
    "AttentionPlot",
    "ClassSamplesPlot",
    "CountLogger",
    "DecoderCallsPlot",
    "LanguageLogger",
    "NegativeELBOPlot",
    "PredictionWriter",
    "ReconstructionPlot",
    "SecondsLogger",
    "SuccessPlot",
    "SupportSizePlot",
    "TemperatureAnnealing",
    "TextPredictionWriter",
    "draw_attention",
]
