"""The nearest points of single factors, with the faces of the convex hulls on which they lie."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_sparse.mappings.lp_sparsemap.kernel import Factors
from lit_sparse.mappings.lp_sparsemap.projections import project_counts, project_pairs
from lit_sparse.mappings.sparsemap.solver import StructureProblem, on_support, potential_counts
from lit_sparse.structures import FactorGraph, Pair
from lit_sparse.structures.factor_graph import Group, layout_of

__all__ = ["Faces", "Local", "local_of"]

#: Accuracy of the active-set method within a factor; its oracles take residuals up to 1e-9 as zero.
TOL, MAX_ITER = 1e-9, 1000
#: Copies of variables that are as near to 0 or 1 differ from it by rounding: where limits of several factors just meet.
ROUNDING = 1e-8


class Faces(NamedTuple):
    """Nearest points of all factors for a batch of B rows, E entries in total, with the faces they lie on.

    Attributes:
        points: (B, E), the nearest points.
        normals: for each group of m factors of size k, (B, m, k, k), the identity minus the Jacobian of the nearest
            point.
        counts: (B, P), expected count of each potential.
        slopes: for each group with potentials (B, m, p, k), derivatives of the counts with respect to the points.
    """

    points: Tensor
    normals: list[Tensor]
    counts: Tensor
    slopes: list[Tensor]


class Local:
    """The factors of a graph of d variables on a device, grouped by kind and size.

    Attributes:
        groups: factors of one kind and size each.
        index: int64 (E,), the variable of each entry of each factor.
        block_index: int64, the place in a flattened (d, d) matrix of each entry of each factor's matrix.
        exact: whether each factor's nearest point has a formula.
        packed: the factors for the compiled solver, if they are exact and on the CPU; else None.
        order: int64 (P,), index of each potential's count in the concatenated counts of all groups.
    """

    def __init__(self, graph: FactorGraph, d: int, device: torch.device) -> None:
        self.groups = [_moved(group, device) for group in layout_of(graph, d).groups]
        self.index = torch.cat([group.variables.flatten() for group in self.groups])
        pairs = [(group.variables.unsqueeze(-1) * d + group.variables.unsqueeze(-2)).flatten() for group in self.groups]
        self.block_index = torch.cat(pairs)
        self.order = torch.cat([group.slots.flatten() for group in self.groups]).argsort()
        self.d = d
        self.exact = all(group.structure is None or type(group.structure) is Pair for group in self.groups)
        self.packed = _packed(self.groups) if self.exact and device.type == "cpu" else None

    def solve(self, z: Tensor, potentials: Tensor, *, sloped: bool = False) -> Faces:
        """Return, for each factor, the point u that maximizes ``<u, z> - 1/2 ||u||^2 + <counts(u), potentials>``.

        Args:
            z: float64 (B, E), scores of the factors' entries; -inf where an entry is forbidden.
            potentials: float64 (B, P), scores of the counts.
            sloped: whether to compute the derivatives of the counts (``slopes``) for factors that are structures; their slopes
                are zero otherwise.
        """
        points, normals, counts, slopes = [], [], [], []
        for group, mine in self._parts(z):
            links = potentials[:, group.slots]
            if group.structure is not None and type(group.structure) is not Pair:
                u, normal, count, slope = self._structures(group, mine, links, sloped)
            else:
                mine = torch.where(group.negated, 1.0 - mine, mine)
                if group.structure is None:
                    u, normal = project_counts(mine, group.limits[:, 0], group.limits[:, 1])
                    count, slope = mine.new_zeros(*mine.shape[:2], 0), mine.new_zeros(*mine.shape[:2], 0, mine.shape[-1])
                else:
                    u, normal, both, gradient = project_pairs(mine, links.squeeze(-1))
                    count, slope = both.unsqueeze(-1), gradient.unsqueeze(-2)
                sign = torch.where(group.negated, -1.0, 1.0).to(z.dtype)
                u = torch.where(group.negated, 1.0 - u, u)
                normal, slope = normal * sign.unsqueeze(-1) * sign.unsqueeze(-2), slope * sign.unsqueeze(-2)
            points.append(u.flatten(1))
            normals.append(normal)
            counts.append(count.flatten(1))
            slopes.append(slope)
        return Faces(torch.cat(points, -1), normals, torch.cat(counts, -1)[:, self.order], slopes)

    def _structures(self, group: Group, z: Tensor, links: Tensor, sloped: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve factors (B, m, k) by the active-set method."""
        structure = group.structure
        assert structure is not None
        batch, k = z.shape[:2], z.shape[-1]
        rows = structure.centered(z.flatten(0, 1))
        shared = None
        if links.shape[-1]:
            shape = structure.batch_potentials(structure.initial_potentials(), k).shape[1:]
            shared = links.reshape(len(rows), *shape).contiguous()
        problem = StructureProblem(structure, None, MAX_ITER, TOL, _ignore)
        points, probs, structures, sizes, _ = problem.solve(rows, shared)
        support = structures.double()
        change = on_support(support, sizes, support)  # (rows, S, k): Q A, of which A^T is on the left in the derivative
        normal = torch.eye(k, dtype=z.dtype, device=z.device) - support.mT @ change
        count, slope = z.new_zeros(len(rows), 0), z.new_zeros(len(rows), links.shape[-1], k)
        if shared is not None:
            count = potential_counts(structure, support, shared, probs).flatten(1)
        if shared is not None and sloped:
            columns = [potential_counts(structure, support, shared, change[..., j]).flatten(1) for j in range(k)]
            slope = torch.stack(columns, -1)
        return (
            points.reshape(z.shape),
            normal.reshape(*batch, *normal.shape[1:]),
            count.reshape(*batch, *count.shape[1:]),
            slope.reshape(*batch, *slope.shape[1:]),
        )

    def fits(self, bits: Tensor, allowed: Tensor) -> Tensor:
        """Return a mask (B,) of the binary vectors (B, d) that satisfy all factors, with zeros where ``allowed`` is False."""
        good = (((bits == 0) | (bits == 1)) & (allowed | (bits == 0))).all(-1)
        for group in self.groups:
            literals = torch.where(group.negated, 1 - bits[:, group.variables], bits[:, group.variables])
            if group.structure is None:
                total = literals.sum(-1)
                valid = (total >= group.limits[:, 0]) & (total <= group.limits[:, 1])
            else:
                valid = group.structure.fits(literals, allowed[:, group.variables] | group.negated)
            good = good & (valid | ~allowed[:, group.variables].any(-1)).all(-1)
        return good

    def totals(self, bits: Tensor, potentials: Tensor) -> Tensor:
        """Return (B,), the scores that the potentials (B, P) add to binary vectors (B, d) that satisfy all factors."""
        total = potentials.new_zeros(len(bits))
        for group in self.groups:
            if group.structure is not None and group.slots.shape[-1]:
                k = group.variables.shape[-1]
                literals = torch.where(group.negated, 1 - bits[:, group.variables], bits[:, group.variables])
                shape = group.structure.batch_potentials(group.structure.initial_potentials(), k).shape[1:]
                links = potentials[:, group.slots].reshape(-1, *shape)
                scores = group.structure.potential_scores(literals.reshape(-1, 1, k), links)
                total = total + scores.reshape(len(bits), -1).sum(-1)
        return total

    def _parts(self, entries: Tensor) -> list[tuple[Group, Tensor]]:
        """Return each group with its entries (B, m, k), of all entries (B, E)."""
        parts = torch.split(entries, [group.variables.numel() for group in self.groups], -1)
        pairs = zip(self.groups, parts, strict=True)
        return [(group, part.reshape(-1, *group.variables.shape)) for group, part in pairs]

    def gather(self, variables: Tensor) -> Tensor:
        """Return the values (B, E) of the variables (B, d) at the factors' entries."""
        return variables[:, self.index]

    def scatter(self, entries: Tensor) -> Tensor:
        """Return (B, d), for each variable the sum of its entries (B, E) in the factors."""
        return entries.new_zeros(len(entries), self.d).scatter_add_(1, self.index.expand_as(entries), entries)

    def pull(self, slopes: list[Tensor], counts: Tensor) -> Tensor:
        """Return the entries' changes (B, E) for changes of the counts (B, P), by the transposed derivative of the counts."""
        parts = [
            torch.einsum("bmp,bmpk->bmk", counts[:, group.slots], slope).flatten(1)
            for group, slope in zip(self.groups, slopes, strict=True)
        ]
        return torch.cat(parts, -1)

    def push(self, slopes: list[Tensor], entries: Tensor) -> Tensor:
        """Return (B, P), the changes of the counts for changes (B, E) of the entries."""
        pairs = zip(slopes, self._parts(entries), strict=True)
        parts = [torch.einsum("bmpk,bmk->bmp", slope, part).flatten(1) for slope, (_, part) in pairs]
        return torch.cat(parts, -1)[:, self.order]

    def snap(self, variables: Tensor, points: Tensor, open_: Tensor) -> Tensor:
        """Return variables (B, d) set to exactly 0 or 1 where a factor's copy (B, E) of them is 0 or 1 up to rounding."""
        zero = self.scatter((open_ & (points <= ROUNDING)).to(variables.dtype)) > 0
        one = self.scatter((open_ & (points >= 1 - ROUNDING)).to(variables.dtype)) > 0
        return torch.where(zero, 0.0, torch.where(one, 1.0, variables))

    def matrix(self, normals: list[Tensor]) -> Tensor:
        """Return (B, d, d), the sum over factors of the matrices in ``normals``, each at its variables' rows and columns."""
        blocks = torch.cat([normal.flatten(1) for normal in normals], -1)
        flat = blocks.new_zeros(len(blocks), self.d * self.d)
        return flat.scatter_add_(1, self.block_index.expand_as(blocks), blocks).view(-1, self.d, self.d)


@lru_cache(maxsize=64)
def local_of(graph: FactorGraph, d: int, device: torch.device) -> Local:
    """Return the factors of a graph of d variables on a device."""
    return Local(graph, d, device)


def _packed(groups: list[Group]) -> Factors:
    """Return the factors for the compiled solver."""
    sizes = [group.variables.shape[1] for group in groups for _ in group.names]
    pair = [group.slots[:, 0] if group.structure is not None else torch.full((len(group.names),), -1) for group in groups]
    return Factors(
        np.cumsum([0, *sizes]),
        torch.cat([group.limits for group in groups]).double().numpy(),
        torch.cat(pair).numpy(),
        torch.cat([group.variables.flatten() for group in groups]).numpy(),
        torch.cat([group.negated.flatten() for group in groups]).to(torch.uint8).numpy(),
    )


def _ignore(text: str) -> None:
    """Drop the warning of an active set without an end: the residual of the graph tells."""


def _moved(group: Group, device: torch.device) -> Group:
    tensors: Any = {name: part.to(device) for name, part in group._asdict().items() if isinstance(part, Tensor)}
    return group._replace(**tensors)
