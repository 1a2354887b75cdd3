"""Translations of the messages of installed programs: real pairs without a network."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import Any

from typing_extensions import override

from lit_sparse.checks import MOST_EXAMPLES, check_number
from lit_sparse.data.base import Split, held_out
from lit_sparse.data.readers.gettext import read_catalogues
from lit_sparse.data.text.base import WORDS
from lit_sparse.data.text.translation import PairDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.text import VocabularyOptions

__all__ = ["CatalogueDataModule"]


class CatalogueDataModule(PairDataModule):
    """English messages of programs and their translations, from the gettext catalogues of installed packages.

    The split of a message is a function of the message and the seed, so all its translations are in the same split. If sizes
    are numbers, it also depends on the other messages. See
    :class:`~lit_sparse.data.PairDataModule` for the batches. In a config::

        data:
          class_path: CatalogueDataModule
          init_args: {distributions: [jupyterlab-language-pack-fr-FR], language: fr}

    Args:
        distributions: names of installed distributions with catalogues.
        folders: folders with catalogues, ``.mo`` and ``.po`` (which needs the extra ``text``).
        language: code of the other language, such as ``fr`` or ``pt_BR``.
        backwards: whether to translate into English.
        val_size: messages held out for validation: a fraction if below 1, else a number.
        test_size: messages held out for the test: a fraction if below 1, else a number.
        predict: file with one message per line for ``predict``, or a table; None for the test split.
        source_vocabulary: options of the source vocabulary; in Python also a vocabulary.
        target_vocabulary: options of the target vocabulary.
        max_length: maximal number of tokens per message in training.
        max_test_length: number of tokens after which a message is truncated in validation, test and prediction.
        train_size: number of training pairs; None for all.
        batch_size: pairs per training batch and process.
        eval_batch_size: pairs per batch of validation, test and prediction.
        num_workers: number of worker processes that fetch batches.
        seed: seed of the splits and the order.

    Raises:
        ConfigurationError: if neither a distribution nor a folder is given, or no messages remain for training.
    """

    def __init__(
        self,
        distributions: list[str] | None = None,
        folders: list[str] | None = None,
        *,
        language: str = "fr",
        backwards: bool = False,
        val_size: float = 0.05,
        test_size: float = 0.1,
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
            source="source",
            target="target",
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
        if not distributions and not folders:
            raise ConfigurationError(
                "Expected `distributions` or `folders` with gettext catalogues but got neither. Name an installed package, such"
                " as jupyterlab-language-pack-fr-FR, or a folder."
            )
        self.distributions = list(distributions or [])
        self.folders = list(folders or [])
        self.language = language
        self.backwards = backwards
        self.val_size = check_number("val_size", val_size, 0.0, MOST_EXAMPLES, open_low=True)
        self.test_size = check_number("test_size", test_size, 0.0, MOST_EXAMPLES, open_low=True)
        if self.val_size < 1.0 and self.test_size < 1.0 and val_size + test_size >= 1.0:
            raise ConfigurationError(
                f"Expected a sum of `val_size` and `test_size` below 1 but got {val_size} and {test_size}. Decrease them."
            )
        self._pairs: dict[Split, list[tuple[str, str]]] = {}

    def read(self, split: Split) -> dict[str, list[Any]]:
        """Return the messages of a split and their translations."""
        if not self._pairs:
            catalogue = read_catalogues(distributions=self.distributions, folders=self.folders, language=self.language)
            self._pairs = {"train": [], "val": [], "test": []}
            ends = self._ends(sorted({self._hash_of(message) for message, _ in catalogue}))
            for message, translation in catalogue:
                position = self._hash_of(message)
                part: Split = "val" if position < ends[0] else "test" if position < ends[1] else "train"
                self._pairs[part].append((translation, message) if self.backwards else (message, translation))
        pairs = self._pairs[split]
        return {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}

    @override
    def check_test(self) -> None:
        if not self.read("test")["source"]:
            raise DataError("Expected messages in the test data but got none. Increase `test_size`.")

    def _hash_of(self, message: str) -> float:
        """Return a number in [0, 1), a function of the message and the seed; those held out have the smallest numbers."""
        digest = hashlib.blake2b(f"{self.seed} {message}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64

    def _ends(self, positions: list[float]) -> tuple[float, float]:
        """Return the ends of validation and test, as positions.

        Args:
            positions: sorted positions of all messages.

        Raises:
            ConfigurationError: if no message remains for training.
        """
        end, ends = 0.0, []
        for name, size in (("val_size", self.val_size), ("test_size", self.test_size)):
            if size < 1.0:
                end += size
            else:
                first = bisect_left(positions, end)
                end = positions[first + held_out(name, size, len(positions), len(positions) - first)]
            ends.append(end)
        return ends[0], ends[1]
