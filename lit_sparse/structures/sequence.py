"""Sequences of tags with transition scores: a linear chain."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, Count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels.oracles import SEQUENCE, TIE, CompiledOracle
from lit_sparse.structures.one_per_row import OnePerRow

__all__ = ["Sequence"]


@ranges(length=Count(), tags=FEATURES)
@dataclass(frozen=True)
class Sequence(OnePerRow):
    """Structure of tag sequences: one tag at each position, with optional transition scores (a linear chain).

    Scores are position-major, (..., length * tags), and so are the one-hot tags.

    A position whose tags are all forbidden (-inf, or masked) is left out, and its neighbours become adjacent; padding is
    masked this way. Potentials are transition scores [from, to]: (tags, tags) for all positions, or (length - 1, tags,
    tags). Leading dimensions give each row its own, as in (B, 1, tags, tags). The potentials of position i link it to the
    last position before it that is not left out. They must be finite: a large negative number forbids a pair.

    Args:
        length: number of positions; None to read it from the scores.
        tags: number of tags.
        select: index of the only tag that is shown, for attention. Scores (..., length) are then this tag's, all other tags
            have score 0, and marginals (..., length) are between 0 and 1 and need not sum to one.

    Raises:
        ConfigurationError: if ``length`` or ``tags`` is not an integer >= 1, or ``select`` is not in 0 .. tags - 1.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[1.0, 0.0, 0.4, 0.5]])  # two positions, two tags
        >>> Sequence(tags=2).maximize(scores).tolist()
        [[1.0, 0.0, 0.0, 1.0]]
        >>> Sequence(tags=2).maximize(
        ...     scores, torch.tensor([[0.2, 0.0], [0.0, 0.2]])
        ... ).tolist()
        [[1.0, 0.0, 1.0, 0.0]]
    """

    ordered: ClassVar[bool] = True
    has_potentials: ClassVar[bool] = True

    length: int | None = None
    tags: int = 2
    select: int | None = None

    def __post_init__(self) -> None:
        if self.select is not None and (type(self.select) is not int or not 0 <= self.select < self.tags):
            raise ConfigurationError(
                f"Expected argument `select` to be an integer in 0 .. {self.tags - 1} or None but got {self.select!r}."
            )

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: some for attention, and some that show all tags."""
        return [cls(select=1), cls(tags=3, select=0), cls(), cls(tags=3)]

    @property
    def size(self) -> int | None:
        """Number of entries: positions times tags, or positions with ``select``; None if it is read from the scores."""
        return None if self.length is None else self.length * self.tags

    @override
    def check(self, d: int) -> None:
        if self.select is None:
            self.shape(d)
        elif self.length not in (None, d):
            raise ConfigurationError(
                f"Expected scores for length={self.length} times one tag, select={self.select}, but got {d}."
            )

    @override
    def shape(self, d: int) -> tuple[int, int]:
        length, rest = d // self.tags, d % self.tags  # divmod knows no sizes that torch.jit.trace records
        if rest or self.length not in (None, length):
            lengths = "any number of positions" if self.length is None else f"length={self.length}"
            raise ConfigurationError(f"Expected scores for {lengths} times tags={self.tags} but got {d}.")
        return length, self.tags

    def batch_potentials(self, potentials: Tensor, d: int) -> Tensor:
        """Return checked transition scores as (rows or 1, length - 1 or 1, tags, tags).

        Raises:
            ConfigurationError: for potentials of another shape.
        """
        self.check_potentials(potentials)
        square, links = (self.tags, self.tags), max(d // self.tags - 1, 0)
        given = tuple(potentials.shape)
        if len(given) > 2 and given[-3] not in (1, links):
            raise ConfigurationError(
                f"Expected potentials [from, to] of shape {square}, or {(links, *square)} for {links + 1} positions, or with"
                f" the rows' dimensions before that, but got {given}."
            )
        return potentials.reshape(math.prod(given[:-3]), 1 if len(given) == 2 else given[-3], *square)

    @override
    def check_potentials(self, potentials: Tensor) -> Tensor:
        super().check_potentials(potentials)
        if potentials.dim() < 2 or tuple(potentials.shape[-2:]) != (self.tags, self.tags):
            raise ConfigurationError(
                f"Expected potentials [from, to] of shape {(self.tags, self.tags)}, or with the links' and the rows' dimensions"
                f" before that, but got {tuple(potentials.shape)}."
            )
        if potentials.is_cpu and bool((potentials.detach() == -torch.inf).any()):  # on a GPU this would synchronize
            raise ConfigurationError(
                "Expected finite potentials but got -inf. Forbid a pair of tags by a large negative number, such as -1e4."
            )
        return potentials

    def expand_scores(self, scores: Tensor) -> Tensor:
        """Return the scores of all tags (..., length * tags), zero except for the selected tag's and forbidden positions."""
        if self.select is None:
            return scores
        others = torch.where(scores == -torch.inf, scores, torch.zeros_like(scores))
        columns = [scores if tag == self.select else others for tag in range(self.tags)]
        return torch.stack(columns, -1).flatten(-2)

    def select_entries(self, structures: Tensor) -> Tensor:
        """Return the entries (..., length) of the selected tag, or all entries (..., length * tags) without ``select``."""
        return structures if self.select is None else structures[..., self.select :: self.tags]

    @override
    def squared_norm(self, marginals: Tensor, allowed: Tensor) -> Tensor:
        shown = super().squared_norm(marginals, allowed)
        if self.select is None or self.tags == 1:
            return shown
        return shown + torch.where(allowed, (1 - marginals).square(), 0.0).sum(-1) / (self.tags - 1)

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the best tag sequence for each row of scores, by Viterbi's algorithm; ties go to the lowest tag.

        Args:
            scores: (B, length * tags).
            potentials: transition scores; None for zeros.
        """
        grid = self.grid(scores)
        links = scores.new_zeros(1, 1, self.tags, self.tags)
        if potentials is not None:
            links = self.batch_potentials(potentials, scores.shape[-1]).to(scores.dtype)
        if len(links) not in (1, len(scores)):
            raise ConfigurationError(f"Expected potentials for {len(scores)} rows, or shared ones, but got {len(links)}.")
        rows, length = grid.shape[:2]
        if length == 0:
            return torch.zeros_like(scores)
        present = (grid != -torch.inf).any(-1)
        best = torch.where(present[:, 0, None], grid[:, 0], 0.0)
        started = present[:, 0]
        origins = []
        for i in range(1, length):
            most, origin = _first_best((best.unsqueeze(-1) + links[:, min(i, links.shape[1]) - 1]).transpose(-1, -2))
            most = torch.where(started.unsqueeze(-1), most, 0.0) + grid[:, i]
            best = torch.where(present[:, i, None], most, best)
            origins.append(torch.where(present[:, i, None], origin, torch.arange(self.tags, device=scores.device)))
            started = started | present[:, i]
        tag = _first_best(best)[1]
        chosen = torch.zeros_like(grid)
        every = torch.arange(rows, device=scores.device)
        for i in range(length - 1, -1, -1):
            chosen[every, i, tag] = present[:, i].to(scores.dtype)
            if i:
                tag = origins[i - 1][every, tag]
        return chosen.flatten(-2)

    def enumerate(self, d: int | None = None) -> Tensor:
        """Return all tag sequences over d entries, (S, d) float64, none with positions left out.

        Raises:
            ConfigurationError: if d is neither given nor fixed by the structure, is not its size or a multiple of its tags, or
                there are too many sequences.
        """
        d = self.size if d is None else d
        if not isinstance(d, int) or d < 0 or d % self.tags or self.size not in (None, d):
            raise ConfigurationError(f"Expected the number of entries `d` for {self!r}, positions times tags, but got {d!r}.")
        length = d // self.tags
        return self.marked(itertools.product(range(self.tags), repeat=length), self.tags**length, self.tags)

    def initial_potentials(self) -> Tensor:
        """Return initial values of learned transition scores: zeros (tags, tags)."""
        return torch.zeros(self.tags, self.tags)

    def potential_scores(self, structures: Tensor, potentials: Tensor) -> Tensor:
        """Return the sum of the transition scores of each structure (B, S); see the base class."""
        grid = self.grid(structures)
        length = grid.shape[-2]
        before = grid.clone()  # for each position its tag, or the tag of the last position before it
        for i in range(1, length):
            before[:, :, i] = torch.where(grid[:, :, i].sum(-1, keepdim=True) > 0, grid[:, :, i], before[:, :, i - 1])
        links = potentials.to(grid.dtype).expand(len(grid), max(length - 1, 0), -1, -1)
        return torch.einsum("bsia,biac,bsic->bs", before[:, :, :-1], links, grid[:, :, 1:])

    @override
    def compiled(self, potentials: Tensor | None) -> CompiledOracle:
        return CompiledOracle(SEQUENCE, tags=self.tags, links=potentials)


def _first_best(totals: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum over the last dimension, and the first index within rounding of it."""
    most = totals.amax(-1, keepdim=True)
    near = totals >= torch.where(most.isinf(), most, most - TIE)
    return most.squeeze(-1), near.to(torch.uint8).argmax(-1)
