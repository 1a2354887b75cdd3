"""Callbacks that write predictions."""

from lit_sparse.callbacks.writers.outputs import PredictionWriter
from lit_sparse.callbacks.writers.text_predictions import TextPredictionWriter

__all__ = ["PredictionWriter", "TextPredictionWriter"]
