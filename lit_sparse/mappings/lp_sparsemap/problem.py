"""Marginals of a factor graph as a differentiable function of scores and potentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings.lp_sparsemap.local import Local, local_of
from lit_sparse.mappings.lp_sparsemap.solver import contradicts, solve_graph
from lit_sparse.mappings.row_function import constant_in
from lit_sparse.structures import FactorGraph

__all__ = ["GraphProblem"]

#: Eigenvalues of a sum of projections up to this size are rounding errors.
NULL = 1e-9
#: The method aims at this share of ``tol``, which costs few steps more and makes differences of results exact.
SHARE, SHARE_OF_ACTIVE_SETS = 1e-5, 1e-2


class _Marginals(torch.autograd.Function):
    """Marginals and counts, linear in scores and potentials as long as each factor's point stays on its face.

    A change of the marginals keeps to all faces at once, and is the nearest such one to the change of the scores. Their
    derivative is the projection Q onto the null space of the sum of the factors' ``I - J``. With the derivatives N of the
    counts in the marginals, the whole derivative is ``[I; N] Q [I, N^T]``.
    """

    @staticmethod
    def forward(x: Tensor, potentials: Tensor, problem: GraphProblem) -> tuple[Tensor, ...]:
        return problem.solve(x.detach(), potentials.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, potentials, problem = inputs
        ctx.local = problem.local(x)
        marginals, _, *facts = output
        ctx.mark_non_differentiable(*facts)
        ctx.set_materialize_grads(False)
        kept = (x.detach(), potentials.detach(), marginals, *facts[2:])
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if grads[0] is None and grads[1] is None:
            return None, None, None
        return *_derivative(ctx.local, ctx.saved_tensors, grads[0], grads[1]), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        changes = _derivative(ctx.local, ctx.saved_tensors, tangents[0], tangents[1])
        return *changes, *[None] * (len(ctx.saved_tensors) - 1)


def _derivative(local: Local, saved: tuple[Tensor, ...], x: Tensor | None, potentials: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return changes of marginals and counts for changed scores (B, d) and potentials (B, P); the derivative is symmetric."""
    scores, links, marginals, anchors, penalty, *known = saved
    allowed = (scores != -torch.inf) & ~marginals.isnan()
    matrix, *slopes = known or _faces(local, anchors, links, penalty)
    total = torch.zeros_like(marginals) if x is None else torch.where(allowed, x, 0.0)
    if potentials is not None and potentials.shape[-1]:
        total = total + torch.where(allowed, local.scatter(local.pull(slopes, potentials)), 0.0)
    matrix = torch.where(allowed.unsqueeze(-1) & allowed.unsqueeze(-2), matrix, 0.0)
    values, vectors = torch.linalg.eigh(matrix + torch.diag_embed((~allowed).to(matrix.dtype)))
    free = vectors * (values < NULL).to(vectors.dtype).unsqueeze(-2)
    change = torch.where(marginals.isnan(), torch.nan, (free @ (free.mT @ total.unsqueeze(-1))).squeeze(-1))
    change = constant_in(marginals, change)
    return change, local.push(slopes, local.gather(change))


def _faces(local: Local, anchors: Tensor, potentials: Tensor, penalty: Tensor) -> list[Tensor]:
    """Return the sum (B, d, d) of the factors' ``I - J``, and the derivatives of each group's counts."""
    finite = torch.where(potentials.isfinite(), potentials, 0.0)
    faces = local.solve(anchors, finite / penalty.unsqueeze(-1), sloped=True)
    return [local.matrix(faces.normals), *faces.slopes]


@dataclass(frozen=True)
class GraphProblem:
    """An LP-SparseMAP problem: a factor graph and the solver's options, to be called with scores and potentials.

    Attributes:
        graph: factors over d variables.
        max_iter: maximum number of evaluations of the factors.
        tol: largest allowed difference between a variable and a factor's copy of it.
        warn: function that is called with a message if ``max_iter`` was too small.
    """

    graph: FactorGraph
    max_iter: int
    tol: float
    warn: Callable[[str], None]

    def __call__(self, x: Tensor, potentials: Tensor) -> tuple[Tensor, ...]:
        """Solve rows, differentiable in scores and potentials; arguments and results as for :meth:`solve`."""
        return _Marginals.apply(x, potentials, self)  # type: ignore[no-any-return, no-untyped-call]

    def local(self, x: Tensor) -> Local:
        """Return the graph's factors for scores (B, d), on their device."""
        return local_of(self.graph, x.shape[-1], x.device)

    def solve(self, x: Tensor, potentials: Tensor) -> tuple[Tensor, ...]:
        """Solve LP-SparseMAP for a batch of rows.

        Args:
            x: float64 (B, d), -inf where a variable is masked.
            potentials: float64 (B, P).

        Returns:
            Marginals (B, d), counts (B, P), residuals (B,), gaps (B,), anchors (B, E) and penalties (B,). NaN in a row
            with NaN or +inf, except in the last two. For a graph with other structures also the result of
            :func:`_faces`.

        Raises:
            ConfigurationError: if the factors contradict one another.
        """
        local, allowed = self.local(x), x != -torch.inf
        broken = ~(x < torch.inf).all(-1) | ~potentials.isfinite().all(-1)
        x = torch.where(broken.unsqueeze(-1), -torch.inf, x)  # nothing is allowed: the row is finished at once
        usable = x != -torch.inf
        self._check_limits(local, usable)
        goal = self.tol * (SHARE if local.exact else SHARE_OF_ACTIVE_SETS)
        links = torch.where(broken.unsqueeze(-1), 0.0, potentials)
        found = solve_graph(local, x, links, self.max_iter, goal, self.tol)
        if not bool((found.residuals <= self.tol).all()):
            self._explain(local, found, usable)
        marginals = local.snap(found.marginals, found.copies, local.gather(usable))
        invalid = torch.where(broken, torch.nan, 0.0).to(x)
        marginals = torch.where(broken.unsqueeze(-1) & allowed, torch.nan, marginals)
        counts = found.counts + invalid.unsqueeze(-1)
        # An active set cannot run within a function transform, so its faces are found here; faces from formulas can wait.
        known = [] if local.exact else _faces(local, found.anchors, links, found.penalty)
        return marginals, counts, found.residuals + invalid, found.gaps + invalid, found.anchors, found.penalty, *known

    def _check_limits(self, local: Local, usable: Tensor) -> None:
        """Raise if masks leave a factor of counts without an element."""
        for group in local.groups:
            if group.structure is not None:
                continue
            open_ = usable[:, group.variables]
            ones = (~open_ & group.negated).sum(-1)
            reach = ones + open_.sum(-1)
            bad = open_.any(-1) & ((ones > group.limits[:, 1]) | (reach < group.limits[:, 0]))
            if bool(bad.any()):
                row, place = bad.nonzero()[0].tolist()
                number = group.names[place]
                raise ConfigurationError(
                    f"Expected an element for each factor but in row {row} the allowed variables leave none for factor"
                    f" {number}, {self.graph.factors[number]!r}. Allow more of its variables, or mask all of them."
                )

    def _explain(self, local: Local, found: Any, usable: Tensor) -> None:
        """Raise for factors that contradict one another, warn of inexact marginals otherwise."""
        left = found.residuals > self.tol
        infeasible = left & contradicts(local, found, usable)
        if bool(infeasible.any()):
            raise ConfigurationError(
                f"Expected factors with a common point but the factors of row {int(infeasible.nonzero()[0])} contradict one"
                " another. Remove a factor, or widen its limits; masked variables are 0."
            )
        self.warn(
            f"LP-SparseMAP stopped after max_iter={self.max_iter} evaluations in {int(left.sum())} of {len(left)} rows, where"
            f" variables and factors differ by up to {float(found.residuals[left].max()):.2g}: their marginals are not exact."
            " Raise max_iter."
        )
