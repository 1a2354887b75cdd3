"""Regularized argmax for any convex regularizer Omega (Niculae & Blondel 2017): the family's mapping that needs no formula.

Forward: accelerated projected gradient steps (FISTA), and Newton steps on the support that they find. Each row goes its own
way. Backward: one linear system a row, from the optimality conditions; what the iterations did is not differentiated.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jvp, vjp
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.simplex import project_simplex
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.rowwise import along_last, check_count, check_positive

__all__ = ["RegularizedArgmax", "regularized_argmax"]

FLOOR = 1e-12  # Omega is evaluated here instead of nearer to zero, where its slope may be infinite
DENSE = 16  # a support of up to this many entries is not compacted further
HESSIAN_NUMBERS = 1 << 22  # in one batch of Hessians
BACKTRACKS = 60


class _Problem:
    """``min_{y in simplex} Omega(y) - <y, z>`` for every row z = scores / gamma, and the derivatives of its solution.

    Points are (rows, d), in float64 where the device has it; Omega sees them in the scores' own dtype.
    """

    def __init__(self, omega, gamma, max_iter, tol, dtype):
        self.omega, self.gamma, self.max_iter, self.tol = omega, gamma, max_iter, tol
        self.dtype = dtype
        self.names = [name for name, _ in omega.named_parameters()] if isinstance(omega, nn.Module) else []
        self.parameters = tuple(omega.parameters()) if isinstance(omega, nn.Module) else ()
        self.unfinished, self.worst = 0, 0.0
        self.iterations = 0

    def regularizer(self, y, parameters):
        y = y.to(self.dtype)
        out = functional_call(self.omega, dict(zip(self.names, parameters, strict=True)), (y,)) if self.names else self.omega(y)
        if not isinstance(out, Tensor) or out.shape != y.shape[:-1]:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigurationError(
                f"Expected `omega` to map a tensor (..., d) to one number a row, here {tuple(y.shape)} to"
                f" {tuple(y.shape[:-1])}, but got {got}. Sum over the last dimension alone."
            )
        return out

    def gradient(self, y, parameters):
        """Return the gradient of Omega."""
        return grad(lambda y: self.regularizer(y, parameters).sum())(y)

    def newton(self, v, y, support, parameters):
        """Return ``u`` with ``B u = v - tau 1`` and ``sum u = 0`` on each row's support, u = 0 elsewhere; B = Hessian at y.

        It is J v, for the equations ``(I + A (B - I)) u = A v`` say the same.
        """
        d = y.shape[-1]
        counts = support.sum(-1)
        sizes = (2 ** counts.clamp_min(DENSE).double().log2().ceil()).long().clamp_max(d)
        result = torch.zeros_like(v)
        for size in sizes.unique().tolist():
            for rows in (sizes == size).nonzero().squeeze(-1).split(max(1, HESSIAN_NUMBERS // (size * d))):
                columns = support[rows].to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :size]
                where = (rows.unsqueeze(-1), columns)
                part = self._newton_block(v[where], y[rows], columns, support[where], parameters)
                result = result.index_put(where, part)
        return result

    def _newton_block(self, v, y, columns, inside, parameters):
        n, size = columns.shape
        points = y.clamp_min(FLOOR).unsqueeze(1).expand(n, size, -1).reshape(n * size, -1)
        directions = nn.functional.one_hot(columns, y.shape[-1]).to(y.dtype).reshape(points.shape)
        hessian = grad(lambda p: (self.gradient(p, parameters) * directions).sum())(points)
        hessian = hessian.reshape(n, size, -1).gather(-1, columns.unsqueeze(1).expand(n, size, size))
        both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
        diagonal = hessian.detach().diagonal(dim1=-2, dim2=-1)
        largest = torch.where(inside, diagonal, 0.0).amax(-1, keepdim=True)
        scale = torch.maximum(diagonal, 1e-10 * torch.where(largest > 0, largest, 1.0)).rsqrt()
        scale = torch.where(inside, scale, 0.0)
        system = torch.where(both, hessian, 0.0) * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        ridge = torch.where(inside, 4 * torch.finfo(y.dtype).eps, 1.0)
        system = system + torch.diag_embed(ridge)
        system = torch.cat([system, scale.unsqueeze(-2)], -2)
        border = torch.cat([scale, torch.zeros_like(scale[:, :1])], -1)
        system = torch.cat([system, border.unsqueeze(-1)], -1)
        rhs = torch.cat([torch.where(inside, v, 0.0) * scale, torch.zeros_like(scale[:, :1])], -1)
        u = torch.linalg.solve_ex(system, rhs)[0][:, :size] * scale
        return torch.where(inside & (inside.sum(-1, keepdim=True) > 1), u, 0.0)

    def evaluate(self, y, z, parameters):
        def total(y):
            omega = self.regularizer(y, parameters)
            return omega.sum(), omega

        point = y.clamp_min(FLOOR)
        slope, (_, omega) = grad_and_value(total, has_aux=True)(point)
        linear = torch.where(y != 0, y * z, 0.0)
        f = omega.to(y.dtype) + (slope * (y - point)).sum(-1) - linear.sum(-1)
        return f, slope - z, omega.abs() + linear.abs().sum(-1)

    def solve(self, x, parameters):
        width = torch.float32 if x.device.type == "mps" else torch.float64
        x = x.detach().clone().to(width)
        x = x - x.amax(-1, keepdim=True)
        odd = ~x.isfinite().all(-1)
        result = torch.where(odd.unsqueeze(-1), torch.nan, torch.full_like(x, 1 / x.shape[-1]))
        live = (~odd).nonzero().squeeze(-1)
        if live.numel():
            result[live] = self._iterate(x[live] / self.gamma, parameters)
        return result

    def _iterate(self, z, parameters):
        n, d = z.shape
        result = torch.full_like(z, torch.nan)
        eps = torch.finfo(self.dtype).eps
        rows = torch.arange(n, device=z.device)
        y = torch.full_like(z, 1 / d)
        w = y
        t = z.new_ones(n, 1)
        L = z.new_ones(n, 1)
        f, g, scale = self.evaluate(y, z, parameters)
        landing = project_simplex(y - g, 1.0, 0)
        r = (y - landing).norm(dim=-1)
        for it in range(self.max_iter):
            self.iterations = max(self.iterations, it + 1)
            goal = torch.maximum(z.new_tensor(self.tol / max(1.0, self.gamma)), 32 * eps * (1 + torch.where(y > 0, (g+z).abs() + z.abs(), 0.0).amax(-1)))
            # FISTA
            fw, gw, sw = self.evaluate(w, z, parameters)
            slack = 64 * eps * (1 + sw)
            L = 0.5 * L
            for _ in range(BACKTRACKS):
                step = project_simplex(w - gw / L, 1.0, 0)
                change = step - w
                bound = fw + (gw * change).sum(-1) + 0.5 * L.squeeze(-1) * change.square().sum(-1)
                fs = self.evaluate(step, z, parameters)[0]
                ok = fs <= bound + slack
                if ok.all():
                    break
                need = 2 * (fs - fw - (gw * change).sum(-1)) / change.square().sum(-1)
                L = torch.where(ok.unsqueeze(-1), L, torch.maximum(2 * L, need.unsqueeze(-1)))
            candidates = [y, step]
            if it > 0:
                support = (y > FLOOR) | (landing > 0) | (g < (y * g).sum(-1, keepdim=True))
                floor = y.clamp_min(FLOOR)
                move = self.newton(-g, y, support, parameters)
                candidates.append(project_simplex(torch.where(support, y + move, 0.0), 1.0, 0))
                grown = torch.where(support, floor * (move / floor).clamp(-40, 40).exp(), 0.0)
                candidates.append(grown / grown.sum(-1, keepdim=True))
            k = len(candidates)
            stack = torch.stack(candidates)
            fc, gc, sc = self.evaluate(stack.reshape(-1, d), z.repeat(k, 1), parameters)
            lc = project_simplex(stack.reshape(-1, d) - gc, 1.0, 0)
            rc = (stack.reshape(-1, d) - lc).norm(dim=-1).reshape(k, -1)
            fc = torch.where(fc.isnan(), torch.inf, fc).reshape(k, -1)
            best, which = fc.min(0)
            sc = sc.reshape(k, -1).gather(0, which[None])[0]
            near = (fc <= best + 64 * eps * (1 + sc)) | (r <= goal)
            rc = torch.where(near & ~rc.isnan(), rc, torch.inf)
            r_new, which = rc.min(0)
            pick = which.view(1, -1, 1).expand(1, -1, d)
            y_new = stack.gather(0, pick)[0]
            g = gc.view(k, -1, d).gather(0, pick)[0]
            landing = lc.view(k, -1, d).gather(0, pick)[0]
            if DEBUG: print(it, r_new.max().item(), torch.bincount(which, minlength=4).tolist(), L.max().item(), best.min().item())
            fista = (which == 1).unsqueeze(-1)
            t_new = torch.where(fista, 0.5 * (1 + (1 + 4 * t * t).sqrt()), 1.0)
            w = (y_new + torch.where(fista, (t - 1) / t_new, 0.0) * (y_new - y)).clamp_min(FLOOR)
            w = torch.where(fista, w, y_new)
            t = t_new
            floor = torch.maximum(z.new_tensor(self.tol / max(1.0, self.gamma)), 32 * eps * (1 + torch.where(y_new > 0, (g+z).abs() + z.abs(), 0.0).amax(-1)))
            done = ((r_new <= floor) & ((r_new > 0.25 * r) | (r_new <= 1e-14))) | ~r_new.isfinite()
            y, r = y_new, r_new
            if it == self.max_iter - 1:
                late = r > floor
                if late.any():
                    self.unfinished += int(late.sum())
                    self.worst = max(self.worst, float(r[late].max()))
                done = torch.ones_like(done)
            if done.any():
                result[rows[done]] = torch.where(r[done].isfinite().unsqueeze(-1), y[done], torch.nan)
                keep = ~done
                if not keep.any():
                    break
                rows, z, y, w, t, L, g, landing, r = (s[keep] for s in (rows, z, y, w, t, L, g, landing, r))
        result = torch.where(result <= FLOOR, 0.0, result)
        return result / result.sum(-1, keepdim=True)

    def jacobian(self, v, y, parameters):
        whole = torch.where(y.isnan(), torch.nan, 1.0)
        support = (y != 0) & ~y.isnan()
        u = self.newton(v.to(torch.float64), torch.where(y.isnan(), 1.0, y).to(torch.float64), support, parameters)
        return u * whole / self.gamma

DEBUG = False
