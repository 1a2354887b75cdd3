"""Checks a pickle before it is loaded: restricted unpicklers build only plain data, but may take hours or gigabytes for it.

The hash of nested tuples that share their parts takes time exponential in the length of the pickle, and a function of two
numbers may allocate any amount of memory. The stack of the pickle is therefore simulated, without building an object.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Collection, Iterable, Sequence
from pickle import UnpicklingError
from typing import IO, Any, cast

import numpy as np
import torch

from lit_sparse.ground.torch_internals import archived

__all__ = ["check_pickle", "check_torch_file"]

#: Functions and classes that checkpoints call; those that allocate a size from the pickle are not among them.
CALLED = {
    *(f"torch._utils._rebuild_{kind}" for kind in ("parameter", "sparse_tensor", "tensor", "tensor_v2", "tensor_v3")),
    *("torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_nested_tensor"),  # refused later, as tensors
    *("torch.Size", "torch.device", "torch.serialization._get_layout", "_codecs.encode", "collections.OrderedDict"),
    *("collections.Counter", "__builtin__.set", "builtins.set", "__builtin__.complex", "builtins.complex"),
}
DTYPE, CODE = "numpy.dtype", re.compile(r"[?A-Za-z]\d{0,5}")
#: Length of the longest integer. Python does not write one of more than 4,300 digits.
MOST_BITS = 1024
#: Largest number of bytes of a checkpoint without its tensors.
MOST_BYTES = 2**27
#: Largest number of values in the key of a dictionary, or in an entry of a set.
MOST_VALUES = 100


class _Node:
    """An object on the simulated stack.

    Attributes:
        value: an atom, or the import path of a class or function.
        items: the items of a tuple, and the arguments of a type of numpy.
        made: what made it, an opcode or an import path.
        size, largest: number of values in it, and in the largest of its items, up to a bound.
    """

    __slots__ = ("items", "largest", "made", "size", "value")

    def __init__(self, made: str, items: Sequence[_Node] = (), value: Any = None) -> None:
        self.made, self.value, self.size, self.largest = made, value, 1, 0
        self.items = items if "TUPLE" in made or made == DTYPE else ()
        self.add(items)

    def add(self, items: Sequence[_Node]) -> None:
        """Count further items."""
        for item in items:
            if self.size <= MOST_VALUES:
                self.size += item.size
            if item.size > self.largest:
                self.largest = item.size


def check_torch_file(file: IO[bytes]) -> None:
    """Check the pickle in a ``torch.save`` file, as :func:`check_pickle` does.

    It may also call functions that the user has allowed with ``torch.serialization.add_safe_globals``.

    Raises:
        pickle.UnpicklingError: see :func:`check_pickle`; also if the pickle exceeds 128 MiB.
    """
    content = archived(file, "data.pkl")
    if len(content) > MOST_BYTES:
        raise UnpicklingError(f"it holds more than {MOST_BYTES:,} bytes besides its tensors")
    own: Any = getattr(torch.serialization, "get_safe_globals", list)()  # torch 2.3 has none
    names = {one[1] if isinstance(one, tuple) else f"{one.__module__}.{one.__qualname__}" for one in own}
    check_pickle(content, CALLED | names)


def check_pickle(file: bytes | IO[bytes], called: Collection[str]) -> None:
    """Check that a pickle takes time and memory proportional to its length.

    Args:
        file: the pickle, or an open file at its start, which is read to the end of the pickle.
        called: import paths of the functions and classes that it may call.

    Raises:
        pickle.UnpicklingError: if it hashes an object of more than 100 values, calls another function, changes a type of numpy,
            or holds an integer of more than 1024 bits.
        ValueError: if it is not a pickle; also IndexError, KeyError and the like.
    """
    stack: list[_Node] = []
    outer: list[list[_Node]] = []  # the stacks below each mark
    memo: dict[int, _Node] = {}
    for opcode, argument, _ in pickletools.genops(file):
        name, place = opcode.name, cast("int", argument)
        if isinstance(argument, int) and argument.bit_length() > MOST_BITS:
            raise UnpicklingError(f"it holds an integer of more than {MOST_BITS} bits")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else place] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[place])
        elif name == "MARK":
            outer.append(stack)
            stack = []
        elif not opcode.stack_before:
            if opcode.stack_after:
                stack.append(_Node(name, (), argument))
        else:
            items, fixed = [], len(opcode.stack_before)
            if pickletools.markobject in opcode.stack_before:
                items, stack, fixed = stack, outer.pop(), opcode.stack_before.index(pickletools.markobject)
            if fixed > len(stack):
                raise UnpicklingError(f"the instruction {name} lacks its operands")
            items = stack[len(stack) - fixed :] + items
            del stack[len(stack) - fixed :]
            if name != "STOP":
                stack.append(_result(name, items, called))


def _result(name: str, items: list[_Node], called: Collection[str]) -> _Node:
    """Return what an instruction makes of its operands: a new object, or the first one with the others in it."""
    if name in ("REDUCE", "NEWOBJ", "BUILD"):
        _check_call(name, items, called)
    if name in ("SETITEM", "SETITEMS"):
        _check_hashed(item.size for item in items[1::2])
    if name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "BUILD"):
        items[0].add(items[1:])
        return items[0]
    if name in ("REDUCE", "NEWOBJ"):
        return _Node(_path(items[0]), items[1:])
    if name == "STACK_GLOBAL":
        return _Node("GLOBAL", (), f"{items[0].value} {items[1].value}")
    if name == "BINPERSID" or "TUPLE" in name:
        return _Node(name, items)
    raise UnpicklingError(f"the instruction {name} is not part of plain data")


def _path(node: _Node) -> str:
    return str(node.value).replace(" ", ".", 1) if node.made == "GLOBAL" else ""


def _check_hashed(sizes: Iterable[int]) -> None:
    if any(size > MOST_VALUES for size in sizes):
        raise UnpicklingError(f"a key of a dictionary or an entry of a set has more than {MOST_VALUES} values")


def _check_call(name: str, operands: Sequence[_Node], called: Collection[str]) -> None:
    """Check a call of a class or function with its arguments, or an object whose state is set."""
    target, given = operands
    if name == "BUILD":
        if target.made not in called or target.made in CALLED - {"collections.OrderedDict"}:
            raise UnpicklingError("the state of an object that is not plain data is set")
        if target.made.startswith(DTYPE):
            _check_dtype(target, given)
        return
    path = _path(target)
    if path not in called or "TUPLE" not in given.made:
        raise UnpicklingError(f"{path or target.made} is called, which is not part of plain data")
    if path == "collections.OrderedDict" and given.items:
        raise UnpicklingError("an OrderedDict is made from arguments other than its entries")
    if path == "_codecs.encode" and [item.value for item in given.items[1:]] != ["latin1"]:
        raise UnpicklingError("bytes are encoded by a codec other than latin1")
    if path.endswith((".set", ".Counter")):
        _check_hashed(item.largest for item in given.items)


def _check_dtype(target: _Node, state: _Node) -> None:
    """Check that the state of a type of numpy is what numpy itself writes for it: with other flags, arrays crash."""
    code = next((item.value for arguments in target.items for item in arguments.items[:1]), None)
    expected: Any = np.dtype(code).__reduce__()[2] if isinstance(code, str) and CODE.fullmatch(code) else ()
    values = [None if item.made == "NONE" else (item.value,) for item in state.items]
    if not expected or values[:1] + values[2:] != [None if one is None else (one,) for one in expected[:1] + expected[2:]]:
        raise UnpicklingError("a numpy type is modified")
