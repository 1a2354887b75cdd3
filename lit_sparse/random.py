"""Random numbers as a function of (seed, index): equal on every device, in every batch, on any number of processes.

The SplitMix64 finalizer (Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195) scrambles a counter, in integer arithmetic
that torch performs identically on all devices. Suitable for noise on data and samples of latent variables, not for
cryptography.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.tensors import INTEGERS, check_tensor
from lit_sparse.ground.torch_internals import call_operator, is_jit_tracing

__all__ = ["example_keys", "seed_generator", "seeded_normal", "seeded_uniform"]


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


GAMMA = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _scrambled(x: Tensor) -> Tensor:
    x = _folded(x, 30).mul_(FIRST)
    x = _folded(x, 27).mul_(SECOND)
    return _folded(x, 31)


def _folded(x: Tensor, bits: int) -> Tensor:
    """Return ``x ^ (x >> bits)`` with a single new tensor, because allocation takes longer than the arithmetic."""
    return _shifted(x, bits).bitwise_xor_(x)


def _keys(seed: int, index: Tensor, shape: tuple[int, ...], stream: int) -> Tensor:
    key = torch.tensor(_signed(seed * 0x632BE59BD9B4E019 + stream), dtype=torch.int64, device=index.device)
    return _scrambled(_scrambled(key + GAMMA) + index.long() * GAMMA)


def _bits(seed: int, index: Tensor, shape: tuple[int, ...], stream: int) -> Tensor:
    key = _keys(seed, index, (), stream)
    counter = torch.arange(1, math.prod(shape) + 1, device=index.device) * GAMMA
    return _scrambled(key.unsqueeze(-1) + counter).reshape(*index.shape, *shape)


def _uniform(seed: int, index: Tensor, shape: tuple[int, ...], stream: int) -> Tensor:
    return _shifted(_bits(seed, index, shape, stream), 40).float().mul_(2.0**-24)


def _normal(seed: int, index: Tensor, shape: tuple[int, ...], stream: int) -> Tensor:
    bits = _bits(seed, index, (*shape, 2), stream)
    radius = torch.sqrt(-2.0 * torch.log((_shifted(bits[..., 0], 40).float() + 1.0) * 2.0**-24))
    return radius * torch.cos(2.0 * math.pi * _shifted(bits[..., 1], 40).float() * 2.0**-24)


def _whole(name: str, function: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return a function that a graph holds as one operator: compilers do not do integer arithmetic modulo 2^64."""
    if not hasattr(torch.library, "custom_op"):  # before torch 2.4
        return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call, unused-ignore]

    def like(seed: int, index: Tensor, shape: tuple[int, ...], stream: int) -> Tensor:
        return index.new_empty((*index.shape, *shape), dtype=dtype)

    schema = "(SymInt seed, Tensor index, SymInt[] shape, SymInt stream) -> Tensor"
    whole = torch.library.custom_op(f"lit_sparse::{name}", function, mutates_args=(), schema=schema)
    whole.register_fake(like)

    def vmap(info: Any, dims: tuple[Any, ...], seed: int, index: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return whole(seed, index.movedim(dims[1], 0), *rest), 0

    if hasattr(whole, "register_vmap"):
        whole.register_vmap(vmap)

    def call(seed: int, index: Tensor, shape: tuple[int, ...], stream: int) -> Tensor:
        if torch.compiler.is_compiling() or is_jit_tracing():
            seed = seed if -(2**63) <= seed < 2**63 else _signed(seed)
            found: Tensor = call_operator(whole, seed, index, shape, stream)
            return found
        return function(seed, index, shape, stream)

    return call


_whole_keys = _whole("example_keys", _keys, torch.int64)
_whole_uniform = _whole("seeded_uniform", _uniform, torch.float32)
_whole_normal = _whole("seeded_normal", _normal, torch.float32)


def example_keys(seed: int, index: Tensor, stream: int) -> Tensor:
    """Return the random keys (B,) int64 of examples at indices (B,), from which their random numbers are generated."""
    return _whole_keys(_seed_for(index, seed), index, (), _integer("stream", stream))


def seeded_uniform(seed: int, index: Tensor, shape: tuple[int, ...] = (), *, stream: int = 0) -> Tensor:
    """Return samples from the uniform distribution on [0, 1), as a function of the seed and each example's index.

    Args:
        seed: any integer.
        index: (B,) integers, such as the positions of examples in their data set.
        shape: shape of the sample for each index.
        stream: number that separates samples of the same seed for different purposes.

    Returns:
        (B, *shape) float32.

    Example:
        >>> a = seeded_uniform(0, torch.tensor([7, 3]), (2,))
        >>> bool((a[1] == seeded_uniform(0, torch.tensor([3]), (2,))[0]).all())
        True
    """
    return _whole_uniform(_seed_for(index, seed), index, _shape(shape), _integer("stream", stream))


def seeded_normal(seed: int, index: Tensor, shape: tuple[int, ...] = (), *, stream: int = 0) -> Tensor:
    """Return samples from the standard normal distribution, as a function of the seed and each example's index.

    The Box-Muller method is used; for the arguments, see :func:`seeded_uniform`.
    """
    return _whole_normal(_seed_for(index, seed), index, _shape(shape), _integer("stream", stream))


def _seed_for(index: Tensor, seed: int) -> int:
    """Return a seed that is an integer, for an index of integers; text times a large number would fill the memory."""
    check_tensor(index, "an integer tensor as index", dtypes=INTEGERS)
    return _integer("seed", seed)


def _integer(name: str, value: int) -> int:
    try:
        return value if torch.compiler.is_compiling() else operator.index(value)
    except TypeError as error:
        raise ConfigurationError(f"Expected argument `{name}` to be an integer but got {value!r}.") from error


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if torch.compiler.is_compiling() or is_jit_tracing():
        return shape
    if not isinstance(shape, tuple | list) or not all(hasattr(size, "__index__") and size >= 0 for size in shape):
        raise ConfigurationError(f"Expected argument `shape` to be a tuple of sizes but got {shape!r}.")
    return tuple(shape)


@checked
def seed_generator(seed: int, device: torch.device) -> None:
    """Seed torch's CPU generator and the generator of one device; faster than ``torch.manual_seed``, which seeds all devices.

    ``torch.manual_seed`` takes a millisecond, too long for a call in every step, because it stores a stack trace for each
    kind of device that is not in use yet.

    Args:
        seed: 0 .. 2^64 - 1.
        device: device of the model.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    elif device.type == "cuda":
        torch.default_generator.manual_seed(seed)
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)
