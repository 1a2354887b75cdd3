"""Losses for predictions that a solver decides by, over models of PyEPO and any structure.

They take the place of PyEPO's own in its training loop, with its ``optDataset``. PyEPO itself is not imported; the extra
``pyepo`` installs it.

Example:
    >>> import torch
    >>> from lit_sparse.structures import ShortestPath
    >>> loss = SparseMAPLoss(ShortestPath.grid(2, 2))
    >>> costs = torch.tensor([[1.0, 3.0, 2.0, 1.0]], requires_grad=True)
    >>> best = torch.tensor([[0.0, 1.0, 0.0, 1.0]])  # down, then right
    >>> loss(costs, best).backward()
    >>> costs.grad.tolist()  # a step against it makes the best path cheaper
    [[-0.75, 0.75, -0.75, 0.75]]
"""

from __future__ import annotations

import warnings
from abc import ABC
from importlib import metadata
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lit_sparse.checks import FLOATS, POSITIVE, Count, check_count, check_flag, check_tensor, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import check_types
from lit_sparse.ground.torch_internals import on_batches
from lit_sparse.mappings import SparseMAP
from lit_sparse.structures import FromSolver, Structure
from lit_sparse.structures.from_solver import INTEGRAL

__all__ = ["PerturbedFenchelYoungLoss", "SPOPlusLoss", "SparseMAPLoss", "structure_of"]

#: Versions of PyEPO whose losses and models the tests have compared.
TESTED = ("2.2",)


class _Solve:
    """Maximizes scores by a model of PyEPO. In another process the model is built anew from its constructor's arguments."""

    def __init__(self, optmodel: Any) -> None:
        self.optmodel = optmodel
        self.sign = -1.0 if _minimizes(optmodel) else 1.0

    def __call__(self, scores: np.ndarray) -> Any:
        self.optmodel.setObj(self.sign * scores)
        return self.optmodel.solve()[0]

    def __reduce__(self) -> Any:
        if getattr(self.optmodel, "_extra_constrs", None):
            raise ConfigurationError("a model with constraints that were added later cannot be built anew")
        return _rebuilt, (self.optmodel.to_spec(),)


def _rebuilt(spec: Any) -> _Solve:
    return _Solve(spec.build())


def _minimizes(optmodel: Any) -> bool:
    try:
        sense = int(optmodel.modelSense)
    except (TypeError, ValueError):
        sense = 0
    if sense not in (1, -1):
        raise ConfigurationError(
            f"Expected `modelSense` of the model to be 1, to minimize, or -1, to maximize, but got {optmodel.modelSense!r}."
        )
    return sense == 1


def structure_of(optmodel: Any, *, processes: int = 0, cache: int = 1000) -> FromSolver:
    """Return the solutions of a PyEPO model as a structure, whose scores are minus the costs, or the values to maximize.

    Args:
        optmodel: an ``optModel`` whose variables are 0 or 1, with a cost for each.
        processes: number of worker processes that share the rows; see :class:`~lit_sparse.structures.FromSolver`.
        cache: number of solutions to store, which SparseMAP searches before it calls the solver.

    Raises:
        ConfigurationError: if it is not such a model.
    """
    missing = [name for name in ("setObj", "solve", "num_cost", "modelSense") if not hasattr(optmodel, name)]
    if missing or isinstance(optmodel, type):
        raise ConfigurationError(f"Expected an optModel of PyEPO or a structure but got {full_name(optmodel)}.")
    if getattr(optmodel, "c_pred_index", None) is not None:
        raise ConfigurationError("Expected a model in which all costs are predicted but some are fixed.")
    if any(cls.__module__.partition(".")[0] == "pyepo" for cls in type(optmodel).__mro__):
        found = metadata.version("pyepo")
        if ".".join(found.split(".")[:2]) not in TESTED:
            warnings.warn(f"PyEPO {found} is untested; these losses are tested with {', '.join(TESTED)}.", stacklevel=2)
    size = check_count("num_cost", optmodel.num_cost)
    return FromSolver(_Solve(optmodel), size, processes=processes, cache=cache)


class _DecisionLoss(nn.Module, ABC):
    """Base of losses of predicted costs.

    Args:
        problem: a model of PyEPO, or a structure.
        minimize: whether costs are minimized; by default as the model says, and for a structure True.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """

    def __init__(
        self, problem: Any, *, minimize: bool | None = None, reduction: Literal["mean", "sum", "none"] = "mean"
    ) -> None:
        super().__init__()
        own = isinstance(problem, Structure)
        self.structure: Structure = problem if own else structure_of(problem)
        if not own and minimize not in (None, _minimizes(problem)):
            raise ConfigurationError(f"Expected minimize={_minimizes(problem)}, as in the model, but got {minimize!r}.")
        default = own or _minimizes(problem)
        self.minimize = default if minimize is None else check_flag("minimize", minimize)
        self.reduction = reduction

    def scores(self, costs: Tensor) -> Tensor:
        """Return the scores (B, d), to be maximized, for costs (B, d)."""
        what = "floating costs of shape (rows, entries)"
        self.structure.check(check_tensor(costs, what, shape=(None, None), dtypes=FLOATS).shape[-1])
        return -costs if self.minimize else costs

    @on_batches
    def solutions(self, given: Tensor, like: Tensor) -> Tensor:
        """Return solutions (B, d) as exact zeros and ones."""
        check_tensor(given, f"solutions of shape {tuple(like.shape)}, as the costs have,", shape=like.shape)
        bits = (given > 0.5).to(like)
        if not bool(((given - bits).abs() <= INTEGRAL).all()):
            raise ConfigurationError("Expected solutions of zeros and ones but got other values.")
        if not bool(self.structure.fits(bits, torch.ones_like(bits, dtype=torch.bool)).all()):
            raise ConfigurationError(f"Expected structures of {self.structure!r} as solutions, but some are not.")
        return bits

    def best(self, scores: Tensor) -> Tensor:
        """Return the best structures (B, d), as constants."""
        return self.structure.maximize(scores.detach().double()).to(scores)

    def reduced(self, losses: Tensor) -> Tensor:
        """Return losses (B,) as the reduction has it."""
        return losses.mean() if self.reduction == "mean" else losses.sum() if self.reduction == "sum" else losses


class SparseMAPLoss(_DecisionLoss):
    r"""Fenchel-Young loss of SparseMAP for predicted costs and the best solution.

    .. math:: \max_{\mu} \left\{\langle \mu, x \rangle - \tfrac{\gamma}{2} \lVert \mu \rVert^2\right\}
        + \tfrac{\gamma}{2} \lVert a \rVert^2 - \langle a, x \rangle

    where x are the scores, the negative costs for minimization, a is the solution, and mu ranges over the convex hull of
    all solutions.

    It is convex in the costs, nonnegative, and its gradient is exact: for minimization, the solution minus the marginals.
    It equals PyEPO's ``regularizedFrankWolfeFenchelYoung(optmodel, lambd=gamma)``, with far fewer calls of the solver.

    Args:
        problem: a PyEPO model, or a structure, which is faster if there is one for the problem.
        gamma: strength of the regularizer, > 0.
        options: ``minimize`` and ``reduction``; see :class:`SPOPlusLoss`.

    Raises:
        ConfigurationError: if an argument is invalid.

    Source: Niculae, Martins, Blondel & Cardie (2018), SparseMAP: Differentiable Sparse Structured Inference.
    """

    def __init__(self, problem: Any, gamma: float = 1.0, **options: Any) -> None:
        super().__init__(problem, **options)
        self.mapping = SparseMAP(self.structure, gamma=gamma)

    def forward(self, pred_cost: Tensor, true_sol: Tensor) -> Tensor:
        """Return the loss of costs (B, d) for solutions (B, d) of zeros and ones; a scalar, or (B,) without reduction."""
        scores = self.scores(pred_cost)
        return self.reduced(self.mapping.loss(scores, self.solutions(true_sol, scores)))


@ranges(samples=Count(), sigma=POSITIVE)
class PerturbedFenchelYoungLoss(_DecisionLoss):
    """Fenchel-Young loss of the best solution under randomly perturbed costs, estimated by sampling.

    For minimization, its gradient is the solution minus the mean of the solutions for costs with normal noise. Noise comes
    from torch's global generator.

    Args:
        problem: a PyEPO model, or a structure.
        samples: number of perturbations of each row.
        sigma: standard deviation of the noise, > 0.
        options: ``minimize`` and ``reduction``; see :class:`SPOPlusLoss`.

    Raises:
        ConfigurationError: if an argument is invalid.

    Source: Berthet, Blondel, Teboul, Cuturi, Vert & Bach (2020), Learning with Differentiable Perturbed Optimizers.
    """

    def __init__(self, problem: Any, samples: int = 10, sigma: float = 1.0, **options: Any) -> None:
        super().__init__(problem, **options)
        self.samples, self.sigma = samples, sigma

    def forward(self, pred_cost: Tensor, true_sol: Tensor) -> Tensor:
        """Return the loss of costs (B, d) for solutions (B, d) of zeros and ones; a scalar, or (B,) without reduction."""
        scores = self.scores(pred_cost)
        target = self.solutions(true_sol, scores)
        noise = torch.randn(self.samples, *scores.shape, dtype=scores.dtype, device=scores.device)
        perturbed = scores + self.sigma * noise
        best = self.best(perturbed.flatten(0, 1)).reshape(perturbed.shape)
        return self.reduced((perturbed * best).sum(-1).mean(0) - (scores * target).sum(-1))


class SPOPlusLoss(_DecisionLoss):
    """SPO+ loss: a convex upper bound of the regret of deciding by predicted costs.

    Args:
        problem: a PyEPO model, or a structure.
        minimize: whether costs are minimized; by default the model's setting, and True for a structure.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ConfigurationError: if an argument is invalid.

    Source: Elmachtoub & Grigas (2022), Smart "Predict, then Optimize", doi:10.1287/mnsc.2020.3922.
    """

    def forward(self, pred_cost: Tensor, true_cost: Tensor, true_sol: Tensor, true_obj: Tensor | None = None) -> Tensor:
        """Return the SPO+ loss of predicted costs; a scalar, or (B,) without reduction.

        Args:
            pred_cost: predicted costs (B, d).
            true_cost: true costs (B, d).
            true_sol: the best solutions (B, d) for the true costs.
            true_obj: not needed; accepted because PyEPO's loss has it.

        Raises:
            ConfigurationError: if the costs have different shapes.
        """
        scores, true = self.scores(pred_cost), self.scores(true_cost).detach()
        check_tensor(true, f"true costs of shape {tuple(scores.shape)}, as the predicted ones have,", shape=scores.shape)
        target = self.solutions(true_sol, scores)
        twice = 2 * scores - true
        return self.reduced(((twice * self.best(twice)) - (twice * target)).sum(-1))


check_types(globals())
