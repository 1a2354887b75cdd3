"""Keeps the arguments with which an object was built."""

from __future__ import annotations

import inspect
from typing import Any

from typing_extensions import Self

from lit_sparse.aliases import former_names

__all__ = ["KeepsArguments"]


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


def _bind(cls: type, self: object, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    signature, names = inspect.signature(cls.__init__), former_names(cls)  # type: ignore[misc]
    options = {names.get(name, name): value for name, value in options.items()}
    try:
        bound = signature.bind_partial(self, *args, **options)
    except TypeError:  # the constructor raises the same error
        return {}
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, parameter in list(signature.parameters.items())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= bound.arguments[name]
        elif name in bound.arguments:
            arguments[name] = bound.arguments[name]
    return arguments
