"""Safe LogSumExp: an approximation of LogSumExp whose gradient has bounded weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from lit_sparse.checks import FLOATS, Number, check_dim, check_number, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.torch_internals import can_read_values, forward_mode_active
from lit_sparse.kernels.row_kernel import HALVES
from lit_sparse.risks.logsumexp_kernel import mass_tolerance, safe_threshold, weighted_safe_threshold

#: Largest float32 threshold whose rounding does not change the minimum noticeably.
PLAIN = 1e4
#: Largest rounding error of a threshold that does not change a gradient noticeably.
ROUNDED = 1e-6
#: Smallest rho; its inverse must be finite in every dtype.
LEAST = 1e-30
#: Range of rho in risks with a dual variable; with rho = 1, the best one would be -inf.
RHO = Number(LEAST, 1.0, open_high=True)

__all__ = ["RHO", "mass_tolerance", "safe_logsumexp", "safe_threshold_of", "softplus"]


def softplus(x: Tensor) -> Tensor:
    """Return ``ln(1 + e^x)`` with all derivatives, accurate and without overflow.

    Torch's default is off by 2e-9 at x = 20.
    """
    return nnf.softplus(x, 1.0, 50.0)


@checked
def safe_logsumexp(values: Tensor, rho: float, dim: int = -1, weights: Tensor | None = None) -> Tensor:
    r"""Return the safe LogSumExp of ``values`` along a dimension: an approximation whose gradient has bounded entries.

    .. math:: F(x) = \min_a \; a + \frac{1}{\rho} \sum_i w_i \ln(1 + \rho e^{x_i - a}) - 1

    where x are the values of a row and w their weights. As rho goes to 0, it converges to ``torch.logsumexp`` from below,
    with an error of at most rho. Its gradient in x_i, ``(w_i / rho) sigma(x_i - a + ln rho)``, is a softmax in which no
    entry exceeds ``w_i / rho``.

    Args:
        values: floating tensor; length d along ``dim``. A value of -inf is ignored, a NaN makes its row NaN, and +inf makes
            it +inf.
        rho: 0 < rho <= 1.
        dim: dimension along which to reduce.
        weights: measure, broadcastable to ``values``, not negative, of mass at least rho along ``dim``; differentiable.
            Values of weight zero are ignored. None for weights of one. Weights of 1 / d make the gradient
            :class:`lit_sparse.mappings.CappedSoftmax`.

    Returns:
        Tensor of the values' shape without ``dim``, and of their dtype; half precision is computed in float32.

    Raises:
        ConfigurationError: if rho is out of its range, the values are not floating, the weights do not fit, one of them is
            negative, infinite or NaN, or their mass is below rho. Weights are not checked under ``torch.func`` and
            ``torch.compile``. There a mass below rho gives -inf, and an invalid weight NaN.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    equations 5 to 8. For a mass equal to rho the result is the limit ``sum_i w_i x_i / rho + ln rho - 1``.

    Example:
        >>> import torch
        >>> values = torch.tensor([1.0, 2.0, 1e4])
        >>> bool((torch.logsumexp(values, 0) - safe_logsumexp(values, 1e-4)).abs() < 2e-3)
        True
    """
    rho = check_number("rho", rho, LEAST, 1.0)
    check_tensor(values, f"values in a torch tensor of a floating dtype, one of {FLOATS},", dtypes=FLOATS)
    if values.dim() == 0:
        raise ConfigurationError("Expected values with at least one dimension but got a scalar.")
    dim = check_dim(dim, values, "values")
    if values.shape[dim] == 0:
        raise ConfigurationError("Expected at least one value to reduce but got none: the mass, 0, is below rho.")
    x = values.movedim(dim, -1)
    w = None if weights is None else _measure(weights, values, rho, dim).movedim(dim, -1)
    wide = torch.float32 if x.dtype in HALVES else x.dtype
    if w is not None:
        wide = torch.promote_types(wide, w.dtype)
        w = w.to(wide)
    found = _of_rows(x.to(wide), w, rho)
    return found.to(values.dtype)


def safe_threshold_of(x: Tensor, rho: float, w: Tensor | None = None) -> Tensor:
    """Return the minimizing a (..., 1) of the safe LogSumExp of rows (..., d), without a gradient.

    See :mod:`lit_sparse.risks.logsumexp_kernel`.
    """
    kernel = safe_threshold if w is None else weighted_safe_threshold
    args = (x.detach(), rho) if w is None else (x.detach(), w.detach(), rho)
    found: Tensor = kernel(*args) if can_read_values() else kernel.traced(*args)
    return found


def _measure(weights: Tensor, values: Tensor, rho: float, dim: int) -> Tensor:
    """Return the checked weights in the values' shape."""
    check_tensor(weights, "weights in a floating torch tensor", dtypes=FLOATS)
    if weights.device.type != values.device.type:
        raise ConfigurationError(f"Expected weights on the device {values.device} of the values but got {weights.device}.")
    try:
        found = weights.expand(values.shape)
    except RuntimeError as error:
        raise ConfigurationError(
            f"Expected weights that can be broadcast to the values' shape {tuple(values.shape)} but got {tuple(weights.shape)}."
        ) from error
    if can_read_values() and not weights.is_meta:
        wrong = ~((weights >= 0) & (weights < torch.inf))
        if bool(wrong.any()):
            raise ConfigurationError(f"Expected finite, nonnegative weights but got {float(weights.detach()[wrong][0])}.")
        mass = found.detach().double().sum(dim)
        short = mass < rho * (1 - mass_tolerance(torch.promote_types(weights.dtype, torch.float32)))
        if bool(short.any()):
            raise ConfigurationError(
                f"Expected weights whose mass is at least rho={rho} but got {float(mass[short].min())}: no density below"
                " 1 / rho has mass one. Use a smaller rho or larger weights."
            )
    return found


def _of_rows(x: Tensor, w: Tensor | None, rho: float) -> Tensor:
    """Return the result (...) of rows (..., d), in float32 or float64."""
    plain = can_read_values() and not forward_mode_active()
    if plain and torch.is_grad_enabled() and (x.requires_grad or (w is not None and w.requires_grad)):
        result: Tensor = _SafeLogSumExp.apply(x, w, rho)  # type: ignore[no-untyped-call]
        return result
    return _value(x, w, rho)[0] if plain else _Rows(x, w, rho).value()


class _Rows:
    """Rows (..., d) relative to a threshold that is exact up to rounding, in torch operations.

    One step of Newton's method makes the threshold depend on the rows; its derivative equals the exact solution's. The result
    is a minimum over the threshold, so the threshold's first derivative gives the first three derivatives of the result.
    """

    def __init__(self, x: Tensor, w: Tensor | None, rho: float, a: Tensor | None = None) -> None:
        self.x, self.w, self.rho = x, w, rho
        self.a = safe_threshold_of(x, rho, w) if a is None else a
        self.ordinary = self.a.isfinite()
        self.used = x.isfinite() & self.ordinary
        self.center = torch.where(self.ordinary, self.a, 0.0)
        s = torch.where(self.used, x, self.center) - self.center + math.log(rho)
        # The rounding error of the threshold is itself a threshold of the remainder.
        left = torch.where(self.used, s.detach() - math.log(rho), -torch.inf)
        missed = torch.where(self.ordinary, safe_threshold_of(left, rho, w), 0.0)
        share = self.weighted(torch.sigmoid(s - missed))
        excess = share.sum(-1, keepdim=True) / rho
        slope = (share * torch.sigmoid(missed - s)).sum(-1, keepdim=True).detach() / rho
        self.step = missed + (excess - excess.detach()) / torch.where(slope > 0, slope, 1.0)
        self.s = s - self.step

    def value(self) -> Tensor:
        """Return the result (...)."""
        total = self.weighted(softplus(self.s)).sum(-1, keepdim=True)
        found = self.center + self.step + (total / self.rho - 1)
        spoilt = torch.where(self.a.isnan() & (self.x != -torch.inf), self.x, 0.0).sum(-1, keepdim=True) * torch.nan
        return torch.where(self.ordinary, found, torch.where(self.a.isnan(), spoilt, self.a)).squeeze(-1)

    def weighted(self, values: Tensor) -> Tensor:
        """Return values (..., d) times the weights, with 0 for ignored points."""
        values = torch.where(self.used, values, 0.0)
        return values if self.w is None else self.w * values


class _SafeLogSumExp(torch.autograd.Function):
    """Safe LogSumExp with an explicit gradient that saves only the arguments; higher derivatives use torch operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor | None, rho: float) -> Tensor:
        value, a = _value(x, w, rho)
        ctx.rho = rho
        ctx.save_for_backward(x, w, a)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w, a = ctx.saved_tensors
        rho, (of_x, of_w, _) = ctx.rho, ctx.needs_input_grad
        if torch.is_grad_enabled():
            wanted = [tensor for tensor, needed in ((x, of_x), (w, of_w)) if needed]
            found = iter(torch.autograd.grad(_Rows(x, w, rho).value(), wanted, grad, create_graph=True))
            return next(found) if of_x else None, next(found) if of_w else None, None
        grad = grad.unsqueeze(-1) / rho
        if x.device.type == "cpu" and bool((a.abs() < ROUNDED / torch.finfo(x.dtype).eps).all()) and not of_w:
            plain = torch.sigmoid(x.sub(a).add_(math.log(rho))) * grad
            return plain if w is None else torch.where(w != 0, w * plain, 0.0), None, None
        rows = _Rows(x, w, rho, a)
        spoilt = a.isnan() & (x != -torch.inf) & (grad != 0)
        pull = torch.where(spoilt, torch.nan, rows.weighted(torch.sigmoid(rows.s)) * grad) if of_x else None
        return pull, torch.where(rows.used, softplus(rows.s), 0.0) * grad if of_w else None, None


def _value(x: Tensor, w: Tensor | None, rho: float) -> tuple[Tensor, Tensor]:
    """Return the result (...) and the threshold (..., 1), without a gradient, in few operations."""
    a = safe_threshold_of(x, rho, w)
    if x.device.type != "cpu" or not bool((a.abs() < PLAIN).all()):  # invalid rows, or a large threshold
        return _Rows(x, w, rho, a).value(), a
    terms = softplus(x.detach().sub(a).add_(math.log(rho)))  # 0 for -inf
    if w is not None:
        terms = torch.where(w != 0, w.detach() * terms, 0.0)
    # Rounding the threshold changes a minimum only by the square of the error.
    return (a + (terms.sum(-1, keepdim=True) / rho - 1)).squeeze(-1), a
