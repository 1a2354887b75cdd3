"""Messages of installed programs and their translations: real pairs without a network."""

from __future__ import annotations

import hashlib
from typing import Any

from typing_extensions import override

from lit_sparse.checks import check_number
from lit_sparse.data.base import Split
from lit_sparse.data.readers.gettext import read_catalogues
from lit_sparse.data.text.base import WORDS
from lit_sparse.data.text.translation import PairDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.text import VocabularyOptions

__all__ = ["CatalogueDataModule"]


class CatalogueDataModule(PairDataModule):
    """English messages of programs and their translations, from the gettext catalogues that installed packages bring.

    Which split a message belongs to is a function of the message and the seed, so its translations stand together. See
    :class:`~lit_sparse.data.PairDataModule` for the batches. In a config::

        data:
          class_path: CatalogueDataModule
          init_args: {distributions: [jupyterlab-language-pack-fr-FR], language: fr}

    Args:
        distributions: names of installed distributions whose catalogues are read.
        folders: folders whose catalogues are read, ``.mo`` and ``.po`` (which needs the extra ``text``).
        language: code of the language that is translated into, such as ``fr`` or ``pt_BR``.
        backwards: translate into English.
        val_share: share of the messages that are held out for validation.
        test_share: share of the messages that are held out for the test.
        predict: what ``predict`` translates, a file of one message a line, or a table; None for those of the test split.
        source_vocabulary: how the vocabulary of the source is made; in Python also one that is there.
        target_vocabulary: how the vocabulary of the target is made.
        max_length: tokens of the longest message in training.
        max_test_length: tokens after which a message is cut in validation, test and prediction.
        train_size: how many training pairs are used; None for all.
        batch_size: pairs in a training batch of one process.
        eval_batch_size: pairs in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of the splits and the order.

    Raises:
        ConfigurationError: if neither a distribution nor a folder is given, or the shares leave nothing for training.
    """

    def __init__(
        self,
        distributions: list[str] | None = None,
        folders: list[str] | None = None,
        *,
        language: str = "fr",
        backwards: bool = False,
        val_share: float = 0.05,
        test_share: float = 0.1,
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
                "Expected `distributions`, names of installed packages such as jupyterlab-language-pack-fr-FR, or `folders`"
                " with gettext catalogues, but got neither."
            )
        self.distributions = list(distributions or [])
        self.folders = list(folders or [])
        self.language = language
        self.backwards = backwards
        self.val_share = check_number("val_share", val_share, 0.0, 1.0, open_low=True, open_high=True)
        self.test_share = check_number("test_share", test_share, 0.0, 1.0, open_low=True, open_high=True)
        if val_share + test_share >= 1.0:
            raise ConfigurationError(
                f"Expected `val_share` and `test_share` to leave something for training but got {val_share} and {test_share}."
            )
        self._pairs: dict[Split, list[tuple[str, str]]] = {}

    def read(self, split: Split) -> dict[str, list[Any]]:
        """Return the messages of a split and their translations."""
        if not self._pairs:
            found = read_catalogues(distributions=self.distributions, folders=self.folders, language=self.language)
            self._pairs = {"train": [], "val": [], "test": []}
            for message, translation in found:
                self._pairs[self._split_of(message)].append(
                    (translation, message) if self.backwards else (message, translation)
                )
        pairs = self._pairs[split]
        return {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}

    @override
    def check_test(self) -> None:
        if not self.read("test")["source"]:
            raise DataError("Expected some messages in the test data but there are none. Raise `test_share`.")

    def _split_of(self, message: str) -> Split:
        digest = hashlib.blake2b(f"{self.seed} {message}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        if place < self.val_share:
            return "val"
        return "test" if place < self.val_share + self.test_share else "train"
