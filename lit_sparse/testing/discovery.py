"""Finds the parts to test, so that no list of them is kept by hand."""

from __future__ import annotations

import inspect
from typing import TypeVar

from lit_sparse.ground.arguments import checked

__all__ = ["concrete_subclasses"]

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
