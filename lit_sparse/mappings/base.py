"""The base class of all mappings, and what it derives from a mapping's Omega."""

from __future__ import annotations

import functools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import INTEGER, POSITIVE, check_learnable, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import shown_arguments
from lit_sparse.ground.torch_internals import can_read_values, must_decompose
from lit_sparse.kernels.row_kernel import HALVES, batch_first
from lit_sparse.mappings.masking import allowed_scores

__all__ = ["SparseMapping", "Threshold", "check_mapping", "envelope", "warn_off_simplex", "with_slope"]


@ranges(gamma=POSITIVE, dim=INTEGER)
class SparseMapping(nn.Module, ABC):
    r"""Base class of layers that map scores x, along one dimension, to the maximizer of a regularized inner product.

    .. math:: y = \operatorname*{argmax}_{y \in C} \; \langle y, x \rangle - \gamma\,\Omega(y)

    where C is the domain, such as the probability simplex, and Omega a convex regularizer.

    A subclass implements :meth:`map` and :meth:`regularizer` (Omega), keeps each constructor argument as an attribute
    of its name, and gets the value, the Fenchel-Young loss, the representation and the shared tests from here.

    Args:
        gamma: strength of the regularizer, > 0. The smaller, the closer to the plain argmax.
        dim: dimension along which scores are mapped.

    Raises:
        ConfigurationError: if ``gamma`` is not a positive, finite number.
    """

    #: Results are probabilities: not negative, summing to one.
    on_simplex: ClassVar[bool] = True
    #: Some scores give results of exactly zero.
    sparse: ClassVar[bool] = True
    #: Adding a constant to all scores of a row changes nothing.
    shift_invariant: bool = True
    #: Entries that are not zero are the scores themselves.
    keeps_scores: ClassVar[bool] = False
    #: The order of the entries matters: dropping some makes neighbours of others.
    ordered: bool = False
    #: It maximizes something, so that there is a value and a Fenchel-Young loss.
    has_value: bool = True
    #: Solved to a tolerance by iteration over batches rather than exactly by a row kernel.
    iterative: ClassVar[bool] = False
    #: Which entries of equal weight are one group, where groups are counted and drawn: neighbours, or all that are tied.
    groups: ClassVar[Literal["neighbours", "tied"]] = "neighbours"

    def __init__(self, *, gamma: float = 1.0, dim: int = -1) -> None:
        super().__init__()
        self.gamma, self.dim = gamma, dim

    @abstractmethod
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Map scores along ``dim``, which may differ from ``self.dim``.

        Args:
            scores: (..., d, ...).
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
            dim: dimension of length d.

        Returns:
            Tensor of the scores' shape and dtype; zero where the mask is False.
        """

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return Omega(y) without its strength gamma; inf where y lies outside the domain.

        Args:
            y: (..., d, ...), zero where it is not allowed.
            dim: dimension of length d.
            allowed: boolean of y's shape, False where a mask forbids the entry; None where nothing does.

        Returns:
            Tensor of y's shape without ``dim``.

        Raises:
            ConfigurationError: for a mapping that maximizes no objective.
        """
        raise ConfigurationError(
            f"Expected {type(self).__name__} to have a `regularizer`, the Omega of its objective. Define it, or set"
            " `has_value = False`."
        )

    def admissible(self, q: Tensor, dim: int, allowed: Tensor) -> Tensor:
        """Return the Fenchel-Young loss's target for q: q itself, or a point near it where Omega is finite.

        Args:
            q: (..., d, ...) probabilities.
            dim: dimension of length d.
            allowed: boolean of q's shape.
        """
        return q

    def parameter_term(self, y: Tensor, dim: int, allowed: Tensor | None) -> Tensor | None:
        """Return zeros of Omega(y)'s shape whose derivative is Omega's with respect to the mapping's own parameters.

        None for an Omega without parameters that need a gradient. :func:`with_slope` makes such zeros.
        """
        return None

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances of the class for the shared tests; override it when the constructor needs arguments."""
        return [cls(), cls(gamma=0.5)]

    def keep_parameter(
        self, name: str, value: float | Tensor, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False
    ) -> None:
        """Store a number, ``nn.Parameter`` or tensor (as a buffer) as the attribute ``name``, after a check of its range.

        Raises:
            ConfigurationError: for a value outside of the range.
        """
        checked = check_learnable(name, value, low, high, open_low=open_low)
        if isinstance(checked, Tensor) and not isinstance(checked, nn.Parameter):
            self.register_buffer(name, checked, persistent=False)
        else:
            setattr(self, name, checked)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores to sparse points.

        Args:
            scores: floating tensor; length d along ``self.dim``.
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed. Others get zero.

        Returns:
            Tensor of the scores' shape and dtype. A row with nothing allowed is zero; NaN or +inf at an allowed entry
            makes its own row NaN and no other.
        """
        return self.map(scores, mask, self.dim)

    @property
    def couples_queries(self) -> bool:
        """Whether, in attention, the weights of one query depend on the other queries, so that they are mapped together."""
        return False

    def threshold(self) -> Threshold | None:
        """Return the threshold that defines the support, so that attention and output layers can skip most entries.

        None for a mapping that is not of the entmax family.
        """
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "map" in vars(cls) and "threshold" not in vars(cls):  # a mapping of its own is not its base's entmax
            cls.threshold = SparseMapping.threshold  # type: ignore[method-assign]
        if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:  # the package's own are tested instead
            for name in ("map", "map_block"):
                if name in vars(cls):
                    setattr(cls, name, _of_one_shape(vars(cls)[name]))

    def map_block(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map attention scores (..., queries, keys): each query's by itself, unless the mapping couples the queries.

        Args:
            scores: (..., L, S), L queries and S keys.
            mask: boolean, broadcastable to ``scores``; True where a query may look.
        """
        return self.map(scores, mask, -1)

    def value(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the maximum ``<y, x> - gamma * Omega(y)`` that the mapping attains; its gradient is the mapping itself.

        Args:
            scores: floating tensor; length d along ``self.dim``.
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

        Returns:
            Tensor of the scores' shape without ``self.dim``; -inf for a row with nothing allowed.
        """
        return self.value_along(scores, mask, self.dim)

    def check_value(self) -> None:
        """Raise an error if the mapping is not the maximizer of any objective.

        Raises:
            ConfigurationError: if it has no objective, and so no :meth:`value`.
        """
        if not self.has_value:
            raise ConfigurationError(
                f"Expected a mapping that maximizes something, but {self!r} does not: it has no value and no loss. Use another"
                " one; Oscarmax has both with exact=True."
            )

    def value_along(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Return the attained maximum, as :meth:`value` does, along ``dim`` instead of ``self.dim``; ``dim`` is removed."""
        self.check_value()
        return self.value_of(allowed_scores(scores, mask, dim), dim)

    def value_of(self, x: Tensor, dim: int) -> Tensor:
        """Return the attained maximum along ``dim`` for scores (..., d, ...) that are -inf where an entry is not allowed."""
        dtype = x.dtype
        if dtype in HALVES:
            x = x.float()
        if dim >= 0:
            dim -= x.dim()  # counted from the end, a dimension keeps its number under vmap
        if x.shape[dim] == 0:
            return x.sum(dim).fill_(-torch.inf).to(dtype)
        y = self.map(x, None, dim)
        allowed = x != -torch.inf
        value = envelope(x, y, self._maximum(x.detach(), y.detach(), allowed, dim), dim)
        term = self.parameter_term(y, dim, allowed)
        return (value if term is None else value - self.gamma * term).to(dtype)

    def _maximum(self, x: Tensor, y: Tensor, allowed: Tensor, dim: int) -> Tensor:
        """Return <y, x> - gamma * Omega(y), around the largest score so that large shifts cost no digits."""
        top = x.amax(dim, keepdim=True)
        center = torch.where(top.isinf(), 0.0, top) if self.shift_invariant and self.on_simplex else torch.zeros_like(top)
        gain = torch.where(y != 0, y * (x - center), 0.0).sum(dim)
        omega = self.regularizer(y, dim, allowed)
        if not isinstance(omega, Tensor) or omega.shape != gain.shape:
            got = tuple(omega.shape) if isinstance(omega, Tensor) else full_name(omega)
            raise ConfigurationError(
                f"Expected `regularizer` of {full_name(self)} to return Omega of each row, {tuple(gain.shape)}, but got {got}."
            )
        maximum = center.squeeze(dim) + gain - self.gamma * omega.detach()
        return torch.where(allowed.any(dim), maximum, -torch.inf)

    def extra_repr(self) -> str:
        """Return the constructor's arguments with the values that this instance has."""
        return shown_arguments(self)


def envelope(x: Tensor, y: Tensor, maximum: Tensor, dim: int) -> Tensor:
    """Give a maximum over scores x, attained at y along ``dim``, the gradient y (the envelope theorem), to any order.

    Differentiating ``<y, x> - gamma Omega(y)`` would give the same gradient plus J times a constant vector, J the Jacobian
    of y, which is zero in exact arithmetic alone.

    Args:
        x: (..., d, ...) scores.
        y: (..., d, ...) maximizer.
        maximum: the maximum, of x's shape without ``dim``.
        dim: dimension of length d.

    Returns:
        A tensor with the value of ``maximum``.
    """
    if not must_decompose():
        return _Sloped.apply(x, y, maximum, dim)  # type: ignore[no-any-return, no-untyped-call]
    step = torch.where(y != 0, x - x.detach(), 0.0)
    return maximum + (0.5 * (y + y.detach()) * step).sum(dim)


def with_slope(parameter: Tensor, slope: Tensor) -> Tensor:
    """Return zeros whose derivative with respect to ``parameter`` is ``slope``, a tensor of the same shape.

    The slope may depend on anything, the parameter included: its own derivatives count when the derivative is
    differentiated again, and only then. A product would count them twice.
    """
    if not must_decompose():
        return _Sloped.apply(parameter, slope, torch.zeros_like(slope), None)  # type: ignore[no-any-return, no-untyped-call]
    return (parameter - parameter.detach()) * 0.5 * (slope + slope.detach())  # each factor adds half of the slope's derivative


class _Sloped(torch.autograd.Function):
    """A value with a given derivative with respect to x: entry by entry, or summed along a dimension."""

    @staticmethod
    def forward(x: Tensor, slope: Tensor, value: Tensor, dim: int | None) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dim = inputs[3]
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return (grads[0] if ctx.dim is None else grads[0].unsqueeze(ctx.dim)) * slope, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (slope,) = ctx.saved_tensors
        change = torch.zeros_like(slope) if tangents[0] is None else slope * tangents[0]
        if ctx.dim is None:
            return change
        return torch.where(slope != 0, change, 0.0).sum(ctx.dim)  # tangents without weight do not matter, even NaN

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return _Sloped.apply(*batch_first(info.batch_size, in_dims, args)), 0  # type: ignore[no-untyped-call]


def _of_one_shape(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a user's ``map`` or ``map_block`` that refuses its result if it does not have the shape of the scores."""

    @functools.wraps(method)
    def mapped(self: SparseMapping, scores: Tensor, *args: Any, **options: Any) -> Tensor:
        y = method(self, scores, *args, **options)
        if not isinstance(y, Tensor) or y.shape != scores.shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else full_name(y)
            raise ConfigurationError(
                f"Expected `{method.__name__}` of {full_name(self)} to return a tensor of the scores' shape"
                f" {tuple(scores.shape)} but got {got}."
            )
        return y

    return mapped


class Threshold(NamedTuple):
    """Parameters of the entmax that a mapping computes, by which layers know that scores below a threshold have weight zero.

    More scores cannot lower the threshold.

    Attributes:
        alpha: exponent of the entmax, > 1 for a threshold to exist; a tensor broadcasts to the scores.
        k: number of largest scores that are kept, for top-k sparsemax; None for all.
        gamma: strength of the regularizer.
    """

    alpha: float | Tensor
    k: int | None = None
    gamma: float = 1.0


def check_mapping(mapping: object) -> None:
    """Raise a ``ConfigurationError`` unless the argument is a mapping."""
    if not isinstance(mapping, SparseMapping):
        got = f"the class {mapping.__name__}" if isinstance(mapping, type) else f"{full_name(mapping)}"
        raise ConfigurationError(
            f"Expected `mapping` to be a SparseMapping, such as `lit_sparse.mappings.Sparsemax()`, but got {got}."
        )


def warn_off_simplex(mapping: SparseMapping) -> None:
    """Warn, once per mapping, if its weights are not probabilities."""
    if mapping.on_simplex or mapping.couples_queries or not can_read_values() or getattr(mapping, "_warned", False):
        return
    mapping._warned = True  # type: ignore[assignment]
    warnings.warn(
        f"{mapping!r} does not map onto the simplex: its attention weights do not sum to 1, and they may be negative. Use a"
        " mapping such as Sparsemax() unless this is intended.",
        stacklevel=3,
    )
