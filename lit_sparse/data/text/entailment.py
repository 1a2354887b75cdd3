"""Pairs of a premise and a hypothesis, and whether one follows from the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import check_count
from lit_sparse.data.base import Split
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.word_vectors import read_vectors, read_words
from lit_sparse.data.text.base import WORDS, TextDataModule
from lit_sparse.errors import ConfigurationError, DataError, did_you_mean
from lit_sparse.text import Vocabulary, VocabularyOptions
from lit_sparse.text.labels import LABELS, UNDECIDED, check_labels

__all__ = ["EntailmentDataModule"]

#: Columns of SNLI's own files that hold a tree, ``( ( A man ) ( sleeps . ) )``; its leaves are the tokens given with the data.
TREES = "_binary_parse"


class EntailmentDataModule(TextDataModule):
    """Pairs of a premise and a hypothesis with a label, from a table or the Hugging Face hub: SNLI and others like it.

    Batches are dicts of ``premise`` (B, S) int64, padded, and its lengths ``premise_length`` (B,); ``hypothesis`` (B, T) and
    ``hypothesis_length``; ``label`` (B,), the number of the label among ``labels``; and ``index`` (B,), the place in the split.
    Outside training there are also ``premise_text`` and ``hypothesis_text``, lists of B strings. In a config::

        data:
          class_path: EntailmentDataModule
          init_args: {path: snli, val: dev, vectors: glove.6B.50d.txt, vector_size: 50}

    reads ``snli/train.jsonl``, ``snli/dev.jsonl`` and so on, plain or gzipped.

    - Labels are the names, or their numbers from 0. Pairs without a gold label (``-``, -1 or null) are left out; prediction,
      which reads no label, has all pairs.
    - Premises and hypotheses share one vocabulary, ``text``: the words of the training pairs. With ``vectors``, what is left of
      its ``max_size`` is filled with the first words of that file, in published files the most frequent ones. Their vectors
      are part of the model, so that words which no training pair has are understood in validation, test and use, though
      nobody looks at those. A vocabulary that is given stays as it is.
    - Tokens are words and punctuation marks, in lower case, by default: nearly all have a vector in GloVe. The tokens that
      SNLI's own files give are the leaves of its trees, read by ``premise: sentence1_binary_parse``,
      ``hypothesis: sentence2_binary_parse``, ``label: gold_label`` and ``vocabulary: {kind: spaces}``.

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None where the splits are paths of files.
        premise: column of the premises.
        hypothesis: column of the hypotheses.
        label: column of the labels.
        labels: names of the labels by their numbers.
        config: name of the hub data set's configuration.
        train: name of the training split, or the path of a file.
        val: name of the validation split.
        test: name of the test split.
        predict: a table of pairs that ``predict`` reads; None for all pairs of the test split.
        vocabulary: how the vocabulary is made; in Python also one that is there.
        vectors: word vectors, whatever :func:`~lit_sparse.data.readers.word_vectors.read_vectors` reads; None for none.
        vector_size: width of the vectors, by which a file in a ``.zip`` is found; None for any.
        max_length: tokens of the longest sentence in training.
        max_test_length: tokens after which a sentence is cut in validation, test and prediction.
        train_size: how many training pairs are used, the first ones with a label; None for all.
        batch_size: pairs in a training batch of one process.
        eval_batch_size: pairs in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of the order.

    Raises:
        ConfigurationError: for labels that are not at least two different names, or vectors of the pieces of ``bpe``.
    """

    roles: ClassVar[Mapping[str, str]] = {"premise": "text", "hypothesis": "text"}
    optional: ClassVar[tuple[str, ...]] = ("label",)

    def __init__(
        self,
        path: str | None = None,
        *,
        premise: str = "premise",
        hypothesis: str = "hypothesis",
        label: str = "label",
        labels: Sequence[str] = LABELS,
        config: str | None = None,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        predict: str | None = None,
        vocabulary: VocabularyOptions = WORDS,
        vectors: str | None = None,
        vector_size: int | None = None,
        max_length: int = 100,
        max_test_length: int = 100,
        train_size: int | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            path=path,
            config=config,
            train=train,
            val=val,
            test=test,
            predict=predict,
            max_length=max_length,
            max_test_length=max_test_length,
            train_size=train_size,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        self.premise = premise
        self.hypothesis = hypothesis
        self.label = label
        self.labels = check_labels(labels)
        self.vocabulary = vocabulary
        self.vectors_path = vectors
        self.vector_size = None if vector_size is None else check_count("vector_size", vector_size)
        if vectors is not None and getattr(vocabulary, "kind", None) == "bpe":
            raise ConfigurationError(
                "Expected a `vocabulary` of whole words beside `vectors`, of kind words, spaces or moses, but got kind bpe."
            )

    @override
    def columns(self, split: Split) -> dict[str, str]:
        sentences = {"premise": self.premise, "hypothesis": self.hypothesis}
        return sentences if split == "predict" else {**sentences, "label": self.label}

    @override
    def vocabulary_options(self) -> dict[str, Any]:
        return {"text": self.vocabulary}

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary ``text``: the one that was set, or else words of the training pairs and others with vectors."""
        if not self._vocabularies:
            made = super().vocabularies["text"]
            options = self.vocabulary
            if self.vectors_path is not None and isinstance(options, VocabularyOptions) and options.file is None:
                self._vocabularies = {"text": _filled(made, read_words(self.vectors_path, self.vector_size), options.max_size)}
        return self._vocabularies

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """Return vectors (V, D) of the words of the vocabulary and (V,) bool, which of them have one; None without a file."""
        if self.vectors_path is None:
            return None
        return read_vectors(self.vectors_path, self.vocabularies["text"].get_itos(), self.vector_size)

    def read(self, split: Split) -> dict[str, list[Any]]:
        """Return the pairs of a split that have a gold label.

        Raises:
            DataError: for a label that is none of ``labels``, or if no pair has one.
        """
        values = self._sentences(super().read(split), split)
        numbers = [self._number(label, row, split) for row, label in enumerate(values["label"], 1)]
        kept = [row for row, number in enumerate(numbers) if number >= 0]
        if not kept:
            raise DataError(
                f"None of the {len(numbers)} pairs of the {split} data has a gold label in the column {self.label!r}."
            )
        if len(kept) < len(numbers):
            rank_zero_info(
                f"{len(numbers) - len(kept)} of {len(numbers)} pairs of the {split} data have no gold label: left out"
            )
        values["label"] = numbers
        return {role: [rows[row] for row in kept] for role, rows in values.items()}

    def read_inputs(self) -> dict[str, list[Any]]:
        """Return the pairs of the file, or those of the test split."""
        columns = self.columns("predict")
        if self.predict is None:
            return self._sentences(read_split(self.path, self.names["test"], columns, config=self.config), "predict")
        return self._sentences(read_split(None, self.predict, columns), "predict")

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch; see the class."""
        batch = super().fetch(split, epoch, indices)
        texts, rows = self.texts(split), indices.tolist()
        if "label" in texts:
            batch["label"] = torch.tensor([texts["label"][row] for row in rows], dtype=torch.int64)
        if split != "train":
            for role in self.roles:
                batch[f"{role}_text"] = [texts[role][row] for row in rows]
        return batch

    def _sentences(self, values: dict[str, list[Any]], split: Split) -> dict[str, list[Any]]:
        """Return the columns of a split with its sentences as text, those of trees as their leaves."""
        for role, column in self.columns("predict").items():
            for row, text in enumerate(values[role], 1):
                if not isinstance(text, str):  # said here, where rows are counted before any is left out
                    raise DataError(
                        f"Expected text as {role} but row {row} of the {split} data (counted from 1) holds {text!r}."
                    )
            if column.endswith(TREES):
                values[role] = [" ".join(part for part in text.split() if part not in "()") for text in values[role]]
        return values

    def _number(self, label: Any, row: int, split: Split) -> int:
        """Return the number of a label, -1 for none."""
        if label in UNDECIDED:
            return -1
        if label in self.labels:
            return self.labels.index(label)
        number = int(label) if isinstance(label, str) and label.isdecimal() and label.isascii() else label
        if type(number) is int and 0 <= number < len(self.labels):
            return number
        raise DataError(
            f"Expected a label in the column {self.label!r} but row {row} of the {split} data (counted from 1) has {label!r}."
            f" Allowed: {', '.join(self.labels)}; their numbers 0 .. {len(self.labels) - 1}; or -, -1 and null for none."
            f"{did_you_mean(label, self.labels) if isinstance(label, str) else ''}"
        )


def _filled(vocabulary: Vocabulary, words: Sequence[str], size: int) -> Vocabulary:
    """Return a vocabulary with more words, the first of some that are one token and not in it, up to a size."""
    more = (word for word in words if word not in vocabulary and vocabulary.tokenize(word) == [word])
    tokens = [*vocabulary, *islice(more, max(0, size - len(vocabulary)))]
    return Vocabulary.from_tokens(tokens, kind=vocabulary.kind, lowercase=vocabulary.lowercase, language=vocabulary.language)
