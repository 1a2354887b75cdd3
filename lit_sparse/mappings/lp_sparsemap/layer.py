"""LP-SparseMAP (Niculae & Martins 2020): sparse marginals of factor graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_count, check_positive, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_batches
from lit_sparse.mappings.lp_sparsemap.local import local_of
from lit_sparse.mappings.lp_sparsemap.problem import GraphProblem
from lit_sparse.mappings.masking import allowed_scores
from lit_sparse.mappings.potentials import PotentialMapping, as_potentials, warn_of_iterations
from lit_sparse.structures import Budget, Factor, FactorGraph, Or, Pair

__all__ = ["LPSparseMAP", "LPSparseMAPOutput", "lp_sparsemap"]


@dataclass(frozen=True)
class LPSparseMAPOutput:
    """Marginals of a factor graph for each row; unpacks to ``marginals, counts``.

    Attributes:
        marginals: (..., d).
        counts: (..., P) expected count of each potential, such as the probability that both variables of a pair are 1.
        residual: (...) largest difference between a variable and a factor's copy of it.
        gap: (...) primal-dual gap; as small as rounding errors if the residual is.
    """

    marginals: Tensor
    counts: Tensor
    residual: Tensor
    gap: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.marginals, self.counts)


def lp_sparsemap(
    scores: Tensor,
    graph: FactorGraph,
    *,
    potentials: Tensor | Sequence[Any] | None = None,
    gamma: float = 1.0,
    mask: Tensor | None = None,
    max_iter: int = 300,
    tol: float = 1e-6,
) -> LPSparseMAPOutput:
    r"""Return sparse marginals of a factor graph: the point nearest to the scores in the local polytope.

    .. math:: \max_{\mu, c} \; \langle \mu, x \rangle + \langle c, \eta \rangle - \tfrac{\gamma}{2} \lVert \mu \rVert^2

    where mu are the marginals, eta the potentials and c their expected counts. The maximum is over points for which
    each factor has a distribution over its structures whose mean is its part of mu (the local polytope). Since factors
    agree on mu alone, this is a relaxation: mu need not be the mean of a distribution over vectors that satisfy all
    factors. Differentiable in scores and potentials, to any order.

    Args:
        scores: (..., d) floating, one for each variable.
        graph: factors over the variables.
        potentials: further scores of factors that have them, in the order of the graph's factors and their groups:
            (..., P) for one for each group of variables, or one for each factor; see
            :meth:`FactorGraph.potential_counts`.
        gamma: strength of the regularizer, > 0.
        mask: boolean, broadcastable to ``scores``; True where a variable is allowed. Others are 0.
        max_iter: maximum number of evaluations of the factors for a row; if it is reached, there is a warning.
        tol: largest allowed difference between a variable and a factor's copy of it.

    Returns:
        Marginals, counts, residual and gap. NaN or +inf at an allowed variable makes its own row NaN and no other.

    Raises:
        ConfigurationError: for an invalid argument, or factors that contradict one another.

    Source: Niculae & Martins (2020), LP-SparseMAP: Differentiable Relaxed Optimization for Sparse Structured Prediction,
    arXiv:2001.04437.

    Example:
        >>> import torch
        >>> graph = FactorGraph(3, [Factor(Pair(), [0, 1]), Factor(Budget(None, 1))])
        >>> apart = lp_sparsemap(torch.tensor([0.9, 0.1, 0.8]), graph).marginals
        >>> joined = lp_sparsemap(
        ...     torch.tensor([0.9, 0.1, 0.8]), graph, potentials=[0.6]
        ... ).marginals
        >>> [round(p, 2) for p in apart.tolist()], [round(p, 2) for p in joined.tolist()]
        ([0.55, 0.0, 0.45], [0.43, 0.23, 0.33])
    """
    max_iter, tol, gamma = check_count("max_iter", max_iter), check_positive("tol", tol), check_positive("gamma", gamma)
    links = None if potentials is None else as_potentials(potentials)
    x = allowed_scores(scores, mask)
    return _solve(x, GraphProblem(check_graph(graph), max_iter, tol, warn_of_iterations), links, gamma)


def check_graph(graph: Any) -> FactorGraph:
    """Return a factor graph after checking that it is one.

    Raises:
        ConfigurationError: if it is not a :class:`~lit_sparse.structures.FactorGraph`.
    """
    if isinstance(graph, FactorGraph):
        return graph
    raise ConfigurationError(f"Expected a graph, such as FactorGraph(None, [Factor(Budget(None, 2))]), but got {graph!r}.")


@on_batches
def _solve(x: Tensor, problem: GraphProblem, potentials: Tensor | None, gamma: float) -> LPSparseMAPOutput:
    """Return the result of :func:`lp_sparsemap` for scores (..., d) that are -inf where they are masked."""
    d, batch, dtype = x.shape[-1], x.shape[:-1], x.dtype
    problem.graph.check(d)
    rows = x.reshape(batch.numel(), d).double() / gamma
    links = _batched(potentials, problem.graph, x).double() / gamma
    marginals, counts, residual, gap, *_ = problem(rows, links)
    return LPSparseMAPOutput(
        marginals.to(dtype).reshape(x.shape),
        counts.to(dtype).reshape(*batch, counts.shape[-1]),
        residual.to(dtype).reshape(batch),
        (gap * gamma).to(dtype).reshape(batch),
    )


def _batched(potentials: Tensor | None, graph: FactorGraph, x: Tensor) -> Tensor:
    """Return potentials (B, P), one for each group of variables, for scores (..., d).

    Raises:
        ConfigurationError: if they do not fit.
    """
    batch = x.shape[:-1]
    each, tied = graph.potential_counts(x.shape[-1])
    if potentials is None:
        return x.new_zeros(batch.numel(), each)
    if potentials.dim() < 1 or potentials.shape[-1] not in (each, tied):
        raise ConfigurationError(
            f"Expected potentials of shape ({each},), one for each group of variables, or ({tied},), one for each"
            f" factor, optionally preceded by the dimensions of the rows, but got {tuple(potentials.shape)}."
        )
    if potentials.shape[-1] != each:
        potentials = potentials[..., graph.tied_index(x.shape[-1]).to(potentials.device)]
    try:
        return potentials.to(x.device).expand(*batch, each).reshape(batch.numel(), each)
    except RuntimeError as error:
        raise ConfigurationError(
            f"Expected potentials for the rows of scores {tuple(x.shape)} but got shape {tuple(potentials.shape)}."
        ) from error


class LPSparseMAP(PotentialMapping):
    """Layer that computes sparse marginals of a factor graph: the point nearest to the scores in the local polytope.

    See :func:`~lit_sparse.mappings.functional.lp_sparsemap` for the objective.

    Args:
        graph: factors over the variables; see :class:`~lit_sparse.structures.FactorGraph`.
        potentials: further scores of factors that have them, a tensor or a list; see
            :func:`~lit_sparse.mappings.functional.lp_sparsemap`.
        learn_potentials: make the potentials a parameter, which starts from ``potentials`` or zeros: one for each
            factor where the graph reads its number of variables from the scores, else one for each group of variables.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        max_iter: maximum number of evaluations of the factors for a row; the first time it is reached, there is a
            warning.
        tol: largest allowed difference between a variable and a factor's copy of it.

    Raises:
        ConfigurationError: if an argument is invalid.

    Source: Niculae & Martins (2020), LP-SparseMAP: Differentiable Relaxed Optimization for Sparse Structured Prediction,
    arXiv:2001.04437.

    Example:
        >>> import torch
        >>> from lit_sparse.structures import Xor
        >>> pairs, share = Factor(Xor(), [[0, 1], [2, 3]]), Factor(Budget(None, 1), [0, 2])
        >>> layer = LPSparseMAP(FactorGraph(4, [pairs, share]))
        >>> layer(torch.tensor([2.0, 0.0, 2.0, 0.0])).tolist()  # 0 and 2 share a one
        [0.5, 0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        graph: FactorGraph,
        *,
        potentials: Tensor | Sequence[Any] | None = None,
        learn_potentials: bool = False,
        gamma: float = 1.0,
        dim: int = -1,
        max_iter: int = 300,
        tol: float = 1e-6,
    ) -> None:
        graph = check_graph(graph)
        values = None if potentials is None else as_potentials(potentials)
        super().__init__(graph, values, learn_potentials, gamma=gamma, dim=dim, max_iter=max_iter, tol=tol)
        self.graph = graph

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, with graphs for any number of variables."""
        chain = FactorGraph(None, [Factor(Pair(), "neighbours"), Factor(Budget(None, 2))])
        some = FactorGraph(None, [Factor(Or()), Factor(Budget(None, 3))])
        return [cls(some), cls(chain, potentials=[0.7]), cls(chain, potentials=[-0.4], gamma=0.5)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Return the marginals along ``dim``; see :func:`lp_sparsemap`."""
        x = allowed_scores(scores, mask, dim).movedim(dim, -1)
        if x.is_meta or x.shape[-1] == 0:
            return (torch.zeros_like(x) if x.is_meta else x).movedim(-1, dim)
        return self.solve(x).marginals.movedim(-1, dim)

    def solve(self, scores: Tensor, mask: Tensor | None = None) -> LPSparseMAPOutput:
        """Return marginals, counts, residual and gap along the last dimension; see :func:`lp_sparsemap`.

        Args:
            scores: (..., d).
            mask: boolean, broadcastable to ``scores``; True where a variable is allowed.
        """
        problem = GraphProblem(self.graph, self.max_iter, self.tol, self._warn_once)
        return _solve(allowed_scores(scores, mask), problem, self.potentials, self.gamma)

    @override
    def _attained(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        out = self.solve(x)
        links = _batched(self.potentials, self.graph, x).double()
        point, counts = out.marginals, out.counts.reshape(links.shape)
        inner = torch.where(point != 0, point * x, 0.0).sum(-1) - 0.5 * self.gamma * point.square().sum(-1)
        return point, counts, links, inner + (counts * links).sum(-1).reshape(x.shape[:-1])

    def loss(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the Fenchel-Young loss of LP-SparseMAP for targets that satisfy all factors.

        Nonnegative, and zero where the marginals are the target. Its gradient is the marginals minus the target, and in
        the potentials the expected counts minus the target's counts.

        Args:
            scores: (..., d).
            target: (..., d) of {0, 1}.
            mask: boolean, broadcastable to ``scores``; True where a variable is allowed.

        Returns:
            Tensor (...).

        Raises:
            ConfigurationError: if the target has another shape, or violates a factor or the mask.
        """
        x = allowed_scores(scores, mask)
        check_tensor(target, f"a target of the scores' shape {tuple(x.shape)}", shape=x.shape)
        local = local_of(self.graph, x.shape[-1], x.device)
        bits = target.to(x.dtype).reshape(-1, x.shape[-1])
        fits = local.fits(bits, (x != -torch.inf).reshape(bits.shape))
        if not bool(fits.all()):
            raise ConfigurationError(
                f"Expected targets of {{0, 1}} that fit all factors and the mask but the target of row"
                f" {int((~fits).nonzero()[0])} does not."
            )
        links = _batched(self.potentials, self.graph, x).to(x.dtype)
        chosen = torch.where(bits > 0, x.reshape(bits.shape), 0.0).sum(-1) - 0.5 * self.gamma * bits.sum(-1)
        return self.value_of(x, -1) - (chosen + local.totals(bits, links)).reshape(x.shape[:-1])
