"""Row kernels on NVIDIA GPUs: which Triton program serves which call, and in which shape.

The functions named like row kernels are their ``cuda``; they return NotImplemented where there is no program for a call.
Triton is imported by the first call: the package works without it.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import constant_in_graphs

__all__ = [
    "budget_product",
    "capped_product",
    "center_on_support",
    "chosen_product",
    "entmax_product",
    "hoyer_product",
    "in_range",
    "launch",
    "map_budget",
    "map_capped",
    "map_entmax",
    "project_hoyer",
    "project_simplex",
    "runs_on",
    "threshold_hard",
]

# Bytes of a row that a warp keeps in registers: 32 float32 per thread. A row of 1024 entries then belongs to one warp, whose
# threads do not wait for others, and enough warps are resident to hide memory latency.
WARP_BYTES = 4096
LOAD_BYTES = 512  # bytes that a warp loads at once
MOST_WARPS = 16
LONG_WARPS = 8  # for rows that are longer still, read in blocks
#: Kinds of devices whose attention and lists have programs. Tests add the CPU, where Triton's interpreter runs them.
DEVICES = ["cuda"]
LEAST_VERSION = 3  # of Triton: older compilers cannot reduce tensors of three dimensions
LEAST_CAPABILITY = (8, 0)  # Triton's own bound, and the first with bfloat16
LONGEST = 1 << 30  # offsets within a row are 32-bit integers
ALL_ROWS, FLAT_ROWS, STEEP_ROWS = 0, 1, 2


def project_simplex(x: Tensor, gamma: float, k: int) -> Any:
    """Project rows onto the simplex on a GPU; see :data:`lit_sparse.kernels.simplex.project_simplex`."""
    if not _serves(x, gamma):
        return NotImplemented
    return _launch("project_simplex", _like(x), (x,), (), (*_parts(gamma), k), x.dtype, some=0 < k < x.shape[-1])


def center_on_support(v: Tensor, y: Tensor, gamma: float) -> Any:
    """Multiply by the Jacobian of the simplex projection on a GPU; see :data:`lit_sparse.kernels.simplex.center_on_support`."""
    if not _serves(v, gamma):
        return NotImplemented
    return _launch("apply_jacobian", _like(v), (v, y), (y,), _parts(1.0 / gamma), v.dtype, single=True, power="zero")


def map_entmax(x: Tensor, alpha: float | Tensor, gamma: float) -> Any:
    """Compute alpha-entmax of rows on a GPU; see :data:`lit_sparse.mappings.entmax.kernel.map_entmax`.

    For alpha > 2 the derivative of the result is unbounded at its zeros, so these rows are computed in float64. If alpha is
    a tensor on the GPU, reading it would synchronize the device; instead, two launches each skip the other's rows.
    """
    if not _serves(x, gamma):
        return NotImplemented
    out, dtype = _like(x), x.dtype
    squares = not isinstance(alpha, Tensor) and alpha == 1.5
    alphas, single = (x, True) if squares else _row_parameter(alpha, x)
    parts = [(ALL_ROWS, dtype)]
    if isinstance(alpha, Tensor) and dtype != torch.float64:
        parts = [(FLAT_ROWS, dtype), (STEEP_ROWS, torch.float64)]
    elif not isinstance(alpha, Tensor) and alpha > 2:
        parts = [(ALL_ROWS, torch.float64)]
    for part, width in parts:
        _launch("map_entmax", out, (x,), (alphas,), _parts(1.0 / gamma), width, part=part, single=single, squares=squares)
    return out


def entmax_product(v: Tensor, y: Tensor, alpha: float | Tensor, gamma: float) -> Any:
    """Multiply by the Jacobian of alpha-entmax on a GPU; see :data:`lit_sparse.mappings.entmax.kernel.entmax_product`."""
    if not _serves(v, gamma):
        return NotImplemented
    known = {1.5: "half", 2.0: "zero"}.get(alpha, "any") if not isinstance(alpha, Tensor) else "any"
    alphas, single = _row_parameter(alpha, v) if known == "any" else (v, True)
    return _launch("apply_jacobian", _like(v), (v, y), (alphas,), _parts(1.0 / gamma), v.dtype, single=single, power=known)


def threshold_hard(x: Tensor, k: int, nonneg: bool) -> Any:
    """Keep the k largest entries of rows on a GPU; see :data:`lit_sparse.mappings.hard_threshold.kernel.threshold_hard`."""
    if not _serves(x):
        return NotImplemented
    chosen = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    out = _launch("threshold_hard", _like(x), (chosen, x), (), (k,), x.dtype, kind="positive" if nonneg else "magnitude")
    return out, chosen


def chosen_product(v: Tensor, y: Tensor, chosen: Tensor) -> Any:
    """Keep the chosen entries of rows on a GPU; see :data:`lit_sparse.mappings.hard_threshold.kernel.chosen_product`."""
    if not _serves(v):
        return NotImplemented
    return _launch("keep_chosen", _like(v), (v, y, chosen), (), (), v.dtype)


def map_capped(x: Tensor, rho: float | Tensor, gamma: float) -> Any:
    """Compute capped softmax of rows on a GPU; see :data:`lit_sparse.mappings.capped_softmax.kernel.map_capped`."""
    if not _serves(x, gamma):
        return NotImplemented
    rhos, single = _row_parameter(rho, x)
    return _launch("map_capped", _like(x), (x,), (rhos,), _parts(1.0 / gamma), x.dtype, single=single)


def capped_product(v: Tensor, y: Tensor, x: Tensor, rho: float | Tensor, gamma: float) -> Any:
    """See :data:`lit_sparse.mappings.capped_softmax.kernel.capped_product`."""
    if not _serves(v, gamma):
        return NotImplemented
    rhos, single = _row_parameter(rho, v)
    return _launch("capped_jacobian", _like(v), (v, y, x), (rhos,), _parts(1.0 / gamma), v.dtype, single=single)


def map_budget(x: Tensor, k: float | Tensor, gamma: float) -> Any:
    """Compute budget sparsemax of rows on a GPU; see :data:`lit_sparse.kernels.budget_sparsemax.map_budget`."""
    if not _serves(x, gamma):
        return NotImplemented
    labels = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    ks, single = _row_parameter(k, x)
    return _launch("map_budget", _like(x), (labels, x), (ks,), _parts(gamma), torch.float64, single=single), labels


def budget_product(v: Tensor, y: Tensor, labels: Tensor, gamma: float) -> Any:
    """See :data:`lit_sparse.kernels.budget_sparsemax.budget_product`."""
    if not _serves(v, gamma):
        return NotImplemented
    return _launch("budget_jacobian", _like(v), (v, y, labels), (), _parts(1.0 / gamma), v.dtype)


def project_hoyer(x: Tensor, sparseness: float | Tensor, norm: float | Tensor, nonneg: bool) -> Any:
    """Compute the Hoyer projection of rows on a GPU; see :data:`lit_sparse.mappings.hoyer.kernel.project_hoyer`.

    Float64 rows are left to the reference, since squares would leave its range.
    """
    if not _serves_hoyer(x):
        return NotImplemented
    (sparseness, single), (norm, single_norm) = _row_parameter(sparseness, x), _row_parameter(norm, x)
    constants = {"single": single, "single_norm": single_norm, "nonneg": nonneg}
    return _launch("project_hoyer", _like(x), (x,), (sparseness, norm), (), torch.float64, **constants)


def hoyer_product(v: Tensor, y: Tensor, x: Tensor, nonneg: bool) -> Any:
    """Multiply by the Jacobian of the Hoyer projection on a GPU.

    See :data:`lit_sparse.mappings.hoyer.backward.hoyer_product`.
    """
    if not _serves_hoyer(v):
        return NotImplemented
    return _launch("hoyer_jacobian", _like(v), (v, y, x), (), (), torch.float64)


def _serves_hoyer(x: Tensor) -> bool:
    return x.dtype != torch.float64 and not _is_long(x.shape[-1], torch.float64) and _serves(x)


def launch(name: str, grid: tuple[int, ...], given: tuple[Any, ...], **constants: Any) -> None:
    """Run ``grid`` instances of a Triton program on the current stream of the first argument's device."""
    device = given[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        getattr(programs_on(device), name)[grid](*given, **constants)


def _launch(
    name: str,
    out: Tensor,
    rows: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    dtype: torch.dtype,
    **constants: Any,
) -> Tensor:
    """Run a program of rows.

    Args:
        name: name of the program.
        out: contiguous tensor for the result.
        rows: (..., d) inputs of one shape, and further results.
        others: inputs that are contiguous already.
        numbers: arguments after the number and length of the rows.
        dtype: type to compute in, float32 for the half types.
        constants: constants that are compiled into the program, besides its shape.

    Returns:
        ``out``.
    """
    import triton.language as tl

    d = out.shape[-1]
    n = out.numel() // d
    shape = _shape(d, dtype, out.element_size())
    given = (out, *[tensor.contiguous() for tensor in rows], *others, n, d // shape["unit"], *numbers)
    width = tl.float64 if dtype == torch.float64 else tl.float32
    launch(name, (-(-n // shape["rows"]),), given, width=width, **shape, **constants)
    return out


def _shape(d: int, dtype: torch.dtype, size: int) -> dict[str, int]:
    """Choose the tile of a program and its warps.

    Args:
        d: length of the rows.
        dtype: type to compute in.
        size: bytes of an entry in memory.
    """
    per_warp = _per_warp(dtype)
    long = _is_long(d, dtype)
    block = LONG_WARPS * per_warp if long else 1 << (d - 1).bit_length()
    groups = min(block, LOAD_BYTES // size)
    return {
        "unit": math.gcd(d, 16),
        "rows": max(1, per_warp // 4 // block),  # a quarter: what is known of each row takes registers too
        "depth": block // groups,
        "groups": groups,
        "long": long,
        "num_warps": max(1, block // per_warp),
    }


def _serves(x: Tensor, gamma: float = 1.0) -> bool:
    """Return whether there are programs for the rows of a tensor."""
    return x.shape[-1] <= LONGEST and in_range(gamma) and programs_on(x.device) is not None


def in_range(gamma: float) -> bool:
    """Return whether programs can take a strength, and its inverse, in float32."""
    return 1e-30 <= gamma <= 1e30


@cache
def programs_on(device: torch.device) -> ModuleType | None:
    """Return the module of Triton programs if they can run on a device, else None.

    On the CPU, they run if Triton's interpreter is used.
    """
    try:
        import triton

        from lit_sparse.kernels.gpu import triton_programs
    except ImportError:
        return None
    if int(triton.__version__.split(".")[0]) < LEAST_VERSION:
        return None
    if device.type != "cuda":
        return triton_programs
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return None
    try:
        with torch.cuda.device(device):
            triton.runtime.driver.active.get_current_target()
    except RuntimeError as error:  # without a C compiler, say
        warnings.warn(f"Triton cannot start, so slower operations replace its kernels: {error}", stacklevel=2)
        return None
    return triton_programs


@constant_in_graphs
def runs_on(device: torch.device) -> bool:
    """Return whether the Triton programs of attention and of lists run on a device."""
    return device.type in DEVICES and programs_on(device) is not None


def _per_warp(dtype: torch.dtype) -> int:
    """Return how many entries a warp keeps in registers."""
    return WARP_BYTES // (8 if dtype == torch.float64 else 4)


def _is_long(d: int, dtype: torch.dtype) -> bool:
    """Return whether a row does not fit into registers."""
    return d > MOST_WARPS * _per_warp(dtype)


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _parts(value: float) -> tuple[float, float]:
    """Split a number into two that float32 holds: Triton takes no float64 from Python."""
    high = float(np.float32(value))
    return high, value - high


def _row_parameter(alpha: float | Tensor, x: Tensor) -> tuple[Tensor, bool]:
    """Return a row parameter as a contiguous tensor on the device of x, and whether it is one number for all rows."""
    if not isinstance(alpha, Tensor):
        return torch.full((1,), alpha, dtype=torch.float64, device=x.device), True
    alpha = alpha.detach().to(x.device)
    if alpha.numel() == 1:
        return alpha.reshape(1), True
    return alpha.expand(*x.shape[:-1], 1).reshape(-1).contiguous(), False
