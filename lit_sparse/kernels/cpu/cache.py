"""Keeps machine code in a folder, under a hash of all that it is compiled from."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import stat
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, serialize
from numba.core.caching import CompileResultCacheImpl
from numba.core.caching import _Cache as NumbaCache

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import replaced, user_cache
from lit_sparse.ground.stored import open_plain
from lit_sparse.kernels.cpu.compile import Kernel, references

__all__ = ["MachineCode", "cache_folder", "refusal"]

#: Bytes of the checksum at the start of a file.
CHECKSUM = 32
#: Settings of Numba that change what is compiled.
SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "DEBUGINFO_DEFAULT", "DISABLE_JIT")


def cache_folder() -> Path:
    """Return the folder of compiled code: ``NUMBA_CACHE_DIR`` or the user's cache; one that cannot be made without both."""
    return Path(config.CACHE_DIR or user_cache() or os.devnull, "kernels")  # type: ignore[attr-defined]


@cache
def refusal(folder: Path) -> str | None:
    """Return why compiled code must not be loaded from a folder, or None; only the user and root may be able to write there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.lstat()
    except OSError as error:
        return f"{error.strerror or error}"
    if not stat.S_ISDIR(status.st_mode):
        return "it is a link or a file"
    return "another user owns it, or can write it" if _is_of_others(status) else None


def _is_of_others(status: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and (status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & 0o022))


def _checksum(path: Path, content: bytes) -> bytes:
    """Return the checksum of a file's content and name: under another name it is the code of another kernel."""
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()


def _read(path: Path) -> bytes:
    """Return the content of a file, as whole as it was written by the user or root; its folder may have been replaced.

    Raises:
        OSError: if it is missing, a link, or a file of others.
        ValueError: if it has changed, or got another name, since it was written.
    """
    with open_plain(path, path.parent) as file:
        status = os.fstat(file.fileno())
        if _is_of_others(status) or status.st_nlink > 1:
            raise PermissionError(f"{path} belongs to another user")
        checksum, content = file.read(CHECKSUM), file.read()
    if checksum != _checksum(path, content):
        raise ValueError(f"{path} is damaged")
    return content


class MachineCode(NumbaCache):
    """On-disk cache of the machine code of one kernel, a file for each combination of argument types; see Numba's ``_Cache``.

    Args:
        kernel: the kernel that is compiled.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.results: Any = CompileResultCacheImpl.__new__(CompileResultCacheImpl)

    @property
    def cache_path(self) -> str:
        """Return the folder of the cache."""
        return str(cache_folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached machine code for a signature, or None."""
        target_context.refresh()
        if refusal(cache_folder()):
            return None
        try:
            payload = pickle.loads(_read(self._file(sig, target_context)))
            return self.results.rebuild(target_context, payload)
        except Exception:  # none yet, or none to rely on: it is compiled again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the machine code compiled for a signature; nothing is stored on a full disk."""
        if refusal(cache_folder()) or not self.results.check_cachable(data):
            return
        path = self._file(sig, data.target_context)
        with suppress(OSError, ConfigurationError), replaced(path, "wb") as file:
            os.chmod(file.name, 0o644)  # noqa: PTH101  # whatever the umask: a file that others can write is not read
            content = serialize.dumps(self.results.reduce(data))
            file.write(_checksum(path, content) + content)

    def _file(self, sig: Any, target_context: Any) -> Path:
        key = repr((digest(self.kernel), sig, target_context.codegen().magic_tuple(), _surroundings()))
        name = f"{self.kernel.__name__}.{hashlib.sha256(key.encode()).hexdigest()[:32]}"
        return cache_folder() / name

    def enable(self) -> None:
        """Do nothing, since this cache is always enabled."""

    disable = flush = enable


@cache
def _surroundings() -> tuple[Any, ...]:
    versions = platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__
    own = [Path(__file__).with_name(name).read_bytes() for name in ("compile.py", "machine.py", "cache.py")]
    return *versions, hashlib.sha256(b"".join(own)).hexdigest(), *[getattr(config, name, None) for name in SETTINGS]


@cache
def digest(kernel: Kernel) -> str:
    """Return a hash of a kernel's code and of everything it refers to."""
    state = hashlib.sha256()
    seen: set[int] = set()
    for part in _parts(kernel, seen):
        state.update(part.encode() + b"\0")
    return state.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield what describes a value to which compiled code refers: the code of functions, the values of constants."""
    if isinstance(value, Kernel):
        yield f"kernel {sorted(value.flags)} {value.inline}"
        value = value.py_func
    if isinstance(value, types.FunctionType) and value.__module__.startswith("lit_sparse."):
        yield f"function {value.__qualname__}"
        if id(value) in seen:
            return
        seen.add(id(value))
        yield repr(value.__defaults__)
        yield from _code_parts(value.__code__)
        for name, used in sorted(references(value), key=lambda reference: reference[0]):
            yield name
            yield from _parts(used, seen)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, tuple) and type(value) is tuple:
        yield f"tuple {len(value)}"
        for part in value:
            yield from _parts(part, seen)
    elif isinstance(value, bool | int | float | complex | str | np.generic | np.dtype | None):
        yield f"{type(value).__name__} {value!r}"
    else:  # modules, types and built-in functions, which the versions determine
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', type(value)))}"


def _code_parts(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_argcount}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        elif isinstance(constant, frozenset):
            yield f"set {sorted(map(repr, constant))}"
        else:
            yield f"{type(constant).__name__} {constant!r}"
