"""Keeps the arguments with which an object was built."""

from __future__ import annotations

import inspect
from typing import Any

from typing_extensions import Self

__all__ = ["KeepsArguments", "constructor_parameters", "shown_arguments"]


class KeepsArguments:
    """Base of classes that keep the arguments of their constructor.

    ``_arguments`` maps names to values, with defaults and with each name in ``**options``. It is set before the constructor
    runs. A copied or unpickled object has the arguments of the original.
    """

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Keep the arguments."""
        self = super().__new__(cls)
        # Not with `setattr`, which torch.nn.Module refuses before its constructor has run.
        self.__dict__["_arguments"] = _bind(cls, self, args, options)
        return self


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor by name, without ``self``.

    A constructor with ``**options`` passes them on: its other parameters are those of the next constructor in the method
    resolution order, and so on, except positional ones (before a slash). A class whose constructor passes a fixed value to
    one of these must list it as its own.

    Args:
        cls: any class.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for kind in cls.__mro__:
        if "__init__" not in vars(kind):
            continue
        own = dict(list(inspect.signature(kind.__init__).parameters.items())[1:])  # type: ignore[misc]
        options = next((name for name, parameter in own.items() if parameter.kind is parameter.VAR_KEYWORD), None)
        parameters |= {
            name: parameter
            for name, parameter in own.items()
            if name not in parameters and (kind is cls or parameter.kind is not parameter.POSITIONAL_ONLY)
        }
        if options is None or kind is object:
            return parameters
        parameters.pop(options)
    return parameters


def shown_arguments(part: object) -> str:
    """Return the constructor's arguments that an object keeps as attributes, with their values, on one line.

    Example:
        >>> from lit_sparse.structures import BitVector
        >>> shown_arguments(BitVector(3))
        'd=3'
    """
    names = [name for name in constructor_parameters(type(part)) if hasattr(part, name)]
    return " ".join(", ".join(f"{name}={getattr(part, name)!r}" for name in names).split())  # a tensor's lines are joined


def _bind(cls: type, self: object, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(cls.__init__).bind_partial(self, *args, **options)  # type: ignore[misc]
    except TypeError:  # the constructor raises the same error
        return {}
    parameters = constructor_parameters(cls)
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    given = {name: value for name, value in bound.arguments.items() if name in parameters}
    return {**defaults, **given, **options}
