"""Named checks of one kind of part, and the parts to test."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked, constructor_parameters

__all__ = ["Checks", "check_copies", "concrete_subclasses", "random_scores", "refuses"]

Part = TypeVar("Part")


class Checks(dict[str, Callable[[Part], None]], Generic[Part]):
    """Dict of named checks of one kind of part; each check raises an AssertionError if the part fails.

    Args:
        base: class of the parts.
    """

    def __init__(self, base: type) -> None:
        super().__init__()
        self.base = base

    def add(self, check: Callable[[Part], None]) -> Callable[[Part], None]:
        """Add a check under the name of its function; usable as a decorator."""
        self[check.__name__.removeprefix("_")] = check
        return check

    def run(self, part: Part) -> None:
        """Run every check on a part.

        Raises:
            AssertionError: if a check fails; the message names it.
            ConfigurationError: if it is not such a part.
        """
        if not isinstance(part, self.base):
            got = f"the class {part.__name__}" if isinstance(part, type) else repr(part)
            raise ConfigurationError(f"Expected an instance of {self.base.__name__} but got {got}.")
        for name, check in self.items():
            try:
                check(part)
            except Exception as error:
                raise AssertionError(f"{part!r} fails the check '{name}': {error}") from error


def random_scores(*shape: int, seed: int = 0, scale: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normally distributed scores of a given shape, which depend only on the seed, in any dtype."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def check_copies(part: Part, result: Callable[[Part], Tensor]) -> None:
    """Check that a part keeps its arguments as attributes, and that its copies show the same and have the same result.

    Raises:
        AssertionError: if it does not; the message names the argument.
    """
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in constructor_parameters(type(part)).items():
        if parameter.kind not in several and not hasattr(part, name):
            raise AssertionError(
                f"expected {type(part).__name__} to keep the argument `{name}` of its constructor as the attribute `{name}`,"
                " which checkpoints and configs read"
            )
    for copied in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert repr(copied) == repr(part), f"a copy shows {copied!r}"
        assert torch.equal(result(copied), result(part)), "a copy does the same"


def refuses(call: Callable[[], object], words: str, kind: type[Exception] = ConfigurationError) -> None:
    """Check that a call raises an error of a given class whose message contains some words.

    Raises:
        AssertionError: if the call does not raise such an error.
    """
    try:
        result = call()
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"the message should name {words!r} but is: {error}") from error
    else:
        raise AssertionError(f"expected a {kind.__name__} about {words!r} but got {result!r}")


T = TypeVar("T")


@checked
def concrete_subclasses(base: type[T], package: str | None = "lit_sparse") -> list[type[T]]:
    """Return the classes derived from ``base`` that can be instantiated, sorted by name.

    Args:
        base: a base class such as ``SparseMapping``.
        package: only classes of this top-level package; None for all that are imported.
    """
    found: dict[str, type[T]] = {}
    waiting = [base]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        inside = package is None or cls.__module__.split(".")[0] == package
        if cls is not base and not inspect.isabstract(cls) and inside and not cls.__name__.startswith("_"):
            found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return [found[name] for name in sorted(found)]
