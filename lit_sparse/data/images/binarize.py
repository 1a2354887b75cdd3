"""Binarization of images by draws that are a function of (seed, index), in one pass over the pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.random import FIRST, GAMMA, SECOND, example_keys, seeded_uniform

__all__ = ["binarize"]

SECONDS = 2e-9  # for one pixel, on one thread
STEP, FACTOR, OTHER_FACTOR = (np.uint64(constant % 2**64) for constant in (GAMMA, FIRST, SECOND))
UNIT = np.float32(2.0**-24)


@compile_rows()
def _binarize_block(start: Any, stop: Any, out: Any, pixels: Any, keys: Any) -> None:
    """Binarize rows ``start .. stop - 1`` by 24 of the random bits of :func:`lit_sparse.random.seeded_uniform`."""
    for row in range(start, stop):
        for i in range(pixels.shape[1]):
            x = np.uint64(keys[row]) + np.uint64(i + 1) * STEP
            x = (x ^ (x >> np.uint64(30))) * FACTOR
            x = (x ^ (x >> np.uint64(27))) * OTHER_FACTOR  # the last shift does not reach the upper 24 bits
            out[row, i] = np.float32(np.int32(x >> np.uint64(40))) * UNIT < pixels[row, i]


@on_values
def binarize(pixels: Tensor, seed: int, index: Tensor, *, stream: int = 0) -> Tensor:
    """Return binary pixels, each sampled from a Bernoulli distribution with its intensity as mean.

    The samples are a function of the seed and the image's index.

    Args:
        pixels: (B, D) float32 intensities in [0, 1].
        seed: any integer.
        index: (B,) integers, such as the positions of the images in their data set.
        stream: number that separates draws of the same seed for different purposes.

    Example:
        >>> pixels, index = torch.rand(3, 4), torch.tensor([5, 9, 2])
        >>> torch.equal(
        ...     binarize(pixels, 0, index),
        ...     (seeded_uniform(0, index, (4,)) < pixels).float(),
        ... )
        True
    """
    if not pixels.is_cpu or pixels.dtype != torch.float32:
        return (seeded_uniform(seed, index, pixels.shape[1:], stream=stream) < pixels).to(pixels.dtype)
    out, x = torch.empty_like(pixels, memory_format=torch.contiguous_format), pixels.contiguous()
    keys = example_keys(seed, index, stream)
    over_rows(_binarize_block, (x.shape[0], x.shape[1]), SECONDS, out.numpy(), x.numpy(), keys.numpy())
    return out
