"""Marks row functions that Numba compiles when they are first called. Nothing here imports Numba, which takes a while."""

from __future__ import annotations

import functools
import gc
import importlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked

__all__ = [
    "LANES",
    "REDUCTION_FLAGS",
    "Choice",
    "Kernel",
    "bits_above",
    "bits_of",
    "choose_by_types",
    "compile_rows",
    "empty",
    "floats_of",
    "layout_of",
    "lowest_bit",
    "references",
    "without_collections",
    "zeros",
]

# Flags for reductions over values known to be neither NaN nor +inf. Sums may be reordered into SIMD lanes; -inf keeps
# its meaning. Never give them to a function that subtracts a two-part threshold: reordering would round its parts.
REDUCTION_FLAGS = frozenset({"reassoc", "contract", "nsz", "arcp", "nnan"})

#: Entries that :func:`bits_above` compares at a time.
LANES = 16

_making = threading.RLock()


class Kernel:
    """A function on arrays that Numba compiles for the types of its arguments at the first call.

    Args:
        py_func: the Python function.
        flags: LLVM fast-math flags.
        inline: see :func:`compile_rows`.
    """

    def __init__(self, py_func: Callable[..., Any], flags: frozenset[str] = frozenset(), inline: str = "code") -> None:
        self.py_func = py_func
        self.flags = flags
        self.inline = inline
        self.called: Any = None
        self.helper: Any = None
        self.__module__, self.__doc__, self.__name__ = py_func.__module__, py_func.__doc__, py_func.__name__

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function."""
        return (self.called or self.compiled())(*args)

    def compiled(self) -> Any:
        """Return the compiled function for calls from Python."""
        with _making:
            if self.called is None:
                self.called = _machine().dispatcher_of(self)
        return self.called

    def included(self) -> Any:
        """Return the function for calls from other compiled functions, which include its code."""
        with _making:
            if self.helper is None:
                self.helper = _machine().helper_of(self)
        return self.helper


class Choice(Kernel):
    """A function in compiled code that stands for one of several kernels, chosen by types; see :func:`choose_by_types`."""


def without_collections(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that no garbage is collected while it runs, which saves an eighth of a compilation's time."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args)
        finally:
            if enabled:
                gc.enable()

    return run


@without_collections
def _machine() -> Any:
    return importlib.import_module("lit_sparse.kernels.cpu.machine")  # imports Numba


def references(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the global and enclosed variables to which a function refers."""
    codes, names = [function.__code__], dict[str, None]()
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        names |= dict.fromkeys(code.co_names)
    yield from ((name, function.__globals__[name]) for name in names if name in function.__globals__)
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    yield from zip(function.__code__.co_freevars, cells, strict=True)


@checked
def compile_rows(
    flags: frozenset[str] = frozenset(), *, inline: Literal["code", "source"] = "code"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function on arrays to machine code that runs without the interpreter lock.

    Args:
        flags: LLVM fast-math flags; none by default.
        inline: form in which compiled callers include the function. ``"code"``: its machine code, which is compiled for each
            combination of argument types. ``"source"``: its source, which is compiled as a part of the caller. This compiles
            faster for a function that is called in one place. It cannot have flags.

    Raises:
        ConfigurationError: for flags with ``inline="source"``, or arguments of another type.
    """
    if flags and inline == "source":
        raise ConfigurationError(
            f"Expected no flags with inline='source' but got {sorted(flags)}. A copied source has the caller's flags; "
            "choose inline='code'."
        )

    return functools.partial(Kernel, flags=flags, inline=inline)


def choose_by_types(choose: Callable[..., Any]) -> Any:
    """Decorate a function that returns a kernel for given argument types; calls in compiled code call that kernel."""
    return Choice(choose)


def bits_of(x: Any) -> Any:
    """View an array of floats as integers with the same bits."""
    return x.view(np.dtype(f"i{x.dtype.itemsize}"))


def floats_of(x: Any) -> Any:
    """View an array of integers as floats with the same bits."""
    return x.view(np.dtype(f"f{x.dtype.itemsize}"))


def layout_of(x: Any) -> Any:
    """Return the constants by which the floats of an array are turned into integers of the same order.

    Flipping all bits but the sign of negative numbers gives integers, order keys, that order as the floats do.

    Returns:
        Every bit but the sign, the number of those bits, and the order keys of -inf and +inf. The keys of NaN lie outside
        those two, on the side of the sign of the NaN.
    """
    return LAYOUTS[x.dtype.itemsize]


LAYOUTS: dict[int, tuple[Any, ...]] = {
    4: (np.int32(0x7FFFFFFF), np.int32(31), np.int32(~0x7F800000), np.int32(0x7F800000)),
    8: (np.int64(2**63 - 1), np.int64(63), np.int64(~0x7FF0000000000000), np.int64(0x7FF0000000000000)),
}


def empty(shape: Any, dtype: Any) -> Any:
    """Return an uninitialized array whose shape is an integer or a tuple of integers."""
    return np.empty(shape, dtype)


def zeros(shape: Any, dtype: Any) -> Any:
    """Return an array of zeros whose shape is an integer or a tuple of integers."""
    return np.zeros(shape, dtype)


def lowest_bit(word: Any) -> Any:
    """Return the index of the lowest set bit of a nonzero integer."""
    raise NotImplementedError


def bits_above(entries: Any, first: Any, bound: Any) -> Any:
    """Return a word whose bits tell which of the entries ``first .. first + LANES - 1`` exceed a bound; NaN does not.

    The array must be contiguous and have all of these entries.
    """
    raise NotImplementedError
