"""Former names of classes, functions and constructor arguments, and what they are called now.

Programs, configs and checkpoints may have former names. A DeprecationWarning gives the new name.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from abc import ABCMeta
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from lit_sparse.errors import ConfigurationError

__all__ = [
    "ALIASES",
    "adopt_former_names",
    "former_arguments",
    "former_fields",
    "former_method",
    "former_names",
    "moved_names",
    "new_path",
    "renamed",
]

P = ParamSpec("P")
Options = TypeVar("Options")
Instance = TypeVar("Instance")
Result = TypeVar("Result")

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


def new_path(text: str) -> str:
    """Return the path now of what a config or a checkpoint names, and warn if it is a former one."""
    path = ALIASES.get(text, text)
    if path != text:
        warnings.warn(f"{text} is now {path}. Write the new name.", DeprecationWarning, stacklevel=3)
    return path


def former_arguments(**names: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a constructor or method that has new names for some arguments; with a former name it warns.

    Configs, the command line and checkpoints have these former names of a constructor too, see :func:`renamed`.

    Args:
        names: former name -> name now.
    """

    def decorate(method: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(method)
        def call(*args: P.args, **options: P.kwargs) -> Result:
            given: Any = _with_new_keys(options, names, type(args[0]).__name__)
            return method(*args, **given)

        vars(call)["former_names"] = names
        return call

    return decorate


def former_names(cls: Any) -> dict[str, str]:
    """Return the former names of the arguments of a class, and the names now."""
    found: dict[str, str] = {}
    for kind in getattr(cls, "__mro__", ()):
        found = {**getattr(vars(kind).get("__init__"), "former_names", {}), **found}
    own = inspect.signature(cls.__init__).parameters if found else {}
    return {old: new for old, new in found.items() if old not in own}


def renamed(arguments: Options, cls: Any) -> Options:
    """Return arguments of a class by the names now, and warn of former ones.

    Args:
        arguments: dict or namespace.
        cls: class, or anything else, which has no former names.

    Raises:
        ConfigurationError: if an argument is given by both names.
    """
    return _with_new_keys(arguments, former_names(cls), getattr(cls, "__name__", ""))


def _with_new_keys(arguments: Options, names: Mapping[str, str], owner: str) -> Options:
    found: Any = copy.copy(arguments)
    for old, new in names.items():
        if old in found:
            if new in found:
                raise ConfigurationError(
                    f"Expected `{new}` of {owner} once but got its former name `{old}` too. Remove `{old}`."
                )
            warnings.warn(f"`{old}` of {owner} is now `{new}`.", DeprecationWarning, stacklevel=3)
            found[new] = found.pop(old)
    result: Options = found
    return result


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

    A subclass that overrides the former name may call it by ``super()`` too, see :func:`adopt_former_names`.

    Args:
        old: former name.
        new: name of the method now.
    """

    def call(self: Any, *args: Any, **options: Any) -> Any:
        name = type(self).__name__
        warnings.warn(f"{name}.{old} is now {name}.{new}.", DeprecationWarning, stacklevel=2)
        overrides: list[type] = []
        for kind in type(self).__mro__:
            if vars(kind).get(old) is call:
                break
            if old in vars(kind):
                overrides.append(kind)
        # An override of the former name hides this method, so only its super() can have called it.
        owner = super(overrides[-1], self) if overrides else self
        return getattr(owner, new)(*args, **options)

    return call


def adopt_former_names(cls: type, **names: str) -> None:
    """Give what a class defines by a former name the name now, and warn; a base class calls it in ``__init_subclass__``.

    Args:
        cls: new subclass.
        names: former name -> name now.
    """
    own = dict(vars(cls))
    for old, new in names.items():
        if old in own and new not in own:
            level = 3 + isinstance(cls, ABCMeta)  # ABCMeta makes its classes in a frame of its own
            warnings.warn(f"{cls.__name__}.{old} is now {cls.__name__}.{new}.", DeprecationWarning, stacklevel=level)
            setattr(cls, new, own[old])


def former_fields(**names: str) -> Callable[[type[Instance]], type[Instance]]:
    """Decorate a dataclass that has new names for some fields; reading or setting one by a former name warns.

    Args:
        names: former name -> name now.
    """

    def decorate(cls: type[Instance]) -> type[Instance]:
        assign: Any = cls.__init__

        @functools.wraps(assign)
        def construct(self: Instance, *args: Any, **options: Any) -> None:
            if any([old in options for old in names]):  # noqa: C419 - torch.compile follows a list
                options = _with_new_keys(options, names, cls.__name__)
            assign(self, *args, **options)

        type.__setattr__(cls, "__init__", construct)
        for old, new in names.items():
            setattr(cls, old, property(functools.partial(_former_field, old, new), doc=f"Former name of ``{new}``."))
        return cls

    return decorate


def _former_field(old: str, new: str, part: object) -> Any:
    name = type(part).__name__
    warnings.warn(f"{name}.{old} is now {name}.{new}.", DeprecationWarning, stacklevel=2)
    return getattr(part, new)
