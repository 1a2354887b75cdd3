"""Texts and their summaries."""

from __future__ import annotations

from lit_sparse.data.text.translation import PairDataModule
from lit_sparse.text import VocabularyOptions

__all__ = ["SummarizationDataModule"]

SPACES = VocabularyOptions(kind="spaces")


class SummarizationDataModule(PairDataModule):
    """Articles and their headlines, from a table, parallel files, or the Hugging Face hub.

    See :class:`~lit_sparse.data.PairDataModule` for the batches. By default text is already tokenized, as in Gigaword. A test
    set with several references per article, such as DUC 2004, has them in a column of lists::

        data:
          class_path: SummarizationDataModule
          init_args: {path: gigaword, train: train, val: valid, test: duc2004, references: references}

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None if the splits are paths of files.
        source: column of the articles, or ending of the file.
        target: column of the headlines, or ending of the file.
        references: column of lists of references in the test split; None if the target is the reference.
        config: name of the hub data set's configuration.
        train: name of the training split, or the path of a file.
        val: name of the validation split.
        test: name of the test split.
        predict: file with one article per line for ``predict``, or a table; None for the test split.
        source_vocabulary: options of the vocabulary of the articles; in Python also a vocabulary.
        target_vocabulary: options of the vocabulary of the headlines.
        max_length: maximal number of tokens per article in training.
        max_test_length: number of tokens after which an article is truncated in validation, test and prediction.
        train_size: number of training pairs, the first of the file; None for all.
        batch_size: pairs per training batch and process.
        eval_batch_size: pairs per batch of validation, test and prediction.
        num_workers: number of worker processes that fetch batches.
        seed: seed of the order.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        source: str = "article",
        target: str = "title",
        references: str | None = None,
        config: str | None = None,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        predict: str | None = None,
        source_vocabulary: VocabularyOptions = SPACES,
        target_vocabulary: VocabularyOptions = SPACES,
        max_length: int = 50,
        max_test_length: int = 100,
        train_size: int | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 64,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            path=path,
            source=source,
            target=target,
            references=references,
            config=config,
            train=train,
            val=val,
            test=test,
            predict=predict,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            max_length=max_length,
            max_test_length=max_test_length,
            train_size=train_size,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
