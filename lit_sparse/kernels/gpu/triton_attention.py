"""Attention in blocks on NVIDIA GPUs: the launch of its Triton programs."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lit_sparse.kernels.gpu.triton_rows import in_range, launch, runs_on

__all__ = ["BlockOptions", "attend", "differentiate", "serves"]


class BlockShape(NamedTuple):
    """Size of a block of queries and keys, and how the Triton program of a block runs.

    Attributes:
        rows: number of queries.
        columns: number of keys.
        warps: number of warps.
        stages: number of pipeline stages, the blocks of keys in flight.
        precision: how float32 factors are multiplied if ``torch.get_float32_matmul_precision()`` is ``"highest"``.
    """

    rows: int
    columns: int
    warps: int
    stages: int = 1
    precision: str = "ieee"  # of no use in half precision


#: Shapes for each dtype, for keys and values of up to 64 entries and for wider ones; the first were chosen on an H100. Products
#: by "tf32x3" are three of TF32 on tensor cores, which together have nearly the precision of float32.
BLOCKS = {
    torch.float32: (BlockShape(64, 64, 4, precision="tf32x3"), BlockShape(32, 32, 8, precision="tf32x3")),
    torch.float16: (BlockShape(64, 64, 4, stages=2), BlockShape(64, 64, 8)),
    torch.bfloat16: (BlockShape(64, 64, 4, stages=2), BlockShape(64, 64, 8)),
}
#: Largest number of entries of a key or a value; more would not fit into registers.
WIDEST = 128
#: Alphas below are nearly softmax: without sparsity, and the powers of 1 / (alpha - 1) lose digits.
LEAST_ALPHA = 1.05


class BlockOptions(NamedTuple):
    """Parameters of the mapping and of the scores in blockwise attention.

    Attributes:
        alpha: alpha of the entmax, from 1.05 to 2.
        gamma: strength of the mapping's regularizer.
        scale: factor of the query-key products.
        is_causal: whether a query sees no key after its own position.
    """

    alpha: float
    gamma: float
    scale: float
    is_causal: bool


#: Query, key, value, mask and options.
Given: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None, BlockOptions]


def serves(device: torch.device, dtype: torch.dtype, alpha: float, gamma: float, widths: tuple[int, int]) -> bool:
    """Return whether blockwise attention has Triton programs for these tensors.

    Args:
        device: device of the tensors.
        dtype: their dtype.
        alpha: alpha of the entmax.
        gamma: strength of the mapping.
        widths: entries of a key and of a value.
    """
    return dtype in BLOCKS and LEAST_ALPHA <= alpha <= 2 and in_range(gamma) and max(widths) <= WIDEST and runs_on(device)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: BlockOptions) -> tuple[Tensor, ...]:
    """Return the attention output (N, L, W), and query statistics and nonzero blocks for :func:`differentiate`.

    Args:
        query: (N, L, E) contiguous, not empty, N query heads over all examples. B divides N: each key head serves N / B
            consecutive query heads.
        key: (B, S, E) contiguous.
        value: (B, S, W) contiguous.
        mask: boolean (..., L, S) of any strides, whose leading dimensions have N elements; True at allowed positions.
        options: parameters of the mapping and the scores.
    """
    count, length, size, block = len(query), query.shape[1], key.shape[1], block_of(query.dtype, key.shape[2], value.shape[2])
    output = query.new_empty(count, length, value.shape[2])
    statistics = query.new_empty(count, 4, length, dtype=torch.float32)
    live = query.new_zeros(count, -(-length // block.rows), -(-size // block.columns), dtype=torch.int8)
    given = (query, key, value, mask, options)
    _launch("attend_blocks", live[..., 0].numel(), (output, statistics, live), given)
    return output, statistics, live


def differentiate(
    slope: Tensor,
    attended: tuple[Tensor, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: BlockOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value in blockwise attention.

    Args:
        slope: (N, L, W) contiguous, the gradient of the output.
        attended: results of :func:`attend`.
        query: argument of :func:`attend`.
        key: argument of :func:`attend`.
        value: argument of :func:`attend`.
        mask: argument of :func:`attend`.
        options: argument of :func:`attend`.
    """
    output, statistics, live = attended
    grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    given = (query, key, value, mask, options)
    _launch("differentiate_queries", live[..., 0].numel(), (grads[0], statistics, live, output, slope), given)
    _launch("differentiate_keys", len(key) * live.shape[2], (*grads[1:], statistics, live, slope), given)
    return grads


def _launch(name: str, grid: int, tensors: tuple[Tensor, ...], given: Given) -> None:
    """Run a number of instances of a program, with these tensors as its first arguments, on the inputs of :func:`attend`."""
    query, key, value, mask, options = given
    device, eps = query.device, options.alpha - 1
    places, row_step, column_step = (query, 0, 0) if mask is None else (places_of(mask), *mask.stride()[-2:])
    seen = query if mask is None else mask.view(torch.uint8)
    sizes = (query.shape[1], *key.shape[1:], value.shape[2], len(query) // len(key))
    numbers = (options.scale, 1.0 / options.gamma, eps)
    launch(
        name,
        (grid,),
        (*tensors, query, key, value, seen, places, row_step, column_step, *sizes, *numbers),
        masked=mask is not None,
        causal=options.is_causal,
        **shape_of(query.dtype, key.shape[2], value.shape[2], eps, device),
    )


def block_of(dtype: torch.dtype, width: int, depth: int) -> BlockShape:
    """Return the block shape for keys and values of the given head dimensions."""
    return BLOCKS[dtype][max(width, depth) > 64]


def shape_of(dtype: torch.dtype, width: int, depth: int, eps: float, device: torch.device) -> dict[str, Any]:
    """Return the compile-time constants of the attention programs, and their number of warps.

    Args:
        dtype: dtype of the tensors.
        width: head dimension of keys.
        depth: head dimension of values.
        eps: alpha - 1.
        device: device of the tensors; on the CPU, Triton's interpreter runs the programs.
    """
    import triton

    block = block_of(dtype, width, depth)
    precise = torch.get_float32_matmul_precision() == "highest"
    return {
        "power": {1.0: "one", 0.5: "two"}.get(eps, "any"),
        "depth": max(16, triton.next_power_of_2(depth)),
        **constants_of(block if precise else block._replace(precision="tf32"), dtype, width, device),
    }


def constants_of(block: BlockShape, dtype: torch.dtype, width: int, device: torch.device) -> dict[str, Any]:
    """Return the compile-time constants that all programs over scores take, for keys of some width, and the number of warps."""
    import triton
    import triton.language as tl

    types = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    return {
        "rows": block.rows,
        "columns": block.columns,
        "width": max(16, triton.next_power_of_2(width)),
        "operand": types[dtype] if device.type == "cuda" else tl.float32,  # the interpreter multiplies no bfloat16
        "precision": block.precision,
        "num_warps": block.warps,
        "num_stages": block.stages,
    }


def places_of(mask: Tensor) -> Tensor:
    """Return the memory offset (N,) of each head of a mask or a bias (..., L, S)."""
    places = torch.zeros((), dtype=torch.int64, device=mask.device)
    for size, stride in zip(mask.shape[:-2], mask.stride()[:-2], strict=True):
        places = places.unsqueeze(-1) + torch.arange(size, device=mask.device) * stride
    return places.flatten()
