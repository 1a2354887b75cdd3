"""Lists of candidates on NVIDIA GPUs, and operations with them: the launch of their Triton programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_sparse.kernels.gpu.triton_attention import BlockShape, constants_of, places_of
from lit_sparse.kernels.gpu.triton_rows import launch, runs_on

__all__ = [
    "Scores",
    "bound_scores",
    "list_marked",
    "multiplies",
    "multiply_listed",
    "ranges_of",
    "scatter_listed",
    "serves",
    "sum_listed",
]

_MASKED_HALF = {64: BlockShape(128, 64, 8, 3), 256: BlockShape(64, 32, 8)}
_HALF = {64: BlockShape(128, 128, 8, 3), 128: BlockShape(128, 128, 8, 2), 256: BlockShape(128, 64, 8)}
#: Shapes for each dtype, by the most entries of a key. They were chosen by registers, shared memory and instructions, which
#: ``scripts/inspect_kernels.py`` counts.
SHAPES = {
    torch.float32: {
        64: BlockShape(64, 64, 4, 3, "tf32"),
        128: BlockShape(64, 64, 4, 1, "tf32"),
        256: BlockShape(32, 32, 4, 1, "tf32"),
    },
    torch.float16: _HALF,
    torch.bfloat16: _HALF,
}
#: The same with a mask or a bias, whose places take registers, and whose layout takes shared memory.
MASKED = {
    torch.float32: {
        64: BlockShape(64, 32, 8, 2, "tf32"),
        128: BlockShape(32, 32, 4, 2, "tf32"),
        256: BlockShape(32, 32, 8, 1, "tf32"),
    },
    torch.float16: _MASKED_HALF,
    torch.bfloat16: _MASKED_HALF,
}
#: For more entries, so many of which are multiplied at a time; a bias is one of each key.
WIDE = {
    torch.float32: (BlockShape(64, 64, 4, 3, "tf32"), 32),
    torch.float16: (BlockShape(128, 128, 8, 3), 64),
    torch.bfloat16: (BlockShape(128, 128, 8, 3), 64),
}
#: How far a product of a block may be from the one of the list, over the product of the norms. Products of halves are exact in
#: float32, and each of 256 additions rounds by at most 2^-22 of the sum of magnitudes; more round in proportion. TF32 cuts each
#: factor of float32 to 10 bits, which changes a product by 2^-9 of itself: too much for an attention weight, and enough for a
#: list.
ROUNDING = {torch.float32: 2.0**-9 + 2.0**-13, torch.float16: 2.0**-13, torch.bfloat16: 2.0**-13}
#: Largest number of entries of a query that registers hold.
WIDEST = 256
#: Bytes of the marks of a launch.
MARKS = 1 << 28
#: Queries, and words of marks, of a program that writes lists.
PART, STEP = 8, 64


class Scores(NamedTuple):
    """The inputs from which attention scores are computed: queries, keys, mask, bias and their options.

    Attributes:
        query: (N, L, E) contiguous, not empty, N query heads over all examples. B divides N: each key head serves N / B
            consecutive query heads.
        key: (B, S, E) contiguous.
        mask: boolean (..., L, S) of any strides, whose leading dimensions have N elements; True at allowed positions.
        bias: floating, of the mask's shape; added to the scores. For head dimensions above 256, it is the same for all
            queries.
        softcap: bound of the scores before the bias is added; 0 for none.
        scale: factor of the query-key products, > 0.
        is_causal: whether a query sees no key after its own position.
        ranges: int32 (..., L, 2) of any strides, whose leading dimensions have N elements: first allowed key of each query,
            and one past the last; both are 0 for a query that sees none. They replace ``is_causal``.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    bias: Tensor | None
    softcap: float
    scale: float
    is_causal: bool
    ranges: Tensor | None = None


def serves(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return whether there are Triton programs for keys of this head dimension with any mask and bias."""
    return dtype in SHAPES and width <= WIDEST and runs_on(device)


def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether there are Triton programs for any head dimension without a mask, and with a bias of each key only."""
    return dtype in WIDE and runs_on(device)


def ranges_of(mask: Tensor, length: int, is_causal: bool) -> tuple[Tensor, bool]:
    """Return the range of allowed keys (..., L, 2) of each query, and whether these ranges describe the mask completely.

    The mask is (..., L or 1, S). Ranges describe padding, packed sequences and sliding windows, causal or not.
    """
    size, seen = mask.shape[-1], mask.view(torch.uint8)
    some, first, last = seen.amax(-1), seen.argmax(-1), size - seen.flip(-1).argmax(-1)
    whole = bool(((last - first) * some == mask.sum(-1)).all())
    first, last, some = (x.expand(*mask.shape[:-2], length) for x in (first, last, some.bool()))
    if is_causal:
        last = torch.minimum(last, torch.arange(1, length + 1, device=mask.device))
    return (torch.stack([first, last], -1) * (some & (first < last)).unsqueeze(-1)).int(), whole


def bound_scores(scores: Scores, alpha: Tensor | float, gamma: float) -> Tensor:
    """Return lower bounds (N, L) on the scores that may have weight, for :func:`list_marked`.

    Args:
        scores: inputs of the scores.
        alpha: alpha of the entmax: a number above 1 or one for each head (N,); where it is at most 1, all keys have weight.
        gamma: strength of the mapping's regularizer.
    """
    query, key, *_ = scores
    heads, length, _ = query.shape
    alphas = torch.as_tensor(alpha, dtype=torch.float32, device=query.device).expand(heads)
    eps = (alphas - 1).clamp_min(1e-9).contiguous()  # 1 and below: all
    norms = torch.linalg.vector_norm(key, dim=-1, dtype=torch.float32).nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)
    bounds = torch.empty(heads, length, device=query.device)
    known = {2.0: "one", 1.5: "two"}.get(alpha, "any") if not isinstance(alpha, Tensor) else "any"
    rounding = ROUNDING[query.dtype] + 2.0**-13 * max(0.0, key.shape[2] / WIDEST - 1)
    others = (eps, length, key.shape[1], heads // len(key), scores.scale, 1.0 / gamma, scores.softcap, rounding)
    _launch_over_scores("bound_scores", _row_blocks(scores)[1], scores, (bounds, query, key, norms), others, power=known)
    return bounds


def list_marked(scores: Scores, bounds: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return lists (N L, C) of the keys whose scores exceed their query's bound, and the number of such keys (N L,).

    Keys are in increasing order, followed by -1. The number may exceed C. A query with an invalid score lists only the
    first such key.

    Args:
        scores: inputs of the scores.
        bounds: (N, L), by :func:`bound_scores`.
        capacity: length C of the lists.
    """
    query, key, *_ = scores
    (heads, length, _), size = query.shape, key.shape[1]
    places = torch.full((heads * length, capacity), -1, dtype=torch.int32, device=query.device)
    counts = places.new_empty(heads * length)
    shape, blocks = _row_blocks(scores)
    words = -(-size // shape.columns) * shape.columns // 32
    some = min(blocks, max(1, MARKS // (4 * shape.rows * words)))
    marks = places.new_empty(some * shape.rows * words)
    part = min(PART, shape.rows)
    for first in range(0, blocks, some):
        number = min(some, blocks - first)
        others = (length, size, heads // len(key), scores.scale, scores.softcap, first, words)
        _launch_over_scores("mark_scores", number, scores, (marks, bounds, query, key), others)
        launch(
            "write_lists",
            (number * (shape.rows // part),),
            (places, counts, marks, bounds, *_places_in(scores.ranges, query), length, size, first, words, capacity),
            ranged=scores.ranges is not None,
            causal=scores.is_causal,
            rows=shape.rows,
            columns=shape.columns,
            part=part,
            step=STEP,
        )
    return places, counts


def multiply_listed(rows: Tensor, matrix: Tensor, places: Tensor, blocks: Tensor) -> Tensor:
    """Return the products (R, C) of rows with the matrix rows they list; see :func:`lit_sparse.nn.lists.listed_products`."""
    out = rows.new_empty(places.shape)
    if out.numel():
        rows, matrix = rows.contiguous(), matrix.contiguous()
        width = _width_of(rows.shape[1])
        pairs = 4096 // width
        given = (out, rows, matrix, places, blocks, out.numel(), matrix.shape[1], rows.shape[1], places.shape[1])
        launch("multiply_listed", (-(-out.numel() // pairs),), given, block=pairs, width=width)
    return out


def sum_listed(weights: Tensor, matrix: Tensor, places: Tensor, blocks: Tensor) -> Tensor:
    """Return the weighted sums (R, E) of the matrix rows that are listed; see :func:`lit_sparse.nn.lists.listed_sums`."""
    count, entries = len(weights), matrix.shape[2]
    out = weights.new_empty(count, entries)
    if out.numel():
        width = _width_of(entries)
        block = 1024 // width
        weights, matrix = weights.contiguous(), matrix.contiguous()
        given = (out, weights, matrix, places, blocks, count, matrix.shape[1], entries, places.shape[1])
        launch("sum_listed", (-(-count // block), -(-entries // width)), given, block=block, width=width)
    return out


def scatter_listed(weights: Tensor, rows: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    """Return (B S, E), at each place the sum of the rows (R, E) that list it, times their weights (R, C).

    Args:
        weights: (R, C).
        rows: (R, E).
        order: (R C,) the slots of all lists, sorted by place.
        starts: (B S + 1,) where each place begins in ``order``.
    """
    entries = rows.shape[1]
    out = rows.new_empty(len(starts) - 1, entries)
    if out.numel():
        width = _width_of(entries)
        given = (out, weights.contiguous(), rows.contiguous(), order, starts, entries, weights.shape[1])
        launch("scatter_listed", (len(out), -(-entries // width)), given, block=2048 // width, width=width)
    return out


def _block_of(scores: Scores) -> BlockShape:
    query, width = scores.query, scores.query.shape[2]
    if width > WIDEST:
        shape, _ = WIDE[query.dtype]
        return shape._replace(columns=64) if _is_ampere(query.device) else shape
    plain, ranged = scores.mask is None and scores.bias is None, scores.ranges is not None
    shape = next(shape for most, shape in (SHAPES if plain else MASKED)[query.dtype].items() if width <= most)
    if not plain or not _is_ampere(query.device):
        return shape
    if width <= 64:
        return shape._replace(columns=64, warps=4)
    if ranged and query.dtype == torch.float32:
        return shape._replace(columns=32)
    return shape._replace(columns=64, rows=64 if ranged and width > 128 else shape.rows)


def _is_ampere(device: torch.device) -> bool:
    """Return whether registers do not hold the largest blocks."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0)


def _row_blocks(scores: Scores) -> tuple[BlockShape, int]:
    """Return the shape of a block, and the number of blocks of queries of all heads."""
    shape = _block_of(scores)
    return shape, len(scores.query) * -(-scores.query.shape[1] // shape.rows)


def _launch_over_scores(
    name: str, grid: int, scores: Scores, before: tuple[Tensor, ...], after: tuple[Any, ...], **constants: Any
) -> None:
    """Run a program over scores, whose mask, bias and ranges stand between its other arguments."""
    query, mask, bias, ranges = scores.query, scores.mask, scores.bias, scores.ranges
    entries = query.shape[2]
    width = WIDE[query.dtype][1] if entries > WIDEST else entries
    seen = None if mask is None else mask.view(torch.uint8)
    between = [part for given in (seen, bias, ranges) for part in _places_in(given, query)]
    constants |= {
        "masked": mask is not None,
        "biased": 0 if bias is None else 1 if bias.stride(-2) else 2,
        "ranged": ranges is not None,
        "capped": scores.softcap > 0,
        "causal": scores.is_causal,
        "entries": entries,
        **constants_of(_block_of(scores), query.dtype, width, query.device),
    }
    launch(name, (grid,), (*before, *between, *after), **constants)


def _places_in(given: Tensor | None, other: Tensor) -> tuple[Any, ...]:
    """Return a tensor (..., L, C), where its heads begin, and its strides; another in its place if there is none."""
    return (other, other, 0, 0) if given is None else (given, places_of(given), *given.stride()[-2:])


def _width_of(entries: int) -> int:
    """Return how many of so many entries a program of listed rows takes at a time."""
    return min(128, max(16, 1 << (entries - 1).bit_length()))
