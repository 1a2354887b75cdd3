"""Minimization of a convex function minus a linear one over the simplex, for many rows at once, and the solution's derivatives.

Every row takes accelerated projected gradient steps (FISTA), which find the support, and Newton steps on it, which are exact
in the end. The derivative is the solution of one linear system, the optimality conditions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import can_read_values, on_values
from lit_sparse.kernels.simplex import project_simplex

__all__ = ["FLOOR", "Omega", "SimplexProblem", "one_number_a_row"]

Omega = Callable[[Tensor], Tensor]

FLOOR = 1e-12  # Omega is evaluated here instead of nearer to zero, where slopes may be infinite
HALVINGS = 60  # of a gradient step
VALUE_ERRORS, SLOPE_ERRORS = 64, 8  # rounding errors that a value of Omega and a residual may carry
LEAST_SIZE = 16  # linear systems are padded to this size, and to powers of two: what a row gets depends on no other
HESSIAN_NUMBERS = 1 << 21  # in one batch of linear systems


class _Point(NamedTuple):
    """Points of the simplex, one per row, with values and derivatives of ``Omega(y) - <y, z>``."""

    y: Tensor  # (rows, d)
    slope: Tensor  # (rows, d), less its mean under y: what moving mass to an entry costs
    landing: Tensor  # (rows, d), where a projected gradient step of length 1 ends
    value: Tensor  # (rows,)
    residual: Tensor  # (rows,), distance to the landing: zero at the solution alone
    rounding: Tensor  # (rows,), one rounding error

    def at(self, index: Tensor) -> _Point:
        return _Point(*[tensor[index] for tensor in self])

    def change_to(self, other: _Point) -> tuple[Tensor, Tensor]:
        """Return by how much the value is larger at other points, and how far off this may be.

        Omega is convex, so the slopes at both ends bound it: over short distances better than the difference of values.
        """
        move = other.y - self.y
        low, high = (self.slope * move).sum(-1), (other.slope * move).sum(-1)
        spread, rounding = 0.5 * (high - low), VALUE_ERRORS * self.rounding
        change = torch.where(spread > rounding, other.value - self.value, 0.5 * (low + high))
        return change.nan_to_num(torch.inf, torch.inf), torch.minimum(spread.clamp_min(0), rounding).nan_to_num(0.0)


class SimplexProblem:
    """The problem ``min Omega(y) - <y, z>`` over the simplex for rows z = scores / gamma, with the derivatives of its solution.

    Arithmetic is in float64 if the device supports it. Omega is also evaluated in float64, unless its own tensors have
    fewer bits. Parameters of a module Omega are arguments, so that derivatives with respect to them exist.
    """

    def __init__(self, omega: Omega, gamma: float, max_iter: int, tol: float) -> None:
        self.omega, self.gamma, self.max_iter, self.tol = omega, gamma, max_iter, tol / max(1.0, gamma)
        named = dict(omega.named_parameters()) if isinstance(omega, nn.Module) else {}
        self.names, self.parameters = tuple(named), tuple(named.values())
        self.buffers = dict(omega.named_buffers()) if isinstance(omega, nn.Module) else {}
        self.dtype = self.width = torch.float64  # of Omega, and of the rest of the arithmetic
        # Rows that did not converge, their largest residual, and rows where Omega turned out not to be convex.
        self.unfinished, self.worst, self.bent = 0, 0.0, 0

    def settle(self, x: Tensor) -> None:
        """Choose the dtypes of the arithmetic and of Omega for scores (rows, d).

        Raises:
            ConfigurationError: if Omega has no gradient.
        """
        self.dtype = self.width = torch.float32 if x.device.type == "mps" else torch.float64
        if x.dtype != self.dtype:
            try:
                with torch.no_grad(), _own_precision(x):
                    self.regularizer(torch.ones_like(x[:1], dtype=self.dtype), self.parameters)
            except RuntimeError:  # a product with a float32 matrix, say
                self.dtype = x.dtype
        if can_read_values() and not torch.is_inference_mode_enabled():
            with torch.enable_grad(), _own_precision(x):
                point = torch.full(x[:1].shape, 1 / x.shape[-1], dtype=self.dtype, device=x.device, requires_grad=True)
                if not self.regularizer(point, tuple([it.detach() for it in self.parameters])).requires_grad:
                    raise ConfigurationError(
                        "Expected `omega` to have a gradient but got none. Leave out detach() and no_grad()."
                    )

    def regularizer(self, y: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return Omega(y), shape (rows,), for y (rows, d) that is not below FLOOR."""
        y = y.to(self.dtype)
        if not isinstance(self.omega, nn.Module):
            return one_number_a_row(self.omega(y), y)
        tensors = {**self.buffers, **dict(zip(self.names, parameters, strict=True))}
        tensors = {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in tensors.items()}
        return one_number_a_row(functional_call(self.omega, tensors, (y,)), y)

    def gradient(self, y: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return the gradient (rows, d) of Omega at y (rows, d)."""
        return grad(lambda point: self.regularizer(point, parameters).sum())(y.clamp_min(FLOOR))  # type: ignore[no-any-return]

    def evaluate(self, y: Tensor, z: Tensor, parameters: tuple[Tensor, ...]) -> _Point:
        """Return the value and the derivatives of the objective at y (rows, d), given z (rows, d).

        Below FLOOR, Omega is continued by its tangent.
        """

        def total(point: Tensor) -> tuple[Tensor, Tensor]:
            omega = self.regularizer(point, parameters)
            return omega.sum(), omega

        point = y.clamp_min(FLOOR)
        slope, (_, omega) = grad_and_value(total, has_aux=True)(point)
        value = omega.to(y.dtype) + (slope * (y - point)).sum(-1) - torch.where(y != 0, y * z, 0.0).sum(-1)
        size = 1 + omega.abs() + torch.where(y > 0, slope.abs() + z.abs(), 0.0).amax(-1)
        slope = slope - z
        slope = slope - (y * slope).sum(-1, keepdim=True)
        landing = project_simplex(y - slope, 1.0, 0)
        return _Point(y, slope, landing, value, (y - landing).norm(dim=-1), torch.finfo(omega.dtype).eps * size)

    @on_values
    def solve(self, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return the solution for scores (rows, d), NaN for rows that hold NaN or +inf."""
        with torch.inference_mode(False), _own_precision(x):
            z = x.clone().to(self.width)
            z = (z - z.amax(-1, keepdim=True)) / self.gamma
            y, whole = torch.full_like(z, torch.nan), z.isfinite().all(-1)
            if bool(whole.any()):
                y[whole] = self._iterate(z[whole], parameters)
            return y.to(x.dtype)

    def _iterate(self, z: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        solution, waiting = torch.full_like(z, torch.nan), torch.arange(len(z), device=z.device)
        now = self.evaluate(torch.full_like(z, 1 / z.shape[-1]), z, parameters)
        first, ahead, momentum, curvature = now, now.y, torch.ones_like(z[:, :1]), torch.ones_like(z[:, :1])
        for iteration in range(self.max_iter):
            step, curvature = self._descend(ahead, z, 0.5 * curvature, parameters)
            # The first gradient step already shows most of the support: Newton's method waits for it.
            candidates = [now.y, step, *(self._newton_steps(now, parameters) if iteration else ())]
            before, (now, which) = now, self._best(now, candidates, z, parameters)
            accelerated = (which == 1).unsqueeze(-1)  # anything else restarts the momentum
            after = torch.where(accelerated, 0.5 * (1 + (1 + 4 * momentum.square()).sqrt()), 1.0)
            ahead = (now.y + torch.where(accelerated, (momentum - 1) / after, 0.0) * (now.y - before.y)).clamp_min(0)
            ahead, momentum = ahead / ahead.sum(-1, keepdim=True), after

            close = now.residual <= (SLOPE_ERRORS * now.rounding).clamp_min(self.tol)
            stalled = (now.residual > 0.25 * before.residual) | (now.residual <= now.rounding)
            broken = ~now.residual.isfinite()
            done = (close & stalled) | broken
            if iteration == self.max_iter - 1:
                late = ~close & ~broken
                self.unfinished += int(late.sum())
                self.worst = max(self.worst, float(torch.where(late, now.residual, 0.0).amax()))
                done = torch.ones_like(done)
            if bool(done.any()):
                rise = ((now.slope - first.slope) * (now.y - first.y)).sum(-1)  # not negative if Omega is convex
                self.bent += int((done & (rise < -VALUE_ERRORS * (first.rounding + now.rounding))).sum())
                solution[waiting[done & ~broken]] = now.y[done & ~broken]
                if bool(done.all()):
                    break
                waiting, z, first, now = waiting[~done], z[~done], first.at(~done), now.at(~done)
                ahead, momentum, curvature = ahead[~done], momentum[~done], curvature[~done]
        solution = torch.where(solution <= FLOOR, 0.0, solution)
        return solution / solution.sum(-1, keepdim=True)

    def _descend(self, y: Tensor, z: Tensor, curvature: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the projected gradient step of length 1 / curvature, and the curvature for which it descends enough."""
        start = self.evaluate(y, z, parameters)
        for _ in range(HALVINGS):
            step = project_simplex(y - start.slope / curvature, 1.0, 0)
            move, end = step - y, self.evaluate(step, z, parameters)
            bend, square = start.change_to(end)[0] - (start.slope * move).sum(-1), move.square().sum(-1)
            slack = VALUE_ERRORS * start.rounding * square.sqrt()
            steep = (bend > 0.5 * curvature.squeeze(-1) * square + slack).unsqueeze(-1)
            if not bool(steep.any()):
                break
            seen = (2 * bend / square).nan_to_num(0.0, 0.0, 0.0).unsqueeze(-1)
            curvature = torch.where(steep, torch.maximum(2 * curvature, seen), curvature)
        return step, curvature

    def _newton_steps(self, now: _Point, parameters: tuple[Tensor, ...]) -> list[Tensor]:
        """Return the Newton step on the support, taken in three ways.

        An additive step, followed by a projection, reaches zeros and is exact for quadratics. A multiplicative step is exact
        for entropies. A damped multiplicative step descends for barriers.
        """
        support = (now.y > FLOOR) | (now.landing > 0) | (now.slope < 0)
        move = self.newton(-now.slope, now.y, support, parameters)
        floor = now.y.clamp_min(FLOOR)
        pace = move / floor
        grown = [floor * factor.exp() for factor in (pace.clamp(-40, 40), pace / (1 + pace.norm(dim=-1, keepdim=True)))]
        grown = [torch.where(support, y, 0.0) for y in (now.y + move, *grown)]
        return [project_simplex(grown[0], 1.0, 0), *[y / y.sum(-1, keepdim=True) for y in grown[1:]]]

    def _best(self, now: _Point, candidates: list[Tensor], z: Tensor, parameters: tuple[Tensor, ...]) -> tuple[_Point, Tensor]:
        """Return the best candidate of each row and its number, by value, or by residual if values are equal up to rounding."""
        k, rows = len(candidates), torch.arange(len(z), device=z.device)
        points = self.evaluate(torch.cat(candidates), z.repeat(k, 1), parameters)
        change, error = now.at(rows.repeat(k)).change_to(points)
        tied = (change - error).view(k, -1) <= (change + error).view(k, -1).amin(0)
        residual = points.residual.view(k, -1)
        tied = (tied | (now.residual <= self.tol)) & ~residual.isnan()
        which = torch.where(tied, residual, torch.inf).argmin(0)
        return points.at(which * len(z) + rows), which

    def newton(self, v: Tensor, y: Tensor, support: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return u, zero outside the support, with ``B u = v - tau 1`` on it and ``sum u = 0``; B is the Hessian at y.

        With A the Jacobian of the projection these are the equations ``(I + A (B - I)) u = A v``, in a symmetric form.

        Args:
            v: (rows, d).
            y: (rows, d), not below zero.
            support: boolean (rows, d).
            parameters: parameters of Omega.
        """
        d = y.shape[-1]
        sizes = support.sum(-1).clamp_min(LEAST_SIZE).double().log2().ceil().exp2().long().clamp_max(d)
        result = torch.zeros_like(v)
        for size in sizes.unique().tolist():  # type: ignore[no-untyped-call]
            for rows in (sizes == size).nonzero().squeeze(-1).split(max(1, HESSIAN_NUMBERS // (size * d))):
                columns = support[rows].byte().argsort(dim=-1, descending=True, stable=True)[:, :size]
                where = (rows.unsqueeze(-1), columns)
                hessian = self._hessian(y[rows], columns, parameters).to(v.dtype)
                result = result.index_put(where, _on_support(hessian, v[where], support[where]))
        return result

    def _hessian(self, y: Tensor, columns: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return the Hessian of Omega at y (rows, d) in the given columns (rows, size), shape (rows, size, size)."""
        (n, size), d = columns.shape, y.shape[-1]
        points = y.clamp_min(FLOOR).unsqueeze(1).expand(n, size, d).reshape(n * size, d)  # a Hessian-vector product each
        directions = torch.zeros_like(points).scatter(-1, columns.reshape(-1, 1), 1.0)
        products = grad(lambda point: (self.gradient(point, parameters) * directions).sum())(points)
        return products.view(n, size, d).gather(-1, columns.unsqueeze(1).expand(n, size, size))  # type: ignore[no-any-return]

    def jvp(self, v: Tensor, y: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return J v (rows, d), J the Jacobian at the solution y (rows, d), in torch operations that can be differentiated."""
        with _own_precision(y):
            broken = y.isnan()
            point = torch.where(broken, 1.0, y).to(self.width)
            u = self.newton(v.to(self.width), point, (y != 0) & ~broken, parameters) / self.gamma
            return torch.where(broken, torch.nan, u.to(y.dtype))


def _on_support(hessian: Tensor, v: Tensor, support: Tensor) -> Tensor:
    """Solve ``hessian u + tau 1 = v``, ``sum u = 0`` on the support, for (rows, size, size) and twice (rows, size)."""
    support = support & (support.sum(-1, keepdim=True) > 1)
    diagonal = hessian.detach().diagonal(dim1=-2, dim2=-1)
    largest = torch.where(support, diagonal, 0.0).amax(-1, keepdim=True)
    # An entropy's Hessian has entries from 1 to 1e12. With a diagonal of ones, rounding is the same everywhere.
    scale = torch.maximum(diagonal, 1e-10 * torch.where(largest > 0, largest, 1.0)).rsqrt()
    scale = torch.where(support, scale, 0.0)
    corner = (~support.any(-1, keepdim=True)).to(v.dtype)
    ridge = 4 * torch.finfo(v.dtype).eps  # never quite singular, even where the solution is not unique
    system = torch.where(support.unsqueeze(-1) & support.unsqueeze(-2), hessian, 0.0)
    system = system * scale.unsqueeze(-1) * scale.unsqueeze(-2) + torch.where(support, ridge, 1.0).diag_embed()
    system = torch.cat([system, scale.unsqueeze(-1)], -1)
    system = torch.cat([system, torch.cat([scale, corner], -1).unsqueeze(-2)], -2)
    right = torch.cat([torch.where(support, v, 0.0) * scale, torch.zeros_like(corner)], -1)
    u = torch.linalg.solve_ex(system, right)[0][:, :-1] * scale
    return torch.where(support, u, 0.0)


def _own_precision(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def one_number_a_row(value: Any, y: Tensor) -> Tensor:
    """Return the values of Omega at y after checking that there is one per row.

    Raises:
        ConfigurationError: if their shape is not (rows,).
    """
    if not isinstance(value, Tensor) or value.shape != y.shape[:-1]:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigurationError(
            f"Expected `omega` to return one number per row, shape {tuple(y.shape[:-1])} for a tensor of shape"
            f" {tuple(y.shape)}, but got {got}. Sum over the last dimension only."
        )
    return value
