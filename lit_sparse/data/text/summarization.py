"""Texts and their summaries."""

from __future__ import annotations

from typing import Any

from lit_sparse.data.text.translation import PairDataModule
from lit_sparse.text import VocabularyOptions

__all__ = ["SummarizationDataModule"]

SPACES = VocabularyOptions(kind="spaces")


class SummarizationDataModule(PairDataModule):
    """Data module of articles and their headlines, from a table, parallel files, or the Hugging Face hub.

    See :class:`~lit_sparse.data.PairDataModule` for the batches. By default, text is expected to be tokenized, as in
    Gigaword. A test set with several references per article, such as DUC 2004, has them in a column of lists::

        data:
          class_path: SummarizationDataModule
          init_args:
            path: gigaword
            train: train
            val: valid
            test: duc2004
            references: references

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None if the splits are paths of files.
        source: column of the articles, or ending of the file.
        target: column of the headlines, or ending of the file.
        source_vocabulary: options of the vocabulary of the articles; in Python also a vocabulary.
        target_vocabulary: options of the vocabulary of the headlines.
        options: options of :class:`~lit_sparse.data.PairDataModule`.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        source: str = "article",
        target: str = "title",
        source_vocabulary: VocabularyOptions = SPACES,
        target_vocabulary: VocabularyOptions = SPACES,
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            source=source,
            target=target,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            **options,
        )
