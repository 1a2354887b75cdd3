"""The Triton programs against the CPU kernels: in Triton's interpreter anywhere, and compiled on a GPU where there is one.

Each check takes the device of the tensors. On the CPU it needs the interpreter, which an environment variable must ask for
before Triton is imported: so it runs in a process of its own, which is this file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.kernels import RowKernel, center_on_support, project_simplex
from lit_sparse.kernels.budget_sparsemax import budget_product, map_budget
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.mappings.capped_softmax.kernel import capped_product, map_capped
from lit_sparse.mappings.entmax.kernel import entmax_product, map_entmax
from lit_sparse.mappings.hard_threshold.kernel import chosen_product, threshold_hard
from lit_sparse.mappings.hoyer.backward import hoyer_product
from lit_sparse.mappings.hoyer.kernel import project_hoyer
from tests.support.processes import run_python
from tests.support.watched_memory import watched_memory

LENGTHS = (1, 2, 7, 65, 64, 300, 1000)
LONG = {
    torch.float64: 9000,
    torch.float32: 17000,
    torch.bfloat16: 17000,
    torch.float16: 17000,
}  # longer than what registers hold
# The interpreter cuts bfloat16 off where a GPU rounds it.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 6e-4}
HOSTILE = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3e38, -3e38, 1.0, 1.0, 1e4, 1e-6)


def on(device: str, kernel: RowKernel, *args: object) -> Tensor:
    """Call the CUDA implementation of a kernel itself, on a device."""
    assert kernel.cuda is not None
    result = kernel.cuda(*[_on(device, arg) for arg in args])
    assert isinstance(result, Tensor), "there is no program for this call"
    assert result.is_contiguous()
    return result.cpu()


def _on(device: str, arg: Any) -> Any:
    return arg.to(device) if isinstance(arg, Tensor) else arg


def exact(kernel: RowKernel, *args: object) -> Tensor:
    """Call a kernel on the CPU, in float64."""
    return kernel(*[arg.double() if isinstance(arg, Tensor) else arg for arg in args])


def cases(seed: int, lengths: tuple[int, ...] = LENGTHS, count: int = 9) -> Iterator[tuple[Tensor, float]]:
    """Draw rows, ordinary and hostile, with a strength: every length in float32, every third in the other types."""
    rng = np.random.default_rng(seed)
    for d in lengths:
        for dtype in TOLERANCE:
            if dtype != torch.float32 and lengths.index(d) % 3:
                continue
            length = min(d, LONG[dtype])
            x = rng.standard_normal((count, length)) * 10.0 ** rng.integers(-4, 5, (count, 1))
            x[0] = rng.standard_normal(length)
            x[1] = rng.standard_normal(length).round()  # ties
            x[2, rng.random(length) < 0.5] = -math.inf  # a mask
            x[3] = -math.inf  # nothing is allowed
            x[4] = 7.5  # a constant
            invalid = rng.random((count, length)) < 0.2
            invalid[:5] = False
            x = np.where(invalid, rng.choice(HOSTILE, (count, length)), x)
            x[5, 0], x[6, -1] = math.nan, math.inf
            limit = torch.finfo(dtype).max
            scores = torch.from_numpy(np.where(np.isfinite(x), x.clip(-limit, limit), x)).to(dtype)
            yield scores, float(rng.choice([1.0, 0.1, 3.0, 1e-3, 1e3]))


def agree(got: Tensor, expected: Tensor, what: str, tolerance: float | None = None) -> float:
    """Compare with a float64 result; return the largest difference, relative to the largest entry if that exceeds 1."""
    assert torch.equal(got.isnan(), expected.isnan()), what
    size = float(expected.nan_to_num(0.0).abs().max().clamp_min(1.0))
    error = float((got.double() - expected).nan_to_num(0.0).abs().max()) / size
    assert error <= (tolerance or TOLERANCE[got.dtype]), f"{what}: {error}"
    return error


class Worst:
    """The largest differences met, by type."""

    def __init__(self) -> None:
        self.errors: dict[torch.dtype, float] = {}

    def note(self, got: Tensor, expected: Tensor, what: str) -> None:
        self.errors[got.dtype] = max(self.errors.get(got.dtype, 0.0), agree(got, expected, what))

    def __str__(self) -> str:
        return ", ".join(f"{str(dtype)[6:]} {error:.1e}" for dtype, error in self.errors.items())


def check_projection(device: str) -> None:
    worst, worst_product = Worst(), Worst()
    for x, gamma in cases(0):
        d = x.shape[-1]
        for k in (0, 1, 3, d + 1) if x.dtype == torch.float32 else (0, 2):
            what = f"d {d}, {x.dtype}, gamma {gamma}, k {k}"
            y = on(device, project_simplex, x, gamma, k)
            worst.note(y, exact(project_simplex, x, gamma, k), what)
            whole = ~y.isnan().any(-1)
            assert (y[whole] >= 0).all()
            if k:
                assert ((y[whole] > 0).sum(-1) <= k).all(), what
        v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        v[y == 0] = math.nan  # ignored
        expected = exact(center_on_support, v, y, gamma)
        worst_product.note(on(device, center_on_support, v, y, gamma), expected, what)
    print(f"projection: {worst}; its Jacobian: {worst_product}")


def check_entmax(device: str) -> None:
    worst, worst_product = Worst(), Worst()
    mixed = torch.tensor([1.5, 1.0, 1.25, 1.75, 2.0, 1.5, 2.5, 4.0, 0.5]).unsqueeze(-1)
    for x, gamma in cases(1):
        for alpha in (1.5, 1.0, 1.2, 3.0, 0.3, mixed, torch.tensor([[1.5]], dtype=torch.float64)):
            if isinstance(alpha, float) and alpha not in (1.5, 1.2) and x.shape[-1] in (2, 64, 300):
                continue
            name = alpha if isinstance(alpha, float) else f"{alpha.numel()} alphas"
            what = f"d {x.shape[-1]}, {x.dtype}, gamma {gamma}, alpha {name}"
            y = on(device, map_entmax, x, alpha, gamma)
            worst.note(y, exact(map_entmax, x, alpha, gamma), what)
            v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
            v[y == 0] = math.nan
            expected = exact(entmax_product, v, y, alpha, gamma)
            bounded = (expected.abs().amax(-1, keepdim=True) <= 1e4) | expected.isnan().any(-1, keepdim=True)
            got = on(device, entmax_product, v, y, alpha, gamma)
            # Beyond alpha = 2 the Jacobian is unbounded where y nears 0.
            worst_product.note(torch.where(bounded, got, 0.0), torch.where(bounded, expected, 0.0), what)
    steep = torch.tensor([[0.0, -0.01, -0.02], [0.0, -0.3, -0.0095], [0.0, 0.0, -math.inf]], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        for alpha in (15.0, 60.0, 99.0):
            y = torch.cat([exact(map_entmax, steep, alpha, 1.0), torch.zeros(3, LONG[dtype])], -1).to(dtype)
            v = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            for d in (3, y.shape[-1]):  # weights of the Jacobian are too large for their type, products are not
                part = v[:, :d].contiguous(), y[:, :d].contiguous()
                got, expected = on(device, entmax_product, *part, alpha, 1.0), entmax_product(*part, alpha, 1.0)
                agree(got, expected.double(), f"Jacobian at alpha {alpha}, d {d}, {dtype}")
    print(f"alpha-entmax: {worst}; its Jacobian: {worst_product}")


def check_hard_threshold(device: str) -> None:
    assert threshold_hard.cuda is not None
    for x, _ in cases(3):
        for k, nonneg in ((1, False), (3, True), (x.shape[-1] // 2 + 1, False), (x.shape[-1] + 1, True)):
            what = f"d {x.shape[-1]}, {x.dtype}, k {k}, {nonneg}"
            expected, kept = threshold_hard(x, k, nonneg)
            y, chosen = (part.cpu() for part in threshold_hard.cuda(x.to(device), k, nonneg))
            assert torch.equal(chosen, kept), what
            torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
            v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
            v[kept == 0] = math.nan
            found = on(device, chosen_product, v, y, chosen)
            torch.testing.assert_close(found, chosen_product(v, y, kept), rtol=0, atol=0, equal_nan=True)
    print("hard threshold: equal")


def check_capped(device: str) -> None:
    worst, worst_product = Worst(), Worst()
    mixed = torch.tensor([0.5, 0.1, 0.9, 1e-3, 0.999, 0.5, 0.3, 0.0, 2.0]).unsqueeze(-1)
    for x, gamma in cases(4):
        for rho in (0.3, 0.01, mixed):
            what = f"d {x.shape[-1]}, {x.dtype}, gamma {gamma}, rho {rho if isinstance(rho, float) else 'mixed'}"
            y, expected = on(device, map_capped, x, rho, gamma), exact(map_capped, x, rho, gamma)
            worst.note(y, expected, what)
            v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
            v[y == 0] = math.nan
            worst_product.note(
                on(device, capped_product, v, y, x, rho, gamma), exact(capped_product, v, y, x, rho, gamma), what
            )
    print(f"capped softmax: {worst}; its Jacobian: {worst_product}")


def check_budget(device: str) -> None:
    worst, worst_product = Worst(), Worst()
    mixed = torch.tensor([2.0, 0.0, 1.0, 3.5, 1e-3, 2.0, 1.0, -1.0, math.inf]).unsqueeze(-1)
    assert map_budget.cuda is not None
    for x, gamma in cases(5):
        for k in (1.0, 2.5, math.inf, mixed):
            what = f"d {x.shape[-1]}, {x.dtype}, gamma {gamma}, k {k if isinstance(k, float) else 'mixed'}"
            expected, labels = map_budget(x, k, gamma)
            y, found = (part.cpu() for part in map_budget.cuda(x.to(device), _on(device, k), gamma))
            worst.note(y, expected.double(), what)
            assert torch.equal(found, labels), what
            v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
            v[labels < 0] = math.nan
            worst_product.note(
                on(device, budget_product, v, y, labels, gamma), exact(budget_product, v, y, labels, gamma), what
            )
    print(f"budget: {worst}; its Jacobian: {worst_product}")


def check_hoyer(device: str) -> None:
    worst, worst_product = Worst(), Worst()
    for x, _ in cases(6):
        if x.dtype == torch.float64:
            continue
        for sparseness, norm, nonneg in (
            (0.6, 1.0, False),
            (0.9, 2.0, True),
            (torch.linspace(0, 1, 9).unsqueeze(-1), 1.0, True),
        ):
            what = f"d {x.shape[-1]}, {x.dtype}, nonneg {nonneg}"
            y = on(device, project_hoyer, x, sparseness, norm, nonneg)
            expected = exact(project_hoyer, x, sparseness, norm, nonneg)
            worst.note(y, expected, what)
            v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
            v[y == 0] = math.nan
            product = exact(hoyer_product, v, y, x, nonneg)
            steep = product.abs().amax(-1, keepdim=True) > 1e4
            found = on(device, hoyer_product, v, y, x, nonneg)
            worst_product.note(found.masked_fill(steep, 0.0), product.masked_fill(steep, 0.0), what)
    print(f"Hoyer: {worst}; its Jacobian: {worst_product}")


def check_streamed(device: str) -> None:
    """Rows that registers do not hold are read again and again; here they hold little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_rows, "WARP_BYTES", 32)
        patch.setattr(triton_rows, "LOAD_BYTES", 64)
        patch.setattr(triton_rows, "MOST_WARPS", 4)
        x, gamma = list(cases(7, (100,)))[1]
        assert x.dtype == torch.float32
        v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        rounded = x.clamp(-10, 10).round()  # of which many are equal
        rounded[1] = torch.tensor([0.0, -0.0]).repeat(50)
        for kernel, *args in (
            (project_simplex, x, gamma, 0),
            (project_simplex, x, gamma, 2),
            (project_simplex, rounded, 9.0, 20),
            (map_entmax, x, 1.7, gamma),
            (map_capped, x, 0.1, gamma),
        ):
            agree(on(device, kernel, *args), exact(kernel, *args), f"{kernel}, {args[1:]}")
        y = map_capped(x, 0.1, gamma)
        agree(on(device, capped_product, v, y, x, 0.1, gamma), exact(capped_product, v, y, x, 0.1, gamma), "capped product")
        for kernel, *args in ((threshold_hard, rounded, 20, False), (map_budget, x, 2.5, gamma)):
            assert kernel.cuda is not None
            expected, places = kernel(*args)
            y, found = kernel.cuda(*[_on(device, arg) for arg in args])
            assert torch.equal(found.cpu(), places)
            agree(y.cpu(), expected.double(), f"{kernel}")
            product, more = (chosen_product, ()) if kernel is threshold_hard else (budget_product, (gamma,))
            agree(on(device, product, v, expected, places, *more), exact(product, v, expected, places, *more), f"{product}")
    y = project_hoyer(x, 0.6, 1.0, False)
    agree(on(device, project_hoyer, x, 0.6, 1.0, False), exact(project_hoyer, x, 0.6, 1.0, False), "Hoyer")
    product = exact(hoyer_product, v, y, x, False)
    agree(on(device, hoyer_product, v, y, x, False), product, "Hoyer product", 1e-4)
    print("streamed rows: equal")


def check_long_rows(device: str) -> None:
    worst, worst_product = Worst(), Worst()
    for x, gamma in cases(2, (10**6,), 8):
        what = f"d {x.shape[-1]}, {x.dtype}, gamma {gamma}"
        y = on(device, project_simplex, x, gamma, 0)
        worst.note(y, exact(project_simplex, x, gamma, 0), what)
        v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        worst_product.note(on(device, center_on_support, v, y, gamma), exact(center_on_support, v, y, gamma), what)
        for alpha in (1.5, torch.linspace(1.0, 2.0, 8).unsqueeze(-1)) if x.dtype != torch.float16 else ():
            y = on(device, map_entmax, x, alpha, gamma)
            worst.note(y, exact(map_entmax, x, alpha, gamma), what)
            expected = exact(entmax_product, v, y, alpha, gamma)
            worst_product.note(on(device, entmax_product, v, y, alpha, gamma), expected, what)
    x = -torch.rand(1, 100_000, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[:, 0] = 0.5
    total = float(on(device, project_simplex, x, 100.0, 0).double().sum())
    assert abs(total - 1) <= 1e-6
    print(f"long rows: {worst}; Jacobians: {worst_product}; sum of 100,000: 1 {total - 1:+.1e}")


def check_properties(device: str) -> None:
    # Rows on which Newton's method gives up one entry a pass.
    slow = torch.zeros(150, dtype=torch.float64)
    for i in range(1, 150):
        slow[i] = (slow[:i].sum() - 1) / i - 1e-9
    for row in (slow.flip(0), slow[:50], -torch.logspace(-12, 0, 300, dtype=torch.float64)):
        for dtype in (torch.float64, torch.float32):
            x = row.to(dtype).expand(2, -1)
            agree(on(device, project_simplex, x, 1.0, 0), exact(project_simplex, x, 1.0, 0), "slow rows", 1e-6)

    # A row's result does not depend on other rows.
    x = torch.randn(40, 33, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 2, 40).unsqueeze(-1)
    alpha = torch.linspace(1.0, 3.0, 40).unsqueeze(-1)
    y, z = on(device, project_simplex, x, 1.0, 0), on(device, map_entmax, x, alpha, 1.0)
    for i in (0, 7, 39):
        assert torch.equal(on(device, project_simplex, x[i], 1.0, 0), y[i])
        assert torch.equal(on(device, map_entmax, x[i : i + 1], alpha[i : i + 1], 1.0), z[i : i + 1])

    # Any batch, any strides; an alpha for each head.
    x = torch.randn(9, 4, 2, 3, generator=torch.Generator().manual_seed(0)).permute(3, 2, 1, 0)
    alpha = torch.tensor([1.3, 1.9]).reshape(2, 1, 1)[None]
    agree(on(device, project_simplex, x, 1.0, 0), exact(project_simplex, x, 1.0, 0), "strides")
    agree(on(device, map_entmax, x, alpha, 1.0), exact(map_entmax, x, alpha, 1.0), "strides")
    y = exact(map_entmax, x, alpha, 1.0).float()
    agree(on(device, entmax_product, x, y, alpha, 1.0), exact(entmax_product, x, y, alpha, 1.0), "strides")

    # The k largest by their own values, where subtraction of the maximum makes ties.
    x = torch.tensor([[1e8, 1.0, 3.0, 2.0]])
    assert on(device, project_simplex, x, 1e10, 2)[0, 2] > 0

    # More scores than float32 can distinguish from the first.
    for scale in (1e-6, 1.0, 1e6):
        x = 1e4 + scale * torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
        for alpha in (1.5, 1.7):
            agree(on(device, map_entmax, x, alpha, 1.0), exact(map_entmax, x, alpha, 1.0), "shifted rows")

    # Many entries that enter the support one after another, where the sum has almost a kink for each.
    x = 1e-4 * torch.randn(2, 2000, generator=torch.Generator().manual_seed(0))
    for alpha in (1.9, 1.99, 2.0):
        agree(on(device, map_entmax, x, alpha, 0.1), exact(map_entmax, x, alpha, 0.1), f"near ties, alpha {alpha}", 2e-6)
    print("properties: hold")


def check_odd_parameters(device: str) -> None:
    """Parameters of rows that are out of range, or not numbers, also of a row where nothing is allowed."""
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    x[7] = -math.inf
    odd = torch.tensor([math.nan, -1.0, 2.0, math.inf, -math.inf, 0.0, 1.0, math.nan]).unsqueeze(-1)
    agree(on(device, project_hoyer, x, odd, 1.0, True), exact(project_hoyer, x, odd, 1.0, True), "sparseness")
    agree(on(device, project_hoyer, x, 0.5, odd, False), exact(project_hoyer, x, 0.5, odd, False), "norm")
    for kernel, product, more in ((map_entmax, entmax_product, ()), (map_capped, capped_product, (x,))):
        y = exact(kernel, x, odd, 1.0)
        agree(on(device, kernel, x, odd, 1.0), y, f"{kernel}")
        given = (torch.ones_like(x), y.float(), *more, odd, 1.0)
        agree(on(device, product, *given), exact(product, *given), f"{product}")
    print("odd parameters: equal")


def check_compiles(device: str) -> None:
    """Compile for a GPU that need not be there: the interpreter accepts what the compiler does not."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lit_sparse.kernels.gpu import triton_programs, triton_rows

    def compiled(name: str, d: int, dtype: torch.dtype, element: str, **constants: object) -> tuple[str, int]:
        program = getattr(triton_programs, name)
        shape = triton_rows._shape(d, dtype, {"bf16": 2, "fp32": 4, "fp64": 8}[element])
        options = {"num_warps": shape.pop("num_warps")}
        width = tl.float64 if dtype == torch.float64 else tl.float32
        fixed = {**shape, **constants, "width": width}
        numbers = {"n": "i32", "units": "i32", "k": "i32", "high": "fp32", "low": "fp32"}
        names = program.arg_names
        types = {arg: "constexpr" if arg in fixed else numbers.get(arg, f"*{element}") for arg in names}
        aligned = {
            (i,): [["tt.divisibility", 16]]
            for i, arg in enumerate(names)
            if types[arg].startswith("*") or (arg == "units" and d % 256 == 0)
        }
        source = ASTSource(program, types, {(names.index(arg),): value for arg, value in fixed.items()}, aligned)
        built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
        return built.asm["ptx"], built.metadata.shared

    fast = [("project_simplex", {"some": False}), ("map_entmax", {"part": 0, "single": True, "squares": True})]
    fast += [("apply_jacobian", {"power": power, "single": True}) for power in ("zero", "half")]
    for name, constants in fast:
        for element in ("fp32", "bf16"):
            for d in (7, 1024, 40_000) if element == "fp32" else (1024,):
                code, shared = compiled(name, d, torch.float32, element, **constants)
                if d == 1024:  # the row is one warp's alone, read and written once, 16 bytes a thread at a time
                    assert shared == 0
                    assert "bar.sync" not in code
                    size = 4 if element == "fp32" else 2
                    assert code.count("st.global.v4.b32") == d * size // 512
                    assert code.count("ld.global.v4.b32") == d * size // 512 * (2 if name == "apply_jacobian" else 1)
    for dtype, element in ((torch.float32, "fp32"), (torch.float64, "fp64")):
        compiled("project_simplex", 300, dtype, element, some=True)
    for part, dtype in ((1, torch.float32), (2, torch.float64)):
        for element in ("fp32", "bf16"):
            compiled("map_entmax", 300, dtype, element, part=part, single=False, squares=False)
    compiled("apply_jacobian", 300, torch.float32, "fp32", power="any", single=False)
    print("every program: compiles")


CHECKS: dict[str, Callable[[str], None]] = {
    "projection": check_projection,
    "entmax": check_entmax,
    "hard_threshold": check_hard_threshold,
    "capped": check_capped,
    "budget": check_budget,
    "hoyer": check_hoyer,
    "streamed": check_streamed,
    "long_rows": check_long_rows,
    "properties": check_properties,
    "odd_parameters": check_odd_parameters,
}
QUICK = ("properties", "streamed", "odd_parameters")


@pytest.mark.gate
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CHECKS])
def test_in_the_interpreter(name: str) -> None:
    pytest.importorskip("triton")
    assert run_python("-m", "tests.kernels.gpu.test_triton_programs", name, TRITON_INTERPRET="1")


@pytest.mark.slow
def test_the_programs_compile(tmp_path: Path) -> None:
    pytest.importorskip("triton", minversion="3.3")  # whose compiler can be called like this
    assert run_python("-m", "tests.kernels.gpu.test_triton_programs", "compiles", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_on_each_gpu(name: str) -> None:
    pytest.importorskip("triton")
    for i in range(torch.cuda.device_count()):
        CHECKS[name](f"cuda:{i}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_stream_of_the_callers() -> None:
    x = torch.randn(4096, 1024)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        leaf = x.cuda().requires_grad_()
        y = map_entmax(leaf, 1.5, 1.0)
    stream.synchronize()
    torch.testing.assert_close(y.cpu(), map_entmax(x, 1.5, 1.0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("gamma", [1e-39, 1e39])
def test_strengths_beyond_float32_are_left_to_other_operations(gamma: float) -> None:
    x = torch.zeros(2, 3)
    assert triton_rows.project_simplex(x, gamma, 0) is NotImplemented
    assert triton_rows.entmax_product(x, x, 1.5, gamma) is NotImplemented


@pytest.mark.gate
def test_the_package_works_without_triton() -> None:
    """Triton is not imported with the package, and a call without it is left to the plain operations."""
    code = (
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import torch\n"
        "from lit_sparse.kernels import project_simplex; from lit_sparse.kernels.gpu import triton_rows\n"
        "assert 'lit_sparse.kernels.gpu.triton_programs' not in sys.modules\n"
        "assert triton_rows.project_simplex(torch.zeros(2, 3), 1.0, 0) is NotImplemented\n"
        "assert triton_rows.entmax_product(torch.zeros(2, 3), torch.zeros(2, 3), 1.5, 1.0) is NotImplemented\n"
        "assert project_simplex(torch.zeros(2), 1.0, 0).tolist() == [0.5, 0.5]\n"
    )
    run_python("-c", code)


if __name__ == "__main__":
    for check in sys.argv[1:]:
        if check == "compiles":
            check_compiles("cpu")
        else:
            with watched_memory():
                CHECKS[check]("cpu")
