"""Pairs of a premise and a hypothesis, labelled with their relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Count, ranges
from lit_sparse.data.columns import chosen, unchecked
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.word_vectors import read_vectors, read_words
from lit_sparse.data.splits import Split
from lit_sparse.data.text.base import WORDS, TextDataModule, check_text
from lit_sparse.errors import ConfigurationError, DataError, did_you_mean
from lit_sparse.lightning.choice import rank_zero_info
from lit_sparse.text import Vocabulary, VocabularyOptions
from lit_sparse.text.labels import LABELS, UNDECIDED, check_labels

__all__ = ["EntailmentDataModule"]

#: Columns of SNLI's own files with trees, ``( ( A man ) ( sleeps . ) )``, whose leaves are the published tokens.
TREES = "_binary_parse"
#: Kinds of vocabularies that split the leaves of trees, such as ``-LRB-``, again.
SPLITTING = ("words", "moses")


@ranges(vector_size=Count())
class EntailmentDataModule(TextDataModule):
    """Data module of premises and hypotheses, labelled with their relation, such as SNLI.

    Batches are dicts of padded ``premise`` (B, S) int64 and ``hypothesis`` (B, T) int64, their lengths ``premise_length``
    (B,) and ``hypothesis_length`` (B,), ``label`` (B,) as an index into ``labels``, and ``index`` (B,) within the split.
    Outside training they also hold ``premise_text`` and ``hypothesis_text``, lists of B strings. In a config::

        data:
          class_path: EntailmentDataModule
          init_args: {path: snli, val: dev, vectors: glove.6B.50d.txt, vector_size: 50}

    reads ``snli/train.jsonl``, ``snli/dev.jsonl`` and so on, plain or gzipped.

    - Labels are names, or their indices from 0. Pairs without a gold label (``-``, -1 or null) are dropped, except in
      prediction, which does not read labels.
    - Premises and hypotheses share one vocabulary, ``text``, of the words in the training pairs. With ``vectors``, the
      first words of that file, usually the most frequent ones, are added up to its ``max_size``. The model stores their
      vectors, so that it can use words that are not in the training pairs. A given vocabulary stays unchanged.
    - By default tokens are lower-cased words and punctuation marks; nearly all have a vector in GloVe. The tokens of SNLI's
      own files are the leaves of its trees. Read them with ``premise: sentence1_binary_parse``,
      ``hypothesis: sentence2_binary_parse``, ``label: gold_label`` and ``vocabulary: {kind: spaces}``.

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None if the splits are paths of files.
        premise: column of the premises.
        hypothesis: column of the hypotheses.
        label: column of the labels.
        labels: names of the labels, by index.
        vocabulary: options of the vocabulary; in Python also a vocabulary.
        vectors: path of word vectors, see :func:`~lit_sparse.data.readers.word_vectors.read_vectors`; None without any.
        vector_size: width of the vectors, which also selects a file in a ``.zip``; None for any.
        max_length: maximum number of tokens per sentence in training.
        eval_batch_size: pairs per batch in validation, test and prediction.
        options: further options of :class:`~lit_sparse.data.TextDataModule`.

    Raises:
        ConfigurationError: for fewer than two different labels, vectors with a ``bpe`` vocabulary, or trees with one that
            splits their leaves.
    """

    roles: ClassVar[Mapping[str, str]] = {"premise": "text", "hypothesis": "text"}
    optional: ClassVar[tuple[str, ...]] = ("label",)
    can_stream: ClassVar[bool] = False  # some have no gold label

    def __init__(
        self,
        path: str | None = None,
        *,
        premise: str = "premise",
        hypothesis: str = "hypothesis",
        label: str = "label",
        labels: Sequence[str] = LABELS,
        vocabulary: VocabularyOptions = WORDS,
        vectors: str | None = None,
        vector_size: int | None = None,
        max_length: int = 100,
        eval_batch_size: int = 256,
        **options: Any,
    ) -> None:
        super().__init__(path, max_length=max_length, eval_batch_size=eval_batch_size, **options)
        self.premise, self.hypothesis, self.label = premise, hypothesis, label
        self.labels = check_labels(labels)
        self.vocabulary = vocabulary
        self.vectors_path = vectors
        self.vector_size = vector_size
        kind = getattr(vocabulary, "kind", None)
        if vectors is not None and kind == "bpe":
            raise ConfigurationError(
                "Expected a `vocabulary` of kind words, spaces or moses with `vectors` but got kind bpe. Change the kind."
            )
        if kind in SPLITTING and any(column.endswith(TREES) for column in (premise, hypothesis)):
            raise ConfigurationError(
                f"Expected a `vocabulary` of kind spaces for the leaves of the trees in {premise!r} and {hypothesis!r} but got"
                f" kind {kind}. Set `vocabulary: {{kind: spaces}}`."
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
        """The vocabulary ``text``, given by the model or else built from the training pairs and the file of word vectors."""
        if not self._vocabularies:
            made = super().vocabularies["text"]
            options = self.vocabulary
            if self.vectors_path is not None and isinstance(options, VocabularyOptions) and options.file is None:
                self._vocabularies = {"text": _filled(made, read_words(self.vectors_path, self.vector_size), options.max_size)}
        return self._vocabularies

    def vectors(self) -> tuple[Tensor, Tensor] | None:
        """Return the word vectors (V, D) of the vocabulary and a mask (V,) of words that have one; None without a file."""
        if self.vectors_path is None:
            return None
        return read_vectors(self.vectors_path, self.vocabularies["text"].get_itos(), self.vector_size)

    def read(self, split: Split) -> dict[str, Any]:
        """Return a dict from ``premise``, ``hypothesis`` and ``label`` to the values of a split, only pairs with a gold label.

        Raises:
            DataError: for a label that is not in ``labels``, or if all pairs lack a label.
        """
        values = self._sentences(super().read(split), split)
        numbers = [self._number(label, row, split) for row, label in enumerate(values["label"], 1)]
        kept = [row for row, number in enumerate(numbers) if number >= 0]
        if not kept:
            raise DataError(
                f"Expected gold labels in the column {self.label!r} but got none in {len(numbers)} pairs of the {split} data."
                " Name another column."
            )
        values["label"] = numbers
        if len(kept) < len(numbers):
            rank_zero_info(
                f"{len(numbers) - len(kept)} of {len(numbers)} pairs of the {split} data are left out: they have no gold label"
            )
            return {role: chosen(rows, torch.tensor(kept)) for role, rows in values.items()}
        return values

    def read_inputs(self) -> dict[str, Any]:
        """Return the premises and hypotheses for prediction: the pairs of the file ``predict``, or of the test split."""
        columns = self.columns("predict")
        if self.predict is None:
            return self._sentences(read_split(self.path, self.names["test"], columns, config=self.config), "predict")
        return self._sentences(read_split(None, self.predict, columns), "predict")

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return the pairs at indices (B,) of a split as a batch; the class describes its entries."""
        batch = super().fetch(split, epoch, indices)
        texts, rows = self.texts(split), indices.tolist()
        if "label" in texts:
            batch["label"] = torch.tensor([texts["label"][row] for row in rows], dtype=torch.int64)
        if split != "train":
            for role in self.roles:
                batch[f"{role}_text"] = [texts[role][row] for row in rows]
        return batch

    def _sentences(self, values: dict[str, Any], split: Split) -> dict[str, Any]:
        """Return the columns of a split with its sentences as text; trees become their leaves."""
        for role, column in self.columns("predict").items():
            for row, text in enumerate(unchecked(values[role])):
                check_text(text, role, row, split)  # here, before dropped pairs change the row numbers
            if column.endswith(TREES):
                values[role] = [" ".join(part for part in text.split() if part not in "()") for text in values[role]]
        return values

    def _number(self, label: Any, row: int, split: Split) -> int:
        """Return the number of a label, or -1 without a gold label."""
        if label in UNDECIDED:
            return -1
        if label in self.labels:
            return self.labels.index(label)
        number = int(label) if isinstance(label, str) and label.isdecimal() and label.isascii() else label
        if type(number) is int and 0 <= number < len(self.labels):
            return number
        raise DataError(
            f"Expected a label in the column {self.label!r} but got {label!r} in row {row} (counted from 1) of the {split}"
            f" data. Allowed are {', '.join(self.labels)}, their numbers 0 .. {len(self.labels) - 1}, and -, -1 or null"
            " without a label."
            f"{did_you_mean(label, self.labels) if isinstance(label, str) else ''}"
        )


def _filled(vocabulary: Vocabulary, words: Sequence[str], size: int) -> Vocabulary:
    """Extend a vocabulary up to a size with the first new words of a list that are single tokens."""
    more = (word for word in words if word not in vocabulary and vocabulary.tokenize(word) == [word])
    tokens = [*vocabulary, *islice(more, max(0, size - len(vocabulary)))]
    return Vocabulary.from_tokens(tokens, kind=vocabulary.kind, lowercase=vocabulary.lowercase, language=vocabulary.language)
