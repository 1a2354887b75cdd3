"""Regularized argmax for any convex regularizer (Niculae & Blondel 2017): for regularizers without a formula of their own.

The forward pass iterates. The backward pass solves one linear system, the optimality conditions, instead of differentiating
the iterations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp
from typing_extensions import Self, override

from lit_sparse.checks import ITERATIONS, POSITIVE, check_count, check_positive, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_batches
from lit_sparse.kernels.row_kernel import HALVES
from lit_sparse.mappings.base import SparseMapping
from lit_sparse.mappings.convex_solver import FLOOR, Omega, SimplexProblem, one_number_a_row
from lit_sparse.mappings.masking import along_last

__all__ = ["RegularizedArgmax", "regularized_argmax"]


class _Argmax(torch.autograd.Function):
    """The solution as a function of the scores and of Omega's parameters, by the implicit function theorem."""

    @staticmethod
    def forward(x: Tensor, problem: SimplexProblem, *parameters: Tensor) -> Tensor:
        return problem.solve(x.detach(), tuple([parameter.detach() for parameter in parameters]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.problem = inputs[1]
        ctx.save_for_backward(output, *inputs[2:])
        ctx.save_for_forward(output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        problem, y, parameters = ctx.problem, ctx.saved_tensors[0], ctx.saved_tensors[1:]
        change = problem.jvp(grads[0], y, parameters)
        pulled: tuple[Any, ...] = (None,) * len(parameters)
        if any(ctx.needs_input_grad[2:]):
            slope = vjp(lambda *values: problem.gradient(y, values), *parameters)
            pulled = slope[1]((-problem.gamma * change).to(slope[0].dtype))
        return (change, None, *pulled)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        problem, y, parameters = ctx.problem, ctx.saved_tensors[0], ctx.saved_tensors[1:]
        change = torch.zeros_like(y) if tangents[0] is None else tangents[0]
        if any(tangent is not None for tangent in tangents[2:]):
            moves = [torch.zeros_like(p) if t is None else t for p, t in zip(parameters, tangents[2:], strict=True)]

            def along(point: Tensor) -> Tensor:
                total = vjp(lambda *values: problem.regularizer(point, values).sum(), *parameters)
                slopes = total[1](torch.ones_like(total[0]))
                return torch.stack([(slope * move).sum() for slope, move in zip(slopes, moves, strict=True)]).sum()

            change = change - problem.gamma * grad(along)(y.clamp_min(FLOOR))
        return problem.jvp(change, y, parameters)


def _check_omega(omega: Omega) -> Omega:
    if not callable(omega):
        raise ConfigurationError(f"Expected argument `omega` to be a function of a tensor (..., d) but got {omega!r}.")
    return omega


def _groups(allowed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each number of allowed entries above zero, an index of shape (rows, number) of these entries.

    Args:
        allowed: boolean (rows, d).
    """
    counts = allowed.sum(-1)
    for count in counts.unique().tolist():  # type: ignore[no-untyped-call]
        if count:
            rows = (counts == count).nonzero()
            yield rows, allowed[rows.squeeze(-1)].nonzero()[:, 1].view(-1, count)


@on_batches
def _rows(x: Tensor, problem: SimplexProblem) -> Tensor:
    """Map (..., d), rows of one number of allowed entries at a time, their forbidden entries dropped."""
    if x.is_meta or x.numel() == 0:
        return x.clone()
    flat = (x.float() if x.dtype in HALVES else x).reshape(-1, x.shape[-1])
    problem.settle(flat)
    y = torch.zeros_like(flat)
    for index in _groups(flat.detach() != -torch.inf):
        y = y.index_put(index, _Argmax.apply(flat[index], problem, *problem.parameters))  # type: ignore[no-untyped-call]
    return y.view(x.shape).to(x.dtype)


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
    r"""Return the point of the simplex that maximizes a linear function minus any convex Omega, smooth inside the simplex.

    .. math:: y = \operatorname*{argmax}_{y \in \Delta} \; \langle y, x \rangle - \gamma\,\Omega(y)

    where x are the scores of a row and Delta is the probability simplex.

    Omega is called with points (rows, d) of the simplex, whose entries are at least 1e-12. They are in float64 if
    Omega's own tensors allow it, else in the scores' dtype. Omega must treat all rows alike. The solution is unique if
    Omega is strictly convex. Masked entries are left out, so rows may be shorter than d.

    Derivatives are the solution's, by implicit differentiation, including second ones and forward mode. The parameters
    of an Omega that is a module get a gradient; tensors that a function closes over get none. The cost of a step grows
    with the cube of the support size: beyond some hundreds of entries, prefer a mapping that has its own formula.

    Args:
        scores: floating tensor; length d along ``dim``.
        omega: convex function of points (..., d) that returns (...), in torch operations that can be differentiated
            twice (three times for second derivatives of the mapping).
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
        max_iter: maximum number of steps for a row; if it is reached, there is a warning.
        tol: residual ``||y - P(y - (gamma grad Omega(y) - x))||`` that a row must reach, P the projection onto the
            simplex. Steps continue beyond it as long as the residual decreases.

    Returns:
        Tensor of the scores' shape and dtype.

    Raises:
        ConfigurationError: if ``omega`` is not callable or does not return one number per row. Also for a ``max_iter``
            below 1, a ``gamma`` or ``tol`` that is not positive, scores that are not floating, or a mask of another
            shape.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 3 and
    Proposition 1.
    """
    omega, gamma = _check_omega(omega), check_positive("gamma", gamma)
    max_iter, tol = check_count("max_iter", max_iter), check_positive("tol", tol)
    problem = SimplexProblem(omega, gamma, max_iter, tol)
    y = along_last(scores, mask, dim, lambda x: _rows(x, problem))
    if problem.unfinished:
        warnings.warn(
            f"{problem.unfinished} row(s) have a residual of up to {max(1.0, gamma) * problem.worst:.1e} after"
            f" max_iter={max_iter} steps, above tol={tol:.1e}. Raise max_iter or gamma, or raise tol to accept such results. An"
            " Omega with kinks, such as a norm or an absolute difference, is beyond this solver: smooth it.",
            RuntimeWarning,
            stacklevel=2,
        )
    if problem.bent:
        warnings.warn(
            f"Omega is not convex for {problem.bent} row(s), whose results may not be the solution. A negative"
            " entropy, `(y * y.log()).sum(-1)`, is convex, and an entropy is not.",
            RuntimeWarning,
            stacklevel=2,
        )
    return y


@ranges(max_iter=ITERATIONS, tol=POSITIVE)
class RegularizedArgmax(SparseMapping):
    """Layer that computes the regularized argmax of any smooth convex Omega, for regularizers without a formula of their own.

    A call solves one problem for each number of allowed entries among its rows, and a problem takes thousands of small
    operations, however few its rows are. A recurrent decoder calls the mapping once for each target position, so with
    sources of different lengths it trains more than ten times slower than with a closed-form mapping. Batches of
    sources of equal length, or a Transformer, need fewer calls.

    Args:
        omega: convex function of points (..., d) that returns (...) and can be differentiated twice, as
            :func:`regularized_argmax` describes it. A module's parameters are learned with the layer.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        max_iter: maximum number of steps for a row; if it is reached, there is a warning.
        tol: residual that a row must reach; see :func:`regularized_argmax`.

    Raises:
        ConfigurationError: if ``omega`` is not callable, ``max_iter`` is not an integer >= 1, or ``gamma`` or ``tol``
            is not a positive, finite number.

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

    def __init__(
        self,
        omega: nn.Module | Callable[[Tensor], Any],  # what the command line takes; it returns a tensor
        *,
        gamma: float = 1.0,
        dim: int = -1,
        max_iter: int = 100,
        tol: float = 1e-7,
    ) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.omega = _check_omega(omega)
        self.max_iter, self.tol = max_iter, tol

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, with dense and with sparse results."""
        return [cls(_NegativeEntropy()), cls(_SquaredNorm(2.0), gamma=0.5), cls(_SquaredNorm(1.5))]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map the scores along ``dim``; see :func:`regularized_argmax`."""
        return regularized_argmax(
            scores, self.omega, gamma=self.gamma, dim=dim, mask=mask, max_iter=self.max_iter, tol=self.tol
        )

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega evaluated on the allowed entries of y."""
        value: Tensor = _of_allowed(self.omega, y, dim, allowed)
        return value

    @override
    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        if not isinstance(self.omega, nn.Module):
            return None
        y = y.detach()
        module, constant = self.omega, {name: value.detach() for name, value in self.omega.named_parameters()}
        frozen: Tensor = _of_allowed(lambda rows: functional_call(module, constant, (rows,)), y, dim, allowed)
        return self.regularizer(y, dim, allowed) - frozen


@on_batches
def _of_allowed(omega: Omega, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor:
    """Return Omega along ``dim`` of the allowed entries alone; 0 where there are none."""
    y = y.movedim(dim, -1)
    rows = (y.float() if y.dtype in HALVES else y).reshape(-1, y.shape[-1]).clamp_min(FLOOR)
    kept = torch.ones_like(rows, dtype=torch.bool) if allowed is None else allowed.movedim(dim, -1).reshape(rows.shape)
    result = torch.zeros_like(rows[:, :1]).squeeze(-1)
    for index in _groups(kept):
        result = result.index_put((index[0].squeeze(-1),), one_number_a_row(omega(rows[index]), rows[index]).to(rows.dtype))
    return result.view(y.shape[:-1]).to(y.dtype)


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
