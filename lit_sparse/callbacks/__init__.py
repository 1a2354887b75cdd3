"""Callbacks: thin hooks that log, draw and write what the models return."""

from lit_sparse.callbacks.attention import AttentionPlot
from lit_sparse.callbacks.bases import ActivityHistogram, BasesPlot
from lit_sparse.callbacks.counts import CountLogger
from lit_sparse.callbacks.heat_maps import draw_attention
from lit_sparse.callbacks.language import LanguageLogger
from lit_sparse.callbacks.optimal_brain_damage import OptimalBrainDamage
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
from lit_sparse.callbacks.sparse_connectivity import SparseConnectivity
from lit_sparse.callbacks.stopping import RelativeChangeStopping
from lit_sparse.callbacks.temperature import TemperatureAnnealing
from lit_sparse.callbacks.text_predictions import TextPredictionWriter
from lit_sparse.callbacks.transport import TransportPlot

__all__ = [
    "ActivityHistogram",
    "AttentionPlot",
    "BasesPlot",
    "ClassSamplesPlot",
    "CountLogger",
    "DecoderCallsPlot",
    "LanguageLogger",
    "NegativeELBOPlot",
    "OptimalBrainDamage",
    "PredictionWriter",
    "ReconstructionPlot",
    "RelativeChangeStopping",
    "SecondsLogger",
    "SparseConnectivity",
    "SuccessPlot",
    "SupportSizePlot",
    "TemperatureAnnealing",
    "TextPredictionWriter",
    "TransportPlot",
    "draw_attention",
]
