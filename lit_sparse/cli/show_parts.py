"""The command ``lit-sparse list``: the parts that options name, with one line each."""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
from collections.abc import Sequence
from importlib import import_module

from lit_sparse.cli import show_configs
from lit_sparse.cli.help import plain
from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.ground.commands import command_parser

__all__ = ["KINDS", "described", "main", "parser"]

#: Kind -> option that names a part, subpackage of the parts, and their base class.
KINDS = {
    "mappings": ("--model.mapping NAME", "lit_sparse.mappings", "lit_sparse.mappings.SparseMapping"),
    "estimators": ("--model.estimator NAME", "lit_sparse.estimators", "lit_sparse.estimators.Estimator"),
    "risks": ("--model.risk NAME", "lit_sparse.risks", "lit_sparse.risks.Risk"),
    "selectors": ("--data.selector NAME", "lit_sparse.coresets", "lit_sparse.coresets.CoresetSelector"),
    "structures": ("--model.estimator.structure NAME", "lit_sparse.structures", "lit_sparse.structures.Structure"),
    "models": ("--model NAME", "lit_sparse.models", "lit_sparse.lightning.choice.pl.LightningModule"),
    "data": ("--data NAME", "lit_sparse.data", "lit_sparse.lightning.choice.pl.LightningDataModule"),
    "callbacks": ("--trainer.callbacks+ NAME", "lit_sparse.callbacks", "lit_sparse.lightning.choice.pl.Callback"),
    "configs": ("-c NAME", "", ""),
}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse list``."""
    found = command_parser("list", "List the parts of a kind, one in each line.")
    found.add_argument("kind", nargs="?", help=", ".join(KINDS))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse list``: list the parts of a kind, or the kinds.

    Raises:
        ConfigurationError: for an unknown kind.
    """
    kind = parser().parse_args(list(arguments)).kind
    if kind is None:
        kinds = _aligned({name: option for name, (option, _, _) in KINDS.items()})
        print("\n".join(["usage: lit-sparse list KIND", "", "kinds, and the options that name their parts:", *kinds]))
        return 0
    if kind not in KINDS:
        raise ConfigurationError(f"Expected one of the kinds {', '.join(KINDS)}, but got {kind!r}.{did_you_mean(kind, KINDS)}")
    _, room, base = KINDS[kind]
    print("\n".join(_aligned(described(room, base)) if room else show_configs.listed()))
    return 0


def _aligned(entries: dict[str, str]) -> list[str]:
    width = max(map(len, entries))
    return [f"  {name:<{width}}  {text}" for name, text in entries.items()]


def described(room: str, base: str) -> dict[str, str]:
    """Return a subpackage's exported concrete classes that derive from a base, with the first sentence of each."""
    kind = pkgutil.resolve_name(base)
    parts = import_module(room)
    exported = {name: getattr(parts, name) for name in parts.__all__}
    return {
        name: _first_sentence(part)
        for name, part in sorted(exported.items())
        if inspect.isclass(part) and issubclass(part, kind) and not inspect.isabstract(part)
    }


def _first_sentence(part: type) -> str:
    """Return the first sentence of a docstring as plain text.

    Example:
        >>> _first_sentence(
        ...     type("Part", (), {"__doc__": "Is ``x``, e.g. a part. It has more."})
        ... )
        'Is x, e.g. a part.'
    """
    paragraph = " ".join((inspect.getdoc(part) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)(?<!eq\.)\s", plain(paragraph))[0]
