"""Descriptions of parts in numbers, texts and class names, ``{"class_path": ..., "init_args": {...}}`` as in a config.

:mod:`lit_sparse.runs.builder` builds parts from them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from lit_sparse.ground.arguments import KeepsArguments, constructor_parameters
from lit_sparse.structures import Factor, FactorGraph, Structure

__all__ = ["class_path", "describe", "describe_all", "describe_run"]

_MISSING = object()


def describe(value: Any) -> Any:
    """Return numbers, strings, lists and dicts from which the command line can rebuild ``value``.

    Parts are described by their class and by the arguments that they keep or store as attributes of the same name. Callables
    such as ``functools.partial(torch.optim.Adam, lr=1e-3)`` are described by their class and keywords.

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


def describe_all(values: Mapping[str, Any]) -> dict[str, Any]:
    """Describe values by name; one without a description, such as a lambda, is left out."""
    described = {}
    for name, value in values.items():
        with suppress(TypeError):
            described[name] = describe(value)
    return described


def describe_run(model: Any, data: Any) -> dict[str, Any]:
    """Describe a model and its data module, or None, for a logger, each with ``class_path`` and ``init_args``."""
    arguments = {name: value for name, value in model.hparams.items() if not name.startswith("_")}
    described = {"model": {"class_path": class_path(type(model)), "init_args": arguments}}
    if data is not None:
        kept = vars(data)  # not getattr: a property may compute, e.g. select a coreset
        arguments = describe_all({name: kept[name] for name in constructor_parameters(type(data)) if name in kept})
        described["data"] = {"class_path": class_path(type(data)), "init_args": arguments}
    return described


def _init_args(part: nn.Module | Structure | FactorGraph | Factor) -> dict[str, Any]:
    described: dict[str, Any] = {}
    kept = part._arguments if isinstance(part, KeepsArguments) else {}
    if type(part).__init__ is nn.Module.__init__:  # it takes no arguments, unlike its signature
        return described
    for name, parameter in constructor_parameters(type(part)).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{type(part).__name__} takes arbitrary arguments and does not store them by their names")
        value = kept[name] if name in kept else getattr(part, name, _MISSING)
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
