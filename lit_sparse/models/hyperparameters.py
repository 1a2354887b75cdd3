"""Describes the arguments of a model in the command line's form, so that all checkpoints load in Python and by command.

Lightning stores a description of the arguments only for models from a YAML file. For a model that is built in Python it stores
the objects themselves, which ``weights_only=True`` refuses to load. This package stores the description in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lit_sparse.arguments import constructor_parameters
from lit_sparse.descriptions import class_path, describe
from lit_sparse.lightning import NAME

__all__ = ["describe", "describe_arguments", "describe_parts"]

_MISSING = object()


def describe_arguments(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model's arguments in the form in which Lightning's command line stores them in a checkpoint.

    An argument without a description, such as a lambda, is left out; loading then takes its default.

    Args:
        model: model that is being built.
        arguments: arguments of its constructor.
    """
    described: dict[str, Any] = {"_class_path": class_path(type(model)), "_instantiator": f"{NAME}.cli.instantiate_module"}
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
    return described | {"data": {"class_path": class_path(type(data)), "init_args": arguments}}
