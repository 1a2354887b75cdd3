"""Compiles row functions with Numba, cached on disk wherever a folder can be written."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Literal

import numba
import numpy as np
from llvmlite import ir
from numba.core import event, types
from numba.extending import intrinsic, overload

from lit_sparse.errors import ConfigurationError

__all__ = ["LANES", "REDUCTION_FLAGS", "bits_above", "bits_of", "compile_rows", "floats_of", "layout_of", "lowest_bit"]

# Flags for reductions over values known to be neither NaN nor +inf. Sums may be reordered into SIMD lanes; -inf keeps
# its meaning. Never give them to a function that subtracts a two-part threshold: reordering would round its parts.
REDUCTION_FLAGS = frozenset({"reassoc", "contract", "nsz", "arcp", "nnan"})

#: Entries that :func:`bits_above` compares at a time.
LANES = 16


class _Notice(event.Listener):
    """Prints one message before the first compilation; Numba does not announce functions that it loads from its cache."""

    given = False

    def on_start(self, event: Any) -> None:
        """Print the message when the first function of this package is compiled."""
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if self.given or not getattr(function, "__module__", "").startswith("lit_sparse."):
            return
        self.given = True
        say = logging.getLogger(__name__).warning
        ranks = sys.modules.get("lightning_utilities.core.rank_zero")  # never imported for a notice
        if ranks is not None and getattr(ranks.rank_zero_only, "rank", None) is not None:  # set by Lightning alone
            say = ranks.rank_zero_info
        say("Compiling kernels for this processor, which may take up to a minute. Later runs load them from Numba's cache.")

    def on_end(self, event: Any) -> None:
        """Do nothing."""


event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]


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
        ConfigurationError: for flags with ``inline="source"``.
    """
    if flags and inline == "source":
        raise ConfigurationError(
            f"Expected no flags with inline='source' but got {sorted(flags)}. A copied source has the caller's flags; "
            "choose inline='code'."
        )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(flags) or False}
        options |= {"inline": "always"} if inline == "source" else {"forceinline": True}
        options["no_cfunc_wrapper"] = True  # only compiled functions and Python call it
        try:
            compiled = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # neither the package folder nor a user folder is writable: compile in each process
            compiled = numba.njit(**options)(function)
        if not flags:  # with flags, constants may change the order of a sum, and so its rounding
            _share_among_constants(compiled)
        return compiled  # type: ignore[no-any-return]

    return decorate


def _share_among_constants(compiled: Any) -> None:
    """Make callers that pass constants use what is compiled for any integer: Numba would compile for each constant again."""
    resolve = compiled.get_call_template

    def resolve_types(args: Any, kws: Any) -> Any:
        plain: Any = types.unliteral
        return resolve(tuple(map(plain, args)), {name: plain(kind) for name, kind in kws.items()})

    compiled.get_call_template = resolve_types


def bits_of(x: Any) -> Any:
    """View an array of floats as the integers of the same bits."""
    return x.view(np.dtype(f"i{x.dtype.itemsize}"))


def floats_of(x: Any) -> Any:
    """View an array of integers as the floats of the same bits."""
    return x.view(np.dtype(f"f{x.dtype.itemsize}"))


def layout_of(x: Any) -> Any:
    """Describe how the floats of an array order as integers.

    Flipping all bits but the sign of negative numbers gives integers, order keys, that order as the floats do.

    Returns:
        Every bit but the sign, the number of those bits, and the order keys of -inf and +inf. The keys of NaN lie outside
        those two, on the side of the sign of the NaN.
    """
    return _LAYOUTS[x.dtype.itemsize]


_LAYOUTS = {
    4: (np.int32(0x7FFFFFFF), np.int32(31), np.int32(~0x7F800000), np.int32(0x7F800000)),
    8: (np.int64(2**63 - 1), np.int64(63), np.int64(~0x7FF0000000000000), np.int64(0x7FF0000000000000)),
}


@overload(bits_of, strict=False)
def _compile_bits_of(x: Any) -> Callable[[Any], Any]:
    ints = np.int32 if x.dtype.bitwidth == 32 else np.int64
    return lambda x: x.view(ints)


@overload(layout_of, strict=False)
def _compile_layout_of(x: Any) -> Callable[[Any], Any]:
    layout = _LAYOUTS[x.dtype.bitwidth // 8]
    return lambda x: layout


@overload(floats_of, strict=False)
def _compile_floats_of(x: Any) -> Callable[[Any], Any]:
    floats = np.float32 if x.dtype.bitwidth == 32 else np.float64
    return lambda x: x.view(floats)


def _lowest_bit(context: Any, word: Any) -> Any:
    """Return the place of the lowest bit of an integer that is not zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return types.int64(types.int64), generate


lowest_bit: Any = intrinsic(_lowest_bit)


def _bits_above(context: Any, entries: Any, first: Any, bound: Any) -> Any:
    """Return bits that say which of the entries ``first .. first + LANES - 1`` of an array are above a bound; NaN is not.

    A contiguous array must have all of them.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(entries)(context, builder, args[0])
        vector = ir.VectorType(context.get_data_type(entries.dtype), LANES)
        place = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        values = builder.load(place, align=entries.dtype.bitwidth // 8)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        empty = ir.Constant(vector, ir.Undefined)
        bounds = builder.shuffle_vector(builder.insert_element(empty, args[2], ir.Constant(ir.IntType(32), 0)), empty, lanes)
        above = builder.fcmp_ordered(">", values, bounds)
        return builder.zext(builder.bitcast(above, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(entries, types.int64, entries.dtype), generate


bits_above: Any = intrinsic(_bits_above)
