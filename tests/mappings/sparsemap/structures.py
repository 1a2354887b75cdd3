"""Small structures, problems over them, and a second way to solve these: what the tests of SparseMAP have in common."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_sparse.mappings import functional as F
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree

STRUCTURES = [
    BitVector(5),
    Budget(6, 2),
    Budget(5, 0),
    Sequence(3, tags=2),
    Sequence(3, tags=3),
    Assignment(3, 3),
    Assignment(2, 4),
    Tree(3),
    Tree(3, single_root=False),
]

WITH_LINKS = [(structure, False) for structure in STRUCTURES] + [(s, True) for s in STRUCTURES if s.has_potentials]


@dataclass(frozen=True)
class Plain(Structure):
    """A structure as a user would write it: nothing but its maximization, without a compiled oracle."""

    of: Structure

    @property
    def has_potentials(self) -> bool:  # type: ignore[override]
        return self.of.has_potentials

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return self.of.maximize(scores, potentials)

    def batch_potentials(self, potentials: Tensor, d: int) -> Tensor:
        return self.of.batch_potentials(potentials, d)

    def potential_scores(self, structures: Tensor, potentials: Tensor) -> Tensor:
        return self.of.potential_scores(structures, potentials)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def links_for(structure: Structure, seed: int = 0, per_position: bool = False) -> Tensor | None:
    if not isinstance(structure, Sequence):
        return None
    shape = (int(structure.length or 2) - 1, structure.tags, structure.tags)
    return draw(*(shape if per_position else shape[1:]), seed=seed + 100)


def best_of_all(structure: Structure, x: Tensor, links: Tensor | None, gamma: float = 1.0) -> Tensor:
    """Marginals (B, d) by projected gradient steps on the probabilities of every structure, with momentum."""
    every = structure.enumerate(x.shape[-1])
    extra = torch.zeros(len(x), len(every), dtype=x.dtype)
    if links is not None:
        arranged = structure.batch_potentials(links, x.shape[-1]).expand(len(x), -1, -1, -1)
        extra = structure.potential_scores(every.expand(len(x), *every.shape), arranged)
    step = 1.0 / (gamma * torch.linalg.matrix_norm(every, 2).clamp_min(1.0) ** 2)
    xi = torch.full_like(extra, 1 / len(every))
    ahead, t = xi, 1.0
    for _ in range(20_000):
        slope = (x - gamma * ahead @ every) @ every.T + extra
        new = F.sparsemax(ahead + step * slope)
        t, old = 0.5 * (1 + (1 + 4 * t * t) ** 0.5), t
        restart = ((ahead - new) * (new - xi)).sum(-1, keepdim=True) > 0
        ahead = torch.where(restart, new, new + (old - 1) / t * (new - xi))
        if float((new - xi).abs().max()) < 1e-13:
            break
        xi = new
    return xi @ every
