"""Count what the Triton programs of the package need, without a GPU: they are compiled offline and their machine code is read.

    python scripts/inspect_kernels.py                     # registers, spills, shared memory, occupancy, loops
    python scripts/inspect_kernels.py --estimate 4096     # and a bound of the time of attention, from peak rates
    python scripts/inspect_kernels.py --output docs/reference/gpu_programs.csv

The counts are exact for a compiler, and say nothing about latency: they choose shapes, and compare programs with each other. A
loop is a backward branch; its instructions are given for each score that it computes. Programs of rows, of 1,024 scores, have
the instructions of their whole code, of which loops run several times. For comparison, ``flash`` is the forward pass of softmax
attention as in Triton's tutorial, and ``softmax`` the softmax of rows.

Fusedmax and oscarmax have the instructions that their one thread a row executes, by ``scripts/count_row_programs.py``, if the
compilers it needs are installed. ``cut_runs`` and ``sort_rows`` are steps that these two would take in programs of their own.

The least time is the longest of three: to issue the counted instructions, to multiply, and to move each tensor once, at peak
rates. It is of 16 heads with 4,096 queries and keys, of 4,096 vectors and 50,000 classes, or of 4,096 rows.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from lit_sparse.kernels.gpu import triton_attention, triton_lists, triton_programs, triton_rows

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
#: Shared memory of a multiprocessor in bytes. Each has 65,536 registers and 64 warps, of at most 32 programs.
CAPABILITIES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
ELEMENTS = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int32: "i32", torch.int64: "i64", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
ISSUED = 4  # instructions of warps that a multiprocessor issues per cycle
CACHE = 24  # bytes per cycle that a multiprocessor gets from the second cache, as it is measured on an H100


class Rates(NamedTuple):
    """Peak rates of a GPU: multiprocessors, clock in Hz, operations in bfloat16 and bytes per second; TF32 has half of them."""

    processors: int
    clock: float
    tensor: float
    memory: float

    @property
    def instructions(self) -> float:
        """Instructions of threads per second."""
        return self.processors * self.clock * ISSUED * 32


#: Of an A100, an H100 and a B200.
RATES = {
    80: Rates(108, 1.41e9, 312e12, 2.0e12),
    90: Rates(132, 1.755e9, 989e12, 3.35e12),
    100: Rates(148, 1.965e9, 2250e12, 8.0e12),
}


class Launch(NamedTuple):
    """A launch of a program: its name, arguments, constants and options."""

    name: str
    given: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, int]

    @property
    def scores(self) -> float:
        """Scores of a tile for each thread, 0 for programs without tiles of scores."""
        threads = 32 * self.options["num_warps"]
        tiled = "columns" in self.constants and "operand" in self.constants
        return self.constants["rows"] * self.constants["columns"] / threads if tiled else 0


class Count(NamedTuple):
    """What a compiled program needs: registers of a thread, bytes of spills and of shared memory, its loops and instructions.

    A loop has its number of instructions, and whether it multiplies matrices.
    """

    registers: int
    spills: int
    shared: int
    loops: list[tuple[int, bool]]
    code: int


class _Recorder:
    """Stands for the module of programs; keeps launches in place of running them."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def __getattr__(self, name: str) -> Any:
        def launch(*given: Any, num_warps: int = 4, num_stages: int = 3, **constants: Any) -> None:
            options = {"num_warps": num_warps, "num_stages": num_stages}
            self.launches.append(Launch(name, given, constants, options))

        class Grids:
            def __getitem__(self, grid: Any) -> Any:
                return launch

        return Grids()


def recorded(call: Callable[[], Any], capability: int) -> list[Launch]:
    """Return the launches of a call with tensors on the device ``meta``, as they are on a GPU of a compute capability."""
    recorder = _Recorder()
    with (
        mock.patch.object(triton_rows, "programs_on", lambda device: recorder),
        mock.patch.object(triton_lists, "_is_ampere", lambda device: capability < 90),
    ):
        call()
    return recorder.launches


def source_of(program: Any, launch: Launch) -> ASTSource:
    """Return a program with the types of the arguments of a launch, of which ones are compiled in."""
    names, fixed, types, aligned = program.arg_names, dict(launch.constants), {}, {}
    for name, value in zip([n for n in names if n not in fixed], launch.given, strict=True):
        if isinstance(value, Tensor):
            types[name] = f"*{ELEMENTS[value.dtype]}"
        elif isinstance(value, int) and value == 1 and name not in (program.do_not_specialize or ()):
            fixed[name] = 1
            continue
        else:
            types[name] = "i32" if isinstance(value, int) else "fp32"
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            aligned[(names.index(name),)] = [["tt.divisibility", 16]]
    if "operand" in fixed:
        fixed["operand"] = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}[types["query"][1:]]
    signature = {name: "constexpr" if name in fixed else types[name] for name in names}
    return ASTSource(program, signature, {(names.index(name),): value for name, value in fixed.items()}, aligned)


def code_of(program: Any, launch: Launch, capability: int) -> str:
    """Return what the front end of the compiler makes of a program, which takes a moment."""
    target = GPUTarget("cuda", capability, 32)
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options(dict(launch.options))
    ir.load_dialects(context)
    backend.load_dialects(context)
    given = backend.get_codegen_implementation(options), backend.get_module_map()
    return str(source_of(program, launch).make_ir(target, options, *given, context))


def compiled(program: Any, launch: Launch, capability: int) -> Count:
    """Compile a program as it is launched."""
    source = source_of(program, launch)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([TOOLS / "cuobjdump", option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    registers, stack, local = (int(re.search(rf"{key}:(\d+)", usage)[1]) for key in ("REG", "STACK", "LOCAL"))  # type: ignore[index]
    lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", code)]
    loops = []
    for at, text in lines:
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if jump and int(jump[1], 16) < at:
            body = [line for place, line in lines if int(jump[1], 16) <= place <= at]
            loops.append((len(body), any("MMA" in line for line in body)))
    return Count(registers, stack + local, built.metadata.shared, loops, len(lines))


def occupancy(count: Count, warps: int, capability: int) -> int:
    """Return the warps that a multiprocessor holds at a time."""
    by_registers = 65536 // (-(-count.registers // 8) * 8 * 32 * warps)
    by_memory = CAPABILITIES[capability] // (count.shared + 1024)
    return min(by_registers, by_memory, 64 // warps, 32) * warps


def attention_launches(
    dtype: torch.dtype, width: int, is_causal: bool, capability: int, biased: bool = False, packed: bool = False
) -> Iterator[Launch]:
    """Yield the launches of attention by lists, with a mask and a bias, of packed sequences, or neither, then in blocks."""
    heads, length = 16, 4096
    x = torch.empty(heads, length, width, dtype=dtype, device="meta")
    pairs = (None, None)
    if biased:
        pairs = tuple(torch.empty(heads, length, length, dtype=kind, device="meta") for kind in (torch.bool, torch.float32))
    ranges = torch.empty(1, length, 2, dtype=torch.int32, device="meta").expand(heads, -1, -1) if packed else None
    scores = triton_lists.Scores(x, x, *pairs, 0.0, width**-0.5, is_causal, ranges)
    yield from recorded(lambda: triton_lists.list_marked(scores, triton_lists.bound_scores(scores, 1.5, 1.0), 64), capability)
    places = torch.empty(heads * length, 64, dtype=torch.int32, device="meta")
    rows, weights = x.float().flatten(0, 1), places.float()
    blocks, starts = places[:, 0].long(), places.new_empty(heads * length + 1, dtype=torch.int64)
    yield from recorded(lambda: triton_lists.multiply_listed(rows, x.float(), places, blocks), capability)
    yield from recorded(lambda: triton_lists.sum_listed(weights, x.float(), places, blocks), capability)
    yield from recorded(lambda: triton_lists.scatter_listed(weights, rows, starts, starts), capability)
    if width <= triton_attention.WIDEST:
        options = triton_attention.BlockOptions(1.5, 1.0, width**-0.5, is_causal)
        yield from recorded(lambda: triton_attention.attend(x, x, x, None, options), capability)
        attended = (x, x.new_empty(heads, 4, length, dtype=torch.float32), x.new_empty(heads, 64, 64, dtype=torch.int8))
        yield from recorded(lambda: triton_attention.differentiate(x, attended, x, x, x, None, options), capability)


def output_launches(dtype: torch.dtype, features: int, capability: int) -> list[Launch]:
    """Return the launches of the two passes over the classes of an output layer."""
    hidden, weight = (torch.empty(1, n, features, dtype=dtype, device="meta") for n in (4096, 50_000))
    bias = torch.empty(50_000, dtype=dtype, device="meta").expand(1, 4096, 50_000)
    scores = triton_lists.Scores(hidden, weight, None, bias, 0.0, 1.0, False)
    return recorded(
        lambda: triton_lists.list_marked(scores, triton_lists.bound_scores(scores, 1.5, 1.0), 64)[0].shape, capability
    )[:2]


def row_launches(dtype: torch.dtype, d: int, capability: int) -> Iterator[tuple[str, Launch]]:
    """Yield the launches of mappings of rows, with what they compute."""
    x = torch.empty(4096, d, dtype=dtype, device="meta")
    labels, chosen = x.to(torch.int32), x.to(torch.uint8)
    alphas = torch.empty(4096, 1, device="meta")
    calls: dict[str, Callable[[], Any]] = {
        "sparsemax": lambda: triton_rows.project_simplex(x, 1.0, 0),
        "top-k sparsemax": lambda: triton_rows.project_simplex(x, 1.0, 16),
        "their gradients": lambda: triton_rows.center_on_support(x, x, 1.0),
        "entmax 1.5": lambda: triton_rows.map_entmax(x, 1.5, 1.0),
        "its gradients": lambda: triton_rows.entmax_product(x, x, 1.5, 1.0),
        "entmax, one alpha a row": lambda: triton_rows.map_entmax(x, alphas, 1.0),
        "its gradients ": lambda: triton_rows.entmax_product(x, x, alphas, 1.0),
        "hard threshold": lambda: triton_rows.threshold_hard(x, 16, False),
        "its gradients  ": lambda: triton_rows.chosen_product(x, x, chosen),
        "capped softmax": lambda: triton_rows.map_capped(x, 0.1, 1.0),
        "its gradients   ": lambda: triton_rows.capped_product(x, x, x, 0.1, 1.0),
        "bits with a budget": lambda: triton_rows.map_budget(x, 3.0, 1.0),
        "its gradients    ": lambda: triton_rows.budget_product(x, x, labels, 1.0),
        "Hoyer projection": lambda: triton_rows.project_hoyer(x, 0.5, 1.0, False),
        "its gradients     ": lambda: triton_rows.hoyer_product(x, x, x, False),
    }
    for name, call in calls.items():
        for launch in recorded(call, capability):
            yield name.strip(), launch


@triton.jit
def softmax(y: tl.tensor, x: tl.tensor, d: tl.tensor, rows: tl.constexpr, depth: tl.constexpr, groups: tl.constexpr) -> None:
    """Softmax of rows that registers hold."""
    place = tl.program_id(0).to(tl.int64) * d + tl.arange(0, depth * groups)
    inside = tl.arange(0, depth * groups) < d
    z = tl.load(x + place, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(z - tl.max(z, 0))
    tl.store(y + place, (power / tl.sum(power, 0)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def then_clip(a: tl.tensor, low: tl.tensor, high: tl.tensor, b: tl.tensor, least: tl.tensor, most: tl.tensor) -> tl.tensor:
    """Compose ``clip(x + a, low, high)`` with the same of the next entry."""
    return a + b, tl.minimum(tl.maximum(low + b, least), most), tl.minimum(tl.maximum(high + b, least), most)


@triton.jit
def cut_runs(y: tl.tensor, x: tl.tensor, d: tl.tensor, lam: tl.tensor, columns: tl.constexpr, width: tl.constexpr) -> None:
    """One step of fusedmax in segments: which entries exceed 0 after the total-variation prox, by two scans of clips."""
    place = tl.arange(0, columns)[None, :]
    row = tl.program_id(0).to(tl.int64) * d
    z = tl.load(x + row + place, mask=place < d, other=0.0).to(width)
    edge = tl.zeros([1, columns], width) + lam
    right, left = tl.where(place < d - 1, edge, 0.0), tl.where(place > 0, edge, 0.0)
    _sum, before, _high = tl.associative_scan((z, -right, right), 1, then_clip)
    _sum, after, _high = tl.associative_scan((z, -left, left), 1, then_clip, reverse=True)
    tl.store(y + row + place, tl.where(before + after > z, z, 0.0).to(y.dtype.element_ty), mask=place < d)


@triton.jit
def sort_rows(y: tl.tensor, x: tl.tensor, d: tl.tensor, columns: tl.constexpr) -> None:
    """First step of oscarmax in a program of its own: sort the scores of rows, with their places."""
    place = tl.arange(0, columns)[None, :]
    row = tl.program_id(0).to(tl.int64) * d
    bits = tl.load(x + row + place, mask=place < d, other=-float("inf")).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) * 4294967296 + place
    tl.store(y + row + place, tl.sort(key, 1, descending=True), mask=place < d)


def segmented_launches(d: int) -> Iterator[Launch]:
    """Yield what fusedmax and oscarmax would need in programs of their own."""
    y, x, keys = (torch.empty(4096, d, dtype=kind, device="meta") for kind in (torch.float32, torch.float32, torch.int64))
    for width, warps in ((tl.float32, 1), (tl.float64, 2)):
        fixed = {"columns": d, "width": width}
        yield Launch("cut_runs", (y, x, d, 0.1), fixed, {"num_warps": warps, "num_stages": 3})
    yield Launch("sort_rows", (keys, x, d), {"columns": d}, {"num_warps": 1, "num_stages": 3})


@triton.jit
def flash(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    o_ptr: tl.tensor,
    length: tl.tensor,
    size: tl.tensor,
    scale: tl.tensor,
    causal: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Forward pass of softmax attention: a running maximum, a running sum, and powers of 2."""
    blocks = tl.cdiv(length, rows)
    first = tl.program_id(0) % blocks * rows
    head = (tl.program_id(0) // blocks).to(tl.int64)
    row, column, entry = first + tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, width)
    q = tl.load(q_ptr + head * length * width + row[:, None] * width + entry[None, :], mask=(row < length)[:, None], other=0.0)
    k_ptr += head * size * width
    v_ptr += head * size * width
    result = tl.zeros([rows, width], tl.float32)
    top = tl.full([rows], -1e30, tl.float32)
    mass = tl.zeros([rows], tl.float32)
    whole = (tl.minimum(size, first + 1) if causal else size) // columns * columns
    for start in range(0, whole, columns):
        k = tl.load(k_ptr + (start + column)[None, :] * width + entry[:, None])
        x = tl.dot(q, k)
        higher = tl.maximum(top, tl.max(x, 1) * scale)
        weight = tl.math.exp2(x * scale - higher[:, None])
        decay = tl.math.exp2(top - higher)
        mass = mass * decay + tl.sum(weight, 1)
        v = tl.load(v_ptr + (start + column)[:, None] * width + entry[None, :])
        result = tl.dot(weight.to(q.dtype), v, result * decay[:, None])
        top = higher
    out = o_ptr + head * length * width + row[:, None] * width + entry[None, :]
    tl.store(out, (result / mass[:, None]).to(q.dtype), mask=(row < length)[:, None])


def flash_launch(dtype: torch.dtype, width: int, is_causal: bool, shape: tuple[int, int, int], stages: int = 3) -> Launch:
    """Return a launch of :func:`flash` with rows, columns and warps."""
    x = torch.empty(16, 4096, width, dtype=dtype, device="meta")
    rows, columns, warps = shape
    fixed = {"causal": is_causal, "rows": rows, "columns": columns, "width": width}
    return Launch("flash", (x, x, x, x, 4096, 4096, 0.1), fixed, {"num_warps": warps, "num_stages": stages})


COLUMNS = (
    "program", "inputs", "block", "warps", "registers", "spills, B", "shared memory, KiB", "warps held", "instructions a score",
    "ms at least",
)  # fmt: skip
FLASH_SHAPES = ((128, 64, 4), (128, 128, 8), (128, 64, 8), (64, 64, 4), (64, 128, 4))


def score_loop(launch: Launch, count: Count) -> float:
    """Return the instructions for a score of the shortest loop that multiplies matrices, as often as it runs for a score."""
    threads = 32 * launch.options["num_warps"]
    tile = launch.constants["rows"] * launch.constants["columns"] / threads
    repeats = max(1, launch.constants.get("entries", 0) // launch.constants["width"])
    return min((size for size, multiplies in count.loops if multiplies), default=0) * repeats / tile


@cache
def best_flash(dtype: torch.dtype, width: int, is_causal: bool, capability: int) -> float:
    """Return the fewest instructions for a score of :func:`flash` among its shapes without spills."""
    found = []
    for shape, stages in product(FLASH_SHAPES, (2, 3)):
        launch = flash_launch(dtype, width, is_causal, shape, stages)
        count = compiled(flash, launch, capability)
        if not count.spills:
            found.append(score_loop(launch, count))
    return min(found)


def line(launch: Launch, count: Count, capability: int, label: str) -> tuple[str | int, ...]:
    """Return a row of the table, with the instructions of the inner loop, or of the whole code of a program of rows."""
    warps, fixed = launch.options["num_warps"], launch.constants
    shape = each = least = ""
    if launch.scores or launch.name == "flash":
        each, shape = f"{score_loop(launch, count):.1f}", f"{fixed['rows']} x {fixed['columns']}"
    elif "groups" in fixed or "columns" in fixed:
        rows, columns = fixed.get("rows", 1), fixed.get("columns", 0) or fixed["depth"] * fixed["groups"]
        each, shape = f"{count.code * 32 * warps / (rows * columns):.0f}", f"{rows} x {columns}"
    if each and launch.name not in BLOCKS and not fixed.get("ranged"):
        least = f"{least_time(launch, float(each), capability):.3f}"
    held = occupancy(count, warps, capability)
    return launch.name, label, shape, warps, count.registers, count.spills, count.shared >> 10, held, each, least


#: Programs whose time depends on how many blocks have weights. For packed sequences it also depends on their lengths.
BLOCKS = ("attend_blocks", "differentiate_queries", "differentiate_keys")


def least_time(launch: Launch, each: float, capability: int) -> float:
    """Return the milliseconds that a launch with so many instructions a score takes at least, at peak rates."""
    rates, products = RATES[capability], 0.0
    tensors = list({id(x): x for x in launch.given if isinstance(x, Tensor)}.values())
    scores = max(x.numel() for x in tensors)
    if launch.scores or launch.name == "flash":
        query, key = launch.given[{"flash": 0, "bound_scores": 1, "mark_scores": 2}[launch.name] :][:2]
        scores = query.shape[0] * query.shape[1] * key.shape[1] / (2 if launch.constants["causal"] else 1)
        rate = rates.tensor / (2 if query.dtype == torch.float32 else 1)
        products = 2 * query.shape[2] * scores * (2 if launch.name == "flash" else 1) / rate
        tensors = [query, key]
    moved = sum(x.nbytes for x in tensors if x.dim() > 1) / rates.memory
    return 1e3 * max(each * scores / rates.instructions, products, moved)


def lines(capability: int) -> Iterator[tuple[str | int, ...]]:
    """Yield the rows of the table."""

    def counted(launch: Launch, label: str, program: Any = None) -> tuple[str | int, ...]:
        program = program or getattr(triton_programs, launch.name)
        return line(launch, compiled(program, launch, capability), capability, label)

    half, single = torch.bfloat16, torch.float32
    for dtype, width, kind in (
        (half, 64, ""), (half, 64, "causal"), (half, 64, "packed"), (half, 64, "biased"), (half, 128, ""), (half, 256, ""),
        (single, 64, ""), (single, 64, "biased"), (single, 128, ""),
    ):  # fmt: skip
        label = f"{str(dtype)[6:]}, {width} entries{', ' * bool(kind)}{kind}"
        passes = attention_launches(dtype, width, kind == "causal", capability, kind == "biased", kind == "packed")
        for launch in list(passes)[: 3 if kind in ("packed", "biased") else None]:
            yield counted(launch, label)
        if dtype == half and width <= 128 and kind in ("", "causal"):
            for shape in FLASH_SHAPES[:4]:
                yield counted(flash_launch(dtype, width, kind == "causal", shape), label, flash)
    for dtype in (half, single):
        for launch in output_launches(dtype, 1024, capability):
            yield counted(launch, f"{str(dtype)[6:]}, output layer, 1,024 features")
    for dtype in (single, half):
        x = torch.empty(4096, 1024, dtype=dtype, device="meta")
        given = Launch(
            "softmax", (torch.empty_like(x), x, 1024), {"rows": 1, "depth": 8, "groups": 128}, {"num_warps": 1, "num_stages": 3}
        )
        yield counted(given, f"{str(dtype)[6:]}, softmax", softmax)
        for name, launch in row_launches(dtype, 1024, capability):
            yield counted(launch, f"{str(dtype)[6:]}, {name}")
    yield from thread_lines(1024, capability)
    for launch in segmented_launches(1024):
        label = f"{launch.constants.get('width', 'int64')}".replace("fp", "float")
        yield counted(launch, f"{label}, one step", globals()[launch.name])


def thread_lines(d: int, capability: int) -> Iterator[tuple[str | int, ...]]:
    """Yield the rows of the programs with one thread a row, of which a warp issues one instruction per cycle."""
    threads = importlib.import_module("scripts.count_row_programs" if __package__ else "count_row_programs")
    for name, lams in threads.CASES.items():
        try:
            usage, counts = threads.counted(name, lams, d, capability)
        except (ImportError, OSError, RuntimeError) as error:
            print(f"{name} is not counted: {error}")
            continue
        held = occupancy(Count(usage.registers, usage.stack, 0, [], 0), threads.WARPS, capability)
        for lam, each in zip(lams, counts, strict=True):
            least = 1e3 * each * d / RATES[capability].clock
            block, label = f"{32 * threads.WARPS} x {d}", f"float32, {name}, lam {lam}"
            yield (
                f"{name} rows",
                label,
                block,
                threads.WARPS,
                usage.registers,
                usage.stack,
                0,
                held,
                f"{each:.0f}",
                f"{least:.3f}",
            )


def estimate(size: int, capability: int) -> None:
    """Print bounds of the time of attention from issued instructions, products and bytes: none of them is a measurement."""
    heads, width, listed = 16, 64, 8
    scores = heads * size * size
    each = {"flash": best_flash(torch.bfloat16, width, False, capability)}
    for launch in attention_launches(torch.bfloat16, width, False, capability):
        if launch.name in ("bound_scores", "mark_scores"):
            each[launch.name] = score_loop(launch, compiled(getattr(triton_programs, launch.name), launch, capability))
    rates = RATES[capability]
    issue = rates.instructions
    row = heads * size * listed * width * 4 / (CACHE * rates.processors * rates.clock)  # a row of float32 for each listed key
    products = 2 * width * scores / rates.tensor
    lists = sum(max(each[name] * scores / issue, products) for name in ("bound_scores", "mark_scores"))
    softmax = max(each["flash"] * scores / issue, 2 * products)
    print(
        f"\n{heads} heads of {width}, {size} queries and keys, {listed} keys listed each, milliseconds at least:\n"
        f"forward: lists {1e3 * (lists + 2 * row):.3f}, softmax {1e3 * softmax:.3f}\n"
        f"backward: lists {1e3 * 4 * row:.3f}, softmax {1e3 * max(2 * softmax, 5 * products):.3f} (twice its forward pass)"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--capabilities", type=int, nargs="+", default=list(CAPABILITIES), choices=list(CAPABILITIES))
    parser.add_argument("--estimate", type=int, metavar="KEYS", help="print bounds of the time of attention with so many keys")
    parser.add_argument("--output", type=Path, help="file of comma-separated values to write the table to")
    options = parser.parse_args()
    found: list[tuple[str | int, ...]] = [("compute capability", *COLUMNS)]
    for capability in options.capabilities:
        print(f"\nCompute capability {capability // 10}.{capability % 10}, Triton {triton.__version__}\n")
        print(f"| {' | '.join(COLUMNS)} |")
        print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for cells in lines(capability):
            found.append((f"{capability // 10}.{capability % 10}", *cells))
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if options.estimate:
            estimate(options.estimate, capability)
    if options.output:
        with options.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(found)


if __name__ == "__main__":
    main()
