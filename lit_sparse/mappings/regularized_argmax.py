"""Regularized argmax for any convex regularizer (Niculae & Blondel 2017): the member of the family that needs no formula.

Forward, every row takes accelerated projected gradient steps (FISTA), which find the support, and Newton steps on it, which
are exact in the end. Backward, it solves one linear system, that of the optimality conditions: the iterations are not
differentiated, so their number costs no memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jvp, vjp
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.dispatch import HALVES
from lit_sparse.kernels.simplex import project_simplex
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.rowwise import along_last, check_count, check_positive

__all__ = ["RegularizedArgmax", "regularized_argmax"]

Omega = Callable[[Tensor], Tensor]

FLOOR = 1e-12  # Omega is evaluated here instead of nearer to zero, where slopes may be infinite
HALVINGS = 60  # of a gradient step
NOISE, SLOPE_NOISE = 64, 8  # rounding errors that a value and a residual of Omega may carry
LEAST_SIZE = 16  # linear systems are padded to this size, and to powers of two: what a row gets depends on no other
HESSIAN_NUMBERS = 1 << 22  # in one batch of linear systems


class _Point(NamedTuple):
    """Points of the simplex, one a row, and what is known there of ``Omega(y) - <y, z>``."""

    y: Tensor  # (rows, d)
    slope: Tensor  # (rows, d), less its mean under y: what moving mass to an entry costs
    landing: Tensor  # (rows, d), where a gradient step of length 1 ends
    value: Tensor  # (rows,)
    residual: Tensor  # (rows,), distance to the landing; zero at the solution alone
    noise: Tensor  # (rows,), one rounding error

    def at(self, index: Tensor) -> _Point:
        return _Point(*[tensor[index] for tensor in self])

    def change_to(self, other: _Point) -> tuple[Tensor, Tensor]:
        """Return how much larger the value is at other points, and how far off this may be.

        The slopes at both ends bound it, for Omega is convex; over short distances better than the difference of values.
        """
        move = other.y - self.y
        low, high = (self.slope * move).sum(-1), (other.slope * move).sum(-1)
        spread, rounding = 0.5 * (high - low), NOISE * self.noise
        change = torch.where(spread > rounding, other.value - self.value, 0.5 * (low + high))
        return change.nan_to_num(torch.inf, torch.inf), torch.minimum(spread.clamp_min(0), rounding).nan_to_num(0.0)


class _Problem:
    """``min Omega(y) - <y, z>`` over y in the simplex for rows z = scores / gamma, and the derivatives of its solution.

    Arithmetic is in float64 where the device has it; Omega sees points (rows, d) in the dtype of the scores. Parameters of
    Omega, if it is a module, are handed through, so that derivatives in them can be taken.
    """

    def __init__(self, omega: Omega, gamma: float, max_iter: int, tol: float, dtype: torch.dtype) -> None:
        self.omega, self.gamma, self.max_iter, self.tol, self.dtype = omega, gamma, max_iter, tol, dtype
        named = dict(omega.named_parameters()) if isinstance(omega, nn.Module) else {}
        self.names, self.parameters = tuple(named), tuple(named.values())
        self.unfinished, self.worst = 0, 0.0

    def regularizer(self, y: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return Omega(y), shape (rows,), for y (rows, d) that is not below FLOOR."""
        y = y.to(self.dtype)
        if self.names:
            return _checked(functional_call(self.omega, dict(zip(self.names, parameters, strict=True)), (y,)), y)  # type: ignore[arg-type]
        return _checked(self.omega(y), y)

    def gradient(self, y: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return the gradient of Omega, (rows, d)."""
        return grad(lambda point: self.regularizer(point, parameters).sum())(y)  # type: ignore[no-any-return]

    def evaluate(self, y: Tensor, z: Tensor, parameters: tuple[Tensor, ...]) -> _Point:
        """Return what is known at y; below FLOOR, Omega is continued by its tangent."""

        def total(point: Tensor) -> tuple[Tensor, Tensor]:
            omega = self.regularizer(point, parameters)
            return omega.sum(), omega

        point = y.clamp_min(FLOOR)
        slope, (_, omega) = grad_and_value(total, has_aux=True)(point)
        gain = torch.where(y != 0, y * z, 0.0).sum(-1)
        value = omega.to(y.dtype) + (slope * (y - point)).sum(-1) - gain
        size = 1 + omega.abs() + torch.where(y > 0, slope.abs() + z.abs(), 0.0).amax(-1)
        slope = slope - z
        slope = slope - (y * slope).sum(-1, keepdim=True)
        landing = project_simplex(y - slope, 1.0, 0)
        value = torch.where(value.isnan(), torch.inf, value)
        return _Point(y, slope, landing, value, (y - landing).norm(dim=-1), torch.finfo(self.dtype).eps * size)

    def solve(self, x: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return the solution for scores (rows, d), NaN for rows that hold NaN or +inf."""
        with torch.inference_mode(False), _own_precision(x):
            z = x.detach().clone().to(_width(x))
            z = (z - z.amax(-1, keepdim=True)) / self.gamma
            y = torch.full_like(z, torch.nan)
            whole = z.isfinite().all(-1)
            if bool(whole.any()):
                y[whole] = self._iterate(z[whole], parameters)
            return y.to(x.dtype)

    def _iterate(self, z: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        solution, waiting = torch.empty_like(z), torch.arange(len(z), device=z.device)
        now = self.evaluate(torch.full_like(z, 1 / z.shape[-1]), z, parameters)
        ahead, momentum, curvature = now.y, torch.ones_like(z[:, :1]), torch.ones_like(z[:, :1])
        tol = self.tol / max(1.0, self.gamma)
        for iteration in range(self.max_iter):
            step, curvature = self._descend(ahead, z, 0.5 * curvature, parameters)
            candidates = [now.y, step]
            if iteration > 0:  # the first gradient step already shows most of the support
                candidates.extend(self._newton_steps(now, parameters))
            before, (now, which) = now, self._best(now, candidates, z, tol, parameters)
            accelerated = (which == 1).unsqueeze(-1)  # anything else restarts the momentum
            after = torch.where(accelerated, 0.5 * (1 + (1 + 4 * momentum.square()).sqrt()), 1.0)
            ahead = now.y + torch.where(accelerated, (momentum - 1) / after, 0.0) * (now.y - before.y)
            ahead, momentum = ahead.clamp_min(0), after
            ahead = ahead / ahead.sum(-1, keepdim=True)

            reached = now.residual <= torch.maximum(now.noise * SLOPE_NOISE, torch.full_like(now.noise, tol))
            stalled = (now.residual > 0.25 * before.residual) | (now.residual <= now.noise)
            done = (reached & stalled) | ~now.residual.isfinite()
            if iteration == self.max_iter - 1:
                late = ~reached & now.residual.isfinite()
                self.unfinished += int(late.sum())
                self.worst = max(self.worst, float(torch.where(late, now.residual, 0.0).max()))
                done = torch.ones_like(done)
            if bool(done.any()):
                solution[waiting[done]] = torch.where(now.residual[done].isfinite().unsqueeze(-1), now.y[done], torch.nan)
                if bool(done.all()):
                    break
                waiting, z, now = waiting[~done], z[~done], now.at(~done)
                ahead, momentum, curvature = ahead[~done], momentum[~done], curvature[~done]
        solution = torch.where(solution <= FLOOR, 0.0, solution)
        return solution / solution.sum(-1, keepdim=True)

    def _descend(self, y: Tensor, z: Tensor, curvature: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the projected gradient step from y whose length, 1 / curvature, passes the test of sufficient decrease."""
        start = self.evaluate(y, z, parameters)
        for _ in range(HALVINGS):
            step = project_simplex(y - start.slope / curvature, 1.0, 0)
            change, end = step - y, self.evaluate(step, z, parameters)
            bend = start.change_to(end)[0] - (start.slope * change).sum(-1)
            square = change.square().sum(-1)
            steep = (bend > 0.5 * curvature.squeeze(-1) * square + NOISE * start.noise * square.sqrt()).unsqueeze(-1)
            if not bool(steep.any()):
                break
            seen = (2 * bend / square).nan_to_num(0.0, 0.0, 0.0).unsqueeze(-1)
            curvature = torch.where(steep, torch.maximum(2 * curvature, seen), curvature)
        return step, curvature

    def _newton_steps(self, now: _Point, parameters: tuple[Tensor, ...]) -> list[Tensor]:
        """Return the Newton step on the support, taken additively and multiplicatively.

        The first is exact for quadratics and finds zeros; the second never leaves the simplex and is exact for entropies.
        """
        y, slope = now.y, now.slope
        support = (y > FLOOR) | (now.landing > 0) | (slope < 0)
        move = self.newton(-slope, y, support, parameters)
        added = project_simplex(torch.where(support, y + move, 0.0), 1.0, 0)
        floor = y.clamp_min(FLOOR)
        grown = torch.where(support, floor * (move / floor).clamp(-40, 40).exp(), 0.0)
        pace = torch.where(support, move / floor, 0.0)
        pace = 1.5 * pace / pace.abs().amax(-1, keepdim=True).clamp_min(1.5)
        damped = torch.where(support, floor * pace.exp(), 0.0)
        return [added, grown / grown.sum(-1, keepdim=True), damped / damped.sum(-1, keepdim=True)]

    def _best(
        self, now: _Point, candidates: list[Tensor], z: Tensor, tol: float, parameters: tuple[Tensor, ...]
    ) -> tuple[_Point, Tensor]:
        """Return the best candidate of each row, and which it is: by value, and by residual where values cannot tell."""
        k, n = len(candidates), len(z)
        points = self.evaluate(torch.cat(candidates), z.repeat(k, 1), parameters)
        own = torch.arange(n, device=z.device)
        change, error = now.at(own.repeat(k)).change_to(points)
        level = (change - error).view(k, n) <= (change + error).view(k, n).amin(0)
        level = level | (now.residual <= tol)
        residuals = points.residual.view(k, n)
        which = torch.where(level & ~residuals.isnan(), residuals, torch.inf).argmin(0)
        return points.at(which * n + own), which

    def newton(self, v: Tensor, y: Tensor, support: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return u, zero outside the support, with ``B u = v - tau 1`` on it and ``sum u = 0``; B is the Hessian at y.

        With A the Jacobian of the projection these are the equations ``(I + A (B - I)) u = A v``, in a symmetric form.

        Args:
            v: (rows, d).
            y: (rows, d), not below zero.
            support: boolean (rows, d).
            parameters: those of Omega.
        """
        d = y.shape[-1]
        sizes = support.sum(-1).clamp_min(LEAST_SIZE).double().log2().ceil().exp2().long().clamp_max(d)
        result = torch.zeros_like(v)
        for size in sizes.unique().tolist():
            for rows in (sizes == size).nonzero().squeeze(-1).split(max(1, HESSIAN_NUMBERS // (size * d))):
                columns = support[rows].byte().argsort(dim=-1, descending=True, stable=True)[:, :size]
                where = (rows.unsqueeze(-1), columns)
                hessian = self._hessian(y[rows].clamp_min(FLOOR), columns, parameters).to(v.dtype)
                result = result.index_put(where, _on_support(hessian, v[where], support[where]))
        return result

    def _hessian(self, y: Tensor, columns: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return the Hessian of Omega at y (rows, d) in the given columns (rows, size), shape (rows, size, size)."""
        (n, size), d = columns.shape, y.shape[-1]
        points = y.unsqueeze(1).expand(n, size, d).reshape(n * size, d)  # one Hessian-vector product for each
        directions = torch.zeros_like(points).scatter(-1, columns.reshape(-1, 1), 1.0)
        products = grad(lambda point: (self.gradient(point, parameters) * directions).sum())(points)
        return products.view(n, size, d).gather(-1, columns.unsqueeze(1).expand(n, size, size))  # type: ignore[no-any-return]

    def report(self) -> None:
        """Warn if there were rows whose residual is too large."""
        if self.unfinished:
            warnings.warn(
                f"{self.unfinished} row(s) have a residual of up to {self.worst:.1e} after max_iter={self.max_iter} steps, more"
                f" than tol={self.tol:.1e}. Raise max_iter or gamma, or raise tol to accept such results.",
                RuntimeWarning,
                stacklevel=5,
            )

    def jacobian(self, v: Tensor, y: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return J v at the solution y, in operations that can be differentiated."""
        with _own_precision(y):
            broken = y.isnan()
            point = torch.where(broken, 1.0, y).to(_width(y))
            u = self.newton(v.to(_width(y)), point, (y != 0) & ~broken, parameters) / self.gamma
            return torch.where(broken, torch.nan, u.to(y.dtype))


def _on_support(hessian: Tensor, v: Tensor, support: Tensor) -> Tensor:
    """Solve ``hessian u + tau 1 = v``, ``sum u = 0`` on the support, for (rows, size, size) and twice (rows, size)."""
    support = support & (support.sum(-1, keepdim=True) > 1)
    diagonal = hessian.detach().diagonal(dim1=-2, dim2=-1)
    largest = torch.where(support, diagonal, 0.0).amax(-1, keepdim=True)
    # Entropies have Hessians from 1 to 1e12: with a diagonal of ones, rounding is the same everywhere.
    scale = torch.maximum(diagonal, 1e-10 * torch.where(largest > 0, largest, 1.0)).rsqrt()
    scale = torch.where(support, scale, 0.0)
    system = torch.where(support.unsqueeze(-1) & support.unsqueeze(-2), hessian, 0.0)
    system = system * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    ridge = 4 * torch.finfo(v.dtype).eps  # never quite singular, even where the solution is not unique
    system = system + torch.where(support, ridge, 1.0).diag_embed()
    corner = (~support.any(-1, keepdim=True)).to(v.dtype)
    system = torch.cat([system, scale.unsqueeze(-1)], -1)
    system = torch.cat([system, torch.cat([scale, corner], -1).unsqueeze(-2)], -2)
    right = torch.cat([torch.where(support, v, 0.0) * scale, torch.zeros_like(corner)], -1)
    u = torch.linalg.solve_ex(system, right)[0][:, :-1] * scale
    return torch.where(support, u, 0.0)


class _Argmax(torch.autograd.Function):
    """The solution as a function of the scores and of Omega's parameters, by the implicit function theorem."""

    @staticmethod
    def forward(x: Tensor, problem: _Problem, *parameters: Tensor) -> Tensor:
        return problem.solve(x, parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.problem = inputs[1]
        ctx.save_for_backward(output, *inputs[2:])
        ctx.save_for_forward(output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        y, parameters = ctx.saved_tensors[0], ctx.saved_tensors[1:]
        change = ctx.problem.jacobian(grads[0], y, parameters)
        pulled: tuple[Any, ...] = (None,) * len(parameters)
        if any(ctx.needs_input_grad[2:]):
            pulled = vjp(_slope_of(ctx.problem, y), *parameters)[1](-ctx.problem.gamma * change)
        return (change, None, *pulled)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        y, parameters = ctx.saved_tensors[0], ctx.saved_tensors[1:]
        moved = torch.zeros_like(y) if tangents[0] is None else tangents[0]
        if any(tangent is not None for tangent in tangents[2:]):
            given = zip(parameters, tangents[2:], strict=True)
            directions = tuple(torch.zeros_like(p) if tangent is None else tangent for p, tangent in given)
            moved = moved - ctx.problem.gamma * jvp(_slope_of(ctx.problem, y), parameters, directions)[1]
        return ctx.problem.jacobian(moved, y, parameters)


def _slope_of(problem: _Problem, y: Tensor) -> Callable[..., Tensor]:
    return lambda *parameters: problem.gradient(y.clamp_min(FLOOR), parameters)


def _own_precision(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def _width(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def _checked(value: Any, y: Tensor) -> Tensor:
    """Return what Omega gave for y.

    Raises:
        ConfigurationError: if it is not one number a row.
    """
    if not isinstance(value, Tensor) or value.shape != y.shape[:-1]:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigurationError(
            f"Expected `omega` to return one number a row, shape {tuple(y.shape[:-1])} for a tensor of shape"
            f" {tuple(y.shape)}, but got {got}. Sum over the last dimension, and over no other."
        )
    return value


def _groups(allowed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each number of allowed entries above zero, an index of shape (rows, number) of these entries.

    Args:
        allowed: boolean (rows, d).
    """
    counts = allowed.sum(-1)
    for count in counts.unique().tolist():
        if count:
            rows = (counts == count).nonzero()
            yield rows, allowed[rows.squeeze(-1)].nonzero()[:, 1].view(-1, count)


def _check_omega(omega: Omega) -> Omega:
    if not callable(omega):
        raise ConfigurationError(f"Expected argument `omega` to be a function of a tensor (..., d) but got {omega!r}.")
    return omega


def regularized_argmax(
    scores: Tensor,
    omega: Omega,
    *,
    gamma: float = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-7,
) -> Tensor:
    """Solve ``y = argmax_{y in simplex} <y, x> - gamma * Omega(y)`` for any convex Omega.

    Omega is called with (rows, d) points of the simplex, their entries at least 1e-12, in the dtype of the scores, float32
    for half precision. Where entries are masked, it gets the others alone, in their order, so that d varies. It has to
    treat every row alike, and to be strictly convex for the solution to be unique.

    The derivative is that of the solution, to second order. It reaches the parameters of an Omega that is a module; tensors
    that a function closes over get none.

    A call costs a few evaluations of Omega and of its Hessian on the support, memory permitting in one batch: for supports
    beyond some hundreds of entries, a mapping with its own formula is the better choice.

    Args:
        scores: floating tensor; length d along ``dim``.
        omega: convex function of points (..., d) on the last dimension, returning (...), in torch operations that can be
            differentiated twice (three times for second derivatives of the mapping).
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
        max_iter: most steps of a row. A warning tells when they were too few.
        tol: residual ``||y - P(y - (gamma grad Omega(y) - x))|| `` at which a row may stop; it does once its steps stop
            helping. Rounding errors of Omega's own dtype are allowed for.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``omega`` is not callable or does not return one number a row, ``max_iter`` is not an integer
            >= 1, ``gamma`` or ``tol`` is not positive, the scores are not floating, or the mask does not fit.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3 and
    Proposition 1.
    """
    omega, gamma = _check_omega(omega), check_positive("gamma", gamma)
    max_iter, tol = check_count("max_iter", max_iter), check_positive("tol", tol)

    def rows(x: Tensor) -> Tensor:
        if x.is_meta or x.numel() == 0:
            return x.clone()
        if x.dtype in HALVES:
            return rows(x.float()).to(x.dtype)
        problem = _Problem(omega, gamma, max_iter, tol, x.dtype)
        flat = x.reshape(-1, x.shape[-1])
        allowed = flat.detach() != -torch.inf
        if bool(allowed.all()):
            y = _Argmax.apply(flat, problem, *problem.parameters)  # type: ignore[no-untyped-call]
        else:
            y = torch.zeros_like(flat)
            for where in _groups(allowed):
                y = y.index_put(where, _Argmax.apply(flat[where], problem, *problem.parameters))  # type: ignore[no-untyped-call]
        problem.report()
        return y.view(x.shape)  # type: ignore[no-any-return]

    return along_last(scores, mask, dim, rows)


class RegularizedArgmax(SparseMapping):
    """The mapping of any convex Omega, as a layer; for trying out regularizers before they have their own formula.

    Args:
        omega: convex function of points (..., d) on the last dimension, returning (...), in torch operations that can be
            differentiated twice. A module's parameters are learnt with the layer. See :func:`regularized_argmax`.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        max_iter: most steps of a row. A warning tells when they were too few.
        tol: residual at which a row may stop.

    Raises:
        ConfigurationError: if ``omega`` is not callable, ``max_iter`` is not an integer >= 1, or ``gamma`` or ``tol`` is not a
            positive, finite number.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> x = torch.randn(4, 6, dtype=torch.float64)
        >>> mapping = RegularizedArgmax(lambda y: 0.5 * y.square().sum(-1))
        >>> torch.allclose(mapping(x), Sparsemax()(x))
        True
    """

    iterative = True

    def __init__(self, omega: Omega, *, gamma: float = 1.0, dim: int = -1, max_iter: int = 100, tol: float = 1e-7) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.omega = _check_omega(omega)
        self.max_iter = check_count("max_iter", max_iter)
        self.tol = check_positive("tol", tol)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances with regularizers that give dense results, sparse ones, and both."""
        return [cls(_NegativeEntropy()), cls(_SquaredNorm(2.0), gamma=0.5), cls(_SquaredNorm(1.5))]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """See :func:`regularized_argmax`."""
        options = {"gamma": self.gamma, "max_iter": self.max_iter, "tol": self.tol}
        return regularized_argmax(scores, self.omega, dim=dim, mask=mask, **options)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega of the allowed entries."""
        return _of_allowed(self.omega, y, dim, allowed)

    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        """Return Omega(y) less Omega(y) with its parameters held constant; None for an Omega that is no module."""
        if not isinstance(self.omega, nn.Module):
            return None
        module, constant = self.omega, {name: value.detach() for name, value in self.omega.named_parameters()}
        frozen = _of_allowed(lambda rows: functional_call(module, constant, (rows,)), y, dim, allowed)
        return self.regularizer(y, dim, allowed) - frozen


def _of_allowed(omega: Omega, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor:
    """Return Omega along ``dim`` of the allowed entries alone; 0 where there are none."""
    y = y.movedim(dim, -1)
    rows = y.reshape(-1, y.shape[-1]).clamp_min(FLOOR)
    if y.numel() == 0 or allowed is None or bool(allowed.all()):
        return _checked(omega(rows), rows).view(y.shape[:-1])
    result = torch.zeros_like(rows[:, 0])
    for index in _groups(allowed.movedim(dim, -1).reshape(rows.shape)):
        result = result.index_put((index[0].squeeze(-1),), _checked(omega(rows[index]), rows[index]))
    return result.view(y.shape[:-1])


@dataclass(frozen=True)
class _NegativeEntropy:
    """``sum y log y``, the Omega of softmax."""

    def __call__(self, y: Tensor) -> Tensor:
        return (y * y.log()).sum(-1)


@dataclass(frozen=True)
class _SquaredNorm:
    """``1/2 ||y||_p^2``, the Omega of sparsemax for p = 2."""

    p: float

    def __call__(self, y: Tensor) -> Tensor:
        return 0.5 * (y**self.p).sum(-1) ** (2 / self.p)
