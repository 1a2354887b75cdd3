"""What all data modules of text share: vocabularies, lengths, batches of sequences of about one length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lit_sparse.checks import check_count
from lit_sparse.data.base import ResumableDataModule, Split, in_batches, shuffled, warn_without_test
from lit_sparse.data.loader import Batch, EpochLoader
from lit_sparse.data.readers.splits import check_split, read_split
from lit_sparse.data.text.ragged import Ragged
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.text import Vocabulary, VocabularyOptions

__all__ = ["WORDS", "TextDataModule"]

WORDS = VocabularyOptions()
#: Batches among which sequences are sorted by length.
POOL = 100
#: Lines that are turned into numbers together.
CHUNK = 10_000


class TextDataModule(ResumableDataModule):
    """Base of data modules of text: a subclass names its columns, and makes batches of the sequences.

    A vocabulary is made from the training text when a model first asks for it, kept in the model's checkpoints and taken from
    there ever after. Training batches hold sequences of about one length: the order is drawn anew in every epoch, sorted by
    length within stretches of 100 batches, and the batches are shuffled. Training leaves out examples that are longer than
    ``max_length`` or empty; elsewhere nothing is left out, and what is longer than ``max_test_length`` is cut, with a warning.

    Args:
        path: a local folder or the name of a data set of the Hugging Face hub; None where the splits are paths of files.
        config: name of the hub data set's configuration.
        train: name of the training split: of a table ``{train}.jsonl``, ``.csv`` or ``.parquet``, of parallel files, or of the
            hub's split; or the path of a file.
        val: name of the validation split.
        test: name of the test split.
        predict: what ``predict`` reads, a file of one input a line; None for the inputs of the test split.
        max_length: tokens of the longest sequence in training.
        max_test_length: tokens after which a sequence is cut in validation, test and prediction.
        train_size: how many training examples are used, the first ones; None for all.
        batch_size: examples in a training batch of one process.
        eval_batch_size: examples in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of the order.

    Raises:
        ConfigurationError: for a length or size below 1.
    """

    #: Which sequences there are, and the name of the vocabulary of each.
    roles: ClassVar[Mapping[str, str]]
    #: Those of them that a model writes: they stand between ``<bos>`` and ``<eos>``.
    written: ClassVar[tuple[str, ...]] = ()
    #: Those columns that may lack values.
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        path: str | None = None,
        config: str | None = None,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        predict: str | None = None,
        max_length: int = 50,
        max_test_length: int = 100,
        train_size: int | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 64,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, num_workers=num_workers, seed=seed)
        self.path = path
        self.config = config
        self.names: dict[Split, str] = {"train": train, "val": val, "test": test}
        self.predict = predict
        self.max_length = check_count("max_length", max_length)
        self.max_test_length = check_count("max_test_length", max_test_length)
        self.train_size = None if train_size is None else check_count("train_size", train_size)
        self._columns: dict[Split, dict[str, list[Any]]] = {}
        self._sequences: dict[Split, dict[str, Ragged]] = {}
        self._vocabularies: dict[str, Vocabulary] = {}

    @abstractmethod
    def columns(self, split: Split) -> dict[str, str]:
        """Return role -> column, or ending of a parallel file, for what is read of a split."""

    @abstractmethod
    def vocabulary_options(self) -> dict[str, Any]:
        """Return name -> what each vocabulary is made from: VocabularyOptions, or a vocabulary that is there."""

    def read(self, split: Split) -> dict[str, list[Any]]:
        """Return role -> values of a split; to be overridden by data that are no files."""
        return read_split(self.path, self.names[split], self.columns(split), config=self.config, optional=self.optional)

    def check_test(self) -> None:
        """Check that the test split is there; to be overridden with :meth:`read`.

        Raises:
            DataError: if it is not.
        """
        check_split(self.path, self.names["test"], self.columns("test"), config=self.config)

    def read_inputs(self) -> dict[str, list[Any]]:
        """Return role -> values of what ``predict`` reads; those of the test split by default."""
        return self.texts("test")

    def texts(self, split: Split) -> dict[str, list[Any]]:
        """Return role -> values of a split, read once."""
        if split not in self._columns:
            values = self.read_inputs() if split == "predict" else self.read(split)
            for role in self.roles:
                for row, text in enumerate(values.get(role, ())):
                    if not isinstance(text, str):
                        raise DataError(f"Expected text as {role} but row {row} of the {split} data holds {text!r}.")
                    _check_whole(text, role, row, split)
            if split == "train":
                values = {role: rows[: self.train_size] for role, rows in values.items()}
            self._columns[split] = values
        return self._columns[split]

    def setup(self, stage: str | None = None) -> None:
        """Read the splits that a command needs."""
        needed: dict[str | None, tuple[Split, ...]] = {
            "fit": ("train", "val"),
            "validate": ("val",),
            "test": ("test",),
            "predict": ("predict",),
        }
        for split in needed.get(stage, ("train", "val", "test")):
            if not len(next(iter(self.texts(split).values()))):
                raise DataError(f"Expected some examples in the {split} data but there are none.")
        if stage == "fit":
            warn_without_test(self.check_test)

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """Name -> vocabulary: those that were set, or else those of the training text."""
        if not self._vocabularies:
            made = {}
            for name, source in self.vocabulary_options().items():
                if isinstance(source, VocabularyOptions):
                    roles = [role for role, its in self.roles.items() if its == name]
                    lines: Any = () if source.file else (line for role in roles for line in self.texts("train")[role])
                    made[name] = source.make(lines)
                else:
                    made[name] = Vocabulary.of(source)
            self._vocabularies = made
        return self._vocabularies

    def use_vocabularies(self, vocabularies: Mapping[str, Vocabulary]) -> None:
        """Take the vocabularies of a model.

        Raises:
            ConfigurationError: if others were asked for.
        """
        if set(vocabularies) != set(self.roles.values()):
            raise ConfigurationError(
                f"The model was made for the vocabularies {sorted(vocabularies)}, but {type(self).__name__} has"
                f" {sorted(set(self.roles.values()))}."
            )
        for name, source in self.vocabulary_options().items():
            its = vocabularies[name]
            if isinstance(source, VocabularyOptions) and source.file is None:
                if (source.kind, source.lowercase) != (its.kind, its.lowercase):
                    rank_zero_info(
                        f"note: the {name} vocabulary is the model's, of kind={its.kind!r} and lowercase={its.lowercase}, where"
                        f" the data say kind={source.kind!r} and lowercase={source.lowercase}"
                    )
            elif isinstance(source, VocabularyOptions) and not Path(str(source.file)).expanduser().is_file():
                rank_zero_info(f"note: {source.file!r} is not there; the {name} vocabulary is the model's")
            else:
                own = Vocabulary.load(str(source.file)) if isinstance(source, VocabularyOptions) else Vocabulary.of(source)
                if own != its:
                    raise ConfigurationError(
                        f"The {name} vocabulary that the data were given does not match the checkpoint: {own!r} is not"
                        f" {its!r}. Leave it out: the checkpoint brings its own."
                    )
        if dict(vocabularies) != self._vocabularies:
            self._vocabularies, self._sequences = dict(vocabularies), {}
            self._columns.pop("train", None)  # its text may be gone

    def sequences(self, split: Split) -> dict[str, Ragged]:
        """Return role -> sequences of numbers of a split, made once."""
        if split in self._sequences:
            return self._sequences[split]
        texts = self.texts(split)
        found = {role: Ragged.of(self._encoded(role, texts[role])) for role in self.roles if role in texts}
        if split == "train":
            kept = self._kept(found)
            found = {role: ragged.chosen(kept) for role, ragged in found.items()}
            # The text itself is done with: of a large set it takes more memory than all else.
            others = {role: values for role, values in texts.items() if role not in self.roles}
            self._columns[split] = {role: [values[i] for i in kept.tolist()] for role, values in others.items()}
        else:
            self._tell_cut(split, found)
            found = {role: ragged.cut(self.max_test_length) for role, ragged in found.items()}
        for role, ragged in found.items():
            if not int(ragged.lengths.sum()):
                raise DataError(
                    f"Expected some text as {role} in the {split} data but none of the {len(ragged)} examples has a token: they"
                    " are empty, or white space alone. Check the file."
                )
        for role in self.written:
            if role in found:
                vocabulary = self.vocabularies[self.roles[role]]
                found[role] = found[role].framed(vocabulary.bos, vocabulary.eos)
        self._sequences[split] = found
        return found

    def size(self, split: Split) -> int:
        """Return the number of examples of a split."""
        if split == "train":
            return len(next(iter(self.sequences(split).values())))
        return len(next(iter(self.texts(split).values())))

    def lengths(self, split: Split) -> Tensor:
        """Return a number (N,) for each example by which examples of about one cost are found."""
        total = torch.zeros(self.size(split), dtype=torch.int64)
        for role, ragged in self.sequences(split).items():
            total += ragged.lengths * (1000 if role in self.written else 1)  # what is written costs most
        return total

    def train_batches(self, epoch: int, rank: int, processes: int) -> Sequence[Tensor]:
        """Return the indices of each training batch of one process, of about one length."""
        lengths = self.lengths("train")
        order = shuffled(len(lengths), self.seed, epoch)
        order = order[: len(order) - len(order) % processes]
        step = self.batch_size * processes
        pools = in_batches(order, POOL * step)
        sorted_pools = [pool[torch.sort(lengths[pool], stable=True).indices] for pool in pools]
        batches = [batch for pool in sorted_pools for batch in in_batches(pool, step)]
        return [batches[number][rank::processes] for number in shuffled(len(batches), self.seed, epoch, stream=1).tolist()]

    def eval_order(self, split: Split) -> Tensor:
        """Return examples such that batches hold some of about one length: the longest ones, then the others at random."""
        order = torch.sort(self.lengths(split), stable=True, descending=True).indices
        first, *others = in_batches(order, self.eval_batch_size * self._process()[1])
        mixed = [others[number] for number in shuffled(len(others), 0).tolist()]
        whole = [batch for batch in mixed if len(batch) == len(first)]  # a smaller one stays the last
        return torch.cat([first, *whole, *(batch for batch in mixed if len(batch) < len(first))])

    def predict_dataloader(self) -> EpochLoader:
        """Return the loader of what is predicted."""
        return self._in_order("predict")

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch: for each sequence ``role`` (B, L) and ``role_length`` (B,), and ``index`` (B,)."""
        batch: Batch = {"index": indices}
        for role, ragged in self.sequences(split).items():
            pad = self.vocabularies[self.roles[role]].pad
            batch[role], batch[f"{role}_length"] = ragged.padded(indices, pad)
        return batch

    def _encoded(self, role: str, texts: Sequence[str]) -> Iterator[list[int]]:
        vocabulary = self.vocabularies[self.roles[role]]
        for start in range(0, len(texts), CHUNK):
            yield from vocabulary.encode(texts[start : start + CHUNK])

    def _kept(self, found: Mapping[str, Ragged]) -> Tensor:
        """Return which examples are trained on."""
        lengths = torch.stack([ragged.lengths for ragged in found.values()])
        fine = ((lengths > 0) & (lengths <= self.max_length)).all(0)
        number = int(fine.sum())
        if not number:
            raise DataError(
                f"None of the {len(fine)} training examples is left: all are empty or longer than max_length={self.max_length}."
            )
        if number < len(fine):
            rank_zero_info(
                f"{len(fine) - number} of {len(fine)} training examples are left out: empty, or longer than"
                f" {self.max_length} tokens"
            )
        return fine.nonzero().squeeze(-1)

    def _tell_cut(self, split: Split, found: Mapping[str, Ragged]) -> None:
        """Warn of what is cut."""
        for role, ragged in found.items():
            long = (ragged.lengths > self.max_test_length).nonzero().squeeze(-1).tolist()
            if long:
                named = ", ".join(str(number + 1) for number in long[:5]) + (" ..." if len(long) > 5 else "")
                rank_zero_warn(
                    f"{len(long)} of the {split} data are longer than max_test_length={self.max_test_length} tokens and are cut"
                    f" there: {role} {named} (counted from 1)"
                )


def _check_whole(text: str, role: str, row: int, split: Split) -> None:
    """Check that a text has no lone surrogate, half of a character, which UTF-8 cannot encode and tokenizers refuse."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"Expected whole characters as {role} but row {row + 1} of the {split} data (counted from 1) has half of one,"
            f" {text[error.start]!r}, at place {error.start + 1}. Write the character whole, or leave it out."
        ) from error
