"""alpha-entmax of rows, and its Jacobian.

With ``eps = alpha - 1`` and ``z = (x - max x) / gamma`` the result is ``y = [1 + eps (z - t)]_+^(1 / eps)``, the deformed
exponential of ``z - t``, which becomes ``exp(z - t)`` as eps -> 0, t the deformed logarithm of the partition function.
Newton's method runs on ``(sum y)^eps = 1``: for 1 < alpha <= 2 its left side is a norm, for alpha < 1 a power mean, nearly
linear in t. Below 1 every result is above zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.kernels.cpu.compile import compile_rows
from lit_sparse.kernels.cpu.rows import normalized, scaled_scores
from lit_sparse.kernels.cpu.threads import Array, over_rows
from lit_sparse.kernels.gpu import triton_rows
from lit_sparse.kernels.loops import bisect
from lit_sparse.kernels.row_kernel import row_kernel
from lit_sparse.mappings.entmax.backward import product_block, root_product_block
from lit_sparse.mappings.entmax.forward import is_power, map_block, map_powers_block
from lit_sparse.mappings.entmax.steep import CEILING_DOUBLE, CEILING_SINGLE

__all__ = ["entmax_product", "map_entmax", "map_entmax_root"]

SECONDS, PRODUCT_SECONDS = 3e-9, 1e-9  # for one element, on one thread
REFERENCE_PASSES = 60
# Kinds of alpha: for squares and fourth powers, others up to 2 (or NaN), and above 2. Each has its own code, so that
# only what is used is compiled; scores are mapped in float64 where alpha is above 2.
MAPS = (map_powers_block, map_block, map_block)
PRODUCTS = (root_product_block, product_block, product_block)
WIDE = np.empty((1, 1))
POWERS = (1.5, 1.25)
ROUNDINGS = 16.0  # of an excess
KINDS_OF_BITS = ((), (0,), (1,), (0, 1), (2,), (0, 2), (1, 2), (0, 1, 2))


@compile_rows()
def _kind_bits(alphas: Any) -> Any:
    """Return a number with bit k set if some alpha is of kind k."""
    bits = 0
    for i in range(len(alphas)):
        bits |= 1 if is_power(alphas[i]) else 4 if alphas[i] > 2.0 else 2
    return bits


def _kinds(alphas: Array) -> tuple[int, ...]:
    """Return the kinds of alpha that there are. The functions of one kind leave out the rows of the others."""
    if len(alphas) == 1:
        alpha = alphas.item()
        return (0,) if alpha in POWERS else (2,) if alpha > 2.0 else (1,)
    return KINDS_OF_BITS[_kind_bits(alphas)]


def _map_cpu(out: Array, x: Array, alphas: Array, gamma: float) -> None:
    for kind in _kinds(alphas):
        options = ((), (x, None), (WIDE, True))[kind]
        over_rows(MAPS[kind], x.shape, SECONDS, out, x, alphas, gamma, *options)


def _product_cpu(out: Array, v: Array, y: Array, alphas: Array, gamma: float) -> None:
    for kind in _kinds(alphas):
        options = ((), (None,), (True,))[kind]
        over_rows(PRODUCTS[kind], y.shape, PRODUCT_SECONDS, out, v, y, alphas, gamma, *options)


@row_kernel(_map_cpu, triton_rows.map_entmax)
def map_entmax(x: Tensor, alpha: float | Tensor, gamma: float) -> Tensor:
    """Return alpha-entmax of ``x / gamma`` (..., d); alpha is (..., 1) or a number.

    ``-inf`` marks an entry that is not allowed; a row without allowed entries gives zeros, a row with NaN or +inf, or an alpha
    of 0 or less, gives NaN at its allowed entries.

    This definition brackets the threshold and bisects, in the scale on which the largest score is 1.
    """
    eps = torch.as_tensor(alpha, dtype=x.dtype, device=x.device) - 1
    z, allowed, invalid = scaled_scores(x, gamma, ~(eps > -1))
    flat = ~(eps.abs() >= 1e-6) | (eps <= -1)
    safe = torch.where(flat, 1e-6, eps)

    def deformed(t: Tensor, z: Tensor, allowed: Tensor, safe: Tensor, flat: Tensor) -> Tensor:
        m = safe * (z - t)
        power = torch.exp(torch.log1p(m.clamp_min(-1 + 1e-7 if x.dtype == torch.float32 else -1 + 1e-15)) / safe)
        power = torch.where(m > -1, power, torch.zeros_like(power))
        return torch.where(allowed, torch.where(flat, torch.exp(z - t), power), torch.zeros_like(z))

    def above(t: Tensor, *constants: Tensor) -> Tensor:
        return deformed(t, *constants).sum(-1, keepdim=True) >= 1

    size = torch.ones_like(x).sum(-1, keepdim=True).log()
    upper = torch.where(flat, size, -torch.expm1(-safe * size) / safe) + 1e-3
    constants = (z, allowed, safe, flat)
    lower = bisect(above, torch.zeros_like(z[..., :1]), upper, constants, REFERENCE_PASSES)
    return normalized(deformed(lower, *constants), allowed, invalid)


def _map_root_cpu(out: Array, x: Array, gamma: float) -> None:
    _map_cpu(out, x, np.full(1, 1.5), gamma)


@row_kernel(_map_root_cpu)
def map_entmax_root(x: Tensor, gamma: float) -> Tensor:
    """Return 1.5-entmax of ``x / gamma`` (..., d).

    This definition has no loop: it is the closed form by sorting (Peters, Niculae & Martins 2019, algorithm 2).
    """
    allowed = x != -torch.inf
    invalid = ~(x < torch.inf).all(-1, keepdim=True)
    z = torch.where(invalid | ~allowed.any(-1, keepdim=True), 0.0, (x - x.amax(-1, keepdim=True)) / (2 * gamma))
    z = z.clamp_min(-1)  # the threshold, for a largest entry of 0, is not lower
    ranked = z.sort(dim=-1, descending=True, stable=True).values
    count = torch.ones_like(z).cumsum(-1)
    mean = ranked.cumsum(-1) / count
    spread = ranked.square().cumsum(-1) / count - mean.square()
    tau = mean - (1 / count - spread).clamp_min(0).sqrt()
    size = (tau <= ranked).sum(-1, keepdim=True)
    excess = z - tau.gather(-1, (size - 1).clamp_min(0))
    y = torch.where(allowed & (excess > ROUNDINGS * torch.finfo(x.dtype).eps), excess.square(), 0.0)
    return normalized(y, allowed, invalid)


@row_kernel(_product_cpu, triton_rows.entmax_product)
def entmax_product(v: Tensor, y: Tensor, alpha: float | Tensor, gamma: float) -> Tensor:
    """Return the product J v of the Jacobian of alpha-entmax at its result y.

    It is ``s (v - sum s v / sum s) / gamma`` with ``s = y^(2 - alpha)``. For alpha > 2, where the s of a small y may
    overflow, it is computed as ``(s u - p sum s u) / gamma`` with u = v - v_m and p = s / sum s, m being the place of
    the largest s.

    Args:
        v: (..., d) directions.
        y: (..., d) results of the mapping.
        alpha: number, or tensor (..., 1).
        gamma: strength of the regularizer.
    """
    support = y != 0
    power = 2 - torch.as_tensor(alpha, dtype=y.dtype, device=y.device)
    base = torch.where(support, y, 1.0)
    base = torch.where(power < 0, base.clamp_min(4 * torch.finfo(y.dtype).tiny), base)  # whose inverse is finite
    rate = torch.where(support, power * base.detach().log(), -torch.inf)
    most = rate.detach().argmax(-1, keepdim=True)
    peak = base.gather(-1, most)
    ceiling = CEILING_DOUBLE if y.dtype == torch.float64 else CEILING_SINGLE
    fine = support & ~(rate > ceiling)
    s = torch.where(fine, torch.where(fine, base, 1.0) ** power, torch.full_like(base, math.exp(ceiling)))
    p = torch.where(support, (base / peak) ** power, 0.0)
    p = torch.where(y.isnan(), y, p)  # NaN to the power of 0 is 1
    p = p / p.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    v = torch.where(support, v - v.gather(-1, most), 0.0)  # incoming gradients outside the support are ignored
    pull = torch.where(support, s * v, 0.0)
    return torch.where(support, (pull - p * pull.sum(-1, keepdim=True)) / gamma, 0.0).to(v.dtype)
