"""Former names of classes and functions, and their current names.

Configs and checkpoints of earlier versions are read as if they had the new names. Importing a former name gives the object, and
a DeprecationWarning with the new name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["ALIASES", "former_method", "moved_names", "with_new_names"]

#: Former path -> current path of the same object.
ALIASES: dict[str, str] = {
    "lit_sparse.data.GaussianMixture": "lit_sparse.transport.GaussianMixture",
    "lit_sparse.data.Measure": "lit_sparse.transport.Measure",
    "lit_sparse.mappings.rowwise.RowFunction": "lit_sparse.mappings.row_function.RowFunction",
    "lit_sparse.mappings.rowwise.along_last": "lit_sparse.mappings.masking.along_last",
    "lit_sparse.nn.KernelPotentials": "lit_sparse.transport.KernelPotentials",
    "lit_sparse.nn.MLPPotentials": "lit_sparse.transport.MLPPotentials",
    "lit_sparse.nn.Potentials": "lit_sparse.transport.Potentials",
    "lit_sparse.nn.Seq2SeqBody": "lit_sparse.nn.EncoderDecoder",
    "lit_sparse.nn.RadialBases": "lit_sparse.data.RadialBases",
    "lit_sparse.nn.seed_generator": "lit_sparse.random.seed_generator",
    "lit_sparse.nn.seeded_normal": "lit_sparse.random.seeded_normal",
    "lit_sparse.nn.seeded_uniform": "lit_sparse.random.seeded_uniform",
    "lit_sparse.vocab.BOS": "lit_sparse.text.BOS",
    "lit_sparse.vocab.EOS": "lit_sparse.text.EOS",
    "lit_sparse.vocab.PAD": "lit_sparse.text.PAD",
    "lit_sparse.vocab.UNK": "lit_sparse.text.UNK",
    "lit_sparse.vocab.Vocabulary": "lit_sparse.text.Vocabulary",
    "lit_sparse.vocab.VocabularyOptions": "lit_sparse.text.VocabularyOptions",
}


def with_new_names(value: Any) -> Any:
    """Return a description, of dicts, lists and text, with every former path replaced by the current one.

    Example:
        >>> with_new_names({"class_path": "lit_sparse.nn.MLPPotentials", "init_args": {"hidden": [8]}})
        {'class_path': 'lit_sparse.transport.MLPPotentials', 'init_args': {'hidden': [8]}}
    """
    if isinstance(value, dict):
        return {key: with_new_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [with_new_names(entry) for entry in value]
    return ALIASES.get(value, value) if isinstance(value, str) else value


def moved_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module (PEP 562) whose former names have moved elsewhere.

    Args:
        module: dotted name of the module.
    """

    def find(name: str) -> Any:
        path = ALIASES.get(f"{module}.{name}")
        if path is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, called = path.rpartition(".")
        warnings.warn(f"{module}.{name} is now {path}. Import it from {home}.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), called)

    return find


def former_method(old: str, new: str) -> Callable[..., Any]:
    """Return a method of a former name. It warns, and calls the method of the new name.

    Args:
        old: former name.
        new: name of the method now.
    """

    def call(self: Any, *args: Any, **options: Any) -> Any:
        name = type(self).__name__
        warnings.warn(f"{name}.{old} is now {name}.{new}.", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **options)

    return call
