"""Callbacks that log numbers."""

from lit_sparse.callbacks.logging.counts import CountLogger
from lit_sparse.callbacks.logging.language import LanguageLogger
from lit_sparse.callbacks.logging.seconds import SecondsLogger

__all__ = ["CountLogger", "LanguageLogger", "SecondsLogger"]
