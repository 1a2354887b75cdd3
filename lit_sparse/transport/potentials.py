"""Potentials of optimal transport: a function of source points and one of target points, by kernels or by networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import (
    EXAMPLES,
    FLOATS,
    MOST_FEATURES,
    POSITIVE,
    WIDTHS,
    check_choice,
    check_count,
    check_positive,
    check_tensor,
    ranges,
)
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.transport.dual import TransportObjective
from lit_sparse.transport.kernel_sgd import gaussian_sum, run_kernel_sgd

__all__ = ["KernelPotentials", "MLPPotentials", "Potentials"]


class _NotBuiltError(ConfigurationError, AttributeError):
    """What potentials lack before they are built."""


class Potentials(nn.Module, ABC):
    """Base class of the potentials u and v of optimal transport, functions of source and of target points.

    Subclasses keep each constructor argument as an attribute of the same name. The model passes the dimension of the points
    to :meth:`build` once, before all other calls; it calls :meth:`create`, which makes everything that depends on the
    dimension.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dim: int | None = None

    def build(self, dim: int) -> Self:
        """Create everything that depends on the dimension d of the points, and return the potentials.

        Raises:
            ConfigurationError: if it was built for another dimension.
        """
        if self.dim is not None and self.dim != dim:
            raise ConfigurationError(
                f"Expected points of dim={self.dim}, for which these potentials were built, but got dim={dim}."
                " Give each model its own potentials."
            )
        if self.dim is None:
            self.dim = check_count("dim", dim, most=MOST_FEATURES)
            self.create(dim)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if self.__dict__.get("dim", 0) is not None or name.startswith("__"):
                raise
            raise _NotBuiltError(f"Expected {full_name(self)} to be built but it has no {name!r}. Call build(dim).") from error

    @abstractmethod
    def create(self, dim: int) -> None:
        """Create parameters and buffers for d-dimensional points."""

    @abstractmethod
    def source_potential(self, x: Tensor) -> Tensor:
        """Return the potential u (B,) of source points (B, d)."""

    @abstractmethod
    def target_potential(self, y: Tensor) -> Tensor:
        """Return the potential v (B,) of target points (B, d)."""


@ranges(hidden=WIDTHS)
class MLPPotentials(Potentials):
    """Potentials that are two fully connected networks, trained by gradients.

    Args:
        hidden: widths of the hidden layers of each network.

    Example:
        >>> potentials = MLPPotentials([16]).build(3)
        >>> potentials.source_potential(torch.randn(5, 3)).shape
        torch.Size([5])
    """

    def __init__(self, hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        self.hidden = hidden

    @override
    def create(self, dim: int) -> None:
        from lit_sparse.nn import MLP  # on use: a third of what measures import

        self.of_source = MLP([dim, *self.hidden, 1])
        self.of_target = MLP([dim, *self.hidden, 1])

    @override
    def source_potential(self, x: Tensor) -> Tensor:
        u: Tensor = self.of_source(x)
        return u.squeeze(-1)

    @override
    def target_potential(self, y: Tensor) -> Tensor:
        v: Tensor = self.of_target(y)
        return v.squeeze(-1)


@ranges(width=POSITIVE, step_size=POSITIVE, capacity=EXAMPLES)
class KernelPotentials(Potentials):
    r"""Potentials that are sums of Gaussian kernels at all pairs of points seen so far, fitted by kernel SGD.

    .. math:: u = \sum_j b_j\, k(\cdot, x_j), \qquad v = \sum_j b_j\, k(\cdot, y_j), \qquad
        k(x, x') = e^{-\lVert x - x' \rVert^2 / (2\, \mathrm{width}^2)}

    where (x_j, y_j) are the pairs of points and b_j their coefficients.

    Kernel SGD adds a kernel to each sum with every pair of points. The points and coefficients are buffers
    of a fixed size, so that a checkpoint holds them. They are float64 and stay on the CPU, because the iterations are
    sequential. They have no gradient.

    Args:
        width: width of a kernel, in units of x.
        step_size: C; iteration i has the learning rate C / sqrt(i).
        capacity: largest number of iterations.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Genevay, Cuturi, Peyre & Bach (2016), section 5, arXiv:1605.08527.

    Example:
        >>> potentials = KernelPotentials(width=0.7).build(1)
        >>> x, y = torch.zeros(1, 1), torch.zeros(1, 1)
        >>> # The density is right already: exp(0) = 1.
        >>> _ = potentials.ascend(x, y, eps=0.1, rho=0.1, objective="dual")
        >>> float(potentials.source_potential(x)), int(potentials.count)
        (0.0, 1)
    """

    sources: Tensor
    targets: Tensor
    coefficients: Tensor
    count: Tensor

    def __init__(self, width: float = 0.7, step_size: float = 0.3, capacity: int = 10_000) -> None:
        super().__init__()
        self.width, self.step_size, self.capacity = width, step_size, capacity

    @override
    def create(self, dim: int) -> None:
        for name in ("sources", "targets"):
            self.register_buffer(name, torch.zeros(self.capacity, dim, dtype=torch.float64))
        self.register_buffer("coefficients", torch.zeros(self.capacity, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @override
    def source_potential(self, x: Tensor) -> Tensor:
        return self._sum(x, self.sources)

    @override
    def target_potential(self, y: Tensor) -> Tensor:
        return self._sum(y, self.targets)

    @torch.no_grad()
    def ascend(self, x: Tensor, y: Tensor, *, eps: float, rho: float, objective: TransportObjective) -> tuple[Tensor, int]:
        """Run one iteration of kernel SGD per pair of points; if it breaks down, nothing changes.

        Args:
            x: (B, d) source points.
            y: (B, d) target points.
            eps: strength of the entropy.
            rho: inverse of the bound on the plan's density; unused for ``"dual"``.
            objective: ``"safe"`` or ``"dual"``.

        Returns:
            (B,) float64, u(x) + v(y) of each pair before its iteration, and the number of coefficients that overflowed or
            became NaN.

        Raises:
            ConfigurationError: if the capacity does not suffice.
        """
        check_choice("objective", objective, get_args(TransportObjective))
        check_positive("eps", eps)
        if x.shape != y.shape or x.shape[1:] != (self.dim,):
            raise ConfigurationError(f"Expected pairs of points (B, {self.dim}) but got {tuple(x.shape)} and {tuple(y.shape)}.")
        first = int(self.count)
        last = first + len(x)
        if last > self.capacity:
            raise ConfigurationError(
                f"Expected at most capacity={self.capacity} iterations of kernel SGD but this would be the {last}th. Set the"
                " potentials' `capacity` to the training samples of all epochs, or train for fewer."
            )
        self.sources[first:last] = x.detach().to(self.sources)
        self.targets[first:last] = y.detach().to(self.targets)
        numbers = {"width": self.width, "step_size": self.step_size, "eps": eps, "rho": rho}
        sums, broken = run_kernel_sgd(
            self.sources, self.targets, self.coefficients, first, last, objective=objective, **numbers
        )
        if broken:
            self.sources[first:last], self.targets[first:last], self.coefficients[first:last] = 0.0, 0.0, 0.0
        else:
            self.count.fill_(last)
        return sums, broken

    @torch.no_grad()
    def _sum(self, points: Tensor, centres: Tensor) -> Tensor:
        check_tensor(points, f"floating points (B, {self.dim})", shape=(None, self.dim), dtypes=FLOATS)
        used = int(self.count)
        found = gaussian_sum(points.cpu(), centres[:used], self.coefficients[:used], self.width)
        return found.to(points)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        """Stay on the CPU, in float64."""
        return self
