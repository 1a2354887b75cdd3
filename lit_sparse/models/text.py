"""The base class of models that read text: their vocabularies are found when training begins, and kept ever after."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeGuard, get_args

from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checkpoint_files import read_torch_file
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.lightning_internals import after_restore
from lit_sparse.mappings import SparseMapping
from lit_sparse.metrics import group_counts, tied_groups
from lit_sparse.models.base import LitSparseModule
from lit_sparse.text import Vocabulary

__all__ = ["TextModule", "check_lines", "check_parts", "count_groups"]

VOCABULARIES = "vocabularies"


class _HasVocabularies(Protocol):
    """What a text model needs of its data module."""

    @property
    def vocabularies(self) -> dict[str, Vocabulary]: ...

    def use_vocabularies(self, vocabularies: Mapping[str, Vocabulary]) -> None: ...


class TextModule(LitSparseModule):
    """Base of models of text; a subclass makes in :meth:`make_layers` what depends on the vocabularies.

    Fitted for the first time it takes the vocabularies of its data module, made from the training text. They are part of
    every checkpoint, and are never made again: data that a loaded model sees take the model's. Without a data module,
    ``model.build({"source": Vocabulary.build(lines), ...})`` gives them.

    Args:
        options: of :class:`LitSparseModule`.
    """

    #: The vocabularies that there must be.
    vocabulary_names: ClassVar[frozenset[str]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        #: Name -> vocabulary; empty until they are known.
        self.vocabularies: dict[str, Vocabulary] = {}

    @abstractmethod
    def make_layers(self) -> None:
        """Make the layers that depend on ``self.vocabularies``."""

    def build(self, vocabularies: Mapping[str, Vocabulary]) -> Self:
        """Take vocabularies and make the layers that depend on them.

        Raises:
            ConfigurationError: if that was done before with others, or they are not those of ``vocabulary_names``.
        """
        if set(vocabularies) != self.vocabulary_names:
            raise ConfigurationError(
                f"{type(self).__name__} needs the vocabularies {' and '.join(sorted(self.vocabulary_names))} but got"
                f" {', '.join(sorted(vocabularies)) or 'none'}: these are the data of another kind of model."
            )
        if self.vocabularies:
            if dict(vocabularies) != self.vocabularies:
                raise ConfigurationError(
                    f"The model was built for {self.vocabularies} and cannot be used with {dict(vocabularies)}."
                )
            return self
        self.vocabularies = dict(vocabularies)
        self.make_layers()
        self.to(self.device)
        return self

    def setup(self, stage: str) -> None:
        """Take the vocabularies of the checkpoint, the initial weights or the data, in this order.

        A checkpoint whose path is not known yet brings its vocabularies when it is restored; see :meth:`on_load_checkpoint`.
        """
        data = getattr(self.trainer, "datamodule", None)
        path = self.trainer.ckpt_path or self.initial_weights
        if not self.vocabularies and path:
            self.build(_kept_vocabularies(str(path)))
        if not self.vocabularies and stage == "fit":
            after_restore(self.trainer, lambda: self._build_from(data))
        elif self.vocabularies and _has_vocabularies(data):
            data.use_vocabularies(self.vocabularies)
        super().setup(stage)

    def _build_from(self, data: object) -> None:
        if not _has_vocabularies(data):
            raise self._unknown()
        made = {name: its.to_json() for name, its in data.vocabularies.items()} if self.trainer.is_global_zero else {}
        made = self.trainer.strategy.broadcast(made)
        self.build({name: Vocabulary.from_json(text) for name, text in made.items()})
        data.use_vocabularies(self.vocabularies)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the vocabularies."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[VOCABULARIES] = {name: vocabulary.to_json() for name, vocabulary in self.vocabularies.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the vocabularies, and make the layers that depend on them."""
        self.build({name: Vocabulary.from_json(text) for name, text in checkpoint.get(VOCABULARIES, {}).items()})
        data = getattr(self._trainer, "datamodule", None)
        if _has_vocabularies(data):
            data.use_vocabularies(self.vocabularies)
        super().on_load_checkpoint(checkpoint)

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._check_built()

    @override
    def on_test_start(self) -> None:
        super().on_test_start()
        self._check_built()

    @override
    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._check_built()

    def _check_built(self) -> None:
        if not self.vocabularies:
            raise self._unknown()

    def _unknown(self) -> ConfigurationError:
        return ConfigurationError(
            f"{type(self).__name__} does not know its vocabularies yet. Train it with a data module of lit_sparse, load a"
            " checkpoint, or call `model.build(vocabularies)`."
        )

    def on_fit_start(self) -> None:
        """Write the vocabularies beside the checkpoints, for other programs to read."""
        folder = self.trainer.log_dir
        if folder is not None and self.trainer.loggers and self.trainer.is_global_zero:
            for name, vocabulary in self.vocabularies.items():
                path = Path(folder) / "vocabularies" / f"{name}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                vocabulary.save(path)


def check_parts(**parts: tuple[object, Any]) -> None:
    """Check that arguments are objects of the kind that they should be.

    Args:
        parts: name of an argument -> what was given, and the class, or union of classes, that it should be of.

    Raises:
        ConfigurationError: if one is not.
    """
    for name, (part, kind) in parts.items():
        if not isinstance(part, kind):
            wanted = getattr(kind, "__name__", None) or " or ".join(one.__name__ for one in get_args(kind))
            raise ConfigurationError(
                f"Expected argument `{name}` to be an object of {wanted.replace('NoneType', 'None')} but got {part!r}."
            )


def check_lines(name: str, lines: Sequence[str]) -> None:
    """Check that something is a list of texts.

    Raises:
        ConfigurationError: if it is not.
    """
    if isinstance(lines, str):
        raise ConfigurationError(f"Expected argument `{name}` to be a list of texts but got one text: write [{lines[:20]!r}].")
    for number, line in enumerate(lines):
        if not isinstance(line, str) or any("\ud800" <= character <= "\udfff" for character in line):
            raise ConfigurationError(f"Expected argument `{name}` to be a list of texts but number {number} is {line!r}.")


def count_groups(mapping: SparseMapping, weights: Tensor) -> Tensor:
    """Return how many groups of equal weights (..., S) a mapping made of each row, (...,) int64."""
    return (tied_groups if mapping.groups == "tied" else group_counts)(weights)


def _has_vocabularies(data: object) -> TypeGuard[_HasVocabularies]:
    # isinstance with a protocol gets each member, before Python 3.12, and so would make vocabularies that are not needed.
    return callable(getattr(data, "use_vocabularies", None))


def _kept_vocabularies(path: str) -> dict[str, Vocabulary]:
    checkpoint = read_torch_file(path, repr(path), map_location="meta", mmap=True)
    kept = checkpoint.get(VOCABULARIES) if isinstance(checkpoint, dict) else None
    if not kept or not isinstance(kept, dict):
        raise CheckpointError(f"The checkpoint {path!r} holds no vocabularies: it is none of a model of text.")
    return {name: Vocabulary.from_json(text) for name, text in kept.items()}
