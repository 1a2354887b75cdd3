"""Pairs of sentences in two languages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from lit_sparse.data.base import Split
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.tables import TABLES
from lit_sparse.data.readers.text_files import ending_of, read_lines
from lit_sparse.data.text.base import WORDS, TextDataModule
from lit_sparse.errors import DataError
from lit_sparse.text import VocabularyOptions

__all__ = ["PairDataModule", "TranslationDataModule"]


class PairDataModule(TextDataModule):
    """Base of data modules of texts that are read and texts that are written.

    Batches are dicts of ``source`` (B, S) int64, padded, and its lengths ``source_length`` (B,); ``target`` (B, T) between
    ``<bos>`` and ``<eos>``, and ``target_length``; and ``index`` (B,), the place in the split. Outside training there are also
    ``source_text``, the B inputs, and ``references``, for each input a list of what could be written (none in prediction).

    Args:
        source: column, or ending of the file, of what is read.
        target: column, or ending of the file, of what is written.
        references: column of lists of references, in place of the target in the test split; None where that is the reference.
            A reference alone need not be a list.
        source_vocabulary: how the vocabulary of what is read is made; in Python also one that is there, torchtext's too.
        target_vocabulary: how that of what is written is made.
        options: of :class:`~lit_sparse.data.TextDataModule`.
    """

    roles: ClassVar[Mapping[str, str]] = {"source": "source", "target": "target"}
    written: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(
        self,
        *,
        source: str,
        target: str,
        references: str | None = None,
        source_vocabulary: VocabularyOptions = WORDS,
        target_vocabulary: VocabularyOptions = WORDS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.source = source
        self.target = target
        self.references = references
        self.source_vocabulary = source_vocabulary
        self.target_vocabulary = target_vocabulary

    @override
    def columns(self, split: Split) -> dict[str, str]:
        if split == "test" and self.references is not None:
            return {"source": self.source, "references": self.references}
        return {"source": self.source, "target": self.target}

    @override
    def vocabulary_options(self) -> dict[str, Any]:
        return {"source": self.source_vocabulary, "target": self.target_vocabulary}

    def read(self, split: Split) -> dict[str, list[Any]]:
        """Return sources and targets; of several references the first is the target."""
        values = super().read(split)
        if "references" in values:
            values["references"] = [_references(row, number) for number, row in enumerate(values["references"], 1)]
            values["target"] = [row[0] for row in values["references"]]
        return values

    def read_inputs(self) -> dict[str, list[Any]]:
        """Return the lines of the file, the column of a table, or the inputs of the test split."""
        if self.predict is None:
            return {"source": self.texts("test")["source"]}
        if ending_of(Path(self.predict)) in TABLES:
            return read_split(None, self.predict, {"source": self.source})
        return {"source": read_lines(self.predict)}

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch; see the class."""
        batch = super().fetch(split, epoch, indices)
        if split != "train":
            texts, rows = self.texts(split), indices.tolist()
            batch["source_text"] = [texts["source"][row] for row in rows]
            if "references" in texts:
                batch["references"] = [texts["references"][row] for row in rows]
            elif "target" in texts:
                batch["references"] = [[texts["target"][row]] for row in rows]
        return batch


def _references(row: Any, number: int) -> list[str]:
    """Return the references of an input.

    Raises:
        DataError: if they are no texts.
    """
    found = [row] if isinstance(row, str) else row
    if not isinstance(found, list | tuple) or not found or not all(isinstance(text, str) for text in found):
        raise DataError(
            f"Expected the references of each input to be a text or a list of texts, at least one, but row {number} of the test"
            f" data (counted from 1) has {row!r}."
        )
    return list(found)


class TranslationDataModule(PairDataModule):
    """Sentences and their translations, from parallel files, a table, or the Hugging Face hub.

    See :class:`~lit_sparse.data.PairDataModule` for the batches. In a config::

        data:
          class_path: TranslationDataModule
          init_args: {path: multi30k, source: de, target: en, test: test_2016_flickr}

    reads ``multi30k/train.de`` and ``multi30k/train.en``, plain or gzipped, line i of one belonging to line i of the other.

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None where the splits are paths of files.
        source: language that is translated: column, or ending of the file.
        target: language that is translated into.
        references: column of lists of references in the test split; None where the target is the reference.
        config: name of the hub data set's configuration.
        train: name of the training split, or the path of a file.
        val: name of the validation split.
        test: name of the test split.
        predict: what ``predict`` translates, a file of one sentence a line, or a table; None for the sources of the test split.
        source_vocabulary: how the vocabulary of the source is made; in Python also one that is there.
        target_vocabulary: how the vocabulary of the target is made.
        max_length: tokens of the longest sentence in training.
        max_test_length: tokens after which a sentence is cut in validation, test and prediction.
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
        source: str = "source",
        target: str = "target",
        references: str | None = None,
        config: str | None = None,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        predict: str | None = None,
        source_vocabulary: VocabularyOptions = WORDS,
        target_vocabulary: VocabularyOptions = WORDS,
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
