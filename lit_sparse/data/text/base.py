"""Base of all data modules of text: vocabularies, lengths, and batches of sequences of similar lengths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_sparse.checks import Count, ranges
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.columns import chosen, joined, unchecked
from lit_sparse.data.loader import Batch, EpochLoader
from lit_sparse.data.readers.hub import load
from lit_sparse.data.readers.splits import is_of_hub, open_split, read_split
from lit_sparse.data.splits import Split, in_batches, shuffled, splits_of, warn_without_test
from lit_sparse.data.stream import Stream, check_streaming, stream_batches
from lit_sparse.data.text.ragged import Ragged
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.lightning.choice import rank_zero_info, rank_zero_warn
from lit_sparse.text import Vocabulary, VocabularyOptions

__all__ = ["WORDS", "TextDataModule", "check_text"]

WORDS = VocabularyOptions()
#: Number of batches in a stretch that is sorted by length.
POOL = 100
#: Number of lines that are encoded together.
CHUNK = 10_000


@ranges(max_length=Count(), max_test_length=Count(), train_size=Count(), shuffle_buffer=Count(0))
class TextDataModule(ResumableDataModule):
    """Base class of text data modules; a subclass names its columns and makes batches of token sequences.

    A vocabulary is built from the training text when a model first needs it. The model's checkpoints store it, and later
    runs read it from there. Training batches hold sequences of similar lengths: each epoch shuffles the examples, sorts
    stretches of 100 batches by length, and shuffles the batches. Training drops examples that are empty or longer than
    ``max_length``. Validation, test and prediction keep all examples, and truncate those longer than ``max_test_length``
    with a warning.

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None if the splits are paths of files.
        config: name of the hub data set's configuration.
        train: name of the training split: a table such as ``{train}.jsonl``, parallel files, or a split on the hub; or
            the path of a file.
        val: name of the validation split.
        test: name of the test split.
        predict: inputs for ``predict``, a file with one per line or a table of the same columns; None for the inputs of the
            test split.
        max_length: maximum number of tokens per sequence in training.
        max_test_length: number of tokens after which a sequence is truncated in validation, test and prediction.
        train_size: number of training examples, the first of the file; None for all.
        streaming: whether to read the training examples from their files in each epoch, in the order of the files, without
            a copy in memory or on disk. Examples longer than ``max_length`` are truncated. Without ``train_size``, one
            pass over the files counts them.
        shuffle_buffer: number of successive examples that are shuffled together with ``streaming``, and kept in memory. A
            resumed run is exact with it, too.
        eval_batch_size: examples per batch in validation, test and prediction.
        options: other batch size, workers and seed; see :class:`~lit_sparse.data.ResumableDataModule`.

    Raises:
        ConfigurationError: for a length or size below 1.
    """

    #: Role of each sequence -> name of its vocabulary.
    roles: ClassVar[Mapping[str, str]]
    #: Roles of the sequences that a model generates, enclosed by ``<bos>`` and ``<eos>``.
    written: ClassVar[tuple[str, ...]] = ()
    #: Roles of the columns that may lack values.
    optional: ClassVar[tuple[str, ...]] = ()

    #: Whether ``streaming`` is possible: each row of the training data is an example.
    can_stream: ClassVar[bool] = True

    has_folds = True

    def __init__(
        self,
        path: str | None = None,
        *,
        config: str | None = None,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        predict: str | None = None,
        max_length: int = 50,
        max_test_length: int = 100,
        train_size: int | None = None,
        streaming: bool = False,
        shuffle_buffer: int = 0,
        eval_batch_size: int = 64,
        **options: Any,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, **options)
        self.path, self.config = path, config
        self.names: dict[Split, str] = {"train": train, "val": val, "test": test}
        self.predict, self.max_length, self.max_test_length = predict, max_length, max_test_length
        self.train_size, self.streaming, self.shuffle_buffer = train_size, streaming, shuffle_buffer
        whole = {"`fold`": self.fold, "`sampler`": self.sampler, type(self).__name__: None if self.can_stream else True}
        check_streaming(whole, shuffle_buffer, streaming=streaming)
        self._columns: dict[Split, dict[str, Any]] = {}
        self._sequences: dict[Split, dict[str, Ragged]] = {}
        self._vocabularies: dict[str, Vocabulary] = {}

    @abstractmethod
    def columns(self, split: Split) -> dict[str, str]:
        """Return a dict from roles, such as ``source``, to columns of a split's table or extensions of its parallel files."""

    @abstractmethod
    def vocabulary_options(self) -> dict[str, Any]:
        """Return a dict from names of vocabularies to their options, or to vocabularies that were given."""

    def read(self, split: Split) -> dict[str, Any]:
        """Return a dict from roles, such as ``source``, to the values of a split; override it for data outside files."""
        return read_split(self.path, self.names[split], self.columns(split), config=self.config, optional=self.optional)

    def check_test(self) -> None:
        """Raise an error if the test split is missing; override it together with :meth:`read`.

        Raises:
            DataError: if the test split is missing.
        """
        open_split(self.path, self.names["test"], self.columns("test"), config=self.config)

    def read_inputs(self) -> dict[str, Any]:
        """Return a dict from roles, such as ``source``, to values for prediction; by default the values of the test split."""
        return self.texts("test")

    def texts(self, split: Split) -> dict[str, Any]:
        """Return a dict from roles, such as ``source``, to the values of a split, which is read only once."""
        if split not in self._columns and self.fold is not None and split in ("train", "val"):
            train, val = self._checked_texts("train"), self._checked_texts("val")
            if train.keys() != val.keys():
                raise ConfigurationError(
                    f"Expected the same columns in the training and validation data with `fold` but got {sorted(train)} and"
                    f" {sorted(val)}. Leave out `fold`."
                )
            sizes = (len(next(iter(part.values()))) for part in (train, val))
            places = self.fold_indices(*sizes)[split]
            self._columns[split] = {role: chosen(joined(train[role], val[role]), places) for role in train}
        elif split not in self._columns:
            self._columns[split] = self._checked_texts(split)
        return self._columns[split]

    def _checked_texts(self, split: Split) -> dict[str, Any]:
        values = self.read_inputs() if split == "predict" else self.read(split)
        for role in self.roles:
            for row, text in enumerate(unchecked(values.get(role, ()))):
                check_text(text, role, row, split)
        counts = {role: len(rows) for role, rows in values.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"Expected equally many rows of each role in the {split} data but got {counts}. Correct them.")
        if split == "train" and self.train_size is not None:
            size = next(iter(counts.values()))
            if self.train_size > size:
                raise ConfigurationError(f"Expected `train_size` in 1 .. {size} but got {self.train_size}. Change it.")
            values = {role: rows[: self.train_size] for role, rows in values.items()}
        return values

    def prepare_data(self) -> None:
        """Download the data set, if it is on the Hugging Face hub."""
        if is_of_hub(self.path) and not self.streaming:
            load(str(self.path), self.config, self.names["train"])  # with all its splits

    def setup(self, stage: str | None = None) -> None:
        """Read the splits that a command needs.

        Raises:
            DataError: if a split has no examples.
        """
        for split in splits_of(stage):
            if split == "train" and self.streaming:
                _ = self._stream
            elif split not in self._sequences and not len(next(iter(self.texts(split).values()))):  # else released
                raise DataError(f"Expected examples in the {split} data but got none. Check the file.")
        if stage == "fit":
            warn_without_test(self.check_test)

    @cached_property
    def _stream(self) -> Stream:
        chunks, decode = open_split(self.path, self.names["train"], self.columns("train"), config=self.config)
        return Stream(chunks, decode, size=self.train_size, buffer=self.shuffle_buffer)

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabularies by name, given by the model or else built from the training text."""
        if not self._vocabularies:
            made = {}
            for name, source in self.vocabulary_options().items():
                if isinstance(source, VocabularyOptions):
                    roles = [role for role, its in self.roles.items() if its == name]
                    texts: Any = self._stream.values if self.streaming else self.texts("train").__getitem__
                    lines: Any = () if source.file else (line for role in roles for line in texts(role))
                    made[name] = source.make(lines)
                else:
                    made[name] = Vocabulary.of(source)
            self._vocabularies = made
        return self._vocabularies

    def use_vocabularies(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        """Use the vocabularies of a model.

        Raises:
            ConfigurationError: if they contradict the options.
        """
        if set(vocabularies) != set(self.roles.values()):
            raise ConfigurationError(
                f"Expected data with the model's vocabularies {sorted(vocabularies)} but got {type(self).__name__} with"
                f" {sorted(set(self.roles.values()))}. Use other data, or another model."
            )
        for name, source in self.vocabulary_options().items():
            its = vocabularies[name]
            if isinstance(source, VocabularyOptions) and source.file is None:
                if (source.kind, source.lowercase) != (its.kind, its.lowercase):
                    rank_zero_info(
                        f"note: the {name} vocabulary is the model's, with kind={its.kind!r} and lowercase={its.lowercase},"
                        f" instead of kind={source.kind!r} and lowercase={source.lowercase} in the data's options"
                    )
            elif isinstance(source, VocabularyOptions) and not Path(str(source.file)).expanduser().is_file():
                rank_zero_info(f"note: {source.file!r} does not exist; the {name} vocabulary is the model's")
            else:
                own = Vocabulary.load(str(source.file)) if isinstance(source, VocabularyOptions) else Vocabulary.of(source)
                if own != its:
                    raise ConfigurationError(
                        f"Expected the {name} vocabulary of the checkpoint, {its!r}, but got {own!r} in the data. Leave it out:"
                        " the checkpoint contains its vocabulary."
                    )
        if dict(vocabularies) != self._vocabularies:
            self._vocabularies, self._sequences = dict(vocabularies), {}
            self._columns.pop("train", None)  # its text may have been released

    def sequences(self, split: Split) -> dict[str, Ragged]:
        """Return a dict from roles, such as ``source``, to the token sequences of a split, which are encoded only once.

        Raises:
            DataError: if all texts of a role are empty.
        """
        if split in self._sequences:
            return self._sequences[split]
        texts = self.texts(split)
        sequences = {role: Ragged.of(self._encoded(role, texts[role])) for role in self.roles if role in texts}
        if split == "train":
            kept = self._kept(sequences)
            sequences = {role: ragged.chosen(kept) for role, ragged in sequences.items()}
            # Release the text: for a large set it takes most of the memory.
            others = {role: values for role, values in texts.items() if role not in self.roles}
            self._columns[split] = {role: chosen(values, kept) for role, values in others.items()}
        else:
            self._warn_truncated(split, sequences)
            sequences = {role: ragged.cut(self.max_test_length) for role, ragged in sequences.items()}
        for role, ragged in sequences.items():
            if not int(ragged.lengths.sum()):
                raise DataError(
                    f"Expected text as {role} in the {split} data but got {len(ragged)} examples that are empty or only white"
                    " space. Check the file."
                )
        self._sequences[split] = {role: self._framed(role, ragged) for role, ragged in sequences.items()}
        return self._sequences[split]

    def size(self, split: Split) -> int:
        """Return the number of examples of a split."""
        if split == "train" and self.streaming:
            return len(self._stream)
        if split == "train":
            return len(next(iter(self.sequences(split).values())))
        return len(next(iter(self.texts(split).values())))

    def lengths(self, split: Split) -> Tensor:
        """Return a sort key (N,) of a split's examples, such as their length, that orders them by cost."""
        total = torch.zeros(self.size(split), dtype=torch.int64)
        for role, ragged in self.sequences(split).items():
            total += ragged.lengths * (1000 if role in self.written else 1)  # generation costs most
        return total

    def train_batches(self, epoch: int, rank: int, processes: int) -> Sequence[Tensor]:
        """Return the indices of each training batch of one process; lengths within a batch are similar, unless streamed."""
        if self.streaming:
            return stream_batches(self, self.shuffle_buffer, epoch, rank, processes)
        lengths = self.lengths("train")
        order = self._order(len(lengths), epoch)
        order = order[: len(order) - len(order) % processes]
        step = self.batch_size * processes
        pools = in_batches(order, POOL * step)
        sorted_pools = [pool[torch.sort(lengths[pool], stable=True).indices] for pool in pools]
        batches = [batch for pool in sorted_pools for batch in in_batches(pool, step)]
        return [batches[number][rank::processes] for number in shuffled(len(batches), self.seed, epoch, stream=1).tolist()]

    def eval_order(self, split: Split) -> Tensor:
        """Return a split's order in validation and test, in which batches have similar lengths; the longest come first."""
        order = torch.sort(self.lengths(split), stable=True, descending=True).indices
        first, *others = in_batches(order, self.eval_batch_size * self._process()[1])
        mixed = [others[number] for number in shuffled(len(others), 0).tolist()]
        whole = [batch for batch in mixed if len(batch) == len(first)]  # a smaller batch stays the last
        return torch.cat([first, *whole, *(batch for batch in mixed if len(batch) < len(first))])

    def predict_dataloader(self) -> EpochLoader:
        """Return the loader of the inputs for prediction."""
        return self._in_order("predict")

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch with ``{role}`` (B, L) and ``{role}_length`` (B,) of each sequence, and ``index`` (B,)."""
        batch: Batch = {"index": indices}
        streamed = split == "train" and self.streaming
        sequences, places = (
            (self._streamed(indices), torch.arange(len(indices))) if streamed else (self.sequences(split), indices)
        )
        for role, ragged in sequences.items():
            pad = self.vocabularies[self.roles[role]].pad
            batch[role], batch[f"{role}_length"] = ragged.padded(places, pad)
        return batch

    def _streamed(self, indices: Tensor) -> dict[str, Ragged]:
        """Return a dict from roles, such as ``source``, to token sequences of some training examples, read from the files."""
        rows = self._stream.rows(indices)
        for role in self.roles:
            for row, text in zip(indices.tolist(), rows[role], strict=True):
                check_text(text, role, row, "train")
        ragged = {role: Ragged.of(self._encoded(role, rows[role])).cut(self.max_length) for role in self.roles}
        return {role: self._framed(role, sequences) for role, sequences in ragged.items()}

    def _framed(self, role: str, sequences: Ragged) -> Ragged:
        """Return sequences that a model generates with ``<bos>`` and ``<eos>`` around them, and others unchanged."""
        vocabulary = self.vocabularies[self.roles[role]]
        return sequences.framed(vocabulary.bos, vocabulary.eos) if role in self.written else sequences

    def _encoded(self, role: str, texts: Iterable[str]) -> Iterator[list[int]]:
        vocabulary, rows = self.vocabularies[self.roles[role]], iter(texts)
        while some := list(islice(rows, CHUNK)):
            yield from vocabulary.encode(some)

    def _kept(self, sequences: Mapping[str, Ragged]) -> Tensor:
        """Return the indices of the examples for training."""
        lengths = torch.stack([ragged.lengths for ragged in sequences.values()])
        fine = ((lengths > 0) & (lengths <= self.max_length)).all(0)
        number = int(fine.sum())
        if not number:
            raise DataError(
                f"Expected training examples of 1 .. max_length={self.max_length} tokens but got none among {len(fine)}."
                " Increase it."
            )
        if number < len(fine):
            rank_zero_info(
                f"{len(fine) - number} of {len(fine)} training examples are left out: they are empty, or longer than"
                f" {self.max_length} tokens"
            )
        return fine.nonzero().squeeze(-1)

    def _warn_truncated(self, split: Split, sequences: Mapping[str, Ragged]) -> None:
        """Warn about truncated sequences."""
        for role, ragged in sequences.items():
            long = (ragged.lengths > self.max_test_length).nonzero().squeeze(-1).tolist()
            if long:
                named = ", ".join(str(number + 1) for number in long[:5]) + (" ..." if len(long) > 5 else "")
                rank_zero_warn(
                    f"{len(long)} of the {split} data are truncated to max_test_length={self.max_test_length} tokens:"
                    f" {role} {named} (counted from 1)"
                )


def check_text(text: Any, role: str, row: int, split: Split) -> None:
    """Check that a value is text without a lone surrogate (half of a character), which UTF-8 cannot encode."""
    if not isinstance(text, str):
        raise DataError(
            f"Expected text as {role} but got {text!r} in row {row + 1} of the {split} data (counted from 1). Correct it."
        )
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"Expected whole characters as {role} but got the lone surrogate {text[error.start]!r} in row {row + 1} of the"
            f" {split} data (counted from 1) at position {error.start + 1}. Replace or remove it."
        ) from error
