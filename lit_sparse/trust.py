"""The names that a checkpoint may use: checkpoints come from third parties, and an imported name may run code.

A parser imports and builds the classes that a checkpoint's description names. Each name is therefore checked before parsing.
Allowed are the classes of this package, the public classes of ``torch.nn`` and ``torch.optim``, the names that the user gives
(:func:`trusting`), and model parts from modules that the program has already imported. Model parts are subclasses of
``torch.nn.Module``, of optimizers and schedulers, of data modules, and of this package's bases. Functions, and modules that
only the checkpoint names, are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
import yaml
from torch import nn

from lit_sparse.aliases import ALIASES
from lit_sparse.errors import CheckpointError, did_you_mean

__all__ = ["check_hyperparameters", "check_names", "find_imported", "names_in", "trusting"]

#: Packages that this package imports; that they are imported does not show that the user trusts them.
DEPENDENCIES = {"datasets", "jsonargparse", "lightning", "lightning_fabric", "numba", "numpy", "pytorch_lightning", "scipy"} | {
    "sklearn", "tensorboard", "tokenizers", "torch", "torchmetrics", "transformers", "triton"
}  # fmt: skip
#: Parts of this package that no checkpoint needs.
PROGRAMS = ("lit_sparse.cli", "lit_sparse.testing", "lit_sparse.__main__")
#: Module of both Lightnings that builds modules and wraps a scheduler.
LIGHTNING_CLI = ("pytorch_lightning.cli", "lightning.pytorch.cli")
#: Builders of modules that a checkpoint may name: only Lightning's.
BUILDERS = tuple(f"{module}.instantiate_module" for module in LIGHTNING_CLI)
#: Largest number of values, and largest depth, of a description; a larger one may contain itself or expand aliases.
MOST_VALUES, MOST_LEVELS = 1_000_000, 60
#: Texts that the parser can only read as a name, a word or a number, neither as YAML nor as the path of a file.
WORD = re.compile(r"[A-Za-z0-9_.+-]*")
#: Endings of files that the parser reads as configs.
CONFIGS = (".yaml", ".yml", ".json", ".jsonnet", ".toml")

_TRUSTED: ContextVar[frozenset[str]] = ContextVar("_TRUSTED", default=frozenset())


@contextmanager
def trusting(names: Collection[str]) -> Iterator[None]:
    """Allow checkpoints to use these names too, within a ``with`` block.

    Args:
        names: import paths such as ``"my_package.MyMapping"``.
    """
    token = _TRUSTED.set(_TRUSTED.get() | frozenset(names))
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def check_hyperparameters(source: str, found: Any, model: type | None = None) -> None:
    """Check the names in the hyper-parameters of a checkpoint.

    Args:
        source: name of the checkpoint in messages.
        found: content under ``hyper_parameters``.
        model: class of the model, if the hyper-parameters do not name it.

    Raises:
        CheckpointError: if a name is not allowed, or a value is not a number, text, list or dict.
    """
    if found is None:
        return
    if not isinstance(found, dict):
        raise CheckpointError(f"Expected hyper-parameters in {source} to be a dict but got {type(found).__name__}.")
    builder = found.get("_instantiator", BUILDERS[0])
    if builder not in BUILDERS:
        raise CheckpointError(f"Expected {source} to be built by Lightning's instantiate_module but got {builder!r}.")
    arguments = {name: value for name, value in found.items() if name not in ("_class_path", "_instantiator")}
    check = _Check(source)
    if "_class_path" in found:
        check.value({"class_path": found["_class_path"], "init_args": arguments}, ())
    else:
        check.arguments(arguments, (), model)


def check_names(source: str, found: Any) -> None:
    """Check the names in a description: dicts with a ``class_path``, at any depth.

    Raises:
        CheckpointError: see :func:`check_hyperparameters`.
    """
    _Check(source).value(found, ())


def names_in(found: Any) -> tuple[set[str], set[str]]:
    """Return all texts in the user's description, also those inside YAML texts, and its class paths."""
    check = _Check("")
    check.collected, check.classes = set(), set()
    with suppress(CheckpointError, RecursionError):  # the parser refuses what is malformed
        check.value(found, ())
    return check.collected, check.classes


class _Check:
    """Walks through a description before the parser, which also reads a text as YAML, as a file's name or as a URL.

    A text that is not declared as plain text may only be a word, so that its parsing is unambiguous.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.trusted = _TRUSTED.get()
        self.collected: set[str] | None = None
        self.classes: set[str] = set()
        self.left = MOST_VALUES
        self.passed: set[str] = set()
        self._refused_names: set[str] | None = None

    def value(self, value: Any, place: tuple[str, ...]) -> None:
        self.left -= 1
        if self.left < 0 or len(place) > MOST_LEVELS:
            raise CheckpointError(
                f"The description in {self.source} has more than {MOST_LEVELS} levels of nesting, contains itself, or has more"
                f" than {MOST_VALUES:,} values. Use another checkpoint."
            )
        if isinstance(value, str):
            self.text(value, place)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                if not isinstance(item, int | float):
                    self.value(item, (*place, str(number)))
        elif isinstance(value, dict):
            self.mapping(value, place)
        elif value is not None and not isinstance(value, bool | int | float):
            raise CheckpointError(
                f"Expected numbers, text, lists and dicts in {self.source} but `{'.'.join(place)}` is of type"
                f" {type(value).__name__}. Use a checkpoint that `fit` wrote."
            )

    def mapping(self, value: dict[Any, Any], place: tuple[str, ...]) -> None:
        wrong = [key for key in value if not isinstance(key, str) or (self.collected is None and not WORD.fullmatch(key))]
        if wrong:
            raise CheckpointError(f"Expected keys in {self.source} to be words but got {str(wrong[0])[:80]!r}.")
        built = None
        if "class_path" in value:
            built = self.part(value["class_path"], (*place, "class_path"))
        for key, item in value.items():
            if key == "init_args" and isinstance(item, dict):
                self.arguments(item, place, built)
            elif key != "class_path":
                self.value(item, (*place, key))

    def arguments(self, values: dict[Any, Any], place: tuple[str, ...], built: type | None) -> None:
        """Check the arguments of a class; arguments declared as plain text, or as lists of texts, name nothing."""
        hints = {} if built is None or self.collected is not None else _hints_of(built)
        plain = {
            key
            for key, item in values.items()
            if (isinstance(item, str) and _takes(hints.get(key), _is_text))
            or (isinstance(item, list) and all(isinstance(one, str) for one in item) and _takes(hints.get(key), _is_texts))
        }
        self.mapping({key: item for key, item in values.items() if key not in plain}, place)

    def text(self, text: str, place: tuple[str, ...]) -> None:
        """Check a text that is not declared as plain text; collect the user's texts, with their content as YAML."""
        if self.collected is not None:
            self.collected.add(text)
            inner = _as_yaml(text)
            if isinstance(inner, dict | list):
                self.value(inner, (*place, "(text)"))
            return
        if text in self.trusted or text in self.passed:
            return
        if not WORD.fullmatch(text) or text.lower().endswith(CONFIGS) or _is_file(text):
            raise CheckpointError(
                f"Expected a name or a number in {self.source} at `{'.'.join(place)}` but got {text[:80]!r}, which could be"
                " read as a config or a file. Use a checkpoint that `fit` wrote, or name the text in your own config."
            )
        if all(part.isidentifier() for part in text.split(".")) and (
            _is_importable(text) if "." in text else text in self.short_names()
        ):
            self.part(text, place)
        self.passed.add(text)

    def part(self, name: Any, place: tuple[str, ...]) -> type | None:
        """Check a name that would be imported; return its class if no import is needed."""
        if not isinstance(name, str):
            raise CheckpointError(f"Expected a class path in {self.source} at `{'.'.join(place)}` but got {name!r}.")
        if self.collected is not None:
            self.collected.add(name)
            self.classes.add(name)
            return None
        found = find_imported(name)
        if name not in self.trusted:
            if not isinstance(found, type):
                raise self.no_class(name, place, found)
            if not _is_allowed(found):
                raise self.refusal(name, place, f"the class {found.__name__} of {found.__module__}")
        return found if isinstance(found, type) else None

    def short_names(self) -> set[str]:
        """Return the names of imported classes that are not allowed: the parser also accepts a class by its bare name."""
        if self._refused_names is None:
            self._refused_names = set()
            kind: type
            waiting: list[type] = [nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]
            seen = set(waiting)
            while waiting:
                for kind in waiting.pop().__subclasses__():
                    if kind not in seen:
                        seen.add(kind)
                        waiting.append(kind)
                        if not _is_allowed(kind):
                            self._refused_names.add(kind.__name__)
        return self._refused_names

    def no_class(self, name: str, place: tuple[str, ...], found: Any) -> CheckpointError:
        module, _, short = name.rpartition(".")
        if found is not None:
            return self.refusal(name, place, f"which is a {type(found).__name__} and not a class")
        if module not in sys.modules:
            return self.refusal(name, place, "which only the checkpoint names" if module else "without its module")
        known = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, type)]
        return CheckpointError(
            f"{self.source} names {name!r} at `{'.'.join(place)}` but {module!r} does not have this class."
            f"{did_you_mean(short, known)} The checkpoint may come from another version."
        )

    def refusal(self, name: str, place: tuple[str, ...], what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source} names {name!r} at `{'.'.join(place)}`, {what}. Expected a class of lit_sparse, torch.nn or"
            " torch.optim, or a part of a model that your config, your command line or an imported module of yours names."
            f" If you trust it, add --trust {name}, or trust=[{name!r}] in Python."
        )


def _is_allowed(found: type) -> bool:
    """Return whether a class may be built because a checkpoint names it."""
    module = str(found.__module__)
    root = module.partition(".")[0]
    if root == "lit_sparse":
        return not module.startswith(PROGRAMS)
    if root == "torch":
        public = (torch.nn, torch.optim, torch.optim.lr_scheduler)
        known = any(vars(one).get(found.__name__) is found for one in public)
        return known and issubclass(found, nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
    if root in DEPENDENCIES or root in sys.stdlib_module_names:
        return module in LIGHTNING_CLI and issubclass(found, torch.optim.lr_scheduler.LRScheduler)
    if issubclass(found, nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
        return True
    above = [f"{kind.__module__}.{kind.__qualname__}" for kind in found.__mro__[1:]]
    return any(name.startswith("lit_sparse.") or name.endswith("core.datamodule.LightningDataModule") for name in above)


def find_imported(name: str) -> Any:
    """Return the object at a path whose module is imported or belongs to this package; else None."""
    parts = ALIASES.get(name, name).split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if parts[0] == "lit_sparse" and not module.startswith(PROGRAMS) and module not in sys.modules:
            try:
                import_module(module)
            except ImportError:
                continue
        if module in sys.modules:
            found: Any = sys.modules[module]
            for part in parts[end:]:  # not getattr, which imports submodules in some packages
                found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
            return found
    return None


def _is_importable(name: str) -> bool:
    """Return whether the first part of a path is a module, without importing it."""
    root = name.partition(".")[0]
    try:
        return root in sys.modules or find_spec(root) is not None
    except (ImportError, ValueError, AttributeError):
        return True


def _hints_of(kind: type) -> dict[str, list[Any]]:
    """Return the annotations of a class's arguments, from each constructor that has them."""
    found: dict[str, list[Any]] = {}
    for one in kind.__mro__:
        constructor = vars(one).get("__init__")
        if constructor is None:
            continue
        try:
            hints = get_type_hints(constructor)
        except Exception:  # an annotation that cannot be evaluated here
            return {}
        for name, hint in hints.items():
            if name != "return":
                found.setdefault(name, []).append(hint)
    return found


def _takes(hints: list[Any] | None, accepts: Callable[[Any], bool]) -> bool:
    """Return whether an argument has annotations and all members of them, except None, are accepted."""
    members = [one for hint in hints or () for one in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))]
    return bool(members) and all(one is NoneType or accepts(one) for one in members)


def _is_text(hint: Any) -> bool:
    return hint is str


def _is_texts(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence, Collection, Iterable) and set(get_args(hint)) <= {str, ...}


def _as_yaml(text: str) -> Any:
    if not any(character in text for character in "{[:-\n"):  # lists and dicts need one of these
        return None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False
