"""The threads of the OpenMP library that torch has loaded: all uses of its interface in C."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

__all__ = ["Parallel", "find_parallel"]

#: Calls a function once in each of a number of threads, this one among them, and returns when all calls have ended.
Parallel: TypeAlias = Callable[[Callable[[], None], int], None]
#: Function that OpenMP calls in each thread; ctypes acquires the interpreter lock for it.
TASK: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def find_parallel() -> Parallel | None:
    """Return a runner of functions on torch's own OpenMP threads; None if that OpenMP library is not found."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    loaded = {Path(path) for path in re.findall(r"(/\S*/lib(?:gomp|iomp5|omp)[\w.-]*\.so[\w.]*)$", maps, re.MULTILINE)}
    package = Path(torch.__file__).parent
    own = {path for path in loaded if path.parent in (package / "lib", package.parent / "torch.libs")} or loaded
    if len(own) != 1:
        return None
    try:
        call = ctypes.CDLL(str(own.pop())).GOMP_parallel
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = (TASK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return lambda function, threads: call(TASK(lambda _: function()), None, threads, 0)
