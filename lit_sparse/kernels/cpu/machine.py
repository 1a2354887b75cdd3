"""Compiles row functions with Numba, and keeps the machine code in a folder. The first compiled call imports this module.

What needs private interfaces of Numba is here.
"""

from __future__ import annotations

import logging
import sys
import types as types_of_python
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, event, sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template
from numba.np.arrayobj import populate_array

from lit_sparse.kernels.cpu import compile as marked
from lit_sparse.kernels.cpu.cache import MachineCode, cache_folder, refusal
from lit_sparse.kernels.cpu.compile import without_collections

__all__ = ["dispatcher_of", "helper_of"]


class _Notice(event.Listener):
    """Prints one message before the first compilation; Numba does not announce functions that it loads from a cache."""

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
        folder = cache_folder()
        reason = refusal(folder)
        later = f"Later runs load them from {folder}."
        if reason:
            later = f"They are not kept in {folder}: {reason}. Set NUMBA_CACHE_DIR to a folder of your own."
        say(f"Compiling kernels for this processor, which may take up to a minute. {later}")

    def on_end(self, event: Any) -> None:
        """Do nothing."""


event.register("numba:compile", _Notice())


def dispatcher_of(kernel: marked.Kernel) -> Any:
    """Return a kernel's compiled function for calls from Python, which runs without the interpreter lock."""
    compiled = _jit(kernel)
    compiled._cache = MachineCode(kernel)
    compiled.compile = without_collections(compiled.compile)
    return compiled


def helper_of(kernel: marked.Kernel) -> Any:
    """Return a kernel's function for calls from compiled functions, whose code is optimized as a part of the caller's.

    For a choice, it is a function that calls the kernel chosen by the argument types.
    """
    if isinstance(kernel, marked.Choice):
        function: Any = numba.njit(kernel.py_func)
        function.get_call_template = lambda args, kws: kernel.py_func(*args).included().get_call_template(args, kws)
        function.get_overload = lambda args: kernel.py_func(*args).included().get_overload(args)
        return function
    helper = _jit(kernel, no_cpython_wrapper=True)
    helper._compiler._customize_flags = _without_machine_code
    helper.compile = partial(_translate, kernel, helper)
    resolve = helper.get_call_template

    def resolve_types(args: Any, kws: Any) -> Any:
        """Make callers that pass constants use what is translated for any integer; Numba would translate for each."""
        return resolve(tuple(map(types.unliteral, args)), {name: types.unliteral(kind) for name, kind in kws.items()})

    if not kernel.flags:  # with flags, constants may change the order of a sum, and so its rounding
        helper.get_call_template = resolve_types
    return helper


def _jit(kernel: marked.Kernel, **options: Any) -> Any:
    options |= {"no_cfunc_wrapper": True, "nogil": True, "error_model": "numpy", "fastmath": set(kernel.flags) or False}
    options |= {"inline": "always"} if kernel.inline == "source" else {"forceinline": True}
    return numba.njit(**options)(_compilable(kernel.py_func))


def _compilable(function: Any) -> Any:
    """Return a function that refers to what Numba compiles in place of kernels, and of ``min`` and ``max``."""
    found = {"min": _least, "max": _largest} | {
        name: value.included() for name, value in marked.references(function) if isinstance(value, marked.Kernel)
    }
    enclosed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = tuple(types_of_python.CellType(found[name]) if name in found else cell for name, cell in enclosed.items())
    names = {**function.__globals__, **found}
    copied = types_of_python.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
    return copied


def _without_machine_code(flags: Any) -> Any:
    flags.no_compile = True
    return flags


def _translate(kernel: marked.Kernel, helper: Any, signature: Any) -> Any:
    args, _ = sigutils.normalize_signature(signature)
    with global_compiler_lock:
        found = helper.overloads.get(tuple(args))
        if found is None:
            found = helper._compiler.compile(args, None)
            library = found.library
            if not kernel.flags:  # with flags, the order of a sum is chosen here
                library._optimize_final_module = _nothing
            library._finalize_final_module = partial(setattr, library, "_finalized", True)
            found = found._replace(entry_point=object())
            helper.targetctx.insert_user_function(found.entry_point, found.fndesc, [library])
            helper.overloads[tuple(args)] = found
        return found.entry_point


def _nothing() -> None:
    pass


def _as_code(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of a function ``(context, *types) -> (signature, generate)`` that gives the code of another."""

    def decorate(define: Callable[..., Any]) -> Callable[..., Any]:
        template = make_intrinsic_template(function, define, function.__name__, prefer_literal=False, kwargs=None)
        infer(template)
        infer_global(function, types.Function(template))
        return define

    return decorate


@_as_code(marked.bits_of)
def _bits_of(context: Any, x: Any) -> Any:
    return _viewed(x, types.int32 if x.dtype.bitwidth == 32 else types.int64)


@_as_code(marked.floats_of)
def _floats_of(context: Any, x: Any) -> Any:
    return _viewed(x, types.float32 if x.dtype.bitwidth == 32 else types.float64)


def _viewed(x: Any, dtype: Any) -> Any:
    """View an array as one of another type of the same width. Numba's ``view`` takes half a second to compile."""
    kind = x.copy(dtype=dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(x)(context, builder, args[0])
        view = context.make_array(kind)(context, builder)
        data = builder.bitcast(array.data, view.data.type)
        populate_array(view, data, array.shape, array.strides, array.itemsize, array.meminfo, array.parent)
        return impl_ret_borrowed(context, builder, kind, view._getvalue())

    return kind(x), generate


@_as_code(marked.layout_of)
def _layout_of(context: Any, x: Any) -> Any:
    values = marked.LAYOUTS[x.dtype.bitwidth // 8]
    kind = types.int32 if x.dtype.bitwidth == 32 else types.int64
    layout = types.UniTuple(kind, len(values))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_tuple(builder, layout, [context.get_constant(kind, value) for value in map(int, values)])

    return layout(x), generate


@_as_code(marked.lowest_bit)
def _lowest_bit(context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return types.int64(types.int64), generate


@_as_code(marked.bits_above)
def _bits_above(context: Any, entries: Any, first: Any, bound: Any) -> Any:
    lanes = marked.LANES

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(entries)(context, builder, args[0])
        vector = ir.VectorType(context.get_data_type(entries.dtype), lanes)
        place = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        values = builder.load(place, align=entries.dtype.bitwidth // 8)
        order = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        empty = ir.Constant(vector, ir.Undefined)
        bounds = builder.shuffle_vector(builder.insert_element(empty, args[2], ir.Constant(ir.IntType(32), 0)), empty, order)
        above = builder.fcmp_ordered(">", values, bounds)
        return builder.zext(builder.bitcast(above, ir.IntType(lanes)), ir.IntType(64))

    return types.int64(entries, types.int64, entries.dtype), generate


def _least(a: Any, b: Any) -> Any:
    """Return the smaller number, in compiled code."""
    raise NotImplementedError


def _largest(a: Any, b: Any) -> Any:
    """Return the larger number, in compiled code."""
    raise NotImplementedError


def _select(sign: str) -> Callable[..., Any]:
    """Return the definition of ``min`` or ``max``: the second number if the comparison with the first holds, else the first."""

    def define(context: Any, a: Any, b: Any) -> Any:
        kind = context.unify_types(a, b)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            first, second = (context.cast(builder, value, own, kind) for value, own in zip(args, signature.args, strict=True))
            if isinstance(kind, types.Float):
                chosen = builder.fcmp_ordered(sign, second, first, flags=["contract"])  # else it gets the caller's flags
            else:
                chosen = (builder.icmp_signed if kind.signed else builder.icmp_unsigned)(sign, second, first)
            return builder.select(chosen, second, first)

        return kind(a, b), generate

    return define


_as_code(_least)(_select("<"))
_as_code(_largest)(_select(">"))


def _allocate(zero: bool) -> Callable[..., Any]:
    """Return the definition of ``empty`` or ``zeros``. Numba's own functions take a tenth of a second each to compile."""

    def define(context: Any, shape: Any, dtype: Any) -> Any:
        is_tuple = isinstance(shape, types.BaseTuple)
        lengths = list(shape) if is_tuple else [shape]
        array: Any = types.Array(parse_dtype(dtype), len(lengths), "C")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            numbers = cgutils.unpack_tuple(builder, args[0]) if is_tuple else [args[0]]
            sizes = [context.cast(builder, number, kind, types.intp) for number, kind in zip(numbers, lengths, strict=True)]
            itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
            strides = [itemsize]
            for size in reversed(sizes):
                strides.insert(0, builder.mul(strides[0], size))
            info = context.nrt.meminfo_alloc_aligned(builder, strides[0], context.get_preferred_array_alignment(array.dtype))
            made = context.make_array(array)(context, builder)
            data = builder.bitcast(context.nrt.meminfo_data(builder, info), made.data.type)
            if zero:
                cgutils.memset(builder, data, strides[0], 0)
            populate_array(made, data, sizes, strides[1:], itemsize, info)
            return impl_ret_new_ref(context, builder, array, made._getvalue())

        return array(shape, dtype), generate

    return define


_as_code(marked.empty)(_allocate(zero=False))
_as_code(marked.zeros)(_allocate(zero=True))
