"""Describes the arguments of a model in the command line's form, so that every checkpoint loads from everywhere.

Lightning keeps the objects themselves when a model is built in Python, which ``weights_only=True`` refuses to load, and
their description when it is built from a YAML file. Here it is the description in both cases.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lit_sparse.structures import Structure

__all__ = ["describe", "describe_arguments", "describe_parts"]

_MISSING = object()


def describe(value: Any) -> Any:
    """Return numbers, strings, lists and dicts from which the command line can build ``value`` again.

    Parts are described by their class and the arguments that they keep as attributes of the same name; callables such as
    ``functools.partial(torch.optim.Adam, lr=1e-3)`` by their class and keywords.

    Raises:
        TypeError: if there is no such description, as for a lambda.
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
    """Describe what a model was built with, as Lightning's command line stores it in a checkpoint.

    An argument without a description (a lambda as optimizer, say) is left out: loading then takes its default.

    Args:
        model: the model that is being built.
        arguments: its constructor's arguments.
    """
    described: dict[str, Any] = {"_class_path": _path(type(model)), "_instantiator": "pytorch_lightning.cli.instantiate_module"}
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
        data: data module, whose arguments are read from its attributes of their names; None for none.
    """
    init_args = {name: value for name, value in hyperparameters.items() if not name.startswith("_")}
    described: dict[str, Any] = {"model": {"class_path": hyperparameters.get("_class_path"), "init_args": init_args}}
    if data is None:
        return described
    arguments: dict[str, Any] = {}
    for name in inspect.signature(type(data).__init__).parameters:
        try:
            arguments[name] = describe(vars(data).get(name, _MISSING))  # a property may compute: a coreset is selected by one
        except TypeError:
            continue
    return described | {"data": {"class_path": _path(type(data)), "init_args": arguments}}


def _init_args(part: nn.Module | Structure) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if type(part).__init__ is nn.Module.__init__:  # it takes none, whatever its signature says
        return described
    for name, parameter in inspect.signature(type(part).__init__).parameters.items():
        if name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{type(part).__name__} takes any arguments, which it does not keep by their names")
        value = getattr(part, name, _MISSING)
        if value is _MISSING:
            raise TypeError(f"{type(part).__name__} does not keep its argument `{name}` as an attribute of that name")
        described[name] = describe(value)
    return described


def _path(cls: type) -> str:
    """Return the shortest path by which a class can be imported, which outlives a move within its package."""
    parts = cls.__module__.split(".")
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        if getattr(sys.modules.get(module), cls.__name__, None) is cls:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
