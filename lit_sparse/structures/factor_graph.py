"""Factor graphs: structures over shared variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import FEATURES, ranges
from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.structures.base import CountConstraint, Structure, as_structure
from lit_sparse.structures.logic import Pair

__all__ = ["Factor", "FactorGraph", "FactorLayout", "Group", "layout_of"]


@dataclass(frozen=True)
class Factor:
    """A structure over some variables of a factor graph, or the same structure over several groups of variables.

    Args:
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        variables: indices of the variables in the order of the structure's entries, or a list of such lists, one per
            factor. ``"neighbours"`` makes one factor for each two successive variables; None is all variables.
        negated: positions in ``variables`` of variables that count as 1 - variable; for bits, logic and pairs.

    Raises:
        ConfigurationError: if an argument is invalid, or the structure cannot have that many entries.

    Example:
        >>> from lit_sparse.structures import Or
        >>> # If variable 0 is on, so are 1 and 2.
        >>> implication = Factor(Or(), [[0, 1], [0, 2]], negated=[0])
    """

    structure: Structure
    variables: list[list[int]] | list[int] | str | None = None
    negated: list[int] | tuple[int, ...] = ()

    def __post_init__(self) -> None:
        as_structure(self.structure, "Xor(), in a factor")
        variables = self.variables
        neighbours = isinstance(variables, str) and variables == "neighbours"  # an array compares its entries
        if variables is not None and not neighbours:
            object.__setattr__(self, "variables", _as_groups(variables))
        object.__setattr__(self, "negated", _as_tuple(self.negated, "negated"))
        self.check(2 if neighbours else None if variables is None else len(self.groups(0)[0]))

    def check(self, size: int | None) -> None:
        """Raise an error unless this factor can have groups of ``size`` variables, which is None if it is not known.

        Raises:
            ConfigurationError: if it cannot.
        """
        outside = [place for place in self.negated if place < 0 or (size is not None and place >= size)]
        if outside:
            last = "last place" if size is None else f"{size - 1}"
            raise ConfigurationError(f"Expected argument `negated` of {self!r} to hold places 0 .. {last} but got {outside}.")
        if size is None:
            return
        self.structure.check(size)
        if self.structure.expand_scores(torch.zeros(size)).shape[-1] != size:
            raise ConfigurationError(
                f"Expected a structure that shows all its entries but got {self.structure!r}. Give each entry a variable, as"
                " with Sequence(tags=2) over twice as many variables as positions."
            )
        if self.negated and self.structure.count_constraints(size) is None and type(self.structure) is not Pair:
            raise ConfigurationError(
                f"Expected no negated variables of {self.structure!r}, because only bits, logic and pairs can have them. Add a"
                " variable for the negation, and Xor() over both."
            )

    def groups(self, d: int) -> tuple[tuple[int, ...], ...]:
        """Return the variables of each group of this factor, in a graph of d variables."""
        if self.variables is None:
            return (tuple(range(d)),) if d else ()
        if self.variables == "neighbours":
            return tuple((i, i + 1) for i in range(d - 1))
        nested: Any = self.variables
        return nested if isinstance(nested[0], tuple) else (nested,)


def _as_tuple(values: Any, name: str) -> tuple[int, ...]:
    """Return different whole numbers as a tuple.

    Raises:
        ConfigurationError: if they are not.
    """
    if isinstance(values, str):
        raise ConfigurationError(
            f"Expected argument `{name}` of a factor to be whole numbers, or 'neighbours', but got {values!r}."
            f"{did_you_mean(values, ['neighbours'])}"
        )
    given = values if isinstance(values, list | tuple) else (values,)
    items = tuple([int(item) if isinstance(item, np.integer) else item for item in given])
    if not all(type(item) is int for item in items) or len(set(items)) < len(items):
        raise ConfigurationError(f"Expected argument `{name}` of a factor to hold different whole numbers but got {values!r}.")
    return items


def _as_groups(variables: Any) -> Any:
    """Return a tuple of numbers, or a tuple of tuples of the same length."""
    nested = isinstance(variables, list | tuple) and len(variables) > 0 and isinstance(variables[0], list | tuple)
    if not nested:
        groups: Any = _as_tuple(variables, "variables")
        found = (groups,)
    else:
        found = groups = tuple(_as_tuple(group, "variables") for group in variables)
    if not found[0] or len({len(group) for group in found}) > 1 or min(map(min, found)) < 0:
        raise ConfigurationError(
            "Expected argument `variables` of a factor to be a list of variables, numbered from 0, or several such lists of"
            f" equal length, 'neighbours' or None but got {variables!r}."
        )
    return groups


@ranges(variables=FEATURES)
@dataclass(frozen=True)
class FactorGraph:
    """Factor graph over shared binary variables: a binary vector must satisfy the structure of every factor at once.

    :class:`~lit_sparse.mappings.LPSparseMAP` maps scores of the variables to marginals. A variable without any factor is
    free in [0, 1]. A masked variable is 0; a factor whose variables are all masked is left out.

    Args:
        variables: number of variables d; None to read it from the scores.
        factors: structures and the variables they apply to.

    Raises:
        ConfigurationError: if there is no factor, or one has a variable that the graph does not have.

    Example:
        >>> from lit_sparse.structures import Budget, Pair
        >>> # A chain, and at most 2 ones.
        >>> factors = [Factor(Pair(), "neighbours"), Factor(Budget(None, 2))]
        >>> graph = FactorGraph(5, factors)
        >>> graph.potential_counts(5)  # one score for each pair, or one for all
        (4, 1)
    """

    variables: int | None
    factors: list[Factor]

    def __post_init__(self) -> None:
        given: Any = self.factors
        if not isinstance(given, list | tuple) or not given or not all(isinstance(factor, Factor) for factor in given):
            raise ConfigurationError(
                f"Expected argument `factors` to be a list of at least one Factor but got {given!r}. Write"
                " Factor(Pair()) for a structure over all variables, and Factor(Pair(), [0, 1]) for one over some."
            )
        object.__setattr__(self, "factors", tuple(given))
        if self.variables is not None:
            layout_of(self, self.variables)

    @property
    def ordered(self) -> bool:
        """Whether the order of the variables matters when their number is read from the scores."""
        return any(factor.variables == "neighbours" or factor.structure.ordered for factor in self.factors)

    def check(self, d: int) -> None:
        """Raise an error unless this graph can have d variables.

        Raises:
            ConfigurationError: if it cannot; the message gives the expected number.
        """
        if self.variables not in (None, d):
            raise ConfigurationError(f"Expected scores of length {self.variables}, one for each variable, but got {d}.")
        layout_of(self, d)

    def potential_counts(self, d: int) -> tuple[int, int]:
        """Return the numbers of potentials in a graph of d variables: one for each group of variables, one for each factor."""
        layout = layout_of(self, d)
        return len(layout.tied), layout.kinds

    def tied_index(self, d: int) -> Tensor:
        """Return, for each potential of a group of variables, the index of its factor's potential, int64 (P,)."""
        return torch.tensor(layout_of(self, d).tied, dtype=torch.int64)

    def initial_potentials(self) -> Tensor:
        """Return initial values of learned potentials: zeros, one for each factor's potential.

        Raises:
            ConfigurationError: if no factor has potentials.
        """
        structures = [factor.structure for factor in self.factors if factor.structure.has_potentials]
        if not structures:
            raise ConfigurationError(
                "Expected a factor with potentials to learn, such as Factor(Pair(), [0, 1]), but got none."
            )
        if self.variables is not None:
            return torch.zeros(self.potential_counts(self.variables)[0])
        return torch.zeros(sum(structure.initial_potentials().numel() for structure in structures))


class Group(NamedTuple):
    """The m factors of a graph that have the same kind and size k, as arrays.

    Attributes:
        variables: int64 (m, k), the variables of each factor.
        negated: boolean (m, k), which variables are negated.
        limits: int64 (m, 2), smallest and largest number of ones; for count constraints only.
        structure: their structure; None for count constraints.
        slots: int64 (m, p), indices of each factor's potentials.
        names: for messages, index of each factor in the graph's list; -1 for free variables.
    """

    variables: Tensor
    negated: Tensor
    limits: Tensor
    structure: Structure | None
    slots: Tensor
    names: tuple[int, ...]


class FactorLayout(NamedTuple):
    """A factor graph with a known number of variables, as arrays.

    Attributes:
        groups: factors of one kind and size each.
        tied: for each potential of a group of variables, the index of its factor's potential.
        kinds: number of the factors' potentials.
    """

    groups: tuple[Group, ...]
    tied: tuple[int, ...]
    kinds: int


@lru_cache(maxsize=64)
def layout_of(graph: FactorGraph, d: int) -> FactorLayout:
    """Return a factor graph with d variables as arrays.

    Raises:
        ConfigurationError: if a factor has a variable that does not exist, or a structure that a graph cannot use.
    """
    limits: dict[int, list[tuple[CountConstraint, int]]] = {}
    groups: list[Group] = []
    tied: list[int] = []
    covered: set[int] = set()
    kinds = 0
    for number, factor in enumerate(graph.factors):
        members = factor.groups(d)
        outside = sorted({variable for group in members for variable in group if variable >= d})
        if outside:
            raise ConfigurationError(f"Expected variables 0 .. {d - 1} in {factor!r} but got {outside} for {d} variables.")
        slots = factor.structure.initial_potentials().numel() if factor.structure.has_potentials else 0
        tied += [kinds + j for _ in members for j in range(slots)]
        kinds += slots
        if not members:
            continue
        covered.update(*members)
        size = len(members[0])
        factor.check(size)
        counts = factor.structure.count_constraints(size)
        if counts is not None:
            for group in members:
                for count in counts:
                    limits.setdefault(len(count.entries), []).append((_over(count, group, tuple(factor.negated)), number))
            continue
        places = torch.arange(len(tied) - slots * len(members), len(tied)).reshape(len(members), slots)
        flips = torch.zeros(len(members), size, dtype=torch.bool)
        flips[:, list(factor.negated)] = True
        nothing = torch.zeros(len(members), 2, dtype=torch.int64)
        names = (number,) * len(members)
        groups.append(Group(torch.tensor(members), flips, nothing, factor.structure, places, names))
    free = [CountConstraint((i,), most=1) for i in range(d) if i not in covered]
    if free:
        limits.setdefault(1, []).extend((count, -1) for count in free)
    return FactorLayout((*_count_groups(limits), *groups), tuple(tied), kinds)


def _over(count: CountConstraint, group: tuple[int, ...], negated: tuple[int, ...]) -> CountConstraint:
    """Return a limit on entries of a structure as a limit on variables of the graph."""
    flips = tuple(j for j, entry in enumerate(count.entries) if (j in count.negated) != (entry in negated))
    return CountConstraint(tuple(group[entry] for entry in count.entries), flips, count.least, count.most)


def _count_groups(limits: dict[int, list[tuple[CountConstraint, int]]]) -> list[Group]:
    groups = []
    for size, counts in limits.items():
        flips = torch.zeros(len(counts), size, dtype=torch.bool)
        for row, (count, _) in zip(flips, counts, strict=True):
            row[list(count.negated)] = True
        index = torch.tensor([count.entries for count, _ in counts])
        bounds = torch.tensor([[count.least, min(count.most, size)] for count, _ in counts])
        slots = torch.zeros(len(counts), 0, dtype=torch.int64)
        groups.append(Group(index, flips, bounds, None, slots, tuple(number for _, number in counts)))
    return groups
