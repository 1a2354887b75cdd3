"""Texts and what they say in short."""

from __future__ import annotations

from lit_sparse.data.text.translation import PairDataModule
from lit_sparse.text import VocabularyOptions

__all__ = ["SummarizationDataModule"]

SPACES = VocabularyOptions(kind="spaces")


class SummarizationDataModule(PairDataModule):
    """Articles and their headlines, from a table, parallel files, or the Hugging Face hub.

    See :class:`~lit_sparse.data.PairDataModule` for the batches. By default text is tokenized already, as that of Gigaword is.
    A test set with several references each, such as that of DUC 2004, has them in a column of lists::

        data:
          class_path: SummarizationDataModule
          init_args: {path: gigaword, train: train, val: valid, test: duc2004, references: references}

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None where the splits are paths of files.
        source: column of the articles, or ending of the file.
        target: column of the headlines, or ending of the file.
        references: column of lists of references in the test split; None where the target is the reference.
        config: name of the hub data set's configuration.
        train: name of the training split, or the path of a file.
        val: name of the validation split.
        test: name of the test split.
        predict: what ``predict`` summarizes, a file of one article a line, or a table; None for those of the test split.
        source_vocabulary: how the vocabulary of the articles is made; in Python also one that is there.
        target_vocabulary: how the vocabulary of the headlines is made.
        max_length: tokens of the longest article in training.
        max_test_length: tokens after which an article is cut in validation, test and prediction.
        train_size: how many training pairs are used, the first ones; None for all.
        batch_size: pairs in a training batch of one process.
        eval_batch_size: pairs in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of the order.
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
