"""Describes parts in numbers, texts and class names, and builds parts from descriptions of other people's files.

A part is a layer, a structure or a factor graph. Its description has the form ``{"class_path": ..., "init_args": {...}}`` of a
config.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lit_sparse.arguments import constructor_parameters
from lit_sparse.errors import CheckpointError
from lit_sparse.structures import Factor, FactorGraph, Structure
from lit_sparse.trust import check_names, find_imported

__all__ = ["build", "class_path", "describe"]

_MISSING = object()


def describe(value: Any) -> Any:
    """Return numbers, strings, lists and dicts from which the command line can rebuild ``value``.

    Parts are described by their class and by the arguments that they store as attributes of the same name. Callables such as
    ``functools.partial(torch.optim.Adam, lr=1e-3)`` are described by their class and keywords.

    Raises:
        TypeError: if there is no description, as for a lambda.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return value.detach().tolist()
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, type):
        return class_path(value)
    if isinstance(value, functools.partial) and isinstance(value.func, type) and not value.args:
        return {"class_path": class_path(value.func), "init_args": describe(value.keywords)}
    if isinstance(value, nn.Module | Structure | FactorGraph | Factor):
        return {"class_path": class_path(type(value)), "init_args": _init_args(value)}
    raise TypeError(f"{value!r} has no description in numbers, strings and class names")


def build(source: str, description: Any) -> Any:
    """Return a new part from its description.

    All names are checked before anything is built, see :mod:`lit_sparse.trust`.

    Args:
        source: name of the description's file in messages.
        description: as :func:`describe` returns it.

    Raises:
        CheckpointError: if a name is not allowed, or a class refuses its arguments.
    """
    check_names(source, description)
    return _build(source, description)


def _build(source: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_build(source, item) for item in value]
    if not isinstance(value, dict):
        return value
    if "class_path" not in value:
        return {key: _build(source, item) for key, item in value.items()}
    given = value.get("init_args", {})
    if not isinstance(given, dict):
        raise CheckpointError(f"Expected `init_args` of {value['class_path']} in {source} to be a dict but got {given!r}.")
    arguments = {key: _build(source, item) for key, item in given.items()}
    try:
        return find_imported(value["class_path"])(**arguments)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"Expected arguments of {value['class_path']} in {source} but: {error}") from error


def _init_args(part: nn.Module | Structure | FactorGraph | Factor) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if type(part).__init__ is nn.Module.__init__:  # it takes no arguments, unlike its signature
        return described
    for name, parameter in constructor_parameters(type(part)).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{type(part).__name__} takes arbitrary arguments and does not store them by their names")
        value = getattr(part, name, _MISSING)
        if value is _MISSING:
            raise TypeError(f"{type(part).__name__} does not store its argument `{name}` as an attribute of the same name")
        described[name] = describe(value)
    return described


def class_path(cls: type) -> str:
    """Return the shortest import path of a class, which survives a move within its package."""
    parts = cls.__module__.split(".")
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        if getattr(sys.modules.get(module), cls.__name__, None) is cls:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
