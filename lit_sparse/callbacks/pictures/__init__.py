"""Callbacks that draw."""

from lit_sparse.callbacks.pictures.attention import AttentionPlot
from lit_sparse.callbacks.pictures.bases import ActivityHistogram, BasesPlot
from lit_sparse.callbacks.pictures.curves import DecoderCallsPlot, NegativeELBOPlot, SuccessPlot, SupportSizePlot
from lit_sparse.callbacks.pictures.heat_maps import draw_attention
from lit_sparse.callbacks.pictures.images import ClassSamplesPlot, ReconstructionPlot
from lit_sparse.callbacks.pictures.language import LanguageLogger
from lit_sparse.callbacks.pictures.transport import TransportPlot

__all__ = [
    "ActivityHistogram",
    "AttentionPlot",
    "BasesPlot",
    "ClassSamplesPlot",
    "DecoderCallsPlot",
    "LanguageLogger",
    "NegativeELBOPlot",
    "ReconstructionPlot",
    "SuccessPlot",
    "SupportSizePlot",
    "TransportPlot",
    "draw_attention",
]
