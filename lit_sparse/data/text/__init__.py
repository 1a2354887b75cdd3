"""Data modules of text."""

from lit_sparse.data.text.base import TextDataModule
from lit_sparse.data.text.entailment import EntailmentDataModule
from lit_sparse.data.text.ragged import Ragged
from lit_sparse.data.text.summarization import SummarizationDataModule
from lit_sparse.data.text.translation import PairDataModule, TranslationDataModule

__all__ = [
    "EntailmentDataModule",
    "PairDataModule",
    "Ragged",
    "SummarizationDataModule",
    "TextDataModule",
    "TranslationDataModule",
]
