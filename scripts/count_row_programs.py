"""Count what the programs with one thread a row execute, without a GPU: they are compiled to PTX, which is run as C.

    python scripts/count_row_programs.py

Needs NVIDIA's compiler (``pip install nvidia-cuda-nvcc-cu12 nvidia-cuda-nvrtc-cu12``) and a C compiler. Results must equal the
CPU's. Threads of a warp that branch differently wait for each other, so an instruction counts as often as in the thread of a
warp that executes it most. What PTX has in one instruction takes more in machine code: counts are scaled by the ratio of both.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from lit_sparse.kernels.gpu import numba_rows
from lit_sparse.mappings.fusedmax import kernel as fusedmax
from lit_sparse.mappings.oscarmax import kernel as oscarmax

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
WARP = 32
#: Of a block of numba-cuda.
WARPS = numba_rows.THREADS // WARP
TYPES = {
    "pred": "int", "s16": "int16_t", "u16": "uint16_t", "b16": "uint16_t", "s32": "int32_t", "u32": "uint32_t",
    "b32": "uint32_t", "s64": "int64_t", "u64": "uint64_t", "b64": "uint64_t", "f32": "float", "f64": "double", "u8": "uint8_t",
}  # fmt: skip
SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


@cache
def ptx_of(function: Callable[..., Any], arrays: str, numbers: tuple[Any, ...], capability: int) -> str:
    """Compile a program of rows, whose arrays are given as letters of their types with their dimensions: "f2 i2".

    Raises whatever a compiler that is not installed is missed with.
    """
    import numba.cuda as cuda
    from numba import types
    from numba.cuda import compiler, dispatcher

    cc = divmod(capability, 10)
    letters = {"d": types.float64, "f": types.float32, "i": types.int32, "l": types.int64, "b": types.uint8}
    given = [types.Array(letters[part[0]], int(part[1]), "A") for part in arrays.split()]
    kinds = [getattr(types, kind.__name__ if kind is not bool else "boolean") for kind in numbers]
    jit, found = cuda.jit, numba_rows.numba_cuda
    dispatcher.get_current_device = compiler.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
    numba_rows.numba_cuda = lambda: cuda  # type: ignore[assignment]
    numba_rows.translate.cache_clear()
    cuda.jit = lambda device: lambda copy: jit(device=True)(copy) if device else copy
    try:
        program = numba_rows._compile(function, device=False)  # type: ignore[arg-type]
    finally:
        cuda.jit, numba_rows.numba_cuda = jit, found  # type: ignore[assignment]
    code: str = cuda.compile_ptx(program, (*given, *kinds), cc=cc)[0]
    return code


class Usage(NamedTuple):
    """Registers of a thread, bytes of its stack, and instructions of the machine code."""

    registers: int
    stack: int
    code: int


def usage_of(ptx: str, capability: int) -> Usage:
    """Assemble PTX."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "program.ptx"), Path(folder, "program.cubin")
        source.write_text(ptx)
        subprocess.run([TOOLS / "ptxas-blackwell", f"-arch=sm_{capability}", "-o", target, source], check=True)
        usage, code = (
            subprocess.run([TOOLS / "cuobjdump", option, target], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage)[1]) for key in ("REG", "STACK"))  # type: ignore[index]
    return Usage(registers, stack, len(re.findall(r"/\*[0-9a-f]{4,5}\*/\s+.*?;", code)))


def _operand(text: str, kind: str) -> str:
    if text.startswith("%"):
        return {"%tid": "lane", "%ctaid": "0", "%ntid": "64"}.get(text.split(".")[0], text[1:])
    if text.startswith(("0d", "0f")):
        wide = text[1] == "d"
        bits = np.array(int(text[2:], 16), np.uint64 if wide else np.uint32)
        number = str(float(bits.view(np.float64 if wide else np.float32)))
        return f"({TYPES[kind]}){number.replace('inf', 'INFINITY').replace('nan', 'NAN')}"
    return f"({TYPES[kind]}){text}LL" if re.fullmatch(r"-?\d+", text) else text


def _statement(name: list[str], texts: list[str]) -> str:
    """Return an instruction, its name split at the points, as C."""
    operation, kind = name[0], name[-1]
    to = _operand(texts[0], kind)
    values = [f"(({TYPES[kind]}){_operand(text, kind)})" for text in texts[1:] if not text.startswith("[")]
    address = re.search(r"\[%?(\w+)(?:\+(-?\d+))?\]", ",".join(texts))
    if operation in ("ld", "st"):
        assert address is not None
        if "param" in name:
            return f"memcpy(&{to}, given + {address[1].rsplit('_', 1)[1]}, sizeof({TYPES[kind]}));"
        place = f"(void *)({address[1]} + ({address[2] or 0}LL))"
        if operation == "st":
            return f"{{ {TYPES[kind]} v = {values[0]}; memcpy({place}, &v, sizeof v); }}"
        return f"{{ {TYPES[kind]} v; memcpy(&v, {place}, sizeof v); {to} = v; }}"
    if operation == "mov":
        value = values[0]
    elif operation in ("min", "max"):
        sign = "<" if operation == "min" else ">"
        value = (
            f"f{operation}({', '.join(values)})"
            if kind[0] == "f"
            else f"{values[0]} {sign} {values[1]} ? {values[0]} : {values[1]}"
        )
    elif operation == "mul" and "wide" in name:
        value = f"(int64_t){values[0]} * (int64_t){values[1]}"
    elif operation in SIGNS:
        value = f"({TYPES[kind]})({values[0]} {SIGNS[operation]} {values[1]})"
    elif operation == "mad":
        value = f"{values[0]} * {values[1]} + {values[2]}"
    elif operation == "fma":
        value = f"fma({', '.join(values)})"
    elif operation in ("rcp", "neg", "not", "abs"):
        value = {"rcp": "1.0 / ", "neg": "-", "not": "!" if kind == "pred" else "~", "abs": "fabs"}[operation] + values[0]
    elif operation == "selp":
        value = f"{_operand(texts[3], kind)} ? {values[0]} : {values[1]}"
    elif operation == "setp":
        unordered = f"(isnan((double){values[0]}) || isnan((double){values[1]}))" if kind[0] == "f" else "0"
        test = name[1]
        if test in SIGNS:
            value = f"!{unordered} && {values[0]} {SIGNS[test]} {values[1]}"
        elif test in ("nan", "num"):
            value = f"{'!' * (test == 'num')}{unordered}"
        else:
            value = f"{unordered} || {values[0]} {SIGNS[test[:-1]]} {values[1]}"
        if name[2] in ("and", "or"):
            value = f"({value}) {'&&' if name[2] == 'and' else '||'} {_operand(texts[3], 'pred')}"
    elif operation == "cvt":
        rounded = {"rmi": "floor", "rzi": "trunc"}.get(name[1], "")
        value = f"({TYPES[name[-2]]}){rounded}({values[0]})"
    elif operation == "bfi":
        source, base, first, size = (_operand(text, "u32") for text in texts[1:])
        mask = f"(((1ull << {size}) - 1) << {first})"
        value = f"({base} & ~{mask}) | (((uint64_t){source} << {first}) & {mask})"
    else:
        raise NotImplementedError(".".join(name))
    return f"{to} = {value};"


def as_c(ptx: str) -> tuple[str, np.ndarray[Any, Any]]:
    """Return PTX as a C function ``run(given, lane, counts)``, and the number of instructions of each of its basic blocks."""
    body = ptx[ptx.index("{", ptx.index(".entry")) + 1 : ptx.rindex("}")]
    lines = ["#include <math.h>", "#include <stdint.h>", "#include <string.h>"]
    lines += ["void run(const uint64_t *given, uint64_t lane, uint64_t *counts)", "{"]
    for kind, name, number in re.findall(r"\.reg \.(\w+)\s+%(\w+)<(\d+)>;", body):
        lines += [f"{TYPES[kind]} {name}{i} = 0;" for i in range(int(number))]
    sizes: list[int] = []

    def begin_block() -> None:
        lines.append(f"counts[{len(sizes)}]++;")
        sizes.append(0)

    begin_block()
    for line in map(str.strip, re.sub(r"//.*", "", body).split("\n")):
        if label := re.fullmatch(r"\$(\w+):", line):
            lines.append(f"{label[1]}:;")
            begin_block()
        elif line and not line.startswith("."):
            found = re.fullmatch(r"(?:@(!?)%(\w+)\s+)?([\w.]+)\s*(.*?);", line)
            assert found is not None, line
            sizes[-1] += 1
            name, texts = found[3].split("."), re.sub(r"[{}\s]", "", found[4]).split(",")
            leaves = {"bra": f"goto {texts[0][1:]};", "ret": "return;"}.get(name[0])
            lines.append((f"if ({found[1]}{found[2]}) " if found[2] else "") + (leaves or _statement(name, texts)))
            if leaves:
                begin_block()
    return "\n".join([*lines, "}"]), np.array(sizes)


def executed(ptx: str, arrays: list[np.ndarray[Any, Any]], numbers: list[int]) -> float:
    """Run 32 rows, one lane each, and return how many instructions of PTX their warp issues."""
    source, sizes = as_c(ptx)
    given = [
        number
        for array in arrays
        for number in (0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides)
    ]
    words = np.array([*given, *numbers], np.uint64)
    counts = np.zeros((WARP, len(sizes)), np.uint64)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.c")
        file.write_text(source)
        library = file.with_suffix(".so")
        subprocess.run(["cc", "-w", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", library, file, "-lm"], check=True)
        run = ctypes.CDLL(str(library)).run
        for lane in range(WARP):
            run(ctypes.c_void_p(words.ctypes.data), ctypes.c_uint64(lane), ctypes.c_void_p(counts[lane].ctypes.data))
    return float(counts.max(0).astype(float) @ sizes)


def counted(name: str, lams: tuple[float, ...], d: int, capability: int) -> tuple[Usage, list[float]]:
    """Return the usage of fusedmax or oscarmax of float32, and machine instructions of a thread for each of d normal scores."""
    module: Any = {"fusedmax": fusedmax, "oscarmax": oscarmax}[name]
    size = max(d + 1, oscarmax.BUCKETS)
    one = int(np.array(1.0).view(np.uint64))
    if name == "fusedmax":
        ptx = ptx_of(fusedmax.fused_rows, "f2 i2 f2 d1 i2 d3", (np.float64,), capability)
        work = [np.zeros((WARP, d), np.int32), np.zeros((WARP, fusedmax.WORK_ROWS, 2 * d))]
        numbers, more = [one], ()
    else:
        ptx = ptx_of(oscarmax.oscar_rows, "f2 i2 f2 d1 d3 i3", (np.float64, bool), capability)
        work = [np.zeros((WARP, oscarmax.FLOAT_ROWS, size)), np.zeros((WARP, oscarmax.INT_ROWS, size), np.int32)]
        numbers, more = [one, 1], (True,)
    usage = usage_of(ptx, capability)
    x = torch.randn(WARP, d, generator=torch.Generator().manual_seed(0))
    each = []
    for lam in lams:
        out, labels = (np.zeros((d, WARP), kind).T for kind in (np.float32, np.int32))
        issued = executed(ptx, [out, labels, np.asfortranarray(x.numpy()), np.array([lam]), *work], numbers)
        kernel = module.map_fused if name == "fusedmax" else module.map_oscar
        expected = kernel(x, lam, 1.0, *more)
        torch.testing.assert_close(torch.from_numpy(out.copy()), expected[0], rtol=0, atol=1e-6)
        assert np.array_equal(labels, expected[1])
        each.append(issued * usage.code / as_c(ptx)[1].sum() / d)
    return usage, each


#: Mappings and strengths to count.
CASES = {"fusedmax": (0.1, 0.5), "oscarmax": (0.01, 0.1)}


def main() -> None:
    """Print a table."""
    print("| mapping | scores of a row | lam | registers | stack, B | instructions a score |\n" + "| --- " * 6 + "|")
    for name, lams in CASES.items():
        for d in (64, 256, 1024):
            usage, each = counted(name, lams, d, 90)
            for lam, count in zip(lams, each, strict=True):
                print(f"| {name} | {d} | {lam} | {usage.registers} | {usage.stack} | {count:.0f} |", flush=True)


if __name__ == "__main__":
    main()
