"""The interface of structures: sets of bit vectors whose best element for given scores can be found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError, shown_arguments
from lit_sparse.kernels.oracles import FINE, STEP, TIE, CompiledOracle

__all__ = ["Structure", "coarse_scores"]


class Structure(ABC):
    """A finite set of vectors ``a`` in {0, 1}^d, each a whole: a bit vector, a sequence of tags, a matching.

    A subclass needs :meth:`maximize` alone; :class:`~lit_sparse.mappings.SparseMAP` then maps scores to the few structures that
    matter. It keeps each constructor argument as an attribute of the same name, as dataclasses do.

    Forbidden entries come as scores of -inf, and no structure may have a one there. A row all of whose entries are forbidden
    has marginals of zero without being asked for.

    Attributes:
        ordered: the order of the entries matters, and dropping some makes neighbours of others; the shared tester of mappings
            reads it.
        has_potentials: it has scores besides those of single entries, such as those of a tag after another, and so
            :meth:`potential_scores`.
        has_nested: it has :meth:`nested`.
        couples_queries: in attention it is over all queries and keys together, and :meth:`joint_over_queries` makes it.

    Example:
        >>> import torch
        >>> class OneOf(Structure):
        ...     def maximize(self, scores, potentials=None):
        ...         return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)
        >>> from lit_sparse.mappings import SparseMAP, Sparsemax
        >>> x = torch.tensor([0.3, 0.1, -1.0])
        >>> torch.allclose(SparseMAP(OneOf())(x), Sparsemax()(x))
        True
    """

    ordered: ClassVar[bool] = False
    has_potentials: ClassVar[bool] = False
    has_nested: ClassVar[bool] = False
    couples_queries: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Forget the shortcuts of a parent whose maximization is replaced: they are for the parent's structures."""
        super().__init_subclass__(**options)
        of_parent = getattr(super(cls, cls), "maximize", None)
        if "maximize" in cls.__dict__ and not getattr(of_parent, "__isabstractmethod__", False):
            for name in ("centered", "compiled", "project", "nested", "has_nested", "topk"):
                if name not in cls.__dict__:
                    setattr(cls, name, getattr(Structure, name))

    def __repr__(self) -> str:
        """Show the constructor's arguments."""
        return f"{type(self).__name__}({shown_arguments(self)})"

    @abstractmethod
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return a structure of the largest total for each row (a MAP, maximum a posteriori).

        Args:
            scores: (B, d), finite or -inf. Treat a score of size 1e-9 or less as zero, and zero as no gain, if you can: what is
                left of a score that was met exactly is rounding.
            potentials: other scores, as given or as :meth:`batch_potentials` returns them; None where there are none.

        Returns:
            Tensor (B, d) of the scores' dtype, zeros and ones.
        """

    def topk(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best structures of each row, best first.

        Args:
            scores: (B, d).
            k: how many, at least 1.

        Returns:
            Structures (B, k', d), k' <= k, zero-padded, and how many of them each row has, int64 (B,).

        Raises:
            ConfigurationError: if no exact algorithm is known for this structure.
        """
        raise ConfigurationError(f"{type(self).__name__} has no exact k-best; bit vectors (BitVector) have.")

    @property
    def size(self) -> int | None:
        """Number of entries d; None if it is read from the scores."""
        return None

    def enumerate(self, d: int | None = None) -> Tensor:
        """Return every structure over d entries, (S, d) float64; for tests on small problems.

        By default all vectors of {0, 1}^d that :meth:`validate` accepts.

        Args:
            d: number of entries; by default :attr:`size`.

        Raises:
            ConfigurationError: if d is above 20, or not given and not known.
        """
        d = self.known_size(d)
        if d > 20:
            raise ConfigurationError(f"Expected at most 20 entries to enumerate all structures but got {d}.")
        codes = torch.arange(2**d)
        every = ((codes[:, None] >> torch.arange(d)) & 1).double()
        return every[self.validate(every)]

    def validate(self, structures: Tensor) -> Tensor:
        """Tell which vectors (..., d) of {0, 1} are structures: boolean (...). By default all of them."""
        return torch.ones(structures.shape[:-1], dtype=torch.bool, device=structures.device)

    def fits(self, structures: Tensor, allowed: Tensor) -> Tensor:
        """Tell which vectors (..., d) hold zeros and ones, and are structures whose entries may all be used: boolean (...).

        Args:
            structures: (..., d).
            allowed: boolean, broadcastable to them; False where an entry is forbidden.
        """
        bits = (structures == 0) | ((structures == 1) & allowed)
        return bits.all(-1) & self.validate(structures)

    def check(self, d: int) -> None:
        """Raise unless this structure can have d entries, or shows as many.

        Raises:
            ConfigurationError: saying what was expected.
        """
        if self.size not in (None, d):
            raise ConfigurationError(f"Expected scores of length {self.size} for {self!r} but got {d}.")

    def check_potentials(self, potentials: Tensor) -> Tensor:
        """Return potentials, as far as they can be checked without the scores.

        Raises:
            ConfigurationError: if they do not fit, or the structure has none.
        """
        if not self.has_potentials:
            raise ConfigurationError(f"{type(self).__name__} has no potentials besides its scores, but some were given.")
        return potentials

    def batch_potentials(self, potentials: Tensor, d: int) -> Tensor:
        """Return potentials with a leading dimension for the rows, of length 1 where all rows share them; check their shape.

        Args:
            potentials: as the structure documents them, or batched already.
            d: number of entries.

        Raises:
            ConfigurationError: if they do not fit, or the structure has none.
        """
        return self.check_potentials(potentials).unsqueeze(0)

    def check_call(self, scores: Tensor, potentials: Tensor | None) -> None:
        """Raise unless these can be handed to :meth:`maximize`.

        Raises:
            ConfigurationError: saying what was expected.
        """
        if scores.dim() != 2:
            raise ConfigurationError(f"Expected scores of shape (rows, entries) but got {tuple(scores.shape)}.")
        self.check(scores.shape[-1])
        if potentials is not None:
            self.check_potentials(potentials)

    def initial_potentials(self) -> Tensor:
        """Return potentials to start learning from.

        Raises:
            ConfigurationError: if the structure has none.
        """
        raise ConfigurationError(f"{type(self).__name__} has no potentials that could be learnt.")

    def potential_scores(self, structures: Tensor, potentials: Tensor) -> Tensor:
        """Return what the potentials add to each structure, linear in them and differentiable.

        Args:
            structures: (B, S, d) of {0, 1}.
            potentials: as :meth:`batch_potentials` returns them.

        Returns:
            Tensor (B, S).
        """
        raise NotImplementedError(f"{type(self).__name__} has potentials, so it must have `potential_scores`.")

    def expand_scores(self, scores: Tensor) -> Tensor:
        """Return the scores of all entries, (..., D), from those that a user gives, (..., d). By default they are the same."""
        return scores

    def centered(self, scores: Tensor) -> Tensor:
        """Return scores (..., D) less what adds the same to all structures, which would cost digits.

        Such as the largest score of a position, of whose entries each structure has exactly one. By default nothing.
        """
        return scores

    def select_entries(self, structures: Tensor) -> Tensor:
        """Return the entries that a user sees, (..., d), of all, (..., D). By default they are the same."""
        return structures

    def joint_over_queries(self, rows: int, columns: int) -> Structure | None:
        """Return the structure over all queries and keys of attention together; None if each query has one of its own."""
        return None

    def squared_norm(self, marginals: Tensor, allowed: Tensor) -> Tensor:
        """Return the squared norm (...) of all entries (..., D) from those that a user sees.

        Args:
            marginals: (..., d).
            allowed: boolean (..., d).
        """
        return marginals.square().sum(-1)

    def project(self, scores: Tensor) -> Tensor | None:
        """Return the nearest point (..., d) of the convex hull where there is a formula for it, differentiable; else None.

        Args:
            scores: (..., d), finite or -inf; entries with -inf get zero.
        """
        return None

    def nested(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distribution with these marginals whose structures contain one another, differentiable in them.

        Args:
            marginals: (..., d).

        Returns:
            Probabilities (..., S), some of which may be 0, and structures (..., S, d).
        """
        raise ConfigurationError(f"{type(self).__name__} has structures that do not contain one another.")

    def scores_from_logits(self, logits: Tensor) -> Tensor:
        """Return the scores for what an encoder gives, where 0 is undecided; by default the same."""
        return logits

    def compiled(self, potentials: Tensor | None) -> CompiledOracle | None:
        """Return what a compiled solver needs to do without :meth:`maximize`; None if there is no such thing.

        Args:
            potentials: as :meth:`batch_potentials` returns them.
        """
        return None

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances which the shared tests run, without a number of entries where it can be read from the scores."""
        return [cls()]

    def known_size(self, d: int | None) -> int:
        """Return d, or else :attr:`size`, which must not be None then."""
        d = self.size if d is None else d
        if d is None:
            raise ConfigurationError(f"Expected the number of entries, which {self!r} does not know.")
        self.check(d)
        return d


def coarse_scores(scores: Tensor) -> Tensor:
    """Return scores in whole steps, float64: what :func:`lit_sparse.kernels.oracles.coarse` does to one of them."""
    exact = scores.double()
    fine = exact.abs() < FINE
    stepped = torch.where(fine, (torch.where(fine, exact, 0.0) / STEP + 0.5).floor() * STEP, exact)
    return torch.where(exact.abs() <= TIE, 0.0, stepped)
