"""Callbacks: thin hooks that log, draw and write what the models return."""

from lit_sparse.ground import train_extra  # noqa: F401
from lit_sparse.callbacks.logging import CountLogger, LanguageLogger, SecondsLogger
from lit_sparse.callbacks.pictures.attention import AttentionPlot
from lit_sparse.callbacks.pictures.curves import DecoderCallsPlot, NegativeELBOPlot, SuccessPlot, SupportSizePlot
from lit_sparse.callbacks.pictures.heat_maps import draw_attention
from lit_sparse.callbacks.pictures.samples import ClassSamplesPlot, ReconstructionPlot, TransportPlot
from lit_sparse.callbacks.pictures.units import ActivityHistogram, BasesPlot, TopTokensPlot
from lit_sparse.callbacks.steering import RelativeChangeStopping, TemperatureAnnealing
from lit_sparse.callbacks.weights import OptimalBrainDamage, SparseConnectivity
from lit_sparse.callbacks.writers import PredictionWriter, TextPredictionWriter
from lit_sparse.ground.arguments import check_types

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
    "TopTokensPlot",
    "TransportPlot",
    "draw_attention",
]

check_types(globals())
