"""Base class of models of text, whose vocabularies are set when training begins and stored in checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import Self, override

from lit_sparse.checks import check_count
from lit_sparse.errors import CheckpointError, ConfigurationError, full_name
from lit_sparse.ground.evaluation import evaluating
from lit_sparse.lightning.internals import after_restore, copy_averages
from lit_sparse.mappings import SparseMapping
from lit_sparse.metrics import group_counts, tied_groups
from lit_sparse.models.base import LitSparseModule
from lit_sparse.runs.torch_files import read_torch_file
from lit_sparse.text import Vocabulary

__all__ = ["TextModule", "check_lines", "count_groups", "listed", "two_texts"]

VOCABULARIES = "vocabularies"


class TextModule(LitSparseModule):
    """Base class of text models, whose vocabularies are set when training begins and stored in checkpoints.

    A subclass creates the layers that depend on the vocabularies in :meth:`make_layers`. A new model uses the vocabularies
    of its data module, built from the training text. They are stored in all checkpoints and never change: the data of a
    loaded model use the model's vocabularies. Without a data module, set them with ``model.build({"source":
    Vocabulary.build(lines), ...})``.

    Args:
        options: options of :class:`LitSparseModule`.
    """

    #: Names of the required vocabularies.
    vocabulary_names: ClassVar[frozenset[str]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Name -> vocabulary; empty until they are set.
        self.vocabularies: dict[str, Vocabulary] = {}

    @abstractmethod
    def make_layers(self) -> None:
        """Create the layers that depend on ``self.vocabularies``; a subclass implements it."""

    def build(self, vocabularies: Mapping[str, Vocabulary]) -> Self:
        """Set the vocabularies and create the layers that depend on them; return the model.

        Raises:
            ConfigurationError: if others are already set, or their names are not ``vocabulary_names``.
        """
        if set(vocabularies) != self.vocabulary_names:
            raise ConfigurationError(
                f"Expected the vocabularies {' and '.join(sorted(self.vocabulary_names))} for {type(self).__name__} but got"
                f" {', '.join(sorted(vocabularies)) or 'none'}, from data for a different kind of model. Use other data."
            )
        for name, vocabulary in vocabularies.items():
            if not isinstance(vocabulary, Vocabulary):
                raise ConfigurationError(f"Expected a Vocabulary as {name!r} but got {full_name(vocabulary)}.")
        if self.vocabularies:
            if dict(vocabularies) != self.vocabularies:
                raise ConfigurationError(
                    f"Expected the model's vocabularies {self.vocabularies} but got {dict(vocabularies)}. Build a new model."
                )
            return self
        self.vocabularies = dict(vocabularies)
        self.make_layers()
        self.to(self.device)
        if self._is_fitting:
            copy_averages(self.trainer)
        return self

    def setup(self, stage: str) -> None:
        """Set the vocabularies from the checkpoint, the initial weights or the data, in this order.

        If the path of the checkpoint is not known yet, :meth:`on_load_checkpoint` sets the vocabularies.
        """
        data: Any = getattr(self.trainer, "datamodule", None)
        path = self.trainer.ckpt_path or self.initial_weights
        if not self.vocabularies and path:
            self.build(_kept_vocabularies(str(path)))
        if not self.vocabularies and stage == "fit":
            after_restore(self.trainer, lambda: self._build_from(data))
        elif self.vocabularies and _has_vocabularies(data):
            data.use_vocabularies(self.vocabularies)
        super().setup(stage)

    def _build_from(self, data: Any) -> None:
        if not _has_vocabularies(data):
            raise self._unknown()
        made = {name: its.to_json() for name, its in data.vocabularies.items()} if self.trainer.is_global_zero else {}
        made = self.trainer.strategy.broadcast(made)
        self.build({name: Vocabulary.from_json(text) for name, text in made.items()})
        data.use_vocabularies(self.vocabularies)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the vocabularies."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[VOCABULARIES] = {name: vocabulary.to_json() for name, vocabulary in self.vocabularies.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the vocabularies, and create the layers that depend on them."""
        self.build({name: Vocabulary.from_json(text) for name, text in checkpoint.get(VOCABULARIES, {}).items()})
        data: Any = getattr(self._trainer, "datamodule", None)
        if _has_vocabularies(data):
            data.use_vocabularies(self.vocabularies)
        super().on_load_checkpoint(checkpoint)

    @override
    def on_validation_start(self) -> None:
        self._check_built()

    on_test_start = on_predict_start = on_validation_start

    def in_batches(
        self, call: Callable[..., Sequence[str]], sides: Sequence[list[list[int]]], pad: int, batch_size: int
    ) -> list[str]:
        """Return the results of a function that is called in eval mode on padded batches of examples, the longest first.

        Args:
            call: function from the indices of a batch's examples, and for each side their tokens (B, S) and lengths (B,),
                to a result for each example.
            sides: for each side, such as premise and hypothesis, the tokens of each example.
            pad: id of the padding token.
            batch_size: number of examples per batch.

        Raises:
            ConfigurationError: for a batch size below 1.
        """
        check_count("batch_size", batch_size)
        results = [""] * len(sides[0])
        order = sorted(range(len(results)), key=lambda i: -sum(len(side[i]) for side in sides))
        with evaluating(self):
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                inputs: list[Tensor] = []
                for side in sides:
                    tokens = pad_sequence([torch.tensor(side[i] or [pad]) for i in rows], True, pad)
                    lengths = torch.tensor([len(side[i]) for i in rows], device=self.device)
                    inputs += [tokens.to(self.device), lengths]
                for i, result in zip(rows, call(rows, *inputs), strict=True):
                    results[i] = result
        return results

    def tokens_in(self, name: str, rows: Tensor, lengths: Tensor) -> list[list[str]]:
        """Return the tokens of rows (B, S) of token ids with lengths (B,), by the vocabulary of this name."""
        pairs = zip(rows.tolist(), lengths.tolist(), strict=True)
        return [self.vocabularies[name].lookup_tokens(row[:length]) for row, length in pairs]

    def _check_built(self) -> None:
        if not self.vocabularies:
            raise self._unknown()

    def _unknown(self) -> ConfigurationError:
        return ConfigurationError(
            f"Expected vocabularies for {type(self).__name__} but none are set. Train it with a data module of lit_sparse, load"
            " a checkpoint, or call `model.build(vocabularies)`."
        )

    def on_fit_start(self) -> None:
        """Write the vocabularies next to the checkpoints, for other programs."""
        folder = self.trainer.log_dir
        if folder is not None and self.trainer.loggers and self.trainer.is_global_zero:
            for name, vocabulary in self.vocabularies.items():
                vocabulary.save(Path(folder) / "vocabularies" / f"{name}.json")


def check_lines(name: str, lines: Iterable[str]) -> list[str]:
    """Return the lines of text as a list after checking that they are texts.

    Raises:
        ConfigurationError: if it is another object.
    """
    if isinstance(lines, str):
        raise ConfigurationError(f"Expected argument `{name}` to be a list of texts but got one text. Write [{lines[:20]!r}].")
    found = listed(name, lines)
    for number, line in enumerate(found):
        if not isinstance(line, str) or any("\ud800" <= character <= "\udfff" for character in line):
            raise ConfigurationError(
                f"Expected argument `{name}` to be a list of texts but got {line!r} at position {number}. Convert it."
            )
    return found


def listed(name: str, given: Iterable[Any]) -> list[Any]:
    """Return an iterable as a list.

    Raises:
        ConfigurationError: if it is not iterable.
    """
    try:
        found = iter(given)
    except TypeError as error:
        raise ConfigurationError(f"Expected argument `{name}` to be a list but got {full_name(given)}.") from error
    return [*found]


def count_groups(mapping: SparseMapping, weights: Tensor) -> Tensor:
    """Return the number (...,) int64 of groups of equal weights in each row of attention weights (..., S).

    They are groups of neighbours or, for a mapping that ties weights wherever they stand, of all equal weights.
    """
    return (tied_groups if mapping.groups == "tied" else group_counts)(weights)


def _has_vocabularies(data: Any) -> bool:
    """Return whether a data module has the property ``vocabularies``, which may build them, and sets given ones."""
    return callable(getattr(data, "use_vocabularies", None))


def two_texts(token: int) -> tuple[Tensor, Tensor]:
    """Return the tokens (2, 3) and lengths (2,) of two texts of one token, as example arguments for export."""
    return torch.full((2, 3), token), torch.tensor([3, 2])


def _kept_vocabularies(path: str) -> dict[str, Vocabulary]:
    checkpoint = read_torch_file(path, repr(path), map_location="meta")
    kept = checkpoint.get(VOCABULARIES) if isinstance(checkpoint, dict) else None
    if not kept or not isinstance(kept, dict):
        raise CheckpointError(
            f"The checkpoint {path!r} holds no vocabularies, so it is not a checkpoint of a text model. Give another."
        )
    return {name: Vocabulary.from_json(text) for name, text in kept.items()}
