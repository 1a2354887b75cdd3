"""The interface of structures: sets of bit vectors whose best element for given scores can be found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checks import check_count, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import shown_arguments
from lit_sparse.kernels.oracles import FINE, STEP, TIE, CompiledOracle

__all__ = ["CountConstraint", "Structure", "as_structure", "best_by_search", "coarse_scores", "less_the_largest"]


class CountConstraint(NamedTuple):
    """Constraint that between ``least`` and ``most`` of some bits are 1, where a negated bit b counts as 1 - b.

    Within the unit cube this is the convex hull of the bit vectors with that many ones.

    Attributes:
        entries: indices of the bits.
        negated: positions in ``entries`` of the negated bits.
        least: smallest number of ones.
        most: largest number of ones.
    """

    entries: tuple[int, ...]
    negated: tuple[int, ...] = ()
    least: int = 0
    most: int = 0


class Structure(ABC):
    """Base class of structures: a finite set of binary vectors of length d, such as the tag sequences or the matchings.

    A subclass must implement only :meth:`maximize`; :class:`~lit_sparse.mappings.SparseMAP` then maps scores to a few
    structures. It keeps each constructor argument as an attribute of the same name, as dataclasses do.

    Forbidden entries have scores of -inf, and no structure may have a one there. A row whose entries are all forbidden gets
    zero marginals without a call of the structure.

    Attributes:
        ordered: whether the order of entries matters, so that dropping entries makes others adjacent; the shared tester of
            mappings reads it.
        has_potentials: whether it has scores of several entries together, such as transitions between tags, and so
            :meth:`potential_scores`.
        has_nested: whether it has :meth:`nested`.
        couples_queries: whether, in attention, a structure is over all queries and keys together;
            :meth:`joint_over_queries` returns it.

    Example:
        >>> import torch
        >>> class OneOf(Structure):
        ...     def maximize(self, scores, potentials=None):
        ...         return torch.nn.functional.one_hot(
        ...             scores.argmax(-1), scores.shape[-1]
        ...         ).to(scores.dtype)
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
        """Drop the shortcuts of the parent if maximization is overridden: they hold only for the parent's structures."""
        super().__init_subclass__(**options)
        of_parent = getattr(super(cls, cls), "maximize", None)
        if "maximize" in cls.__dict__ and not getattr(of_parent, "__isabstractmethod__", False):
            for name in ("centered", "compiled", "count_constraints", "project", "nested", "has_nested", "topk", "recall"):
                if name not in cls.__dict__:
                    setattr(cls, name, getattr(Structure, name))

    def __repr__(self) -> str:
        """Show the constructor's arguments."""
        return f"{type(self).__name__}({shown_arguments(self)})"

    @abstractmethod
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return a structure with the largest total score for each row (MAP inference, maximum a posteriori).

        Args:
            scores: (B, d), finite or -inf. If possible, treat a score of magnitude 1e-9 or less as zero, and do not
                count zero as a gain, because the solver's residuals have rounding errors of that size.
            potentials: scores of several entries together, as given or as :meth:`batch_potentials` returns them; None for
                none.

        Returns:
            Tensor (B, d) of zeros and ones, in the scores' dtype.
        """

    def recall(self, scores: Tensor) -> Tensor | None:
        """Return the best structure already known for each row, without a search; None if none is known.

        SparseMAP tries it before each call of :meth:`maximize`, which it then calls only for rows without an improvement.
        The last call for a row is always one of :meth:`maximize`, so the marginals stay exact.

        Args:
            scores: (B, d), finite or -inf; no structure may have a one where they are -inf.
        """
        return None

    def topk(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best structures of each row, best first.

        Args:
            scores: (B, d).
            k: number of structures, at least 1.

        Returns:
            Structures (B, k', d), k' <= k, zero-padded, and the number of structures of each row, int64 (B,).

        Raises:
            ConfigurationError: if no exact algorithm is known for this structure.
        """
        raise ConfigurationError(f"{type(self).__name__} has no exact k-best. Use bit vectors (BitVector).")

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
            ConfigurationError: if d is above 20, or neither given nor fixed by the structure.
        """
        d = self.known_size(d)
        if d > 20:
            raise ConfigurationError(f"Expected at most 20 entries to enumerate all structures but got {d}.")
        codes = torch.arange(2**d)
        every = ((codes[:, None] >> torch.arange(d)) & 1).double()
        return every[self.validate(every)]

    def validate(self, structures: Tensor) -> Tensor:
        """Return a mask (...) of the binary vectors (..., d) that are structures; by default all of them."""
        return torch.ones(structures.shape[:-1], dtype=torch.bool, device=structures.device)

    def fits(self, structures: Tensor, allowed: Tensor) -> Tensor:
        """Return a mask (...) of the binary vectors (..., d) that are structures without ones at forbidden entries.

        Args:
            structures: (..., d).
            allowed: boolean, broadcastable to the vectors; False for forbidden entries.
        """
        bits = (structures == 0) | ((structures == 1) & allowed)
        return bits.all(-1) & self.validate(structures)

    def check(self, d: int) -> None:
        """Raise an error unless this structure can have d entries.

        Raises:
            ConfigurationError: if it cannot; the message gives the expected number.
        """
        if self.size not in (None, d):
            raise ConfigurationError(f"Expected scores of length {self.size} for {self!r} but got {d}.")

    def check_potentials(self, potentials: Tensor) -> Tensor:
        """Return potentials after all checks that need no scores.

        Raises:
            ConfigurationError: if they do not fit, or the structure has none.
        """
        if not self.has_potentials:
            raise ConfigurationError(f"{type(self).__name__} has no potentials besides its scores but some were given.")
        return check_tensor(potentials, "potentials in a tensor of real numbers")

    def batch_potentials(self, potentials: Tensor, d: int) -> Tensor:
        """Return checked potentials with a leading dimension for the rows, of length 1 if all rows share them.

        Args:
            potentials: potentials as the structure documents them, or as this method returns them.
            d: number of entries.

        Raises:
            ConfigurationError: if they do not fit, or the structure has none.
        """
        return self.check_potentials(potentials).unsqueeze(0)

    def check_call(self, scores: Tensor, potentials: Tensor | None) -> None:
        """Raise an error unless :meth:`maximize` accepts these scores and potentials.

        Raises:
            ConfigurationError: if it does not; the message gives the expected shape.
        """
        self.check(check_tensor(scores, "scores of shape (rows, entries) in a tensor", shape=(None, None)).shape[-1])
        if potentials is not None:
            self.check_potentials(potentials)

    def initial_potentials(self) -> Tensor:
        """Return initial values of learned potentials.

        Raises:
            ConfigurationError: if the structure has none.
        """
        raise ConfigurationError(f"{type(self).__name__} has no potentials to learn.")

    def potential_scores(self, structures: Tensor, potentials: Tensor) -> Tensor:
        """Return the score that potentials add to each structure, linear in the potentials and differentiable.

        Args:
            structures: (B, S, d) of {0, 1}.
            potentials: as :meth:`batch_potentials` returns them.

        Returns:
            Tensor (B, S).
        """
        raise NotImplementedError(f"{type(self).__name__} has potentials, so it must have `potential_scores`.")

    def expand_scores(self, scores: Tensor) -> Tensor:
        """Return the scores of all entries (..., D) from the given scores (..., d); by default, they are the same."""
        return scores

    def centered(self, scores: Tensor) -> Tensor:
        """Return scores (..., D) minus a constant shared by all structures, to avoid rounding errors; by default unchanged.

        An example is the largest score of a position where each structure has exactly one entry.
        """
        return scores

    def select_entries(self, structures: Tensor) -> Tensor:
        """Return the shown entries (..., d) out of all entries (..., D); by default, they are the same."""
        return structures

    def joint_over_queries(self, rows: int, columns: int) -> Structure | None:
        """Return the structure over all queries and keys of an attention together; None if each query has its own structure."""
        return None

    def squared_norm(self, marginals: Tensor, allowed: Tensor) -> Tensor:
        """Return the squared norm (...) of all entries' marginals (..., D), given the shown entries' marginals.

        Args:
            marginals: (..., d).
            allowed: boolean (..., d).
        """
        return marginals.square().sum(-1)

    def project(self, scores: Tensor) -> Tensor | None:
        """Return the nearest point (..., d) of the convex hull in closed form, differentiable; None without a closed form.

        Args:
            scores: (..., d), finite or -inf; entries with -inf get zero.
        """
        return None

    def nested(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distribution over nested structures that has the given marginals, differentiable in them.

        Args:
            marginals: (..., d).

        Returns:
            Probabilities (..., S), some of which may be 0, and structures (..., S, d).

        Raises:
            ConfigurationError: for a structure without such a distribution.
        """
        raise ConfigurationError(f"{type(self).__name__} has structures that do not contain one another.")

    def scores_from_logits(self, logits: Tensor) -> Tensor:
        """Return the scores for an encoder's logits (..., d), of which 0 means undecided; by default the logits themselves."""
        return logits

    def compiled(self, potentials: Tensor | None) -> CompiledOracle | None:
        """Return a compiled search for the best structure, used in place of :meth:`maximize`; None without one.

        Args:
            potentials: as :meth:`batch_potentials` returns them.
        """
        return None

    def count_constraints(self, d: int) -> list[CountConstraint] | None:
        """Return the limits on numbers of ones that define the convex hull, for factor graphs; None if no such limits do.

        Args:
            d: number of entries.
        """
        return None

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, without a fixed number of entries where the structure does not need one."""
        return [cls()]

    def known_size(self, d: int | None) -> int:
        """Return the number of entries: d, or :attr:`size` if d is None.

        Raises:
            ConfigurationError: if both are None, or d is no size.
        """
        d = self.size if d is None else d
        if d is None:
            raise ConfigurationError(f"Expected the number of entries `d` for {self!r}, which does not fix it, but got None.")
        self.check(check_count("d", d, 0))
        return d


def as_structure(structure: object, such_as: str = "BitVector(32),") -> Structure:
    """Return the argument after checking that it is a structure.

    Args:
        structure: the argument to check.
        such_as: for the message, an example of a structure and the place where one is expected.

    Raises:
        ConfigurationError: if it is not a :class:`Structure`.
    """
    if isinstance(structure, Structure):
        return structure
    hint = f" Did you mean {structure.__name__}(...)?" if isinstance(structure, type) else ""
    raise ConfigurationError(f"Expected a structure, such as {such_as} but got {structure!r}.{hint}")


def best_by_search(
    structure: Structure,
    scores: Tensor,
    potentials: Tensor | None,
    search: Callable[[np.ndarray], tuple[Any, Any]],
    what: str,
    advice: str,
) -> Tensor:
    """Return the best structure of each row by a search on the CPU; an implementation of :meth:`Structure.maximize`.

    Args:
        structure: the set of structures.
        scores: (B, d).
        potentials: further scores.
        search: function of scores (B, d) float64 that returns the best structures, and which rows have one.
        what: for the message if forbidden entries leave no structure, what a structure is.
        advice: for the message, what to do then.

    Raises:
        ConfigurationError: if a row has no structure, or scores are NaN or inf.
    """
    structure.check_call(scores, potentials)
    rows: np.ndarray = coarse_scores(scores.detach()).cpu().numpy()
    if not bool((rows < np.inf).all()):
        raise ConfigurationError("Expected scores that are finite, or -inf where an entry is forbidden, but got NaN or inf.")
    chosen, found = search(rows)
    if not found.all():
        raise ConfigurationError(
            f"Expected forbidden entries that leave {what} but row {int(found.argmin())} of the batch has none. {advice}"
        )
    return torch.from_numpy(chosen).reshape(scores.shape).to(scores)


def less_the_largest(scores: Tensor) -> Tensor:
    """Return scores (..., d) minus each row's largest, a constant in the gradient; a row without finite scores is unchanged."""
    if not scores.shape[-1]:
        return scores
    largest = scores.detach().amax(-1, keepdim=True)
    return scores - torch.where(largest.isfinite(), largest, 0.0)


def coarse_scores(scores: Tensor) -> Tensor:
    """Return scores (...) in float64, rounded to multiples of a tiny step; see :func:`lit_sparse.kernels.oracles.coarse`."""
    exact = scores.double()
    fine = exact.abs() < FINE
    stepped = torch.where(fine, (torch.where(fine, exact, 0.0) / STEP + 0.5).floor() * STEP, exact)
    return torch.where(exact.abs() <= TIE, 0.0, stepped)
