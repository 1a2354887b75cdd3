"""Keeps the arguments with which an object was built."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError, LitSparseError, full_name

__all__ = ["KeepsArguments", "check_types", "checked", "constructor_parameters", "hints_of", "shown_arguments"]

Function = TypeVar("Function", bound=Callable[..., Any])
#: Type of an argument -> what a message calls it.
WORDS = {bool: "True or False", int: "an integer", float: "a number", str: "text", type(None): "None"}

#: Kinds of tensors that most functions of torch refuse with messages of its own code.
LACKING = ("nested", "quantized", "meta")


class KeepsArguments:
    """Base class of objects that store the arguments of their constructor.

    ``_arguments`` maps names to values, with defaults and with each name in ``**options``. It is set before the constructor
    runs. A copied or unpickled object has the arguments of the original.
    """

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Create the object and store the arguments of its constructor."""
        self = super().__new__(cls)
        # Not with `setattr`, which torch.nn.Module refuses before its constructor has run.
        self.__dict__["_arguments"] = _bind(cls, self, args, options)
        return self


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor by name, without ``self``.

    A constructor with ``**options`` passes them on: its other parameters are the next constructor's in the method
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
        for name, parameter in own.items():
            if kind is cls or parameter.kind is not parameter.POSITIONAL_ONLY:
                parameters.setdefault(name, parameter)
        if options is None or kind is object:
            return parameters
        parameters.pop(options)
    return parameters


def shown_arguments(part: object) -> str:
    """Return the constructor arguments that an object stores as attributes, with their values, as text on one line.

    Functions have their names, not their addresses, so texts are equal in all processes.

    Example:
        >>> from lit_sparse.structures import BitVector
        >>> shown_arguments(BitVector(3))
        'd=3'
    """
    found = {name: getattr(part, name) for name in constructor_parameters(type(part)) if hasattr(part, name)}
    shown = (f"{name}={value.__qualname__ if inspect.isroutine(value) else repr(value)}" for name, value in found.items())
    return " ".join(", ".join(shown).split())  # a tensor's lines are joined


def _bind(cls: type, self: object, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(cls.__init__).bind_partial(self, *args, **options)  # type: ignore[misc]
    except TypeError:  # the constructor raises the same error
        return {}
    parameters = constructor_parameters(cls)
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    given = {name: value for name, value in bound.arguments.items() if name in parameters}
    return {**defaults, **given, **options}


def check_types(namespace: Mapping[str, Any], *methods: str) -> None:
    """Make the constructors of a subpackage's public classes, and of their bases, check argument types; see :func:`checked`.

    Args:
        namespace: globals of the subpackage.
        methods: names of further methods of these classes that check their arguments.
    """
    for made in (namespace[name] for name in namespace["__all__"]):
        for kind in inspect.getmro(made) if isinstance(made, type) else ():
            is_output = is_dataclass(kind) and not hasattr(kind, "__post_init__")  # the package makes many in each step
            for name in ("__init__", *methods) if kind.__module__.startswith("lit_sparse.") and not is_output else ():
                if isinstance(own := vars(kind).get(name), types.FunctionType):
                    setattr(kind, name, checked(own))


def checked(function: Function) -> Function:
    """Return a function that raises an error for arguments whose type does not match the annotation.

    The function itself runs first, so that its own messages count. Then, also if it has raised another error, each argument is
    compared with its annotation.

    Args:
        function: any function with annotations.
    """
    if hasattr(function, "checks_types"):
        return function

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **options)
        try:
            result = function(*args, **options)
        except LitSparseError:
            raise
        except Exception as error:
            _compare(function, args, options, error)
            raise
        _compare(function, args, options)
        return result

    called.checks_types = True  # type: ignore[attr-defined]
    return called  # type: ignore[return-value]


def _compare(function: Any, args: tuple[Any, ...], options: dict[str, Any], cause: Exception | None = None) -> None:
    """Refuse the first argument that does not fit its annotation.

    Raises:
        ConfigurationError: with the name of the argument.
    """
    signature, hints = _hints(function)
    try:
        given = signature.bind_partial(*args, **options).arguments
    except TypeError:
        return
    if cause is not None and any(map(_lacks_values, given.values())):
        raise ConfigurationError(
            "Expected dense tensors with values, not sparse, nested, quantized or meta tensors."
        ) from cause
    for name, hint in hints.items():
        value = given.get(name, signature.parameters[name].default)
        if value is not signature.parameters[name].default and not _fits(value, hint):
            shown = repr(value) if type(value) in WORDS or isinstance(value, type) else full_name(value)
            raise ConfigurationError(f"Expected argument `{name}` to be {_words(hint)} but got {shown}.") from cause


@cache
def _hints(function: Any) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature of a function and its parameters' types by name; arguments of any number have none."""
    signature = inspect.signature(function)
    single = {name for name, each in signature.parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
    return signature, {name: hint for name, hint in hints_of(inspect.unwrap(function)).items() if name in single}


def hints_of(function: Any) -> dict[str, Any]:
    """Return the types that a function's annotations name; one that only a type checker imports is left out."""
    found = {}
    for name, hint in inspect.get_annotations(function).items():
        with suppress(Exception):
            owner = type("", (), {"__annotations__": {name: hint}, "__module__": function.__module__})
            found[name] = get_type_hints(owner)[name]
    return found


def _lacks_values(value: Any) -> bool:
    """Return whether a value is a tensor of another layout, or without numbers."""
    layout = str(getattr(value, "layout", "torch.strided"))
    return layout != "torch.strided" or any(getattr(value, f"is_{kind}", False) is True for kind in LACKING)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type, for the types that constructors have; others fit."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if hint is None or hint is bool:
        return value is None if hint is None else type(value).__name__ in ("bool", "bool_")
    if hint is int or hint is float:
        scalar = getattr(value, "ndim", None) == 0  # of numpy or torch
        return scalar or (isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool))
    if isinstance(origin, type) and issubclass(origin, Sequence | tuple):
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        numbers = inner[0] in (int, float) and getattr(value, "ndim", 0) > 0
        return numbers or (listed and all(_fits(one, inner[0]) for one in value))
    if isinstance(origin, type):  # a text is no collection
        return isinstance(value, origin) and not isinstance(value, str)
    checkable = isinstance(hint, type) and hint is not Any and not getattr(hint, "_is_protocol", False)
    return not checkable or not getattr(hint, "exclusive", True) or isinstance(value, hint)


def _words(hint: Any) -> str:
    """Return what a message calls a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(one) for one in inner))
    if origin is Literal:
        return f"one of {inner}"
    if isinstance(origin, type) and issubclass(origin, Sequence | tuple):
        return f"a list, each entry {_words(inner[0])}"
    if origin is Callable:
        return "a function"
    name = str(getattr(hint, "__name__", hint))
    return WORDS.get(hint) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
