"""Pairs of sentences in two languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.places import place_of
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.tables import TABLES
from lit_sparse.data.readers.text_files import ending_of, read_lines
from lit_sparse.data.splits import Split
from lit_sparse.data.text.base import WORDS, TextDataModule
from lit_sparse.errors import DataError
from lit_sparse.text import VocabularyOptions

__all__ = ["PairDataModule", "TranslationDataModule"]


class PairDataModule(TextDataModule):
    """Base class of data modules of input and output texts.

    Batches are dicts of padded ``source`` (B, S) int64 and ``target`` (B, T) int64 with ``<bos>`` and ``<eos>``, their
    lengths ``source_length`` (B,) and ``target_length`` (B,), and ``index`` (B,) within the split. Outside training they
    also hold ``source_text``, the B inputs, and ``references``, a list of reference texts per input (empty in prediction).

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None if the splits are paths of files.
        source: column of the inputs, or ending of the file.
        target: column of the outputs, or ending of the file.
        references: column of references in the test split, each a text or a list of texts; None if the target is the
            reference.
        source_vocabulary: options of the input vocabulary; in Python also a vocabulary, including torchtext's.
        target_vocabulary: options of the output vocabulary.
        options: options of :class:`~lit_sparse.data.TextDataModule`.
    """

    roles: ClassVar[Mapping[str, str]] = {"source": "source", "target": "target"}
    written: ClassVar[tuple[str, ...]] = ("target",)

    def __init__(
        self,
        path: str | None = None,
        *,
        source: str = "source",
        target: str = "target",
        references: str | None = None,
        source_vocabulary: VocabularyOptions = WORDS,
        target_vocabulary: VocabularyOptions = WORDS,
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
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

    def read(self, split: Split) -> dict[str, Any]:
        """Return the sources and targets of a split, as a dict; the first of several references is the target."""
        values = super().read(split)
        if "references" in values:
            values["references"] = [_references(row, number) for number, row in enumerate(values["references"], 1)]
            values["target"] = [row[0] for row in values["references"]]
        return values

    def read_inputs(self) -> dict[str, Any]:
        """Return the sources for prediction, as a dict: the lines of the file ``predict``, or the inputs of the test split."""
        if self.predict is None:
            return {"source": self.texts("test")["source"]}
        if ending_of(place_of(self.predict)) in TABLES:
            return read_split(None, self.predict, {"source": self.source})
        return {"source": read_lines(self.predict)}

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return the text pairs at indices (B,) of a split as a batch; the class describes its entries."""
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
        DataError: if they are not texts.
    """
    references = [row] if isinstance(row, str) else row
    if not isinstance(references, list | tuple) or not references or not all(isinstance(text, str) for text in references):
        raise DataError(
            f"Expected the references of each input to be a text or a non-empty list of texts but got {row!r} in row {number}"
            " of the test data (counted from 1). Correct it."
        )
    return list(references)


class TranslationDataModule(PairDataModule):
    """Data module of sentences and their translations, from parallel files, a table, or the Hugging Face hub.

    See :class:`~lit_sparse.data.PairDataModule` for the batches. In a config::

        data:
          class_path: TranslationDataModule
          init_args: {path: multi30k, source: de, target: en, test: test_2016_flickr}

    reads ``multi30k/train.de`` and ``multi30k/train.en``, plain or gzipped; lines with the same number are a pair. For the
    arguments, see the base class.
    """
