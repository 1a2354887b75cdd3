"""Describes the arguments of a model in the command line's form, so that all checkpoints load in Python and by command.

Lightning stores a description of the arguments only for models from a YAML file. For a model that is built in Python it stores
the objects themselves, which ``weights_only=True`` refuses to load. This package stores the description in both cases.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lit_sparse.arguments import constructor_parameters
from lit_sparse.lightning import NAME
from lit_sparse.structures import Structure

__all__ = ["describe", "describe_arguments", "describe_parts"]

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
        return _path(value)
    if isinstance(value, functools.partial) and isinstance(value.func, type) and not value.args:
        return {"class_path": _path(value.func), "init_args": describe(value.keywords)}
    if isinstance(value, nn.Module | Structure):
        return {"class_path": _path(type(value)), "init_args": _init_args(value)}
    raise TypeError(f"{value!r} has no description in numbers, strings and class names")


def describe_arguments(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model's arguments in the form in which Lightning's command line stores them in a checkpoint.

    An argument without a description, such as a lambda, is left out; loading then takes its default.

    Args:
        model: model that is being built.
        arguments: arguments of its constructor.
    """
    described: dict[str, Any] = {"_class_path": _path(type(model)), "_instantiator": f"{NAME}.cli.instantiate_module"}
    for name, value in arguments.items():
        try:
            described[name] = describe(value)
        except TypeError:
            continue
    return described


def describe_parts(hyperparameters: Mapping[str, Any], data: object | None) -> dict[str, Any]:
    """Describe a model and its data module for a logger: ``model`` and ``data``, each with ``class_path`` and ``init_args``.

    Args:
        hyperparameters: result of :func:`describe_arguments`.
        data: data module, whose arguments are read from its attributes of the same names; None without one.
    """
    init_args = {name: value for name, value in hyperparameters.items() if not name.startswith("_")}
    described: dict[str, Any] = {"model": {"class_path": hyperparameters.get("_class_path"), "init_args": init_args}}
    if data is None:
        return described
    arguments: dict[str, Any] = {}
    for name in constructor_parameters(type(data)):
        try:
            arguments[name] = describe(
                vars(data).get(name, _MISSING)
            )  # not getattr: a property may compute, e.g. select a coreset
        except TypeError:
            continue
    return described | {"data": {"class_path": _path(type(data)), "init_args": arguments}}


def _init_args(part: nn.Module | Structure) -> dict[str, Any]:
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


def _path(cls: type) -> str:
    """Return the shortest import path of a class, which survives a move within its package."""
    parts = cls.__module__.split(".")
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        if getattr(sys.modules.get(module), cls.__name__, None) is cls:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
