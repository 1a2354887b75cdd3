"""Mappings onto structures, with optional potentials: scores of several entries together."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import FLOATS, ITERATIONS, POSITIVE, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings.base import SparseMapping, envelope, with_slope
from lit_sparse.structures import FactorGraph, Structure

__all__ = ["PotentialMapping", "as_potentials", "warn_of_iterations"]


def as_potentials(values: Tensor | Sequence[Any]) -> Tensor:
    """Return potentials as a floating tensor.

    Raises:
        ConfigurationError: if they are not numbers.
    """
    try:
        tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.get_default_dtype())
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"Expected argument `potentials` to hold numbers but got {values!r}.") from error
    return check_tensor(tensor, "argument `potentials` to be floating", dtypes=FLOATS)


def warn_of_iterations(text: str) -> None:
    """Warn that a solver reached its maximum number of iterations."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


@ranges(max_iter=ITERATIONS, tol=POSITIVE)
class PotentialMapping(SparseMapping):
    """Base class of the iterative mappings onto structures and factor graphs, with optional potentials.

    Potentials are scores of several entries together, such as one for each pair of adjacent tags.

    Args:
        domain: the structure or graph that the scores belong to.
        potentials: further scores, a tensor or nested lists.
        learn_potentials: make the potentials a parameter, which starts from ``potentials`` or the initial ones.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        max_iter: maximum number of iterations for a row; the first time it is reached, there is a warning.
        tol: error of the result to reach.

    Raises:
        ConfigurationError: if an argument is invalid.
    """

    on_simplex = False
    shift_invariant = False
    iterative = True

    potentials: Tensor | None

    def __init__(
        self,
        domain: Structure | FactorGraph,
        potentials: Tensor | None,
        learn_potentials: bool,
        *,
        gamma: float,
        dim: int,
        max_iter: int,
        tol: float,
    ) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.learn_potentials, self.max_iter, self.tol = learn_potentials, max_iter, tol
        self.ordered = domain.ordered
        self._told = False
        if learn_potentials:
            initial = domain.initial_potentials() if potentials is None else potentials.detach().clone()
            self.potentials = torch.nn.Parameter(initial)
        else:
            self.register_buffer("potentials", potentials, persistent=False)

    def _warn_once(self, text: str) -> None:
        if not self._told:
            self._told = True
            warn_of_iterations(text)

    @abstractmethod
    def _attained(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the maximizer for scores (..., d) in float64, and the maximum.

        Returns:
            Marginals (..., d); how much each potential counts (B, ...); the potentials in that shape; and the maximum (...).
        """

    def value_of(self, x: Tensor, dim: int) -> Tensor:
        """Return the attained maximum along ``dim``; its gradient is the marginals and the potentials' expected counts."""
        if self.potentials is None:
            return super().value_of(x, dim)
        given = x.movedim(dim, -1)
        x = given.double()  # autocast leaves it alone
        if x.shape[-1] == 0:
            return given.sum(-1).fill_(-torch.inf)
        point, counts, links, maximum = self._attained(x)
        maximum = torch.where((x != -torch.inf).any(-1), maximum.detach(), -torch.inf)
        slope = with_slope(links, counts).flatten(1).sum(-1).reshape(x.shape[:-1])
        return (envelope(x, point, maximum, -1) + slope).to(given.dtype)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) = ``1/2 ||y||^2`` along ``dim``.

        Raises:
            ConfigurationError: if there are potentials, because Omega then depends on more than y.
        """
        if self.potentials is not None:
            raise ConfigurationError("Expected no potentials: with them Omega depends on the structures, not on y alone.")
        y = y.movedim(dim, -1)
        return 0.5 * self.squared_norm(y, torch.ones_like(y, dtype=torch.bool) if allowed is None else allowed.movedim(dim, -1))

    def squared_norm(self, y: Tensor, allowed: Tensor) -> Tensor:
        """Return the squared norm (...) of marginals (..., d), with entries that are not ``allowed`` counted as 0."""
        return y.square().sum(-1)
